//! What the page of a run is drawn from, as JSON.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use serde::{Serialize, Serializer};

use super::run::{RankUse, Trainer, Watched};
use super::series::Series;
use super::timeline::Timeline;
use crate::files;
use crate::job::{self, Job, JobText, Plan, Sources, plan};
use crate::profile::Activity;
use crate::runner::metrics::Summary;
use crate::runner::records::{EvalRecord, MessageRecord, RankRecord, StepRecord};
use crate::runner::run_folder::{self, MOST_OF_JOB};
use crate::topology::Rank;

/// What does not change while a run goes on.
pub struct Setup {
    /// As the run's folder has it.
    text: String,
    /// None: it is of another version of this program.
    job: Option<Job>,
    /// Of a job that trains.
    plan: Option<Plan>,
}

impl Setup {
    /// Of the run in `folder`. What cannot be read there is left out.
    pub fn read(folder: &Path) -> Setup {
        let text = files::text_at_most(&folder.join(run_folder::JOB), MOST_OF_JOB).unwrap_or_default();
        let sources =
            Sources { file: JobText { name: run_folder::JOB, text: &text }, env: Vec::new(), overrides: &[] };
        let job = job::load_to_use(&sources).ok().map(|resolved| resolved.job);
        let planned = |job: &Job| Some(plan(job, job.training()?, &BTreeMap::new(), None));
        Setup { plan: job.as_ref().and_then(planned), job, text }
    }

    pub fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    pub fn world_size(&self) -> usize {
        self.job.as_ref().map_or(MOST_RANKS, |job| job.cluster.world_size.0 as usize)
    }

    /// The keys of the job with their values, as a person writes them.
    pub fn keys(&self) -> BTreeMap<String, String> {
        let table: toml::Table = self.text.parse().unwrap_or_default();
        flat(&table).into_iter().map(|(path, value)| (path, value.to_string())).collect()
    }
}

/// Of a run whose job says nothing of its world.
const MOST_RANKS: usize = 1024;

/// All keys of a job by their paths, in its order. A list is one value.
pub fn flat(job: &toml::Table) -> Vec<(String, &toml::Value)> {
    fn add<'a>(path: &str, table: &'a toml::Table, keys: &mut Vec<(String, &'a toml::Value)>) {
        for (key, value) in table {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match value {
                toml::Value::Table(table) => add(&path, table, keys),
                value => keys.push((path, value)),
            }
        }
    }
    let mut keys = Vec::new();
    add("", job, &mut keys);
    keys
}

/// All of a run that is shown.
#[derive(Serialize)]
pub struct View<'a> {
    /// The folder's last part.
    name: String,
    folder: String,
    job: &'a str,
    plan: Option<&'a Plan>,
    under_way: bool,
    trainers: Vec<TrainerView<'a>>,
    ranks: Vec<RankView<'a>>,
    evals: &'a VecDeque<EvalRecord>,
    messages: &'a VecDeque<MessageRecord>,
    summary: Option<&'a Summary>,
    timeline: Option<&'a Timeline>,
}

#[derive(Serialize)]
struct TrainerView<'a> {
    rank: Rank,
    last: Option<&'a StepRecord>,
    figures: BTreeMap<&'a str, Columns>,
}

#[derive(Serialize)]
struct RankView<'a> {
    rank: Rank,
    role: &'a str,
    last: &'a RankRecord,
    figures: BTreeMap<&'a str, Columns>,
    activities: BTreeMap<Activity, Columns>,
    seconds: BTreeMap<Activity, Short>,
}

/// A series, by columns.
#[derive(Serialize)]
struct Columns {
    x: Vec<Short>,
    time_s: Vec<Short>,
    mean: Vec<Short>,
    /// Of points that are of several values; else empty.
    least: Vec<Short>,
    greatest: Vec<Short>,
}

/// A number with as many digits as a picture shows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Short(f64);

impl Serialize for Short {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.0.is_finite() {
            return serializer.serialize_none();
        }
        // Six digits; steps are whole numbers of up to nine.
        let short = match self.0.fract() == 0.0 && self.0.abs() < 1e9 {
            true => return serializer.serialize_i64(self.0 as i64),
            false => format!("{:.5e}", self.0).parse().unwrap_or(self.0),
        };
        serializer.serialize_f64(short)
    }
}

impl Columns {
    fn of(series: &Series) -> Columns {
        let points = series.points();
        let column =
            |of: fn(&super::series::Point) -> f64| points.iter().map(|point| Short(of(point))).collect();
        let is_joined = points.iter().any(|point| point.count > 1);
        let ends = |of| if is_joined { column(of) } else { Vec::new() };
        Columns {
            x: column(|point| point.x),
            time_s: column(|point| point.time_s),
            mean: column(|point| point.mean),
            least: ends(|point| point.least),
            greatest: ends(|point| point.greatest),
        }
    }
}

impl<'a> View<'a> {
    /// `under_way`: more is to come.
    pub fn of(
        run: &'a Watched,
        setup: &'a Setup,
        timeline: Option<&'a Timeline>,
        under_way: bool,
    ) -> View<'a> {
        let folder = run.folder();
        let trainer = |(rank, trainer): (&Rank, &'a Trainer)| TrainerView {
            rank: *rank,
            last: trainer.last.as_ref(),
            figures: trainer
                .figures
                .iter()
                .map(|(name, series)| (name.as_str(), Columns::of(series)))
                .collect(),
        };
        let rank = |(rank, used): (&Rank, &'a RankUse)| RankView {
            rank: *rank,
            role: &used.role,
            last: &used.last,
            figures: used.figures.iter().map(|(name, series)| (*name, Columns::of(series))).collect(),
            activities: used.activities.iter().map(|(of, series)| (*of, Columns::of(series))).collect(),
            seconds: used.seconds.iter().map(|(of, seconds)| (*of, Short(*seconds))).collect(),
        };
        View {
            name: folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            folder: folder.display().to_string(),
            job: &setup.text,
            plan: setup.plan.as_ref(),
            under_way,
            trainers: run.trainers.iter().map(trainer).collect(),
            ranks: run.ranks.iter().map(rank).collect(),
            evals: &run.evals,
            messages: &run.messages,
            summary: run.summary.as_ref(),
            timeline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_a_picture_shows() {
        let shown = [100_000.0, 0.123_456_789, 1.0e-9, f64::NAN]
            .map(|number| serde_json::to_string(&Short(number)).unwrap());
        assert_eq!(shown, ["100000", "0.123457", "1e-9", "null"]);
    }

    #[test]
    fn the_keys_of_a_job_stand_by_their_paths() {
        let setup = Setup { text: "seed = 1\n[optimizer]\nlr = 0.1\n".into(), job: None, plan: None };
        let keys: Vec<_> = setup.keys().into_iter().collect();
        assert_eq!(keys, [("optimizer.lr".into(), "0.1".into()), ("seed".to_owned(), "1".to_owned())]);
    }
}
