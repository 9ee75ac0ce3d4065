//! The parsed job: merged values to a validated [`Job`], or every error on the way.
//!
//! One file for each part of a job. Each reads what its sections say and what they say together; this one
//! puts the parts together and checks what spans them. Knows no TOML text and no sources.

pub(super) mod checkpoint;
pub(super) mod cluster;
pub(super) mod collectives;
pub mod data;
pub(super) mod ema;
pub(super) mod eval;
mod exports;
mod freeze;
mod graph;
pub(super) mod modules;
mod optimizer;
pub(super) mod patterns;
pub(super) mod pipeline;
mod places;
pub(super) mod precision;
pub(super) mod pull_push;
pub(super) mod replicas;
mod shards;
mod starts;
pub(super) mod takes;
pub(super) mod train;
mod wiring;

use super::Purpose;
use super::keys;
use super::size;
use super::validated::{Field, Job, Loss, ModuleSpec, Normalize, Placement, Taken, Task, Training, Work};
use crate::config::JobError;
use crate::config::{AnyKey, Item, Merged, Reader, Table};
use crate::layers::{self, InputDtype, Layer, Signal};
use crate::optimizers::{self, OptimizerSpec};
use crate::topology::{Rank, Role};
use graph::{Ends, Graph};

pub(super) struct Read {
    pub job: Job,
    pub rank: Option<Rank>,
    pub local_rank: Option<u32>,
}

/// `fallback`: the job's name, where the file gives none.
pub(super) fn read(merged: &Merged, fallback: Option<&str>, purpose: Purpose) -> Result<Read, Vec<JobError>> {
    let reader = Reader::new(merged, keys::JOB);
    let read = job(reader.root(), fallback, purpose);
    match (read, reader.into_errors()) {
        (Some(read), errors) if errors.is_empty() => Ok(read),
        (_, errors) if errors.is_empty() => {
            Err(vec![JobError::new("the job is wrong in a way that was not named")])
        }
        (_, errors) => Err(errors),
    }
}

fn job(root: Table<'_>, fallback: Option<&str>, purpose: Purpose) -> Option<Read> {
    root.only(keys::JOB);
    let name = match fallback {
        Some(fallback) if root.item(&keys::NAME).is_none() => Some(fallback.to_owned()),
        _ => root.read(&keys::NAME),
    };
    let cluster = cluster::read(root.open(&keys::CLUSTER), root.item(&cluster::ROLES));
    let work = match root.item(&keys::COLLECTIVES) {
        Some(_) => {
            let world = cluster.cluster.as_ref().map(|cluster| cluster.world_size);
            refuse_training(&root);
            collectives::read(root.open(&keys::COLLECTIVES), world).map(Work::Collectives)
        }
        None => training(&root, &cluster.roles, purpose).map(|training| Work::Train(Box::new(training))),
    };
    let job = Job { name: name?, cluster: cluster.cluster?, roles: cluster.roles, work: work? };
    Some(Read { job, rank: cluster.rank, local_rank: cluster.local_rank })
}

/// A job that shows collectives trains nothing.
fn refuse_training(root: &Table<'_>) {
    let of_any_job: [&dyn AnyKey; 4] = [&keys::NAME, &keys::CLUSTER, &cluster::ROLES, &keys::COLLECTIVES];
    let of_training = |key: &&&dyn AnyKey| of_any_job.iter().all(|other| other.name() != key.name());
    for item in keys::JOB.iter().filter(of_training).filter_map(|key| root.item(*key)) {
        if item.is_written() {
            let problem = "is for jobs that train, and this one has [collectives]";
            item.reader().report(item.error_without_value(problem).hint("leave one of them out"));
        }
    }
}

fn training(root: &Table<'_>, roles: &[Role], purpose: Purpose) -> Option<Training> {
    let seed = root.read(&keys::SEED);
    let train = root.open(&keys::TRAIN);
    let trainers = train::trainers(&train, roles);
    let modules = root.item(&modules::MODULES);
    let train = train::read(train, roles, trainers);
    let ends = Ends { data: root.section(&keys::DATA), loss: root.section(&keys::LOSS) };
    let graph = match modules {
        Some(item) => read_modules(&item, train.forward.as_ref(), roles, trainers, &ends),
        None => {
            let hint = "a model is made of modules: [modules.net] with place, input and layers";
            root.reader().report(JobError::new("`modules` is missing").hint(hint));
            None
        }
    };
    let modules = graph.as_ref().map(|graph| graph.modules.as_slice());
    // Without modules it is not known whether they would have had replicas.
    let replicated = |module: &ModuleSpec| module.placement == Placement::Replicas;
    let replicas = replicas::read(
        root.open(&keys::REPLICAS),
        modules.is_none_or(|modules| modules.iter().any(replicated)),
    );
    // As with replicas: not known without modules.
    let pulled = modules.is_none_or(|modules| modules.iter().any(|m| m.placement == Placement::Caller));
    let pull_push = pull_push::read(root.open(&keys::PULL_PUSH), pulled);
    let batch_size = train.train.as_ref().map(|train| train.batch_size);
    let pipeline = pipeline::read(root.open(&keys::PIPELINE), batch_size);
    let data_table = root.open(&keys::DATA);
    let normalize = data_table.item(&data::NORMALIZE);
    let data = data::read(data_table, trainers);
    let loss = data::read_loss(&root.open(&keys::LOSS));
    let optimizer = optimizer::read(root);
    let ema = ema::read(root.item(&keys::EMA).map(|_| root.open(&keys::EMA)).as_ref());
    let precision = precision::read(&root.open(&keys::PRECISION));
    let eval = eval::read(&root.open(&keys::EVAL));
    let checkpoint = root.item(&keys::CHECKPOINT).map(|_| root.open(&keys::CHECKPOINT));
    let checkpoint = checkpoint::read(checkpoint.as_ref());
    let log = train::read_log(root.open(&keys::LOG));
    let plugin_limits = data::read_limits(root.open(&keys::PLUGINS));

    let (Graph { mut modules, fields, named_outputs, from, targets }, (plugin, params)) = (graph?, loss?);
    let precision::Precision { autocast, loss_scaling } = precision?;
    modules.iter_mut().for_each(|module| module.autocast = autocast);
    let optimizer::Read { common, schedule, clip_norm, clip_value, own } = optimizer?;
    let mut training = Training {
        seed: seed? as u64,
        modules,
        fields,
        named_outputs,
        replicas: replicas?,
        pull_push: pull_push?,
        pipeline: pipeline?,
        data: data?,
        loss: Loss { plugin, params, from, targets },
        optimizer: common,
        own_optimizers: own,
        schedule,
        clip_norm,
        clip_value,
        ema: ema?,
        loss_scaling,
        train: train.train?,
        eval: eval?,
        checkpoint: checkpoint?,
        log: log?,
        plugin_limits: plugin_limits?,
        task: Task::Train,
    };
    check_together(root, &mut training, normalize.as_ref())?;
    if purpose == Purpose::Train {
        eval::check_decisions(root, &root.section(&keys::EVAL), &training);
    }
    Some(training)
}

/// What concerns several sections. `None`: it could not be looked at.
fn check_together(root: &Table<'_>, training: &mut Training, normalize: Option<&Item<'_>>) -> Option<()> {
    if training.has_replicas() {
        train::no_skipping(&root.section(&keys::TRAIN), &training.train);
    }
    replicas::check_order(root, training);
    if training.modules.iter().all(ModuleSpec::is_replicated) {
        train::only_rounds(&root.section(&keys::TRAIN), &mut training.train);
    }
    let batches = [
        (root.section(&keys::TRAIN).item(&train::BATCH_SIZE)?, training.train.batch_size),
        (root.section(&keys::EVAL).item(&eval::BATCH_SIZE)?, training.eval.batch_size),
    ];
    for (item, batch) in batches {
        check_messages(&item, batch, &training.modules);
        shards::check_messages(&item, batch, &training.modules);
    }
    check_tensors(root, &training.modules);
    pull_push::check_ranges(&modules::table(root), &training.modules);
    pull_push::check_local_steps(
        &root.section(&keys::TRAIN),
        &training.train,
        training.has(Placement::Caller),
    );
    check_sparse(root, training);
    check_sum(root, training);
    shards::check(root, training);
    train::only_drives(&root.section(&keys::TRAIN), training);
    optimizer::check(root, training);
    if let Some(item) = root.item(&keys::EMA) {
        ema::check(&item, training);
    }
    precision::check(&root.section(&keys::PRECISION), training);
    if let Some(item) = root.item(&keys::CHECKPOINT) {
        checkpoint::check(&item, training);
    }
    freeze::check(root, training);
    eval::check(&root.section(&keys::EVAL), training);
    if let (Some(item), Some(values)) = (normalize, &training.data.normalize) {
        check_normalize(item, values, &training.fields);
    }
    Some(())
}

fn read_modules(
    item: &Item<'_>,
    forward: Option<&Item<'_>>,
    roles: &[Role],
    trainers: Option<&Role>,
    ends: &Ends<'_>,
) -> Option<Graph> {
    let entries = item.table()?.entries_as_written();
    if entries.is_empty() {
        item.wrong("has no module", "for example [modules.net] with place, input and layers");
        return None;
    }
    let says = |(name, item): &(&str, Item<'_>)| {
        let from = item.value().as_dict().is_some_and(|module| module.contains_key(takes::FROM.name()));
        (name.to_string(), from)
    };
    let says: Vec<(String, bool)> = entries.iter().map(says).collect();
    let order = train::order(forward, &says, &|error| item.reader().report(error));
    let count = entries.len();
    let mut written: Vec<_> =
        entries.into_iter().filter_map(|(name, item)| modules::read(item, name, roles, trainers)).collect();
    let order = order?;
    let complete = written.len() == count;
    written.sort_by_key(|module| order.iter().position(|name| *name == module.name));
    // With one missing, its neighbours would be joined to the wrong ones.
    complete.then(|| graph::join(&written, ends)).flatten()
}

fn check_normalize(item: &Item<'_>, normalize: &Normalize, fields: &[Field]) {
    let meant = |field: &&Field| normalize.fields.contains(&field.name);
    let taken = fields.iter().filter(meant).filter_map(|field| field.taken.as_ref());
    for Taken { signal, module, .. } in taken {
        if signal.dtype == InputDtype::Int64 {
            let problem = format!("makes fractions, and `modules.{module}` expects whole numbers: {signal}");
            let hint = "leave it out, or name other fields in data.normalize.fields";
            item.reader().report(item.error_without_value(problem).hint(hint));
            return;
        }
        let channels = normalize.mean.len();
        if channels > 1 && signal.shape.first() != Some(&(channels as i64)) {
            let problem =
                format!("is for {channels} channels, and a sample of `modules.{module}` is {signal}");
            item.reader().report(
                item.error_without_value(problem).hint("give one value for each channel, or one for all"),
            );
        }
    }
}

/// Whether a batch fits a message on its way into each module and out of it.
fn check_messages(batch_size: &Item<'_>, batch: u64, modules: &[ModuleSpec]) {
    for module in modules.iter().filter(|module| module.placement == Placement::Remote) {
        let outputs = module.outputs();
        let ways = [(&module.inputs, "into"), (&outputs, "out of")];
        for (signals, way) in ways {
            let bytes = signals.iter().map(Signal::bytes).fold(0, u64::saturating_add);
            if bytes <= size::LARGEST_MESSAGE / batch {
                continue;
            }
            let problem = format!("makes messages of more than 4 GiB {way} `modules.{}`", module.name);
            let hint = match size::LARGEST_MESSAGE / bytes {
                0 => format!("one sample has {bytes} bytes there; let the module begin or end elsewhere"),
                most => format!("a sample has {bytes} bytes there; use at most {most}"),
            };
            batch_size.wrong(problem, hint);
        }
    }
}

/// Whether each parameter fits a message: the model is fetched one by one to be saved.
fn check_tensors(root: &Table<'_>, modules: &[ModuleSpec]) {
    each_layer(root, modules, |item, module, layer| {
        let bytes = layers::size::largest_tensor_bytes(&layer.op);
        // A table that is cut is fetched in pieces of rows.
        if bytes > size::LARGEST_MESSAGE && !module.is_cut() {
            let problem = format!("has a parameter of {bytes} bytes, and a message holds 4 GiB");
            let hint = "make the layer smaller: a model is fetched from its rank parameter by parameter";
            item.reader().report(item.error_without_value(problem).hint(hint));
        }
    });
}

/// Whether sparse gradients meet only what takes them.
fn check_sparse(root: &Table<'_>, job: &Training) {
    each_layer(root, &job.modules, |item, module, layer| {
        // Of a table that is cut only rows travel anyway.
        if !layer.op.has_sparse_gradient() || module.is_cut() || module.trained(layer) == 0 {
            return;
        }
        let optimization = job.written_optimization(module);
        let (problem, hint) = match optimizer::refused(optimization, OptimizerSpec::refuses_sparse) {
            _ if module.is_replicated() => (
                "has sparse gradients, which replicas cannot average".into(),
                "leave sparse out, or place the module on a role of one rank that does not train".into(),
            ),
            _ if module.placement == Placement::Caller => (
                "has sparse gradients, which are not pushed".into(),
                "leave sparse out, or place the module on a role of one rank without run = \"caller\"".into(),
            ),
            Some(why) => (
                format!("has sparse gradients, which {}{why} cannot apply", optimization.spec.name()),
                format!("leave sparse out, or use {}", optimizers::that_apply_sparse()),
            ),
            None => return,
        };
        item.reader().report(item.error_without_value(problem).hint(hint));
    });
}

/// Whether a loss that is a sum is one for all modules: gradients of replicas become one mean, and those of others, unless their
/// updates are rounds, are applied one by one.
fn check_sum(root: &Table<'_>, job: &Training) {
    let all_alike = !job.has_replicas() || job.is_all_replicas();
    if !job.loss.is_sum() || job.train.consistency.has_rounds() || all_alike {
        return;
    }
    let Some(item) = root.section(&keys::LOSS).item(&data::PARAMS) else { return };
    let consistency = &job.train.consistency;
    let problem = format!(
        "has reduction = \"sum\", and the sum would be over all trainers for replicas, and over one for modules that are updated by \
         train.consistency = {consistency}"
    );
    let hint = "write consistency = \"bsp\" in [train], or reduction = \"mean\"";
    item.reader().report(item.error_without_value(problem).hint(hint));
}

/// Each layer of the lists as written, where it stands, and its module.
fn each_layer(root: &Table<'_>, modules: &[ModuleSpec], look: impl Fn(&Item<'_>, &ModuleSpec, &Layer)) {
    let written = modules::table(root);
    for (name, item) in written.entries() {
        let layers = item.table().and_then(|module| module.item(&modules::LAYERS));
        let Some(layers) = layers else { continue };
        let stages = modules.iter().filter(|module| module.written_name() == name);
        let all = stages.flat_map(|stage| stage.layers().iter().map(move |layer| (stage, layer)));
        for (index, (module, layer)) in all.enumerate() {
            if let Some(item) = layers.at(&[index]) {
                look(&item, module, layer);
            }
        }
    }
}

#[cfg(test)]
mod shape_tests;
