//! A sharded module as its users hold it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use anyhow::{Context as _, Error, Result, ensure};
use c10d::vectors::{NO_ROW, sums_of_rows};
use tch::{Device, Kind, Tensor, no_grad};

use super::lookup_plan::LookupPlan;
use crate::autograd::{Autograd, Context};
use crate::job::shards::Cut;
use crate::job::{Devices, MadeOf, ModuleSpec, Placement};
use crate::layers::{BagMode, EMPTY_PLACE, Layer, LayerOp, RowTable};
use crate::model::{Mode, Module};
use crate::parallel::WAIT_FOR_TRAINERS;
use crate::parallel::calls::shard::{Get, Leave, LookUp, Rows};
use crate::rpc::{CallError, PendingReply, RRef};

/// A handle on a table whose rows lie on several ranks.
pub struct ShardedModule {
    autograd: Arc<Autograd>,
    name: String,
    rows: RowTable,
    cut: Cut,
    /// The parts, in the order of their ranks.
    shards: Vec<RRef>,
    /// Its rows stay as they are: look-ups record nothing, and no step comes.
    frozen: bool,
    /// The layer, run over the rows of a batch as if they were the whole table.
    module: Arc<Module>,
}

/// A look-up on its way.
#[must_use = "a look-up that nobody waits for fails unseen"]
pub struct LookingUp {
    name: String,
    module: Arc<Module>,
    bags: Option<BagMode>,
    dim: i64,
    /// The batch, with the number of a row in the place of each id.
    numbered: Vec<u32>,
    /// The shape of the batch's ids.
    shape: Vec<i64>,
    /// What the rows in a bag are multiplied by.
    weights: Option<Tensor>,
    /// For each owner that is asked.
    calls: Vec<Asked>,
}

/// One owner's rows, of which there are `count`.
struct Asked {
    reply: PendingReply<Rows>,
    count: i64,
    /// Once they are there.
    came: Option<Result<Rows, CallError>>,
}

impl ShardedModule {
    /// The one table that the owners have of `spec`; each part is made by the first who asks.
    ///
    /// # Errors
    /// When the module is not sharded, or an owner does not have its part.
    pub fn get(autograd: &Arc<Autograd>, spec: &ModuleSpec) -> Result<ShardedModule> {
        let (Placement::Shards(cut), Some(rows)) = (spec.placement, spec.rows()) else {
            anyhow::bail!("module `{}` is not sharded", spec.name)
        };
        let get = |&owner| autograd.call(owner, Get { module: spec.name.clone() }, None);
        let calls: Vec<_> = spec.place.ranks.iter().map(get).collect();
        let shards = calls.into_iter().map(|call| Ok(call.wait()?.shard));
        let shards = shards.collect::<Result<Vec<_>>>()?;
        let over_rows = with_layer(spec, rows.over_rows.clone());
        let module = Arc::new(Module::build(&over_rows, &[Device::Cpu], 0)?);
        Ok(ShardedModule {
            autograd: autograd.clone(),
            name: spec.name.clone(),
            rows,
            cut,
            shards,
            frozen: !spec.trains(),
            module,
        })
    }

    /// A reference to each part that is updated, for a [`DistributedOptimizer`](crate::parallel::DistributedOptimizer).
    pub fn updated(&self) -> &[RRef] {
        if self.frozen { &[] } else { &self.shards }
    }

    /// Asks the owners for the rows of a batch, whose `inputs` are those of the layer, all at once and of all columns; they
    /// apply `after` of this rank's steps first. The backward of `context` reaches the rows through what comes of it.
    ///
    /// # Errors
    /// An id that the table does not have.
    pub fn look_up(&self, context: &Context, inputs: &[Tensor], after: u64) -> Result<LookingUp> {
        self.ask(Some(context).filter(|_| !self.frozen), inputs, after)
            .with_context(|| format!("module `{}`", self.name))
    }

    /// The layer's output; nothing is recorded, and no row is made.
    ///
    /// # Errors
    /// An id that the table does not have; what an owner says, or the call.
    pub fn predict(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let looking_up = self.ask(None, inputs, 0).with_context(|| format!("module `{}`", self.name))?;
        no_grad(|| looking_up.wait())
    }

    /// Tells the owners that this rank takes no more steps.
    ///
    /// # Errors
    /// When a call fails, or the round that it completes cannot be applied.
    pub fn leave(&self) -> Result<()> {
        let leave = |shard: &RRef| self.autograd.call(shard.owner(), Leave { shard: shard.clone() }, None);
        let calls: Vec<_> = self.shards.iter().map(leave).collect();
        Ok(calls.into_iter().try_for_each(PendingReply::wait)?)
    }

    fn ask(&self, context: Option<&Context>, inputs: &[Tensor], after: u64) -> Result<LookingUp> {
        let RowTable { table, columns, bags, .. } = &self.rows;
        let (ids, weights) = self.rows.asked(inputs)?;
        let kind = ids.f_kind()?;
        ensure!(kind == Kind::Int64, "ids are int64, and {kind:?} came");
        let mut list = vec![0; ids.numel()];
        ids.f_contiguous()?.f_copy_data(&mut list, ids.numel())?;
        if let Some(columns) = columns {
            let places = if bags.is_some() { ids.size().last().copied().unwrap_or(0) } else { 1 };
            columns.number(&mut list, places as usize, bags.is_some()).map_err(Error::msg)?;
        }
        let plan = LookupPlan::new(&list, table, self.cut, self.shards.len(), bags.is_some())?;
        let mut calls = Vec::new();
        for (shard, ids) in self.shards.iter().zip(plan.of).filter(|(_, ids)| !ids.is_empty()) {
            let look_up = LookUp { shard: shard.clone(), after, ids: Tensor::f_from_slice(&ids)? };
            let call = match context {
                Some(_) => self.autograd.call_within(shard.owner(), look_up, context, WAIT_FOR_TRAINERS),
                None => self.autograd.call(shard.owner(), look_up, None),
            };
            calls.push(Asked { reply: call, count: ids.len() as i64, came: None });
        }
        Ok(LookingUp {
            name: self.name.clone(),
            module: self.module.clone(),
            bags: *bags,
            dim: table.dim,
            numbered: plan.numbered,
            shape: ids.size(),
            weights,
            calls,
        })
    }
}

impl LookingUp {
    /// Are all rows there? Then [`wait`](LookingUp::wait) does not wait.
    pub(in crate::parallel) fn poll_rows(&mut self, context: &mut task::Context<'_>) -> Poll<()> {
        let mut all = Poll::Ready(());
        for Asked { reply, came, .. } in self.calls.iter_mut().filter(|asked| asked.came.is_none()) {
            match Pin::new(reply).poll(context) {
                Poll::Ready(rows) => *came = Some(rows),
                Poll::Pending => all = Poll::Pending,
            }
        }
        all
    }

    /// Waits for the rows, and gives the layer's output, on the CPU.
    ///
    /// # Errors
    /// What an owner says, or the call.
    pub fn wait(self) -> Result<Tensor> {
        let LookingUp { name, module, bags, dim, numbered, shape, weights, calls } = self;
        let output = rows(calls, dim).and_then(|rows| {
            let bag = match (bags, &weights) {
                (None, None) => Some((1, shape.as_slice())),
                (Some(BagMode::Sum), None) => {
                    shape.split_last().map(|(length, bags)| (*length as usize, bags))
                }
                _ => None,
            };
            Ok(match bag {
                Some((length, shape)) if length > 0 => sums_of_rows(&rows, &numbered.into(), length, shape)?,
                _ => {
                    let ids = Tensor::f_from_slice(&as_ids(&numbered))?.f_view(shape.as_slice())?;
                    let inputs: Vec<Tensor> = [ids].into_iter().chain(weights).collect();
                    module.forward(&[Tensor::f_cat(&rows, 0)?], &inputs, Mode::EVAL)?
                }
            })
        });
        output.with_context(|| format!("module `{name}`"))
    }
}

/// Numbers of rows as indices of the layer.
fn as_ids(numbered: &[u32]) -> Vec<i64> {
    let as_id = |&number: &u32| if number == NO_ROW { EMPTY_PLACE } else { number.into() };
    numbered.iter().map(as_id).collect()
}

/// The rows that were asked for, owner after owner.
fn rows(calls: Vec<Asked>, dim: i64) -> Result<Vec<Tensor>> {
    let mut rows = Vec::with_capacity(calls.len());
    for Asked { reply, count, came } in calls {
        let came = came.unwrap_or_else(|| reply.wait())?.rows;
        let wanted = [count, dim];
        ensure!(came.size() == wanted, "rows of shape {:?} came where {wanted:?} are taken", came.size());
        rows.push(came);
    }
    if rows.is_empty() {
        // Bags of nothing but empty places.
        rows.push(Tensor::f_zeros([1, dim], (Kind::Float, Device::Cpu))?);
    }
    Ok(rows)
}

/// The module, which has one layer, with another one, at the trainer.
fn with_layer(spec: &ModuleSpec, op: LayerOp) -> ModuleSpec {
    let name = spec.layers().first().map(|layer| layer.name.clone()).unwrap_or_default();
    ModuleSpec {
        devices: Devices::One,
        made_of: MadeOf::Layers(vec![Layer { name, op }]),
        // Whether the rows are trained is their owners' affair.
        freeze: Vec::new(),
        ..spec.clone()
    }
}
