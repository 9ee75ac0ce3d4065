//! The ranks of a run as they are found on this machine: asked for their flight records, and their processes looked at.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;

use super::standstill::{Found, Process};
use crate::files;
use crate::runner::flight::{MOST_OF_RECORD, RankFlight, RankProcess, stat_fields, this_machine};
use crate::runner::run_folder::flights::{FLIGHT, PROCESSES, record_of};
use crate::topology::Rank;

/// How long ranks may take to write their records.
const PATIENCE: Duration = Duration::from_millis(1_200);

/// Between two looks at whether they have.
const LOOK: Duration = Duration::from_millis(10);

/// What was found, and what a person has to do for the rest.
pub struct Looked {
    pub ranks: Vec<Found>,
    /// Room on the disk of the run folder.
    pub free_bytes: Option<u64>,
    /// Ranks on other machines, whose records are not here.
    pub elsewhere: Vec<RankProcess>,
}

/// Looks at the ranks of the run in `folder`; has those of this machine write what they did last.
pub fn look(folder: &Path, world_size: usize) -> Looked {
    let processes = processes(folder, world_size);
    let here = this_machine();
    let on_this_machine: Vec<&RankProcess> = processes.iter().filter(|of| of.machine == here).collect();
    let before: Vec<Option<u64>> = on_this_machine.iter().map(|of| written(folder, of.rank)).collect();
    let states: Vec<State> = on_this_machine.iter().map(|of| State::of(of)).collect();
    for (of, state) in on_this_machine.iter().zip(&states) {
        if state.is_asked() {
            let _ = kill(Pid::from_raw(of.pid), Signal::SIGUSR1);
        }
    }
    let asked = Instant::now();
    let has_answered =
        |at: usize| !states[at].is_asked() || written(folder, on_this_machine[at].rank) != before[at];
    while asked.elapsed() < PATIENCE && !(0..on_this_machine.len()).all(has_answered) {
        thread::sleep(LOOK);
    }
    let mut ranks: Vec<Found> = Vec::new();
    for of in &processes {
        let process = match on_this_machine.iter().position(|here| here.rank == of.rank) {
            None => Process::Elsewhere,
            Some(at) => match (&states[at], State::of(of)) {
                (State::Gone, _) | (_, State::Gone) => Process::Gone,
                (State::Stopped, _) => Process::Stopped,
                // One that computes meanwhile has not come to it, on a busy machine.
                (State::Is(_, before), State::Is(state, now)) if !has_answered(at) && now == *before => {
                    Process::Silent { state }
                }
                _ => Process::Runs,
            },
        };
        ranks.push(Found { rank: of.rank, role: of.role.clone(), process, flight: record(folder, of.rank) });
    }
    let elsewhere = processes.into_iter().filter(|of| of.machine != here).collect();
    let room = statvfs(folder).ok().map(|disk| disk.blocks_available() * disk.fragment_size());
    Looked { ranks, free_bytes: room, elsewhere }
}

/// The last that each rank has said of itself.
fn processes(folder: &Path, world_size: usize) -> Vec<RankProcess> {
    let text = bounded(&folder.join(FLIGHT).join(PROCESSES)).unwrap_or_default();
    let lines = String::from_utf8_lossy(&text).into_owned();
    let mut found: Vec<RankProcess> =
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    found.retain(|of| of.rank.index() < world_size);
    found.reverse();
    found.sort_by_key(|of| of.rank);
    found.dedup_by_key(|of| of.rank);
    found
}

enum State {
    /// As proc(5) has it, with the processor time that it has taken so far, in ticks.
    Is(char, u64),
    /// It would write its record when it goes on, for nobody.
    Stopped,
    Gone,
}

impl State {
    fn of(process: &RankProcess) -> State {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
        let fields = stat_fields(&stat).unwrap_or_default();
        let is_the_same = fields.get(19).and_then(|ticks| ticks.parse().ok()) == Some(process.started);
        match fields.first().and_then(|state| state.chars().next()) {
            Some('T' | 't') if is_the_same => State::Stopped,
            Some(state) if is_the_same && !matches!(state, 'Z' | 'X') && awaits_usr1(process.pid) => {
                let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
                State::Is(state, [11, 12].into_iter().filter_map(ticks).sum())
            }
            _ => State::Gone,
        }
    }

    /// To write its record.
    fn is_asked(&self) -> bool {
        matches!(self, State::Is(..))
    }
}

/// Ranks block SIGUSR1, and a thread waits for it. A process that does not is no rank, whatever stands in the folder of somebody
/// else's run: the signal would end it.
fn awaits_usr1(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    blocked & (1 << (Signal::SIGUSR1 as i32 - 1)) != 0
}

/// When a record was written.
fn written(folder: &Path, rank: Rank) -> Option<u64> {
    record(folder, rank).map(|record| record.written_ms)
}

fn record(folder: &Path, rank: Rank) -> Option<RankFlight> {
    let bytes = bounded(&folder.join(FLIGHT).join(record_of(rank)))?;
    serde_json::from_slice(&bytes).ok()
}

fn bounded(path: &Path) -> Option<Vec<u8>> {
    files::read_at_most(path, MOST_OF_RECORD).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::flight::started;

    /// Signalled, it would be gone.
    #[test]
    fn a_process_that_is_no_rank_is_not_signalled_because_a_folder_names_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FLIGHT)).unwrap();
        let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = other.id().cast_signed();
        let process = RankProcess {
            rank: Rank(0),
            role: "server".into(),
            host: "here".into(),
            machine: this_machine(),
            pid,
            started: started(pid).unwrap(),
        };
        let line = serde_json::to_string(&process).unwrap() + "\n";
        fs::write(folder.path().join(FLIGHT).join(PROCESSES), line).unwrap();
        let looked = look(folder.path(), 1);
        assert_eq!(looked.ranks[0].process, Process::Gone);
        other.kill().unwrap();
        let ended = std::os::unix::process::ExitStatusExt::signal(&other.wait().unwrap());
        assert_eq!(ended, Some(Signal::SIGKILL as i32));
    }
}
