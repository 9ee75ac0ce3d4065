//! The flight recorder: the last calls, collectives, batches and calls of plug-ins of this process, begun and ended, in bounded
//! rings. It is read when a rank is lost, when a job stands still, and when somebody asks: who waits for whom then stands in it.
//!
//! - `FR-1` An entry costs a look at the clock and a lock that hardly anybody else wants: each kind has a ring of its own, and
//!   nearly all of a kind is noted by one thread. Nothing is allocated once a ring is full.
//! - `FR-2` Once frozen it stays as it is: the end of a mesh ends every call, and what they waited for would be gone.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Entries of each kind.
const MOST: usize = 96;

/// Process groups that are known by name.
const MOST_GROUPS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of this rank to another, or a barrier.
    Call,
    /// Of another rank, served here.
    Served,
    Collective,
    /// Of data: from when it is asked for until it is there.
    Batch,
    Plugin,
}

const KINDS: usize = 5;

/// What begins.
#[derive(Clone, Debug, Default)]
pub struct Begins {
    /// A method, an operation, a function of a plug-in.
    pub what: Cow<'static, str>,
    /// Whose: a group's, a plug-in's.
    pub of: Option<Arc<str>>,
    /// The other rank of a call; the epoch of a batch.
    pub with: Option<u32>,
    /// A step; of collectives the place among those of the group, counted from 1.
    pub number: Option<u64>,
    /// Whether a served call computes now; without, that is not known.
    pub computes: Option<Arc<AtomicBool>>,
}

struct Entry {
    begins: Begins,
    begun: Instant,
    /// And whether it went well.
    ended: Option<(Instant, bool)>,
}

/// The last entries, the `n`-th of which stands at `n % MOST`.
struct Ring {
    entries: Vec<Entry>,
    next: u64,
}

impl Ring {
    const EMPTY: Ring = Ring { entries: Vec::new(), next: 0 };

    fn begin(&mut self, entry: Entry) -> u64 {
        let place = (self.next % MOST as u64) as usize;
        match self.entries.get_mut(place) {
            Some(oldest) => *oldest = entry,
            None => self.entries.push(entry),
        }
        self.next += 1;
        self.next - 1
    }

    /// None: it was so long ago that others are in its place.
    fn get_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let is_there = number < self.next && self.next - number <= MOST as u64;
        self.entries.get_mut((number % MOST as u64) as usize).filter(|_| is_there)
    }

    /// The oldest first.
    fn in_order(&self) -> impl Iterator<Item = &Entry> {
        let first = if self.entries.len() < MOST { 0 } else { (self.next % MOST as u64) as usize };
        self.entries[first..].iter().chain(&self.entries[..first])
    }
}

/// An entry that has begun. None: the recorder is frozen.
#[derive(Clone, Copy, Debug)]
pub struct Token(Kind, Option<u64>);

pub struct Recorder {
    /// By [`Kind`].
    rings: [Mutex<Ring>; KINDS],
    groups: Mutex<Vec<Group>>,
    frozen: AtomicBool,
}

struct Group {
    name: Arc<str>,
    members: Vec<u32>,
    /// Collectives of it that have begun here.
    begun: u64,
}

/// This process's.
pub static RECORDER: Recorder = Recorder::new();

impl Recorder {
    const fn new() -> Recorder {
        Recorder {
            rings: [const { Mutex::new(Ring::EMPTY) }; KINDS],
            groups: Mutex::new(Vec::new()),
            frozen: AtomicBool::new(false),
        }
    }

    pub fn begin(&self, kind: Kind, begins: Begins, begun: Instant) -> Token {
        if self.frozen.load(Ordering::Relaxed) {
            return Token(kind, None);
        }
        let entry = Entry { begins, begun, ended: None };
        Token(kind, Some(lock(&self.rings[kind as usize]).begin(entry)))
    }

    pub fn end(&self, Token(kind, number): Token, well: bool) {
        let Some(number) = number.filter(|_| !self.frozen.load(Ordering::Relaxed)) else { return };
        let now = Instant::now();
        if let Some(entry) = lock(&self.rings[kind as usize]).get_mut(number) {
            entry.ended = Some((now, well));
        }
    }

    /// Notes `work` from its beginning to its end.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn during<T, E>(
        &self,
        kind: Kind,
        begins: Begins,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let token = self.begin(kind, begins, Instant::now());
        let done = work();
        self.end(token, done.is_ok());
        done
    }

    /// This rank is in a process group with these ranks, itself among them.
    pub fn joins_group(&self, name: &str, members: impl IntoIterator<Item = u32>) {
        let mut groups = lock(&self.groups);
        groups.retain(|group| &*group.name != name);
        if groups.len() < MOST_GROUPS {
            let members = members.into_iter().collect();
            groups.push(Group { name: name.into(), members, begun: 0 });
        }
    }

    /// Notes a collective of a group, whose place among those of the group it counts.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn collective<T, E>(
        &self,
        group: &str,
        operation: &'static str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let counted = lock(&self.groups).iter_mut().find(|known| &*known.name == group).map(|known| {
            known.begun += 1;
            (known.name.clone(), known.begun)
        });
        let (of, number) = counted.unzip();
        self.during(
            Kind::Collective,
            Begins { what: operation.into(), of, number, ..Begins::default() },
            work,
        )
    }

    /// From now on nothing is noted (FR-2).
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// All of it, as it is at `now`.
    pub fn at(&self, now: Instant) -> Flight {
        let of = |kind: Kind| -> Vec<Noted> {
            lock(&self.rings[kind as usize]).in_order().map(|entry| Noted::of(entry, now)).collect()
        };
        let group = |group: &Group| GroupNoted {
            name: group.name.to_string(),
            members: group.members.clone(),
            begun: group.begun,
        };
        Flight {
            calls: of(Kind::Call),
            served: of(Kind::Served),
            collectives: of(Kind::Collective),
            batches: of(Kind::Batch),
            plugins: of(Kind::Plugin),
            groups: lock(&self.groups).iter().map(group).collect(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a recorder has, for others to read. Each list has the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flight {
    pub calls: Vec<Noted>,
    pub served: Vec<Noted>,
    pub collectives: Vec<Noted>,
    pub batches: Vec<Noted>,
    pub plugins: Vec<Noted>,
    pub groups: Vec<GroupNoted>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupNoted {
    pub name: String,
    /// Ranks.
    pub members: Vec<u32>,
    /// Collectives that the rank has begun.
    pub begun: u64,
}

/// An entry, see [`Begins`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Noted {
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Seconds since it began.
    pub ago_s: f64,
    /// Seconds from its beginning to its end. None: it has not ended.
    pub took_s: Option<f64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Of a served call that has not ended: whether it computes, and does not wait for anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computes: Option<bool>,
}

impl Noted {
    fn of(Entry { begins, begun, ended }: &Entry, now: Instant) -> Noted {
        let Begins { what, of, with, number, computes } = begins;
        let is_open = ended.is_none();
        Noted {
            what: what.to_string(),
            of: of.as_deref().map(str::to_owned),
            with: *with,
            number: *number,
            ago_s: now.saturating_duration_since(*begun).as_secs_f64(),
            took_s: ended.map(|(ended, _)| ended.saturating_duration_since(*begun).as_secs_f64()),
            failed: ended.is_some_and(|(_, well)| !well),
            computes: computes.as_ref().filter(|_| is_open).map(|computes| computes.load(Ordering::Relaxed)),
        }
    }

    pub fn is_open(&self) -> bool {
        self.took_s.is_none()
    }

    /// Seconds since it began, or ended if it has.
    pub fn still_s(&self) -> f64 {
        (self.ago_s - self.took_s.unwrap_or(0.0)).max(0.0)
    }
}

impl Flight {
    pub fn all(&self) -> impl Iterator<Item = &Noted> {
        [&self.calls, &self.served, &self.collectives, &self.batches, &self.plugins].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn call(method: &'static str, number: u64) -> Begins {
        Begins { what: method.into(), with: Some(1), number: Some(number), ..Begins::default() }
    }

    #[test]
    fn the_last_entries_are_kept_in_their_order_and_an_end_finds_its_own() {
        let recorder = Recorder::new();
        let start = Instant::now();
        let tokens: Vec<Token> = (0..MOST as u64 + 10)
            .map(|n| recorder.begin(Kind::Call, call("step", n), start + Duration::from_millis(n)))
            .collect();
        // Overwritten by the 96th: its end is nobody's.
        recorder.end(tokens[0], true);
        recorder.end(tokens[MOST + 9], false);
        let calls = recorder.at(start + Duration::from_secs(1)).calls;
        assert_eq!(calls.len(), MOST);
        assert!(calls.iter().map(|call| call.number.unwrap()).eq(10..MOST as u64 + 10));
        let (last, others) = calls.split_last().unwrap();
        assert!(last.failed && !last.is_open() && others.iter().all(Noted::is_open), "{calls:?}");
        assert!((others[0].ago_s - 0.99).abs() < 1e-9, "{:?}", others[0]);
    }

    #[test]
    fn collectives_are_counted_by_group() {
        let recorder = Recorder::new();
        recorder.joins_group("trainers", [1, 2]);
        recorder.joins_group("hosts", [0, 1]);
        for (group, times) in [("trainers", 3), ("hosts", 1), ("trainers", 1)] {
            for _ in 0..times {
                recorder.collective(group, "all_reduce", || Ok::<_, ()>(())).unwrap();
            }
        }
        let flight = recorder.at(Instant::now());
        let begun: Vec<_> = flight.groups.iter().map(|group| (group.name.as_str(), group.begun)).collect();
        assert_eq!(begun, [("trainers", 4), ("hosts", 1)]);
        assert_eq!(flight.collectives.last().unwrap().number, Some(4));
    }

    /// FR-2
    #[test]
    fn what_is_frozen_stays_open() {
        let recorder = Recorder::new();
        let token = recorder.begin(Kind::Served, call("forward", 1), Instant::now());
        recorder.freeze();
        recorder.end(token, false);
        let _ = recorder.begin(Kind::Served, call("forward", 2), Instant::now());
        let served = recorder.at(Instant::now()).served;
        assert!(served.len() == 1 && served[0].is_open(), "{served:?}");
    }

    #[test]
    fn a_flight_is_read_as_it_was_written() {
        let recorder = Recorder::new();
        let computes = Some(Arc::new(AtomicBool::new(true)));
        let _ = recorder.begin(Kind::Served, Begins { computes, ..call("step", 7) }, Instant::now());
        let flight = recorder.at(Instant::now());
        let read: Flight = serde_json::from_str(&serde_json::to_string(&flight).unwrap()).unwrap();
        assert_eq!(read, flight);
        assert_eq!(read.served[0].computes, Some(true));
    }
}
