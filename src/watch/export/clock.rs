//! When a line of a run was written, as clocks on walls show it: lines have the seconds since their rank joined, or since its
//! training loop began, without its pauses for validations.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::runner::records::MetricsLine;
use crate::runner::run_folder;
use crate::topology::Rank;

pub struct Clock {
    job: PathBuf,
    world_size: usize,
    /// Seconds since 1970: the run's start, or where it has gone on, that of what goes on.
    pub begun: f64,
    /// How often it has gone on.
    pub gone_on: u64,
    ranks: BTreeMap<Rank, OfRank>,
    /// The greatest time since a rank joined.
    latest: f64,
}

#[derive(Default)]
struct OfRank {
    joined: f64,
    looped: f64,
    /// What its loop's time is behind that since it joined.
    behind: f64,
}

/// Beginning and end of what a line tells, in seconds since 1970. They differ where the loop stood still meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct When {
    pub from: f64,
    pub to: f64,
}

impl Clock {
    pub fn new(folder: &Path, world_size: usize) -> Clock {
        let job = folder.join(run_folder::JOB);
        let begun = written(&job);
        Clock { job, world_size, begun, gone_on: 0, ranks: BTreeMap::new(), latest: 0.0 }
    }

    /// None: of a rank that the job does not have.
    pub fn at(&mut self, line: &MetricsLine) -> Option<When> {
        let now = now();
        let (rank, time_s, is_loop) = match line {
            MetricsLine::Step(record) => (Some(record.rank), record.time_s, true),
            MetricsLine::Epoch(record) => (Some(record.rank), record.time_s, true),
            MetricsLine::Eval(record) => (Some(record.rank), record.time_s, true),
            MetricsLine::Rank(record) => (Some(record.rank), record.time_s, false),
            // Several lines that were logged before come behind the rank's own: no clock of theirs goes on.
            MetricsLine::Message(record) => {
                let at = (self.begun + record.time_s).min(now);
                return Some(When { from: at, to: at });
            }
        };
        let rank = rank.filter(|rank| rank.index() < self.world_size)?;
        let known = self.ranks.entry(rank).or_default();
        if time_s < if is_loop { known.looped } else { known.joined } {
            // A run that goes on has its job written anew, and its clocks begin at 0.
            self.begun = written(&self.job);
            self.gone_on += 1;
            self.latest = 0.0;
            self.ranks.clear();
        }
        let known = self.ranks.entry(rank).or_default();
        let (from, to) = if is_loop {
            let from = time_s + known.behind;
            // It comes behind a line of that time.
            known.behind = known.behind.max(self.latest - time_s);
            known.looped = time_s;
            (from, time_s + known.behind)
        } else {
            known.joined = time_s;
            self.latest = self.latest.max(time_s);
            (time_s, time_s)
        };
        Some(When { from: (self.begun + from).min(now), to: (self.begun + to).min(now) })
    }
}

/// When a file was, in seconds since 1970; now where that is not known.
fn written(path: &Path) -> f64 {
    let time = fs::metadata(path).and_then(|about| about.modified()).unwrap_or_else(|_| SystemTime::now());
    since_1970(time)
}

pub fn now() -> f64 {
    since_1970(SystemTime::now())
}

fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Nanoseconds of such seconds.
pub fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    fn line(text: &str) -> MetricsLine {
        serde_json::from_str(text).unwrap()
    }

    fn step(step: u64, time_s: f64) -> MetricsLine {
        line(&format!(
            r#"{{"kind":"step","step":{step},"epoch":1,"rank":1,"loss":1.0,"lr":0.1,"samples_per_s":1.0,"data_wait_pct":0.0,"staleness":null,"time_s":{time_s}}}"#
        ))
    }

    fn used(rank: u32, time_s: f64) -> MetricsLine {
        line(&format!(
            r#"{{"kind":"rank","rank":{rank},"role":"trainer","time_s":{time_s},"passed_s":1.0,"resident_bytes":1,"cpu_pct":1.0,"seconds":{{}}}}"#
        ))
    }

    fn folder_written(seconds_ago: u64) -> (tempfile::TempDir, f64) {
        let folder = tempfile::tempdir().unwrap();
        let begun = SystemTime::now() - Duration::from_secs(seconds_ago);
        File::create(folder.path().join(run_folder::JOB)).unwrap().set_modified(begun).unwrap();
        (folder, since_1970(begun))
    }

    #[test]
    fn a_loop_that_stood_still_is_later_by_what_other_lines_tell() {
        let (folder, begun) = folder_written(1000);
        let mut clock = Clock::new(folder.path(), 2);
        let mut at = |line: &MetricsLine| {
            let When { from, to } = clock.at(line).unwrap();
            [from, to].map(|seconds| (seconds - begun).round())
        };
        assert_eq!(at(&step(1, 1.0)), [1.0, 1.0]);
        assert_eq!(at(&used(0, 100.0)), [100.0, 100.0]);
        // What stood still ends here.
        assert_eq!(at(&step(2, 2.0)), [2.0, 100.0]);
        assert_eq!(at(&step(3, 5.0)), [103.0, 103.0]);
    }

    #[test]
    fn a_run_that_goes_on_begins_when_its_job_was_written_anew() {
        let (folder, _) = folder_written(1000);
        let mut clock = Clock::new(folder.path(), 2);
        clock.at(&step(8, 400.0)).unwrap();
        let again = SystemTime::now() - Duration::from_secs(100);
        File::open(folder.path().join(run_folder::JOB)).unwrap().set_modified(again).unwrap();
        assert_eq!((clock.at(&step(5, 2.0)).unwrap().to - since_1970(again)).round(), 2.0);
        assert_eq!(clock.gone_on, 1);
    }

    #[test]
    fn nothing_is_told_of_the_future_or_of_a_rank_that_is_not_there() {
        let (folder, _) = folder_written(10);
        let mut clock = Clock::new(folder.path(), 2);
        assert!(clock.at(&step(1, 1e9)).unwrap().to <= now());
        assert_eq!(clock.at(&used(2, 1.0)), None);
    }
}
