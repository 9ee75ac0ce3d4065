//! The files of flight records in a run folder.

use std::fs;
use std::path::Path;

use crate::topology::Rank;

/// The folder of flight records in a run folder.
pub const FLIGHT: &str = "flight";

/// In it: a line for each rank, see `RankProcess` in `runner/flight.rs`.
pub const PROCESSES: &str = "processes.jsonl";

/// The file of a rank's record.
pub fn record_of(rank: Rank) -> String {
    format!("rank{rank}.json")
}

/// Removes the records of an earlier attempt from a run folder, and nothing else: a folder of that name may be somebody's own.
pub fn clear(folder: &Path) {
    let own = folder.join(FLIGHT);
    let is_record = |name: &str| {
        let rank = name.strip_prefix("rank").and_then(|rest| rest.strip_suffix(".json"));
        name == PROCESSES || rank.is_some_and(|rank| rank.parse::<u32>().is_ok())
    };
    for entry in fs::read_dir(&own).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_record) {
            // What stays is written over.
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(own);
}
