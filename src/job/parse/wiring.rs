//! Who takes what: the names in `from`, looked up, without any shape.

use std::collections::BTreeSet;

use super::super::validated::FieldName;
use super::data;
use super::graph::Ends;
use super::modules::Parsed;
use super::takes::{self, Reference};
use crate::config::{AnyKey as _, JobError, Table, suggest};

/// Where an input comes from; `at` is a place in the list of modules.
pub(super) enum Feed {
    Field(FieldName, String),
    Output { at: usize, output: usize },
}

/// Where the inputs of `modules[at]` come from.
pub(super) fn froms(modules: &[Parsed<'_>], at: usize, ends: &Ends<'_>) -> Option<Vec<Feed>> {
    match &modules[at].takes.from {
        Some(from) => from.iter().map(|reference| resolved(modules, Some(at), reference)).collect(),
        None if at == 0 => {
            let input = data::input(&ends.data);
            Some(vec![Feed::Field(input.map_or(FieldName::Nth(0), FieldName::Named), "data.input".into())])
        }
        None => {
            let before = &modules[at - 1];
            match before.outputs()?.as_slice() {
                [_] => Some(vec![Feed::Output { at: at - 1, output: 0 }]),
                several => {
                    let hint = format!("say which it takes: from = \"{}\"", of(before, several[0]));
                    let problem =
                        format!("comes behind `modules.{}`, which has several outputs", before.name);
                    modules[at]
                        .item
                        .reader()
                        .report(modules[at].item.error_without_value(problem).hint(hint));
                    None
                }
            }
        }
    }
}

/// `user.vector`
pub(super) fn of(module: &Parsed<'_>, output: Option<&str>) -> String {
    output.map_or_else(|| module.name.clone(), |output| format!("{}.{output}", module.name))
}

/// What a name stands for where `taker`, a module, or the loss says it.
fn resolved(modules: &[Parsed<'_>], taker: Option<usize>, reference: &Reference<'_>) -> Option<Feed> {
    let (name, item) = (reference.name.as_str(), &reference.item);
    let find = |name: &str| modules.iter().position(|module| module.name == name);
    let (at, output) = match (find(name), name.split_once('.')) {
        (Some(at), _) => (at, None),
        (None, Some((module, output))) if find(module).is_some() => (find(module)?, Some(output)),
        _ if name.is_empty() => {
            item.wrong("names nothing", "name a field of the data or a module");
            return None;
        }
        _ => return Some(Feed::Field(FieldName::Named(name.into()), item.path.clone())),
    };
    if taker == Some(at) {
        item.wrong(
            "is the module itself",
            "name what comes before it: a field of the data or another module",
        );
        return None;
    }
    let outputs = modules[at].outputs()?;
    match output {
        None if outputs.len() == 1 => Some(Feed::Output { at, output: 0 }),
        None => {
            let all: Vec<String> =
                outputs.iter().map(|output| format!("\"{}\"", of(&modules[at], *output))).collect();
            item.wrong("has several outputs", format!("say which: {}", all.join(", ")));
            None
        }
        Some(wanted) => {
            let found = outputs.iter().position(|output| *output == Some(wanted));
            if found.is_none() {
                let named: Vec<&str> = outputs.iter().flatten().copied().collect();
                let hint = match named.is_empty() {
                    true => format!("it has one output: write \"{}\"", modules[at].name),
                    false => suggest(wanted, "its outputs", named),
                };
                item.wrong(
                    format!("names an output that `modules.{}` does not have", modules[at].name),
                    hint,
                );
            }
            found.map(|output| Feed::Output { at, output })
        }
    }
}

/// An order in which each module comes behind those that it takes from; where there is a choice, as they stand.
pub(super) fn order(modules: &[Parsed<'_>], froms: &[Vec<Feed>]) -> Option<Vec<usize>> {
    let before = |at: usize| {
        froms[at].iter().filter_map(|from| match from {
            Feed::Field(..) => None,
            Feed::Output { at, .. } => Some(*at),
        })
    };
    let mut order: Vec<usize> = Vec::with_capacity(modules.len());
    while order.len() < modules.len() {
        let ready = |at: &usize| !order.contains(at) && before(*at).all(|before| order.contains(&before));
        match (0..modules.len()).find(ready) {
            Some(next) => order.push(next),
            None => {
                // Everybody left waits for somebody left: whoever follows that comes back to where he was.
                let waits_for = |at: usize| before(at).find(|before| !order.contains(before));
                let mut way = vec![(0..modules.len()).find(|at| !order.contains(at))?];
                let circle = loop {
                    let next = waits_for(*way.last()?)?;
                    match way.iter().position(|at| *at == next) {
                        Some(begin) => break way.split_off(begin),
                        None => way.push(next),
                    }
                };
                report_circle(modules, &circle);
                return None;
            }
        }
    }
    Some(order)
}

fn report_circle(modules: &[Parsed<'_>], circle: &[usize]) {
    let name = |nth: usize| format!("`{}`", modules[circle[nth % circle.len()]].name);
    let takes: Vec<String> =
        (0..circle.len()).map(|nth| format!("{} takes from {}", name(nth), name(nth + 1))).collect();
    let item = &modules[circle[0]].item;
    let error = item.error_without_value(format!("waits for itself: {}", takes.join(", ")));
    item.reader().report(
        error.hint("let one of them take something else: what passes a model passes each module once"),
    );
}

/// The outputs that the loss takes: as `loss.from` says, or what nobody else takes.
pub(super) fn loss_takes(
    modules: &[Parsed<'_>],
    froms: &[Vec<Feed>],
    loss: &Table<'_>,
) -> Option<Vec<(usize, usize)>> {
    if let Some(item) = loss.item(&data::LOSS_FROM) {
        let output = |reference: &Reference<'_>| match resolved(modules, None, reference)? {
            Feed::Output { at, output } => Some((at, output)),
            Feed::Field(..) => {
                let names = modules.iter().map(|module| module.name.as_str());
                reference
                    .item
                    .wrong("is not a module of this job", suggest(&reference.name, "modules", names));
                None
            }
        };
        let outputs: Vec<_> = takes::references(&item)?.iter().map(output).collect();
        return outputs.into_iter().collect();
    }
    let taken = |at: usize, nth: usize| {
        let takes =
            |from: &Feed| matches!(from, Feed::Output { at: of, output } if (*of, *output) == (at, nth));
        froms.iter().flatten().any(takes)
    };
    let mut last = Vec::new();
    for (at, module) in modules.iter().enumerate() {
        let outputs = module.outputs()?;
        let all: Vec<usize> = (0..outputs.len()).filter(|nth| !taken(at, *nth)).collect();
        // Of a module with several some may be for nobody.
        if all.len() == outputs.len() {
            last.extend(all.into_iter().map(|nth| (at, nth, of(module, outputs[nth]))));
        }
    }
    match last.as_slice() {
        [(at, output, _)] => Some(vec![(*at, *output)]),
        [] => {
            loss.missing(data::LOSS_FROM.name(), "name what the loss takes: each module is taken by another");
            None
        }
        several => {
            let names: Vec<String> = several.iter().map(|(.., name)| format!("`{name}`")).collect();
            let problem =
                format!("`loss.from` is missing, and {} are taken by no module", names.join(" and "));
            let hint = format!(
                "name what the loss takes, for example from = \"{}\", and let modules take the others",
                several.last().map_or("", |(.., name)| name)
            );
            loss.reader().report(JobError::new(problem).hint(hint));
            None
        }
    }
}

/// What is said in `from` of modules.
pub(super) fn named_outputs(modules: &[Parsed<'_>], loss: &Table<'_>) -> BTreeSet<String> {
    let by_modules = modules.iter().filter_map(|module| module.takes.from.as_ref()).flatten();
    let named: Vec<String> = by_modules.map(|reference| reference.name.clone()).collect();
    let by_loss = loss.item(&data::LOSS_FROM).and_then(|item| takes::references(&item)).unwrap_or_default();
    let named = named.into_iter().chain(by_loss.into_iter().map(|reference| reference.name));
    let is_module = |name: &String| {
        let before_dot = name.split_once('.').map_or(name.as_str(), |(module, _)| module);
        modules.iter().any(|module| module.name == *name || module.name == before_dot)
    };
    named.filter(is_module).collect()
}
