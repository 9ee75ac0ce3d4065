//! `pstrain doctor RUN`: who waits for whom in a run, and which rank and what is the cause.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::cli::exit::{DONE, FAILED, Failure};
use crate::cli::explain::job_of;
use crate::cli::stdout;
use crate::runner::flight::RankProcess;
use crate::runner::run_folder::RunFolder;
use crate::watch::ranks::{self, Looked};
use crate::watch::standstill::{Verdict, verdict};

#[derive(Serialize)]
struct RunReport {
    under_way: bool,
    #[serde(flatten)]
    verdict: Verdict,
    /// Ranks that have to be asked on their machines.
    elsewhere: Vec<RankProcess>,
}

pub fn doctor(run: &Path, as_json: bool) -> Result<u8, Failure> {
    let job = job_of(run)?;
    let under_way = RunFolder::is_under_way(run);
    let Looked { ranks, free_bytes, elsewhere } = ranks::look(run, job.cluster.world_size.0 as usize);
    if ranks.is_empty() && !as_json {
        stdout::line(format_args!(
            "the run in `{}` {}\n  hint: `pstrain explain` tells where its time went, `pstrain runs` how it ended",
            run.display(),
            if under_way {
                "has no ranks that have joined: it starts, or waits for some"
            } else {
                "has ended in order, or before its ranks had joined"
            }
        ))?;
        return Ok(DONE);
    }
    let told = RunReport { under_way, verdict: verdict(&ranks, free_bytes), elsewhere };
    stdout::result(&told, &told, as_json)?;
    Ok(if told.verdict.stands() || told.verdict.is_killed() { FAILED } else { DONE })
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.verdict.is_killed() {
            return f.write_str(
                "the run has ended, and none of its ranks has said why: all of its processes are gone\n  \
                 hint: `dmesg` says whether memory ran out; `--resume auto` goes on from the last checkpoint",
            );
        }
        if !self.under_way {
            writeln!(f, "the run has ended; what its ranks did last:")?;
        }
        write!(f, "{}", self.verdict)?;
        for RankProcess { rank, host, pid, .. } in &self.elsewhere {
            write!(
                f,
                "\nrank {rank} is on another machine: `kill -USR1 {pid}` on `{host}` has it write what it did last"
            )?;
        }
        Ok(())
    }
}
