//! The collectives demo: what each rank has before one, and after.

pub(super) mod show;

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use c10d::{ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::calls;
use super::progress::Reporter;
use super::run_recorder::COORDINATOR;
use crate::human::counted;
use crate::job::{Cluster, Collectives, Operation, Reduction};
use crate::parallel::Groups;
use crate::recorder::RECORDER;
use crate::rpc::{CallError, Json, Mesh, Methods};
use crate::topology::Rank;

/// What all ranks have seen, in the order of the job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Demo {
    pub operations: Vec<Shown>,
}

/// One operation in one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    pub operation: Operation,
    /// For an operation that reduces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reduction>,
    /// Ranks of the group, in its order.
    pub ranks: Vec<RankView>,
}

/// What one rank had and has: a list of numbers for each tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankView {
    pub rank: Rank,
    pub before: Vec<Vec<f64>>,
    pub after: Vec<Vec<f64>>,
}

/// The coordinator's collection of what each rank has seen: for each rank all its operations.
#[derive(Default)]
pub struct Collector(Mutex<Vec<Vec<Option<RankView>>>>);

impl Collector {
    pub fn new() -> Arc<Collector> {
        Arc::default()
    }

    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let collector = self.clone();
        methods.serve(move |_, calls::collectives_demo::Seen { operations: Json(seen) }| {
            collector.0.lock().expect("nobody panics adding a rank's part").push(seen);
            std::future::ready(Ok::<_, CallError>(()))
        });
    }
}

/// The whole demo, on this rank. The coordinator has the result.
///
/// # Errors
/// When an operation fails, here or on another rank.
pub fn run(
    job: &Collectives,
    cluster: &Cluster,
    mesh: &Mesh,
    groups: &Groups,
    collector: &Collector,
    reporter: &mut Reporter,
) -> Result<Option<Demo>> {
    let world: Vec<Rank> = cluster.world_size.ranks().collect();
    let all = groups.join(mesh, "world", &world)?;
    let some = match &job.group {
        // Every rank of the world takes part in making a group, its members or not.
        Some(ranks) => all.subgroup(&ranks.iter().map(|rank| rank.0).collect::<Vec<_>>())?,
        None => None,
    };
    let own = |operation, reduction| -> Result<Vec<Option<RankView>>> {
        let in_group = |group: &ProcessGroup| {
            let shown = || show_one(group, mesh.rank(), operation, reduction, job);
            RECORDER
                .collective(group.name(), operation.name(), shown)
                .with_context(|| show::title(operation, reduction))
        };
        let in_world = in_group(&all)?;
        match &job.group {
            Some(_) => Ok(vec![in_world, some.as_ref().map(in_group).transpose()?.flatten()]),
            None => Ok(vec![in_world]),
        }
    };
    let mut seen = Vec::new();
    for (operation, reduction) in operations(job) {
        let title = show::title(operation, reduction);
        mesh.doing(&title);
        reporter.doing(title);
        seen.extend(own(operation, reduction)?);
    }
    let operations = seen.len();
    mesh.request(COORDINATOR, calls::collectives_demo::Seen { operations: Json(seen) }).wait()?;
    // When everyone is here, the coordinator has all of it.
    mesh.barrier("collectives shown").wait()?;
    reporter.done(counted(operations as u64, "operation"));
    Ok((mesh.rank() == COORDINATOR).then(|| collect(job, collector)))
}

/// The operations, each reduction by itself.
fn operations(job: &Collectives) -> Vec<(Operation, Option<Reduction>)> {
    let reductions = |operation: &Operation| match operation {
        Operation::Reduce | Operation::AllReduce | Operation::ReduceScatter => {
            job.reduce.iter().copied().map(Some).collect()
        }
        _ => vec![None],
    };
    job.show
        .iter()
        .flat_map(|operation| reductions(operation).into_iter().map(|reduction| (*operation, reduction)))
        .collect()
}

fn collect(job: &Collectives, collector: &Collector) -> Demo {
    let parts = std::mem::take(&mut *collector.0.lock().expect("nobody panics adding a rank's part"));
    let groups = if job.group.is_some() { 2 } else { 1 };
    let groups_of_operations = operations(job).into_iter().flat_map(|shown| vec![shown; groups]).enumerate();
    let shown = |(number, (operation, reduction)): (usize, _)| {
        let mut ranks: Vec<RankView> =
            parts.iter().filter_map(|part| part.get(number).cloned().flatten()).collect();
        ranks.sort_by_key(|seen| seen.rank);
        Shown { operation, reduction, ranks }
    };
    Demo { operations: groups_of_operations.map(shown).filter(|shown| !shown.ranks.is_empty()).collect() }
}

/// One operation as this rank sees it. `None`: it takes no part in it.
fn show_one(
    group: &ProcessGroup,
    rank: Rank,
    operation: Operation,
    reduction: Option<Reduction>,
    job: &Collectives,
) -> Result<Option<RankView>> {
    let at = Participant { group, job, root: job.root };
    let op = reduction.map_or(ReduceOp::Sum, reduce_op);
    let mine = at.own()?;
    let (before, after) = match operation {
        Operation::SendRecv | Operation::IsendIrecv => {
            let Some(seen) = at.pass_on(mine, operation == Operation::IsendIrecv)? else { return Ok(None) };
            seen
        }
        Operation::Barrier => {
            group.barrier()?;
            (Vec::new(), Vec::new())
        }
        Operation::Broadcast => at.in_place(mine, |tensor| group.broadcast(tensor, at.root))?,
        Operation::Reduce => {
            let (before, after) = at.in_place(mine, |tensor| group.reduce(tensor, at.root, op))?;
            // What the others' tensors hold afterwards is the engine's business.
            if at.is_root() { (before, after) } else { (before.clone(), before) }
        }
        Operation::AllReduce => at.in_place(mine, |tensor| group.all_reduce(tensor, op))?,
        Operation::Scatter => {
            let parts = if at.is_root() { at.one_for_each()? } else { Vec::new() };
            let mut came = mine.f_zeros_like()?;
            group.scatter(&mut came, &parts, at.root)?;
            (numbers(&parts)?, numbers(&[came])?)
        }
        Operation::Gather => {
            let mut came = if at.is_root() { at.room()? } else { Vec::new() };
            group.gather(&mut came, &mine, at.root)?;
            (numbers(&[mine])?, numbers(&came)?)
        }
        Operation::AllGather => {
            let mut came = at.room()?;
            group.all_gather(&mut came, &mine)?;
            (numbers(&[mine])?, numbers(&came)?)
        }
        Operation::ReduceScatter => {
            let parts = at.one_for_each()?;
            let mut came = mine.f_zeros_like()?;
            group.reduce_scatter(&mut came, &parts, op)?;
            (numbers(&parts)?, numbers(&[came])?)
        }
        Operation::AllToAll => {
            let (parts, mut came) = (at.one_for_each()?, at.room()?);
            group.all_to_all(&mut came, &parts)?;
            (numbers(&parts)?, numbers(&came)?)
        }
    };
    Ok(Some(RankView { rank, before, after }))
}

/// This rank in a group.
struct Participant<'a> {
    group: &'a ProcessGroup,
    job: &'a Collectives,
    root: u32,
}

/// Before and after.
type Both = (Vec<Vec<f64>>, Vec<Vec<f64>>);

impl Participant<'_> {
    fn is_root(&self) -> bool {
        self.group.rank() == self.root
    }

    /// Rank r of the group has r + 1; further elements are larger by 10 each.
    fn own(&self) -> Result<Tensor> {
        self.filled(f64::from(self.group.rank() + 1))
    }

    fn filled(&self, first: f64) -> Result<Tensor> {
        let values: Vec<f32> = (0..self.job.elements).map(|nth| (first + 10.0 * nth as f64) as f32).collect();
        Ok(Tensor::f_from_slice(&values)?.f_to_device(self.group.device())?)
    }

    /// A tensor for each rank: this one's number and the other's, as two digits.
    fn one_for_each(&self) -> Result<Vec<Tensor>> {
        let own = f64::from(self.group.rank() + 1);
        (0..self.group.size()).map(|other| self.filled(10.0 * own + f64::from(other + 1))).collect()
    }

    fn room(&self) -> Result<Vec<Tensor>> {
        let room = |_| Tensor::f_zeros([self.job.elements as i64], (Kind::Float, self.group.device()));
        Ok((0..self.group.size()).map(room).collect::<Result<_, _>>()?)
    }

    fn in_place(
        &self,
        mut tensor: Tensor,
        run: impl FnOnce(&mut Tensor) -> c10d::Result<()>,
    ) -> Result<Both> {
        let before = numbers(&[tensor.shallow_clone()])?;
        run(&mut tensor)?;
        Ok((before, numbers(&[tensor])?))
    }

    /// The root sends what it has to the next rank.
    fn pass_on(&self, mine: Tensor, without_waiting: bool) -> Result<Option<Both>> {
        const TAG: u32 = 0;
        let next = (self.root + 1) % self.group.size();
        let before = numbers(&[mine.shallow_clone()])?;
        let after = match (self.group.rank(), without_waiting) {
            (rank, true) if rank == self.root => self.group.isend(mine, next, TAG)?.wait()?,
            (rank, false) if rank == self.root => {
                self.group.send(&mine, next, TAG)?;
                mine
            }
            (rank, true) if rank == next => self.group.irecv(mine, self.root, TAG)?.wait()?,
            (rank, false) if rank == next => {
                let mut mine = mine;
                self.group.recv(&mut mine, self.root, TAG)?;
                mine
            }
            _ => return Ok(None),
        };
        Ok(Some((before, numbers(&[after])?)))
    }
}

fn numbers(tensors: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    let read = |tensor: &Tensor| Ok(Vec::<f64>::try_from(tensor.f_to_kind(Kind::Double)?)?);
    tensors.iter().map(read).collect()
}

fn reduce_op(reduction: Reduction) -> ReduceOp {
    match reduction {
        Reduction::Sum => ReduceOp::Sum,
        Reduction::Product => ReduceOp::Product,
        Reduction::Max => ReduceOp::Max,
        Reduction::Min => ReduceOp::Min,
    }
}
