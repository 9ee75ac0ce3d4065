//! Who waits for whom, and which rank and what is the cause: a verdict over what all ranks did last. Pure: who looks at processes
//! and disks is [`super::ranks`].
//!
//! A rank is at fault that could go on and does not: it is stopped or gone, a plug-in or a handler of it does not come back, it has
//! not come to a collective or a barrier that the others wait in. Waiting for an answer is nobody's fault.

mod told;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::recorder::Noted;
use crate::runner::flight::RankFlight;
use crate::topology::Rank;

/// Seconds without anything begun or ended after which a rank is said to stand. A step may take longer, and then that is said of it.
pub const STANDS_S: f64 = 1.0;

/// After so many seconds a first step is a standstill, too.
const LONGEST_START_S: f64 = 120.0;

/// A run folder with less room than this cannot be written.
const FULL_BYTES: u64 = 64 << 10;

/// A rank as it was found.
#[derive(Clone, Debug)]
pub struct Found {
    pub rank: Rank,
    pub role: String,
    pub process: Process,
    /// What it did last.
    pub flight: Option<RankFlight>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Process {
    Runs,
    /// By a signal or a debugger: state T or t.
    Stopped,
    /// It is there and has not written its record when it was asked, nor done anything else; with the state that the system shows,
    /// such as D.
    Silent {
        state: char,
    },
    Gone,
    /// On another machine, or not known.
    Elsewhere,
}

/// Why a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Cause {
    FullDisk {
        free_bytes: u64,
    },
    Stopped,
    Gone,
    PlugIn {
        name: String,
        function: String,
    },
    Handler {
        method: String,
        of: Rank,
    },
    NotInCollective {
        group: String,
        operation: String,
        number: u64,
    },
    NotAtBarrier {
        barrier: String,
    },
    Silent {
        state: char,
    },
    NoAnswer {
        method: String,
    },
    AtWork,
    /// As the ranks have told before they ended.
    Lost {
        why: String,
    },
}

/// Of one rank: what it waits for, or does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    pub rank: Rank,
    pub role: String,
    pub process: Process,
    /// Those that it waits for.
    pub waits_for: BTreeSet<Rank>,
    pub does: String,
    /// Seconds since anything has begun or ended.
    pub still_s: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// None: the ranks move, as far as is known.
    pub culprit: Option<Culprit>,
    /// No step is behind the run yet. What holds the others up then may be what has to be done once: opening data, compiling.
    pub starting: bool,
    pub ranks: Vec<Told>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Culprit {
    pub rank: Rank,
    pub role: String,
    pub cause: Cause,
    /// Seconds since it has stood there, where that is known.
    pub for_s: Option<f64>,
}

/// `free_bytes`: of the disk of the run folder, which rank 0 keeps.
pub fn verdict(ranks: &[Found], free_bytes: Option<u64>) -> Verdict {
    let told = ranks.iter().map(|found| told::tell(found, ranks)).collect();
    let culprit = culprit(ranks, free_bytes);
    let is_sure = culprit.as_ref().is_none_or(|culprit| culprit.cause.is_sure());
    let is_long =
        culprit.as_ref().and_then(|culprit| culprit.for_s).is_some_and(|for_s| for_s >= LONGEST_START_S);
    Verdict { starting: !is_sure && !is_long && is_starting(ranks), culprit, ranks: told }
}

impl Verdict {
    /// A rank holds the others up, and not because it begins.
    pub fn stands(&self) -> bool {
        self.culprit.is_some() && !self.starting
    }

    /// All processes are gone, and none has said why.
    pub fn is_killed(&self) -> bool {
        self.culprit.is_none() && self.ranks.iter().all(|rank| rank.process == Process::Gone)
    }
}

impl Cause {
    /// Nothing that only takes long.
    fn is_sure(&self) -> bool {
        matches!(self, Cause::FullDisk { .. } | Cause::Stopped | Cause::Gone | Cause::Lost { .. })
    }
}

/// Whether no rank has asked for the data of a second step, or come through a collective.
fn is_starting(ranks: &[Found]) -> bool {
    let mut flights = ranks.iter().filter_map(|rank| rank.flight.as_ref());
    flights.all(|RankFlight { flight, .. }| {
        flight.batches.len() < 2 && flight.collectives.iter().all(Noted::is_open)
    })
}

fn culprit(ranks: &[Found], free_bytes: Option<u64>) -> Option<Culprit> {
    if let Some(free_bytes) = free_bytes.filter(|free| *free < FULL_BYTES) {
        let keeper = ranks.first()?;
        return Some(found(keeper, Cause::FullDisk { free_bytes }, None));
    }
    // From the surest to what is left. Of several ranks to which the same happens the one that stands longest is named.
    /// Whether a rank is it, by one kind of cause.
    type Look<'a> = &'a dyn Fn(&Found) -> Option<(Cause, Option<f64>)>;
    let looks: [Look<'_>; 9] = [
        &|rank| (rank.process == Process::Stopped).then_some((Cause::Stopped, None)),
        &|rank| {
            let is_it = rank.process == Process::Gone && !is_told_lost(ranks) && !are_all_gone(ranks);
            is_it.then_some((Cause::Gone, None))
        },
        &plug_in,
        &handler,
        &|rank| not_in_collective(rank, ranks),
        &|rank| lost(rank, ranks),
        &|rank| match rank.process {
            Process::Silent { state } => Some((Cause::Silent { state }, None)),
            _ => None,
        },
        &|rank| at_work(rank).filter(|_| anybody_waits(ranks)),
        &|rank| no_answer(rank, ranks),
    ];
    looks
        .into_iter()
        .find_map(|look| {
            let suspects = ranks.iter().filter_map(|rank| Some((rank, look(rank)?)));
            let longest = |(_, (_, for_s)): &(&Found, (Cause, Option<f64>))| for_s.unwrap_or(0.0);
            suspects.max_by(|one, other| longest(one).total_cmp(&longest(other)))
        })
        .map(|(rank, (cause, for_s))| found(rank, cause, for_s))
        .or_else(|| not_at_barrier(ranks))
}

fn found(rank: &Found, cause: Cause, for_s: Option<f64>) -> Culprit {
    Culprit { rank: rank.rank, role: rank.role.clone(), cause, for_s }
}

impl Found {
    /// What has not come to an end, and takes longer than what was like it.
    fn open<'a>(&'a self, of: impl Fn(&'a RankFlight) -> &'a [Noted]) -> impl Iterator<Item = &'a Noted> {
        let noted = self.flight.as_ref().map_or(&[][..], of);
        noted.iter().filter(move |open| open.is_open() && open.ago_s >= usual_s(noted, &open.what))
    }

    fn calls(&self) -> impl Iterator<Item = &Noted> {
        self.open(|flight| &flight.flight.calls).filter(|call| call.with != Some(self.rank.0))
    }

    /// Seconds since anything has begun or ended there.
    fn still_s(&self) -> Option<f64> {
        let flight = &self.flight.as_ref()?.flight;
        flight.all().map(Noted::still_s).min_by(f64::total_cmp)
    }

    fn stands(&self) -> bool {
        self.still_s().is_some_and(|still| still >= STANDS_S && still >= PATIENCE * self.usual_gap_s())
    }

    /// Nine of ten times something begins again sooner.
    fn usual_gap_s(&self) -> f64 {
        let Some(flight) = &self.flight else { return 0.0 };
        let mut begun: Vec<f64> = flight.flight.all().map(|noted| noted.ago_s).collect();
        begun.sort_by(f64::total_cmp);
        let mut gaps: Vec<f64> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_by(f64::total_cmp);
        gaps.get(gaps.len() * 9 / 10).copied().unwrap_or(0.0)
    }
}

/// How many times as long as usual something has to take before it is said to stand.
const PATIENCE: f64 = 3.0;

/// How long one of these may take: some times what the longest of its kind that have ended took.
fn usual_s(noted: &[Noted], what: &str) -> f64 {
    let ended = noted.iter().filter(|other| other.what == what).filter_map(|other| other.took_s);
    ended.map(|took| PATIENCE * took).fold(STANDS_S, f64::max)
}

fn barrier_of(call: &Noted) -> Option<&str> {
    call.what.strip_prefix("barrier ")
}

fn plug_in(rank: &Found) -> Option<(Cause, Option<f64>)> {
    let call = rank.open(|flight| &flight.flight.plugins).next()?;
    let cause = Cause::PlugIn { name: call.of.clone().unwrap_or_default(), function: call.what.clone() };
    Some((cause, Some(call.ago_s)))
}

/// A call that is served, and computes without an end. (One that waits for others is not at fault.)
fn handler(rank: &Found) -> Option<(Cause, Option<f64>)> {
    let served = rank.open(|flight| &flight.flight.served).find(|call| call.computes == Some(true))?;
    // A handler that waits in a collective has the collective to say so.
    if rank.open(|flight| &flight.flight.collectives).next().is_some() {
        return None;
    }
    let of = Rank(served.with?);
    Some((Cause::Handler { method: served.what.clone(), of }, Some(served.ago_s)))
}

/// Others wait in a collective of a group that this rank is in too, and has begun fewer of.
fn not_in_collective(rank: &Found, ranks: &[Found]) -> Option<(Cause, Option<f64>)> {
    let open = ranks.iter().filter(|other| other.rank != rank.rank);
    let open = open.flat_map(|other| other.open(|flight| &flight.flight.collectives));
    let wait =
        open.filter(|wait| has_missed(rank, wait)).max_by(|one, other| one.ago_s.total_cmp(&other.ago_s))?;
    let cause = Cause::NotInCollective {
        group: wait.of.clone()?,
        operation: wait.what.clone(),
        number: wait.number?,
    };
    Some((cause, Some(rank.still_s().unwrap_or(wait.ago_s))))
}

/// Of a run that has ended: none of them is at fault.
fn are_all_gone(ranks: &[Found]) -> bool {
    ranks.iter().all(|rank| rank.process == Process::Gone)
}

fn is_told_lost(ranks: &[Found]) -> bool {
    ranks.iter().any(|rank| rank.flight.as_ref().is_some_and(|flight| flight.lost.is_some()))
}

/// The rank with which the job has ended, by what the others say.
fn lost(rank: &Found, ranks: &[Found]) -> Option<(Cause, Option<f64>)> {
    let told = ranks.iter().filter_map(|other| other.flight.as_ref()?.lost.as_ref());
    let own = told.into_iter().find(|lost| lost.rank == rank.rank)?;
    Some((Cause::Lost { why: own.why.clone() }, None))
}

/// Nothing begins or ends there, and it waits for nobody.
fn at_work(rank: &Found) -> Option<(Cause, Option<f64>)> {
    let waits =
        rank.calls().next().is_some() || rank.open(|flight| &flight.flight.collectives).next().is_some();
    // Before the first entry it has done nothing that is noted.
    (!waits && rank.stands()).then(|| (Cause::AtWork, rank.still_s()))
}

fn anybody_waits(ranks: &[Found]) -> bool {
    ranks.iter().any(|rank| {
        rank.calls().next().is_some() || rank.open(|flight| &flight.flight.collectives).next().is_some()
    })
}

/// Of the calls that are not answered the last one, whose callee has asked nobody.
fn no_answer(rank: &Found, ranks: &[Found]) -> Option<(Cause, Option<f64>)> {
    if ranks.iter().any(|other| other.flight.is_some() && !other.stands()) {
        return None;
    }
    let calls = ranks.iter().flat_map(Found::calls).filter(|call| barrier_of(call).is_none());
    let last = calls.min_by(|one, other| one.ago_s.total_cmp(&other.ago_s))?;
    (last.with == Some(rank.rank.0))
        .then(|| (Cause::NoAnswer { method: last.what.clone() }, Some(last.ago_s)))
}

/// All others wait at a barrier to which one has not come.
fn not_at_barrier(ranks: &[Found]) -> Option<Culprit> {
    let waits = ranks.iter().flat_map(Found::calls).filter_map(barrier_of);
    for barrier in waits.collect::<BTreeSet<_>>() {
        let missing: Vec<&Found> = ranks.iter().filter(|rank| !comes_to(rank, barrier)).collect();
        if let [rank] = missing[..]
            && rank.stands()
        {
            return Some(found(rank, Cause::NotAtBarrier { barrier: barrier.into() }, rank.still_s()));
        }
    }
    None
}

fn comes_to(rank: &Found, barrier: &str) -> bool {
    let calls = rank.flight.iter().flat_map(|flight| &flight.flight.calls);
    calls.filter_map(barrier_of).any(|other| other == barrier)
}

fn has_missed(rank: &Found, wait: &Noted) -> bool {
    let groups = rank.flight.iter().flat_map(|flight| &flight.flight.groups);
    let (Some(group), Some(number)) = (&wait.of, wait.number) else { return false };
    groups.into_iter().any(|of| of.name == *group && of.begun < number)
}

#[cfg(test)]
mod tests;
