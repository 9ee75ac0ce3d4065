//! `pstrain eval` and `pstrain predict`: a model that was trained, on data.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;

use super::args::{EvalArgs, ModelArgs, PredictArgs};
use super::exit::Failure;
use super::spawn::{Listen, World, in_world};
use super::{job, logs, stdout};
use crate::files;
use crate::human::thousands;
use crate::job::{Predict, Resolved, Task};
use crate::metrics::Value;
use crate::plugin::MOST_STATE;
use crate::runner::metrics::Summary;
use crate::runner::predictions::Format;
use crate::runner::rank::Report;
use crate::runner::records::EvalResult;
use crate::runner::run_folder::{self, RunFolder};
use crate::runner::training::KeptIn;
use crate::runner::{libtorch, limits};

pub fn eval(args: EvalArgs, look: logs::Wanted, started: Instant) -> Result<u8, Failure> {
    let data_state = data_state(&args.model.run)?;
    let resolved = load(&args.model, |_| Ok(Task::Evaluate { data_state: data_state.clone() }))?;
    use_model(&resolved, look, started, |summary| {
        let result = summary.eval.as_ref().context("there is no figure")?;
        stdout::result(result, Figures(result), args.json)
    })
}

pub fn predict(args: PredictArgs, look: logs::Wanted, started: Instant) -> Result<u8, Failure> {
    Format::of(&args.out).map_err(Failure::usage)?;
    let file = std::path::absolute(&args.out).context("the file of predictions").map_err(Failure::from)?;
    if file.exists() && !args.overwrite {
        let file = args.out.display();
        return Err(Failure::usage(format!("`{file}` is there already\n  hint: --overwrite writes it anew")));
    }
    let data_state = data_state(&args.model.run)?;
    let resolved = load(&args.model, |training| {
        let fields = training.pass_through(&args.field);
        let predict = Predict { file: file.clone(), fields };
        Ok(Task::Predict { data_state: data_state.clone(), predict })
    })?;
    use_model(&resolved, look, started, |_| stdout::line(format_args!("wrote {}", args.out.display())))
}

/// The job of a run, whose modules start from its model. `task` may change what the job takes of the data.
fn load(
    args: &ModelArgs,
    task: impl FnOnce(&mut crate::job::Training) -> Result<Task, Failure>,
) -> Result<Resolved, Failure> {
    let run = &args.run;
    let file = run.join(run_folder::JOB);
    if !file.is_file() {
        let run = run.display();
        return Err(Failure::usage(format!(
            "`{run}` is not a run folder: it has no {}\n  hint: `pstrain spawn` says at its end which folder a run has, for example runs/NAME-TIME",
            run_folder::JOB
        )));
    }
    let which = args.which.model();
    let model = run.join(which.file());
    if !model.is_file() {
        return Err(Failure::usage(format!("`{}` is not there\n  hint: {}", model.display(), which.hint())));
    }
    let mut resolved = job::load_to_use(&file, &args.values, |job| {
        let Some(training) = job.training_mut() else {
            return Err(Failure::usage("the job of this run trains nothing"));
        };
        if training.data.test.is_none() {
            let hint =
                "name some: --set 'data.test={file=\"new.csv\"}', with the parameters of the data plug-in";
            return Err(Failure::usage(format!("the job of this run has no [data.test]\n  hint: {hint}")));
        }
        let task = task(training)?;
        job.use_model(&model, task);
        Ok(())
    })?;
    if args.one_rank {
        resolved.job.on_one_rank();
    }
    Ok(resolved)
}

fn data_state(run: &Path) -> Result<Option<std::sync::Arc<[u8]>>, Failure> {
    let file = run.join(run_folder::DATA_STATE);
    match files::read_at_most(&file, MOST_STATE as u64) {
        Ok(state) => Ok(Some(state.into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::usage(format!("`{}` cannot be read: {error}", file.display()))),
    }
}

/// All ranks of the job, here. What they record is dropped.
fn use_model(
    resolved: &Resolved,
    look: logs::Wanted,
    started: Instant,
    tell: impl FnOnce(&Summary) -> anyhow::Result<()>,
) -> Result<u8, Failure> {
    // Before there is a folder: the program that it starts again knows of none.
    libtorch::ensure().map_err(Failure::usage)?;
    limits::check(&resolved.job, None).map_err(Failure::usage)?;
    let scratch = files::temporary_folder(&std::env::temp_dir()).context("a folder for what is recorded");
    let scratch = scratch.map_err(Failure::from)?;
    let (folder, job_text) = (RunFolder::at(scratch.path()), resolved.toml.clone());
    let kept_in = KeptIn { folder, job_text, resumed: None };
    let listen = Listen::anywhere(&resolved.job)?;
    let world = World { resolved, kept_in, keeps_folder: false, look, started };
    let parent = std::process::id();
    let done = in_world(world, listen, |report| match report {
        Some(Report::Trained(summary)) => Ok(tell(&summary)?),
        Some(Report::Demo(_)) | None => Ok(()),
    });
    if std::process::id() != parent {
        // A rank leaves the folder to the one that has forked it.
        let _ = scratch.keep();
    }
    done
}

/// For people.
struct Figures<'a>(&'a EvalResult);

impl std::fmt::Display for Figures<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let EvalResult { samples, targets, loss, metrics } = self.0;
        let width = metrics.keys().map(String::len).max().unwrap_or(0).max("samples".len());
        write!(f, "{:width$}  {}", "samples", thousands(*samples))?;
        if targets != samples {
            write!(f, ", {} targets", thousands(*targets))?;
        }
        write!(f, "\n{:width$}  {loss}", "loss")?;
        for (name, value) in metrics {
            match value {
                Value::Number(number) => write!(f, "\n{name:width$}  {number}")?,
                Value::Counts(rows) => {
                    for (nth, row) in rows.iter().enumerate() {
                        let name = if nth == 0 { name.as_str() } else { "" };
                        let counts: Vec<String> = row.iter().map(|count| format!("{count:>6}")).collect();
                        write!(f, "\n{name:width$}  {}", counts.join(" "))?;
                    }
                }
            }
        }
        Ok(())
    }
}
