//! How values pass through a model: from the fields of the data into modules, from module to module, and into the loss. A chain
//! is the graph with one way through it.

use serde::Serialize;

use super::{ModuleSpec, Placement, Training};
use crate::layers::Signal;

/// Where a module, or the loss, takes a value from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// One of [`Training::fields`].
    Field(usize),
    /// An output of one of [`Training::modules`].
    Output { module: usize, output: usize },
}

impl Source {
    /// The module, if it is one's output.
    pub fn module(&self) -> Option<usize> {
        match self {
            Source::Field(_) => None,
            Source::Output { module, .. } => Some(*module),
        }
    }
}

/// A field of the data, as it is taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Field {
    pub name: FieldName,
    /// The key that names it, or would.
    pub key: String,
    /// How a module takes it. None: it is a target, which the loss takes as the data have it.
    pub taken: Option<Taken>,
}

/// How a module takes a field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Taken {
    /// One sample.
    pub signal: Signal,
    pub module: String,
    /// The keys that say its shape and its dtype.
    pub shape_key: String,
    pub dtype_key: String,
}

/// How a job names a field: only a dataset that is open knows its fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldName {
    Named(String),
    /// The dataset's own, counted from 0.
    Nth(usize),
}

impl FieldName {
    /// As a person reads it.
    pub fn shown(&self) -> String {
        match self {
            FieldName::Named(name) => name.clone(),
            FieldName::Nth(0) => "the first field".into(),
            FieldName::Nth(_) => "the second field".into(),
        }
    }
}

/// Who takes an output: another module as one of its inputs, or the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taker {
    Module { module: usize, input: usize },
    Loss,
}

impl Training {
    /// All who take an output of `modules[of]`.
    pub fn takers(&self, of: usize) -> impl Iterator<Item = Taker> {
        takers(&self.modules, &self.loss.from, of)
    }

    /// Has every module one input, and its one output one taker? Then the model is a chain.
    pub fn is_chain(&self) -> bool {
        let once = |module: usize| self.takers(module).count() == 1;
        let single = |module: &ModuleSpec| module.sources.len() == 1 && module.outputs().len() <= 1;
        self.modules.iter().all(single) && (0..self.modules.len()).all(once) && self.loss.from.len() == 1
    }

    /// Is `modules[of]` called by the owner of the one module that takes from it? Then what passes between the two does not
    /// pass the trainer.
    pub fn is_nested(&self, of: usize) -> bool {
        is_nested(&self.modules, &self.loss.from, of)
    }
}

pub(in crate::job) fn takers<'a>(
    modules: &'a [ModuleSpec],
    loss: &'a [Source],
    of: usize,
) -> impl Iterator<Item = Taker> + use<'a> {
    let by_modules = modules.iter().enumerate().flat_map(move |(module, spec)| {
        let theirs = spec.sources.iter().enumerate().filter(move |(_, source)| source.module() == Some(of));
        theirs.map(move |(input, _)| Taker::Module { module, input })
    });
    let by_loss = loss.iter().filter(move |source| source.module() == Some(of)).map(|_| Taker::Loss);
    by_modules.chain(by_loss)
}

fn is_nested(modules: &[ModuleSpec], loss: &[Source], of: usize) -> bool {
    let remote = |module: usize| modules[module].placement == Placement::Remote;
    let mut takers = takers(modules, loss, of);
    match (takers.next(), takers.next()) {
        (Some(Taker::Module { module, .. }), None) => remote(of) && remote(module),
        _ => false,
    }
}
