//! `pstrain runs`: what has become of the runs in a folder.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::checkpoints;
use super::exit::{DONE, Failure};
use super::stdout;
use crate::human::{counted, thousands};
use crate::job::Place;
use crate::runner::checkpoint;
use crate::runner::records::EvalResult;
use crate::runner::run_folder::RUNS;
use crate::runner::runs::{self, Run, State};

pub fn runs(folder: Option<&Path>, as_json: bool) -> Result<u8, Failure> {
    let folder = folder.unwrap_or(Path::new(RUNS));
    if !folder.is_dir() {
        return Err(Failure::usage(format_args!(
            "there is no folder `{}`\n  hint: runs go to `{RUNS}` in the folder that they are started in; name another one",
            folder.display()
        )));
    }
    let listed: Vec<Listed> = runs::runs(folder)?.into_iter().map(Listed::of).collect();
    if listed.is_empty() && !as_json {
        stdout::line(format_args!("no run in `{}`", folder.display()))?;
        return Ok(DONE);
    }
    stdout::result(&listed, Table(&listed), as_json)?;
    Ok(DONE)
}

#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    run: Run,
    /// None: they are in a bucket, which is not asked.
    checkpoints: Option<usize>,
    last_checkpoint: Option<Place>,
    /// That bucket, and the prefix in it.
    checkpoints_in: Option<Place>,
}

impl Listed {
    fn of(run: Run) -> Listed {
        let within = checkpoints::within(&run.folder).ok();
        if let Some(bucket @ Place::Bucket(_)) = within {
            return Listed { run, checkpoints: None, last_checkpoint: None, checkpoints_in: Some(bucket) };
        }
        let all = within.and_then(|within| checkpoint::all(&within).ok()).unwrap_or_default();
        let checkpoints = Some(all.len());
        Listed { run, checkpoints, last_checkpoint: all.into_iter().next_back(), checkpoints_in: None }
    }

    fn cells(&self) -> [String; 5] {
        let Run { folder, state, steps, epochs, eval, best, .. } = &self.run;
        let state = match state {
            State::UnderWay => "under way",
            State::Finished => "finished",
            State::FinishedWithWarnings => "finished, with warnings",
            State::EndedEarly => "ended early",
        };
        let result = match (best, eval) {
            (Some(best), _) => format!("best: {} at step {}", few(&best.result), thousands(best.step)),
            (None, Some(eval)) => few(eval),
            (None, None) => "-".into(),
        };
        let last = self.last_checkpoint.as_ref().and_then(Place::folder);
        let last = last.and_then(|last| Some(last.file_name()?.to_str()?.to_owned()));
        let kept = match (self.checkpoints, last, &self.checkpoints_in) {
            (Some(count), Some(last), _) => format!("{}, last {last}", counted(count as u64, "checkpoint")),
            (.., Some(bucket)) => format!("in {bucket}"),
            _ => "-".into(),
        };
        let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        [name, state.into(), format!("{} in epoch {epochs}", thousands(*steps)), result, kept]
    }
}

/// The first of its numbers: a line holds no more.
fn few(result: &EvalResult) -> String {
    result.figures().into_iter().take(3).collect::<Vec<_>>().join(", ")
}

struct Table<'a>(&'a [Listed]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["run", "state", "steps", "validation", "checkpoints"].map(str::to_owned);
        let rows: Vec<[String; 5]> = [head].into_iter().chain(self.0.iter().map(Listed::cells)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        for (nth, row) in rows.iter().enumerate() {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            write!(f, "{}{}", if nth > 0 { "\n" } else { "" }, line.trim_end())?;
        }
        Ok(())
    }
}
