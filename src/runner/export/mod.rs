//! The model of a finished run for others: a module of PyTorch in one file of Python, beside its weights. Needs no libtorch.
//!
//! What a layer is in Python stands in its own file (`Op::python`); what the modules are together, in `python.rs`.

mod names;
mod python;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

use super::run_folder::{JOB, MOST_OF_JOB, WhichModel};
use crate::files::{self, WholeFile};
use crate::job::weights::{self, Header};
use crate::job::{self, JobErrors, JobText, ModuleSpec, Sources, TorchScript, Training};
use crate::layers::Layer;
use crate::model;

/// What is written.
const SOURCE: &str = "model.py";
const WEIGHTS: &str = "model.safetensors";
/// In the run folder, where nobody names another.
const FOLDER: &str = "export";

/// What to write, and where.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// The run folder.
    pub run: &'a Path,
    /// None: in the run folder.
    pub out: Option<&'a Path>,
    pub which: WhichModel,
    /// Over files that are there.
    pub force: bool,
}

/// Why there is nothing to be had.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// With a hint.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Job(#[from] JobErrors),
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

/// One module of the job, all stages of it.
struct ExportedModule<'a> {
    /// The first stage.
    spec: &'a ModuleSpec,
    last: &'a ModuleSpec,
    /// The last stage's place among the training's.
    end: usize,
    /// None of TorchScript.
    layers: Vec<Layer>,
    script: Option<&'a TorchScript>,
    /// How many rows of each column were saved, of a table of which only some were.
    seen: Option<Vec<i64>>,
}

impl Export<'_> {
    /// Writes the files and returns their paths: the source, the weights, and each TorchScript.
    ///
    /// # Errors
    /// What the run folder lacks; files that are there already; what cannot be read or written.
    pub fn write(&self) -> Result<Vec<PathBuf>, ExportError> {
        let job = self.job()?;
        let training = job.training().ok_or_else(|| {
            refused(
                format!("the run `{}` has trained no model", self.run.display()),
                "its job shows what collectives do: export the run of one that trains",
            )
        })?;
        let weights = self.weights()?;
        let header = model::header(&weights).map_err(|error| anyhow!(error))?;
        let parts = parts(training);
        let parts =
            parts.into_iter().map(|part| part.seen_in(&header).map_err(|told| unlike(&weights, &told)));
        let parts = parts.collect::<Result<Vec<ExportedModule<'_>>, _>>()?;
        let text = python::source(&job, training, &parts).map_err(ExportError::Refused)?;

        let folder = self.out.map_or_else(|| self.run.join(FOLDER), Path::to_owned);
        let scripts: Vec<(&Path, String)> = parts
            .iter()
            .filter_map(|part| Some((part.script?.file.as_path(), script_file(part.spec.written_name()))))
            .collect();
        let names = [SOURCE, WEIGHTS].into_iter().chain(scripts.iter().map(|(_, name)| name.as_str()));
        let files: Vec<PathBuf> = names.map(|name| folder.join(name)).collect();
        self.may_write(&files, &weights)?;
        let opened = scripts.into_iter().map(|(script, name)| Ok((open_script(script)?, name)));
        let opened = opened.collect::<Result<Vec<(File, String)>, ExportError>>()?;
        files::make_folders(&folder)
            .with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
        let copies = [(File::open(&weights), WEIGHTS.to_owned())];
        for (from, name) in copies.into_iter().chain(opened.into_iter().map(|(file, name)| (Ok(file), name)))
        {
            copy(from, &folder, &name)?;
        }
        files::write(&folder, SOURCE, text.as_bytes())
            .with_context(|| format!("cannot write `{}`", folder.join(SOURCE).display()))?;
        Ok(files)
    }

    /// The job of the run folder.
    fn job(&self) -> Result<job::Job, ExportError> {
        let (run, path) = (self.run.display(), self.run.join(JOB));
        let text = files::text_at_most(&path, MOST_OF_JOB).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if !self.run.exists() => refused(
                format!("there is no folder `{run}`"),
                "name the folder of a run: runs/NAME-TIME, or what --run-dir named",
            ),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => refused(
                format!("`{run}` is not a run folder: it has no {JOB}"),
                "name the folder of a run: runs/NAME-TIME, or what --run-dir named",
            ),
            _ => ExportError::Failed(anyhow!("cannot read `{}`: {error}", path.display())),
        })?;
        let name = path.display().to_string();
        let file = JobText { name: &name, text: &text };
        Ok(job::load(&Sources { file, env: Vec::new(), overrides: &[] })?.job)
    }

    /// Where the weights are.
    fn weights(&self) -> Result<PathBuf, ExportError> {
        let name = self.which.file();
        let path = self.run.join(name);
        match path.exists() {
            true => Ok(path),
            false => {
                Err(refused(format!("the run `{}` has no {name}", self.run.display()), self.which.hint()))
            }
        }
    }

    fn may_write(&self, files: &[PathBuf], weights: &Path) -> Result<(), ExportError> {
        if let Some(file) = files.iter().find(|file| is_same(file, weights)) {
            return Err(refused(
                format!("`{}` is what is to be exported", file.display()),
                "name another folder with --out",
            ));
        }
        match files.iter().find(|file| file.symlink_metadata().is_ok()) {
            Some(file) if !self.force => Err(refused(
                format!("`{}` exists", file.display()),
                "name another folder with --out, or write over it with --force",
            )),
            _ => Ok(()),
        }
    }
}

/// What the TorchScript of a module is called among the exported files.
fn script_file(module: &str) -> String {
    format!("{module}.pt")
}

fn parts(training: &Training) -> Vec<ExportedModule<'_>> {
    let mut parts: Vec<ExportedModule<'_>> = Vec::new();
    for (at, spec) in training.modules.iter().enumerate() {
        match parts.last_mut().filter(|part| part.spec.written_name() == spec.written_name()) {
            Some(part) => (part.last, part.end) = (spec, at),
            None => {
                let (layers, script) = (spec.whole_layers(), spec.torchscript());
                parts.push(ExportedModule { spec, last: spec, end: at, layers, script, seen: None });
            }
        }
    }
    parts
}

impl ExportedModule<'_> {
    /// Looks whether the file has what `load_state_dict` will want, and of a table which rows.
    fn seen_in(mut self, header: &Header) -> Result<Self, Vec<weights::Problem>> {
        if self.script.is_some() {
            return Ok(self);
        }
        let name = self.spec.written_name();
        match self.spec.rows().filter(|_| self.spec.is_cut()) {
            None => {
                let mut wanted = weights::wanted_by_layers(&self.layers);
                wanted.iter_mut().for_each(|tensor| tensor.required = true);
                // A module without tensors of its own has no say about those of others.
                if !wanted.is_empty() {
                    weights::fit(name, &wanted, &[], header)?;
                }
            }
            Some(rows) => {
                let tables = self.spec.tables(&rows);
                let stored = weights::fit_rows(name, &tables, rows.table.dim, header)?;
                let listed = stored.iter().any(|table| table.ids.is_some());
                self.seen = listed.then(|| stored.iter().map(|table| table.numbers.shape[0]).collect());
            }
        }
        Ok(self)
    }
}

fn open_script(path: &Path) -> Result<File, ExportError> {
    files::open_regular(path).map_err(|error| {
        let here = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let told = format!("the TorchScript `{}` of the job cannot be read: {error}", path.display());
        let hint = format!("the path is relative to the current folder: this one is {}", here.display());
        refused(told, &hint)
    })
}

fn copy(from: io::Result<File>, folder: &Path, name: &str) -> anyhow::Result<()> {
    let copied = from.and_then(|mut from| {
        let whole = WholeFile::create(folder, name)?;
        io::copy(&mut from, &mut whole.file())?;
        whole.finish()
    });
    copied.with_context(|| format!("cannot write `{}`", folder.join(name).display()))
}

fn unlike(file: &Path, problems: &[weights::Problem]) -> ExportError {
    let more = match problems.len() {
        0 | 1 => String::new(),
        several => format!(" (and {} more)", several - 1),
    };
    let (first, hint) =
        problems.first().map_or(("", ""), |problem| (problem.message.as_str(), problem.hint.as_str()));
    refused(format!("`{}` is not of the job beside it: {first}{more}", file.display()), hint)
}

fn refused(problem: String, hint: &str) -> ExportError {
    ExportError::Refused(format!("{problem}\n  hint: {hint}"))
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
