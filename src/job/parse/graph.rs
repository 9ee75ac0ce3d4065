//! From modules by themselves to the graph that they make: who takes what, in an order in which each comes behind those that
//! it takes from, with each shape checked on the way.

use std::collections::BTreeSet;

use super::super::validated::{Field, FieldName, ModuleSpec, Source, Taken, takers};
use super::data;
use super::modules::Parsed;
use super::takes::{self, Reference};
use super::wiring::{self, Feed, froms, loss_takes, named_outputs, order};
use crate::config::{Item, Table, did_you_mean};
use crate::layers::{InputDtype, Signal};

/// What the modules of a job make together.
pub(super) struct Graph {
    pub modules: Vec<ModuleSpec>,
    pub fields: Vec<Field>,
    pub named_outputs: BTreeSet<String>,
    /// What the loss takes.
    pub from: Vec<Source>,
    pub targets: Vec<usize>,
}

/// What other sections name.
pub(super) struct Ends<'a> {
    pub data: Table<'a>,
    pub loss: Table<'a>,
}

/// Joins the modules, which are in the order of `train.forward`. None: something is wrong, and has been reported.
pub(super) fn join(modules: &[Parsed<'_>], ends: &Ends<'_>) -> Option<Graph> {
    let froms: Vec<Option<Vec<Feed>>> = (0..modules.len()).map(|at| froms(modules, at, ends)).collect();
    let froms: Vec<Vec<Feed>> = froms.into_iter().collect::<Option<_>>()?;
    let order = order(modules, &froms)?;
    let mut joining = Joining::new(modules, &froms);
    let specs: Vec<(usize, Option<Vec<ModuleSpec>>)> =
        order.iter().map(|&at| (at, joining.module(at))).collect();
    let loss = loss_takes(modules, &froms, &ends.loss);
    let targets = joining.targets(ends);
    let mut sound = loss.is_some() && targets.is_some();
    // Of each module the stage that gives its output, once all before it are laid out.
    let (mut laid, mut last) = (Vec::new(), vec![0; modules.len()]);
    for (at, specs) in specs {
        let Some(mut specs) = specs else {
            sound = false;
            continue;
        };
        let first = laid.len();
        for (nth, spec) in specs.iter_mut().enumerate() {
            spec.sources = match nth {
                0 => joining.sources(at, &last),
                _ => vec![Source::Output { module: first + nth - 1, output: 0 }],
            };
        }
        laid.append(&mut specs);
        last[at] = laid.len() - 1;
    }
    let (loss, targets) = (loss.filter(|_| sound)?, targets?);
    let from: Vec<Source> =
        loss.into_iter().map(|(at, output)| Source::Output { module: last[at], output }).collect();
    let used = |at: usize| takers(&laid, &from, last[at]).next().is_some();
    let mut sound = true;
    for (at, module) in modules.iter().enumerate().filter(|(at, _)| !used(*at)) {
        let hint = match at {
            _ if modules.len() == 1 => "leave loss.from out",
            _ => "name it in the `from` of a module or in loss.from, or remove its section",
        };
        let error = module.item.error_without_value("gives what neither a module nor the loss takes");
        module.item.reader().report(error.hint(hint));
        sound = false;
    }
    let Joining { fields, .. } = joining;
    sound &= input_is_taken(&fields, &ends.data);
    let named_outputs = named_outputs(modules, &ends.loss);
    sound.then_some(Graph { modules: laid, fields, named_outputs, from, targets })
}

/// A field that is named as the model's input has to be one.
fn input_is_taken(fields: &[Field], data: &Table<'_>) -> bool {
    let (Some(item), Some(name)) = (data.item(&data::INPUT), data::input(data)) else { return true };
    let name = FieldName::Named(name);
    let taken = fields.iter().any(|field| field.taken.is_some() && field.name == name);
    if !taken {
        item.wrong(
            "is taken by no module: each says `from`",
            "name it in the `from` of a module, or leave it out",
        );
    }
    taken
}

/// The modules as far as they are joined.
struct Joining<'a, 'i> {
    modules: &'a [Parsed<'i>],
    froms: &'a [Vec<Feed>],
    fields: Vec<Field>,
    /// For each module the places, among the fields, of what its inputs take; inputs from modules have none.
    taken: Vec<Vec<Option<usize>>>,
    /// What each module gives, as far as that is known.
    given: Vec<Vec<Option<Signal>>>,
}

impl<'a, 'i> Joining<'a, 'i> {
    fn new(modules: &'a [Parsed<'i>], froms: &'a [Vec<Feed>]) -> Joining<'a, 'i> {
        let taken = froms.iter().map(|from| vec![None; from.len()]).collect();
        Joining { modules, froms, fields: Vec::new(), taken, given: vec![Vec::new(); modules.len()] }
    }

    fn module(&mut self, at: usize) -> Option<Vec<ModuleSpec>> {
        let module = &self.modules[at];
        let inputs: Vec<Option<Signal>> = (0..self.froms[at].len()).map(|nth| self.input(at, nth)).collect();
        let inputs: Vec<Signal> = inputs.into_iter().collect::<Option<_>>()?;
        let mut dtype_keys = vec![None; inputs.len()];
        for (nth, signal) in inputs.iter().enumerate() {
            if let Feed::Field(name, key) = &self.froms[at][nth] {
                let (_, shape_key, dtype_key) = module.takes.stated(&self.called(at, nth));
                let key_of = |key: String| format!("{}.{key}", module.item.path);
                let dtype_key = key_of(dtype_key);
                dtype_keys[nth] = Some(dtype_key.clone());
                let taken = Taken {
                    signal: signal.clone(),
                    module: module.name.clone(),
                    shape_key: key_of(shape_key),
                    dtype_key,
                };
                let field = Field { name: name.clone(), key: key.clone(), taken: Some(taken) };
                self.taken[at][nth] = Some(add(&mut self.fields, field));
            }
        }
        let from = match &module.takes.from {
            None => "the module's input".into(),
            Some(_) => {
                let names: Vec<String> =
                    (0..inputs.len()).map(|nth| format!("`{}`", self.called(at, nth))).collect();
                names.join(" and ")
            }
        };
        let (outputs, specs) = module.validate(&inputs, &from, &dtype_keys);
        self.given[at] = outputs;
        specs
    }

    /// As the job calls an input.
    fn called(&self, at: usize, nth: usize) -> String {
        let written = self.modules[at].takes.from.as_ref();
        written.map_or_else(String::new, |from| from[nth].name.clone())
    }

    /// What comes in, as written or as it leaves the module before. None: that is not known, and has been reported.
    fn input(&self, at: usize, nth: usize) -> Option<Signal> {
        let module = &self.modules[at];
        let called = self.called(at, nth);
        let (stated, shape_key, _) = module.takes.stated(&called);
        let (of, output) = match &self.froms[at][nth] {
            Feed::Field(..) => {
                if stated.shape.is_none() {
                    self.missing_shape(at, &called, &shape_key);
                }
                return Some(Signal::new(&stated.shape?, stated.dtype.unwrap_or(InputDtype::Float32)));
            }
            Feed::Output { at, output } => (*at, *output),
        };
        let before = &self.modules[of];
        let Some(given) = self.given[of].get(output).cloned().flatten() else {
            // What is wrong there has been said. This one can only be checked against what it says itself.
            return Some(Signal::new(&stated.shape?, stated.dtype.unwrap_or(InputDtype::Float32)));
        };
        let shape = stated.shape.as_ref().unwrap_or(&given.shape);
        let written = Signal::new(shape, stated.dtype.unwrap_or(given.dtype));
        if written != given {
            let input = match self.froms[at].len() {
                1 => String::new(),
                _ => format!("of `{called}` "),
            };
            let name = wiring::of(before, before.outputs()?[output]);
            let error = module.item.error_without_value(format!(
                "expects {input}{written}, and `modules.{name}` outputs {given}"
            ));
            let alone = self.froms[at].len() == 1;
            if alone && module.fits(&given) {
                let hint = "leave input and input_dtype out here: they follow from the module before";
                module.item.reader().report(error.hint(hint));
                return Some(given);
            }
            let says = match module.takes.from {
                None => "train.forward says which comes first",
                Some(_) => "`from` says what it takes",
            };
            module.item.reader().report(error.hint(format!(
                "let `modules.{}` end in what this one expects, or change input and layers here; {says}",
                before.name
            )));
        }
        Some(written)
    }

    fn missing_shape(&self, at: usize, called: &str, key: &str) {
        let module = &self.modules[at];
        let Some(table) = module.item.table() else { return };
        if called.is_empty() {
            table.missing(key, "the shape of one sample, for example input = [1, 28, 28]");
            return;
        }
        let others =
            self.modules.iter().filter(|other| other.name != module.name).map(|other| other.name.as_str());
        let meant = match did_you_mean(called, others) {
            Some(name) => format!("; did you mean module `{name}`?"),
            None => String::new(),
        };
        let example = match module.takes.from.as_ref().map_or(0, Vec::len) {
            0 | 1 => "input = [13]".into(),
            _ => format!("inputs = {{ {called} = {{ shape = [13] }} }}"),
        };
        let hint = format!(
            "`{called}` is not a module, so it is a field of the data: say its shape, for example {example}{meant}"
        );
        match module.takes.from.as_ref().map_or(0, Vec::len) {
            0 | 1 => table.missing(key, hint),
            _ => {
                let error = module.item.error_without_value(format!("does not say the shape of `{called}`"));
                module.item.reader().report(error.hint(hint));
            }
        }
    }

    /// Where the inputs come from, by the `last` stages of the modules before.
    fn sources(&self, at: usize, last: &[usize]) -> Vec<Source> {
        let source = |(from, field): (&Feed, &Option<usize>)| match (from, field) {
            (Feed::Output { at, output }, _) => Some(Source::Output { module: last[*at], output: *output }),
            (Feed::Field(..), field) => field.map(Source::Field),
        };
        self.froms[at].iter().zip(&self.taken[at]).filter_map(source).collect()
    }

    /// The fields that the loss takes.
    fn targets(&mut self, ends: &Ends<'_>) -> Option<Vec<usize>> {
        let target = |name: FieldName, key: &str| Field { name, key: key.into(), taken: None };
        let Some(item) = ends.loss.item(&data::LOSS_TARGET) else {
            let name = data::target(&ends.data).map_or(FieldName::Nth(1), FieldName::Named);
            return Some(vec![add(&mut self.fields, target(name, "data.target"))]);
        };
        if data::target(&ends.data).is_some() {
            item.wrong("and data.target both name the target", "leave one of them out");
            return None;
        }
        // A loss may compare outputs with one another.
        let references = if names_nothing(&item) { Vec::new() } else { takes::references(&item)? };
        for reference in &references {
            if self.modules.iter().any(|module| module.name == reference.name) {
                let hint =
                    "targets are fields of the data; what the loss takes of modules stands in loss.from";
                reference.item.wrong("is a module", hint);
                return None;
            }
        }
        let named = |reference: &Reference<'_>| {
            let field = target(FieldName::Named(reference.name.clone()), &reference.item.path);
            add(&mut self.fields, field)
        };
        Some(references.iter().map(named).collect())
    }
}

fn names_nothing(item: &Item<'_>) -> bool {
    item.is_list() && item.list().is_some_and(|names| names.is_empty())
}

/// The place of a field among those that are taken: each way to take one is there once.
fn add(fields: &mut Vec<Field>, field: Field) -> usize {
    let signal = |field: &Field| field.taken.as_ref().map(|taken| taken.signal.clone());
    let same = |other: &Field| other.name == field.name && signal(other) == signal(&field);
    fields.iter().position(same).unwrap_or_else(|| {
        fields.push(field);
        fields.len() - 1
    })
}
