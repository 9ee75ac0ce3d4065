//! A trainer's side of a module whose parameters are on servers: it pulls them into its copy and pushes gradients, to
//! and from all servers at once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::filter::{Encoded, decode, encode};
use super::pulled::Exchanged;
use super::segments::{Segment, gather, marked_length, segments, spread};
use crate::autograd::Autograd;
use crate::job::{Filter, ranges};
use crate::optimizers::{Optimization, Optimizer};
use crate::parallel::calls::optimizer::MeasuredStep;
use crate::parallel::calls::range::{self, Marks, Push, Pushed, Update};
use crate::parallel::{Applied, Gradients, LocalParameters, StepTerms, WAIT_FOR_TRAINERS, mean, norm};
use crate::profile::exchange;
use crate::rpc::{Call, Json, PendingReply, RRef};
use crate::topology::Rank;

pub struct Exchange {
    autograd: Arc<Autograd>,
    /// This trainer's copy.
    here: LocalParameters,
    filter: Filter,
    takes_turns: bool,
    /// One for each range.
    servers: Vec<Server>,
    local: LocalSteps,
    traffic: Traffic,
}

/// A range at its server, and what this trainer knows of it.
struct Server {
    range: RRef,
    segments: Vec<Segment>,
    lengths: Vec<i64>,
    /// What was pulled last, by segment: parts of the copy itself, or of their own, where local steps change the copy.
    pulled: Vec<Tensor>,
    version: u64,
    /// What the filter has left out of the gradients so far, by segment; empty where it leaves nothing out.
    left: Vec<Tensor>,
}

/// The steps since the last synchronisation.
struct LocalSteps {
    /// From one to the next.
    every: u32,
    taken: u32,
    /// The factor of the last step, which is the one that the servers take.
    lr_factor: f64,
    /// What the steps weigh that were not skipped.
    weight: Option<f64>,
    /// The sum of their gradients.
    sum: Gradients,
    /// What updates the copy meanwhile, where there is a meanwhile.
    optimizer: Option<Optimizer>,
}

/// Bytes of encoded values that a trainer has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Gradients to the servers.
    pub pushed_bytes: u64,
    /// Parameters from the servers.
    pub pulled_bytes: u64,
    /// What the same pushes and pulls would have been, each of all values as f32.
    pub full_bytes: u64,
}

impl std::ops::Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic {
            pushed_bytes: self.pushed_bytes + other.pushed_bytes,
            pulled_bytes: self.pulled_bytes + other.pulled_bytes,
            full_bytes: self.full_bytes + other.full_bytes,
        }
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MB: f64 = 1e6;
        let moved = self.pushed_bytes + self.pulled_bytes;
        write!(
            f,
            "{:.1} MB pushed, {:.1} MB pulled, {:.1} % of all values as float32",
            self.pushed_bytes as f64 / MB,
            self.pulled_bytes as f64 / MB,
            moved as f64 / self.full_bytes.max(1) as f64 * 100.0
        )
    }
}

/// A push whose answers are on their way, one from each server.
pub(in crate::parallel) struct Pushing(Vec<PendingReply<Pushed>>);

impl Exchange {
    /// Over the parameters `here`, whose ranges the ranks `servers` hold in this order.
    ///
    /// # Errors
    /// When a server holds no range of the module, or cannot make it.
    pub(super) fn open(
        autograd: &Arc<Autograd>,
        here: LocalParameters,
        servers: &[Rank],
        Exchanged { filter, local_steps, takes_turns }: Exchanged,
    ) -> Result<Exchange> {
        let sizes: Vec<u64> = here.tensors.iter().map(|tensor| tensor.numel() as u64).collect();
        let get = |&rank: &Rank| autograd.call(rank, range::Get { module: here.name.clone() }, None);
        let asked: Vec<_> = servers.iter().map(get).collect();
        let ranges = ranges(sizes.iter().sum(), servers.len());
        let server = |(asked, range): (PendingReply<range::Reference>, _)| {
            Server::new(asked.wait()?.range, segments(&sizes, &range), &here.tensors, filter, local_steps > 1)
        };
        let servers = asked.into_iter().zip(ranges).map(server).collect::<Result<_>>()?;
        let local = LocalSteps {
            every: local_steps,
            taken: 0,
            lr_factor: 1.0,
            weight: None,
            sum: Vec::new(),
            optimizer: None,
        };
        let (autograd, traffic) = (autograd.clone(), Traffic::default());
        Ok(Exchange { autograd, here, filter, takes_turns, servers, local, traffic })
    }

    /// Chooses what updates the parameters, and pulls them for the first time.
    ///
    /// # Errors
    /// When a server refuses the options, or already updates these parameters by others.
    pub(in crate::parallel) fn start(&mut self, optimization: &Optimization) -> Result<()> {
        self.call_all(|range| range::Optimize { range, options: Json(optimization.clone()) })?;
        if self.local.every > 1 {
            let names = self.here.module.whole_names();
            let optimizer = Optimizer::grouped(optimization, names, &self.here.tensors);
            self.local.optimizer = Some(optimizer.with_context(|| format!("module `{}`", self.here.name))?);
        }
        self.refresh()
    }

    /// Waits for this trainer's turn, where they take turns, and pulls what the steps before it have made.
    ///
    /// # Errors
    /// When a call fails, or what came is not an update.
    pub(in crate::parallel) fn turn(&mut self) -> Result<()> {
        if !self.takes_turns || self.local.taken > 0 {
            return Ok(());
        }
        let _exchange = exchange();
        let asked = self.ask_in_turn(|range, version| range::Pull { range, have: Some(version) });
        let updates = asked.into_iter().map(PendingReply::wait).collect::<Result<Vec<_>, _>>()?;
        // There was no step since the last pull: this one was for the turn.
        if updates.iter().all(|update| update.parts.is_empty()) {
            return Ok(());
        }
        self.take(updates, self.filter)
    }

    /// A step of the trainer, on its terms; `None`: one that is skipped. The push, when it is time for one,
    /// goes out at once; it is over with [`settle`](Exchange::settle).
    ///
    /// # Errors
    /// When libtorch refuses, or a gradient does not go through the filter.
    pub(in crate::parallel) fn step(
        &mut self,
        given: Option<(&BTreeMap<String, Tensor>, StepTerms)>,
    ) -> Result<Option<Pushing>> {
        let given = given.map(|(gradients, terms)| (self.here.gradients(gradients), terms));
        let local = &mut self.local;
        local.taken += 1;
        if let Some((mut gradients, StepTerms { weight, lr_factor, factor, .. })) = given {
            local.lr_factor = lr_factor;
            if factor != 1.0 {
                gradients = norm::scaled(gradients, factor)?;
            }
            if let Some(optimizer) = &mut local.optimizer {
                optimizer.step(&self.here.tensors, &gradients, lr_factor)?;
            }
            local.add(gradients, weight)?;
        }
        if local.taken < local.every { Ok(None) } else { self.push().map(Some) }
    }

    /// The first half of a step in rounds whose gradients are clipped: the push, of which nothing is applied yet.
    ///
    /// # Errors
    /// As [`Exchange::step`].
    pub(in crate::parallel) fn measure(
        &mut self,
        step: u64,
        given: Option<(&BTreeMap<String, Tensor>, StepTerms)>,
    ) -> Result<Vec<PendingReply<MeasuredStep>>> {
        let lr_factor = given.map_or(1.0, |(_, terms)| terms.lr_factor);
        let weight = given.map(|(_, terms)| terms.weight);
        let gradients = given.map(|(gradients, _)| self.here.gradients(gradients)).unwrap_or_default();
        self.send(&gradients, weight, |range, _, marks, parts| range::Measure {
            range,
            step,
            weight,
            lr_factor,
            marks,
            parts,
        })
    }

    /// The second half.
    pub(in crate::parallel) fn step_measured(&self, step: u64, factor: f64) -> Pushing {
        Pushing(self.ask_in_turn(|range, version| range::PushMeasured { range, version, step, factor }))
    }

    /// The sum of the squares of a step's gradients.
    ///
    /// # Errors
    /// What libtorch refuses.
    pub(in crate::parallel) fn squares(&self, gradients: &BTreeMap<String, Tensor>) -> Result<f64> {
        norm::squares(self.here.watched_names.iter().filter_map(|name| gradients.get(name)))
    }

    /// Waits for the answers of a push and takes over what they bring. The answer has the largest staleness.
    ///
    /// # Errors
    /// When a server cannot apply the gradients, or what came is not an update.
    pub(in crate::parallel) fn settle(&mut self, pushing: Pushing) -> Result<Applied> {
        let _exchange = exchange();
        let mut applied = Applied::default();
        let mut updates = Vec::new();
        for answer in pushing.0 {
            let Pushed { staleness, update } = answer.wait()?;
            applied.staleness = applied.staleness.max(staleness);
            updates.push(update);
        }
        if !self.takes_turns {
            self.take(updates, self.filter)?;
        }
        Ok(applied)
    }

    /// Pushes what local steps have left since the last synchronisation, if any.
    ///
    /// # Errors
    /// As [`Exchange::settle`].
    pub(in crate::parallel) fn flush(&mut self) -> Result<()> {
        if self.local.taken == 0 {
            return Ok(());
        }
        let pushing = self.push()?;
        self.settle(pushing).map(drop)
    }

    /// Pulls all values as they are (PP-4). What local steps have not pushed yet is no longer in the copy.
    ///
    /// # Errors
    /// When a call fails, or what came is not an update.
    pub(in crate::parallel) fn refresh(&mut self) -> Result<()> {
        let _exchange = exchange();
        let updates = self.call_all(|range| range::Pull { range, have: None })?;
        self.take(updates, Filter::None)
    }

    /// Tells the servers that this trainer pushes no more.
    ///
    /// # Errors
    /// When a call fails, or the round that it completes cannot be applied.
    pub(in crate::parallel) fn leave(&self) -> Result<()> {
        self.call_all(|range| range::Leave { range }).map(drop)
    }

    /// This trainer's copy.
    pub(in crate::parallel) fn here(&self) -> &LocalParameters {
        &self.here
    }

    pub(in crate::parallel) fn module(&self) -> &str {
        &self.here.name
    }

    /// So far.
    pub(in crate::parallel) fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn push(&mut self) -> Result<Pushing> {
        let (weight, sum) = self.local.take();
        let lr_factor = self.local.lr_factor;
        let sent = self.send(&sum, weight, |range, version, marks, parts| Push {
            range,
            version,
            weight,
            lr_factor,
            marks,
            parts,
        });
        sent.map(Pushing)
    }

    /// To each server its part of the gradients.
    fn send<C: Call>(
        &mut self,
        gradients: &Gradients,
        weight: Option<f64>,
        call: impl Fn(RRef, u64, Marks, Vec<Tensor>) -> C,
    ) -> Result<Vec<PendingReply<C::Reply>>> {
        let _exchange = exchange();
        let mut sent = Vec::new();
        for server in &mut self.servers {
            let (marks, encoded) = server
                .outgoing(gradients, self.filter)
                .with_context(|| format!("the gradients of module `{}`", self.here.name))?;
            if weight.is_some() {
                self.traffic.pushed_bytes += encoded.bytes();
                self.traffic.full_bytes += Filter::None.bytes(server.values());
            }
            let (range, owner) = (server.range.clone(), server.range.owner());
            let call = call(range, server.version, Marks(marks), encoded.0);
            sent.push(self.autograd.call_within(owner, call, None, WAIT_FOR_TRAINERS));
        }
        Ok(sent)
    }

    /// One update from each server, encoded by `filter`.
    fn take(&mut self, updates: Vec<Update>, filter: Filter) -> Result<()> {
        for (server, update) in self.servers.iter_mut().zip(updates) {
            let pulled = server.take(update, filter).with_context(|| {
                format!("what rank {} sent of module `{}`", server.range.owner(), self.here.name)
            })?;
            self.traffic.pulled_bytes += pulled;
            self.traffic.full_bytes += Filter::None.bytes(server.values());
            if self.local.every > 1 {
                server.overwrite(&self.here.tensors)?;
            }
        }
        Ok(())
    }

    /// Asks all servers at once for what may have to wait for other trainers; `call` is of a range and the version that is here.
    fn ask_in_turn<C: Call>(&self, call: impl Fn(RRef, u64) -> C) -> Vec<PendingReply<C::Reply>> {
        let ask = |server: &Server| {
            let call = call(server.range.clone(), server.version);
            self.autograd.call_within(server.range.owner(), call, None, WAIT_FOR_TRAINERS)
        };
        self.servers.iter().map(ask).collect()
    }

    /// Asks all servers at once.
    fn call_all<C: Call>(&self, call: impl Fn(RRef) -> C) -> Result<Vec<C::Reply>> {
        let call =
            |server: &Server| self.autograd.call(server.range.owner(), call(server.range.clone()), None);
        let calls: Vec<_> = self.servers.iter().map(call).collect();
        Ok(calls.into_iter().map(PendingReply::wait).collect::<Result<_, _>>()?)
    }
}

impl Server {
    fn new(
        range: RRef,
        segments: Vec<Segment>,
        parameters: &[Tensor],
        filter: Filter,
        apart: bool,
    ) -> Result<Server> {
        let lengths: Vec<i64> = segments.iter().map(Segment::len).collect();
        let views = segments.iter().map(|segment| segment.view(&parameters[segment.parameter]));
        let mut pulled = views.collect::<Result<Vec<_>>>()?;
        if apart {
            pulled = pulled.iter().map(Tensor::f_detach_copy).collect::<Result<_, _>>()?;
        }
        let nothing = |length: &i64| Tensor::f_zeros([*length], (Kind::Float, Device::Cpu));
        let left = match filter {
            Filter::None => Vec::new(),
            _ => lengths.iter().map(nothing).collect::<Result<_, _>>()?,
        };
        Ok(Server { range, segments, lengths, pulled, version: 0, left })
    }

    /// How many there are.
    fn values(&self) -> u64 {
        self.lengths.iter().sum::<i64>() as u64
    }

    /// Which segments have a gradient, and the gradients as they travel. What the filter leaves out waits here (PP-3).
    fn outgoing(&mut self, gradients: &Gradients, filter: Filter) -> Result<(Vec<bool>, Encoded)> {
        let of = |segment: &Segment| {
            let gradient = gradients.get(segment.parameter).and_then(Option::as_ref);
            gradient.map(|gradient| segment.of(gradient)).transpose()
        };
        let own = self.segments.iter().map(of).collect::<Result<Vec<_>>>()?;
        let marks: Vec<bool> = own.iter().map(Option::is_some).collect();
        let own: Vec<Tensor> = own.into_iter().flatten().collect();
        if own.is_empty() {
            return Ok((marks, Encoded::default()));
        }
        let mut given = Tensor::f_cat(&own, 0)?;
        let Some(left) = gather(&self.left, &marks)? else {
            return Ok((marks, encode(filter, &given)?.0));
        };
        let _ = given.f_add_(&left)?;
        let (encoded, arrives) = encode(filter, &given)?;
        let left = spread(Some(&given.f_sub(&arrives)?), &self.lengths, &marks)?;
        for (kept, left) in self.left.iter_mut().zip(left) {
            left.iter().try_for_each(|left| kept.f_copy_(left))?;
        }
        Ok((marks, encoded))
    }

    /// Takes over an update that came. Returns the bytes of its values.
    fn take(&mut self, update: Update, filter: Filter) -> Result<u64> {
        let Update { version, marks: Marks(marks), parts } = update;
        let (came, segments) = (marks.len(), self.lengths.len());
        ensure!(came == segments, "values of {came} segments came for {segments}");
        let encoded = Encoded(parts);
        let bytes = encoded.bytes();
        let values = match marked_length(&self.lengths, &marks) {
            0 => None,
            length => Some(decode(filter, encoded.0, length)?),
        };
        for (pulled, values) in self.pulled.iter_mut().zip(spread(values.as_ref(), &self.lengths, &marks)?) {
            let Some(values) = values else { continue };
            match filter {
                // As they are.
                Filter::None => pulled.f_copy_(&values)?,
                // The difference to what is here.
                _ => drop(pulled.f_add_(&values.f_to_device(pulled.device())?)?),
            }
        }
        self.version = version;
        Ok(bytes)
    }

    /// The copy becomes what was pulled, whatever local steps have made of it.
    fn overwrite(&self, parameters: &[Tensor]) -> Result<()> {
        for (segment, pulled) in self.segments.iter().zip(&self.pulled) {
            segment.view(&parameters[segment.parameter])?.f_copy_(pulled)?;
        }
        Ok(())
    }
}

impl LocalSteps {
    fn add(&mut self, gradients: Gradients, weight: f64) -> Result<()> {
        *self.weight.get_or_insert(0.0) += weight;
        if self.sum.is_empty() {
            self.sum = gradients;
            return Ok(());
        }
        mean::add(&mut self.sum, gradients)
    }

    /// What there is to push; the next synchronisation begins.
    fn take(&mut self) -> (Option<f64>, Gradients) {
        self.taken = 0;
        (self.weight.take(), std::mem::take(&mut self.sum))
    }
}
