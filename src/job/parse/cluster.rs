//! `[cluster]` and `[roles]`: who takes part and how the ranks find one another.

use std::time::Duration;

use figment::value::Value;

use super::super::validated::{Backend, Cluster, Init, Payload};
use crate::config::{
    AnyKey, By, ByHand, Integer, Item, Key, Kind, Optional, Str, Table, Words, by, by_hand, integer, key,
    string, words,
};
use crate::config::{JobError, Origin};
use crate::human::counted;
use crate::topology::{Rank, Role, WorldSize};

/// The section, and what of it is about this process alone.
pub(super) struct Read {
    pub cluster: Option<Cluster>,
    pub roles: Vec<Role>,
    pub rank: Option<Rank>,
    pub local_rank: Option<u32>,
}

pub(super) const MOST_RANKS: i64 = 4096;
const BACKENDS: [(&str, Backend); 4] =
    [("auto", Backend::Auto), ("gloo", Backend::Gloo), ("nccl", Backend::Nccl), ("mpi", Backend::Mpi)];
const PAYLOADS: [(&str, Payload); 5] = [
    ("auto", Payload::Auto),
    ("cma", Payload::Cma),
    ("shm", Payload::Shm),
    ("bulk", Payload::Bulk),
    ("inline", Payload::Inline),
];
const DAY_MS: i64 = 86_400_000;

const WORLD_SIZE: Key<Integer> = key("world_size", integer(1..=MOST_RANKS))
    .default("4")
    .doc("How many ranks there are. Roles that all have a number say it, too.");
const RANK: Key<Optional<ByHand>> = key("rank", by_hand(|| Kind::Never))
    .optional()
    .doc("This process's rank: given by `--rank` or RANK, never in the file, which all ranks share.");
const LOCAL_RANK: Key<Optional<ByHand>> = key("local_rank", by_hand(|| Kind::Never))
    .optional()
    .doc("This process's number on its machine: given by LOCAL_RANK, never in the file.");
const INIT: Key<Str> = key("init", string())
    .default("env://")
    .doc("How rank 0 is found: `env://` (master_addr and master_port), `tcp://HOST:PORT` or `file:///PATH`.");
const MASTER_ADDR: Key<By<String>> =
    key("master_addr", by(master_addr, || Kind::Str)).default("localhost").doc("Where rank 0 listens.");
const MASTER_PORT: Key<Integer> = key("master_port", integer(0..=65535))
    .default("29500")
    .doc("The port that rank 0 listens on; 0 lets the system choose, where one machine has all ranks.");
const NUM_GPUS: Key<Integer> = key("num_gpus", integer(0..=64))
    .default("0")
    .doc("GPUs that a rank may use; fewer are used where the machine has fewer.");
const BACKEND: Key<Words<Backend>> = key("backend", words(&BACKENDS)).default("auto").doc(
    "What carries collectives; `auto`: NCCL where each rank of a group has a GPU of its own, else Gloo.",
);
const PAYLOAD: Key<Words<Payload>> = key("payload", words(&PAYLOADS))
    .default("auto")
    .doc("How large tensors travel between ranks; `auto`: the fastest that works between two.");
const RPC_TIMEOUT_MS: Key<Integer> =
    key("rpc_timeout_ms", integer(1..=DAY_MS)).default("60000").doc("The deadline of one call.");
const JOIN_TIMEOUT_MS: Key<Integer> = key("join_timeout_ms", integer(1..=DAY_MS))
    .default("60000")
    .doc("How long the ranks wait for one another at the start.");
const COLLECTIVE_TIMEOUT_MS: Key<Integer> = key("collective_timeout_ms", integer(1..=DAY_MS))
    .default("1800000")
    .doc("How long the ranks of a group wait for the last of them in one collective.");
const HEARTBEAT_MS: Key<Integer> = key("heartbeat_ms", integer(1..=DAY_MS))
    .default("500")
    .doc("How often ranks show one another that they live.");
const LOST_AFTER_MS: Key<Integer> = key("lost_after_ms", integer(1..=DAY_MS))
    .default("5000")
    .doc("A rank that is silent for this long is lost; at least two heartbeats.");

const STALLED_AFTER_MS: Key<Integer> = key("stalled_after_ms", integer(0..=DAY_MS))
    .default("600000")
    .doc("A job in which a rank shows no progress for this long is ended, with what it stands at; 0: never. More than a step takes.");

pub static KEYS: &[&dyn AnyKey] = &[
    &WORLD_SIZE,
    &RANK,
    &LOCAL_RANK,
    &INIT,
    &MASTER_ADDR,
    &MASTER_PORT,
    &NUM_GPUS,
    &BACKEND,
    &PAYLOAD,
    &RPC_TIMEOUT_MS,
    &JOIN_TIMEOUT_MS,
    &COLLECTIVE_TIMEOUT_MS,
    &HEARTBEAT_MS,
    &LOST_AFTER_MS,
    &STALLED_AFTER_MS,
];

pub const ROLES: Key<ByHand> = key("roles", by_hand(roles_kind))
    .example("{ server = 1, trainer = \"rest\" }")
    .doc("Groups of ranks by names of your own, in the order of their ranks: a number each, or `\"rest\"` for one of them.");

fn roles_kind() -> Kind {
    let count = Kind::Integer { least: 1, most: MOST_RANKS };
    Kind::Map(Box::new(Kind::Either(vec![count, Kind::Words(vec!["rest"])])))
}

pub(super) fn read(t: Table<'_>, roles: Option<Item<'_>>) -> Read {
    let (world_size, roles) = world(&t, roles);
    let rank = t.item(&RANK).and_then(|item| rank(&item, world_size));
    let local_rank = t.item(&LOCAL_RANK).and_then(|item| own_number(&item));
    let init = t.item(&INIT).and_then(|item| init(&item, &t));
    let num_gpus = t.read(&NUM_GPUS);
    let backend = backend(&t, num_gpus);
    let payload = t.read(&PAYLOAD);
    let times = times(&t);

    let cluster = || {
        let (init, master_addr, master_port) = init?;
        let ([rpc_timeout, join_timeout, collective_timeout, heartbeat, lost_after], stalled_after) = times?;
        Some(Cluster {
            world_size: world_size?,
            init,
            backend: backend?,
            payload: payload?,
            master_addr,
            master_port,
            num_gpus: num_gpus? as u32,
            rpc_timeout,
            join_timeout,
            collective_timeout,
            heartbeat,
            lost_after,
            stalled_after,
        })
    };
    Read { cluster: cluster(), roles, rank, local_rank: local_rank.map(|rank| rank as u32) }
}

/// # Errors
/// A backend that cannot send what these ranks have.
fn backend(t: &Table<'_>, num_gpus: Option<i64>) -> Option<Backend> {
    let (backend, num_gpus) = (t.read(&BACKEND)?, num_gpus?);
    let (problem, hint) = match backend {
        Backend::Nccl if num_gpus == 0 => {
            ("carries tensors on GPUs, and cluster.num_gpus = 0", "set cluster.num_gpus, or use \"gloo\"")
        }
        Backend::Mpi if num_gpus > 0 => (
            "carries tensors in main memory, and cluster.num_gpus puts them on GPUs",
            "set cluster.num_gpus = 0, or use \"nccl\"",
        ),
        Backend::Auto | Backend::Gloo | Backend::Nccl | Backend::Mpi => return Some(backend),
    };
    t.item(&BACKEND)?.wrong(problem, hint);
    None
}

/// The last: none, never.
fn times(t: &Table<'_>) -> Option<([Duration; 5], Option<Duration>)> {
    let ms = |key| t.read(key).map(|ms| Duration::from_millis(ms as u64));
    let (rpc, join, collective) = (ms(&RPC_TIMEOUT_MS), ms(&JOIN_TIMEOUT_MS), ms(&COLLECTIVE_TIMEOUT_MS));
    let (heartbeat, lost, stalled) = (ms(&HEARTBEAT_MS), ms(&LOST_AFTER_MS), ms(&STALLED_AFTER_MS));
    let (heartbeat, lost, stalled) = (heartbeat?, lost?, stalled?);
    if lost < heartbeat * 2 {
        let problem = format!("is less than two heartbeats of {} ms", heartbeat.as_millis());
        let hint = format!("use at least {}, or a shorter heartbeat_ms", heartbeat.as_millis() * 2);
        t.item(&LOST_AFTER_MS)?.wrong(problem, hint);
        return None;
    }
    if !stalled.is_zero() && stalled < heartbeat * 2 {
        let problem = format!("is less than two heartbeats of {} ms", heartbeat.as_millis());
        let hint = format!("use at least {}, or 0 for never", heartbeat.as_millis() * 2);
        t.item(&STALLED_AFTER_MS)?.wrong(problem, hint);
        return None;
    }
    Some(([rpc?, join?, collective?, heartbeat, lost], Some(stalled).filter(|stalled| !stalled.is_zero())))
}

/// A rank, which is one process's own and no part of the job that all share.
fn own_number(item: &Item<'_>) -> Option<i64> {
    if matches!(item.origin(), Origin::File { .. }) {
        let problem = "stands in the job file, which all ranks share";
        item.wrong(problem, "give it with --rank or the environment variable RANK");
        return None;
    }
    item.integer(0..=MOST_RANKS - 1)
}

fn rank(item: &Item<'_>, world: Option<WorldSize>) -> Option<Rank> {
    let rank = Rank(own_number(item)? as u32);
    match world {
        Some(world) if !world.contains(rank) => {
            let problem = format!("is outside the world of {}", counted(u64::from(world.0), "rank"));
            item.wrong(problem, format!("ranks count from 0 to {}", world.0 - 1));
            None
        }
        _ => Some(rank),
    }
}

/// How to find rank 0, and its address.
fn init(item: &Item<'_>, t: &Table<'_>) -> Option<(Init, String, u16)> {
    let addr = t.read(&MASTER_ADDR).zip(t.item(&MASTER_ADDR));
    let port = t.read(&MASTER_PORT).map(|port| port as u16).zip(t.item(&MASTER_PORT));
    let text = item.text()?;
    if text == "env://" {
        return Some((Init::Env, addr?.0, port?.0));
    }
    if let Some(path) = text.strip_prefix("file://") {
        if !path.starts_with('/') {
            item.wrong("names no file that all ranks know", "begin it at the root: \"file:///tmp/my_job\"");
            return None;
        }
        return Some((Init::File(path.into()), addr?.0, port?.0));
    }
    let Some((host, number)) = text.strip_prefix("tcp://").and_then(host_and_port) else {
        item.wrong(
            "is not a valid way to meet",
            "use \"env://\", \"tcp://HOST:PORT\" or \"file:///PATH\", for example \"tcp://10.0.0.1:29500\"",
        );
        return None;
    };
    let ((addr, addr_item), (port, port_item)) = (addr?, port?);
    let addr = later(item, host, &addr_item, addr);
    let port = later(item, number, &port_item, port);
    Some((Init::Tcp, addr?, port?))
}

/// What counts of an address in `cluster.init` and one in a key of its own: the later source's.
fn later<T: PartialEq>(init: &Item<'_>, in_init: T, own: &Item<'_>, value: T) -> Option<T> {
    let (init_from, own_from) = (init.origin().precedence(), own.origin().precedence());
    if in_init == value || init_from > own_from {
        return Some(in_init);
    }
    if init_from < own_from {
        return Some(value);
    }
    let hint = format!("leave one of them out, or write {} = \"env://\"", init.path);
    own.wrong(format!("disagrees with {}", init.shown()), hint);
    None
}

fn master_addr(item: &Item<'_>) -> Option<String> {
    let addr = item.text()?;
    let bare = addr.trim_start_matches('[').trim_end_matches(']');
    if bare.is_empty() || bare.contains(|c: char| c.is_whitespace() || c == '/') {
        item.wrong(
            "is not a valid host",
            "use a name or an address, for example \"localhost\" or \"10.0.0.1\"",
        );
        return None;
    }
    Some(bare.into())
}

fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.trim_end_matches('/').rsplit_once(':')?;
    let bare = match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let fits = !bare.is_empty() && !bare.contains(|c: char| c.is_whitespace() || c == '/');
    Some((bare.to_owned(), port.parse().ok()?)).filter(|_| fits)
}

/// How many ranks a role takes.
#[derive(Clone, Copy, PartialEq)]
enum Count {
    Ranks(i64),
    Rest,
}

/// The world's size and the ranks of each role. The roles are empty where they do not fit.
fn world(t: &Table<'_>, roles: Option<Item<'_>>) -> (Option<WorldSize>, Vec<Role>) {
    let reader = t.reader();
    let size_item = t.item(&WORLD_SIZE);
    let size = t.read(&WORLD_SIZE);
    let Some(roles) = roles else {
        let hint = "for example [roles] with server = 1 and trainer = \"rest\"";
        reader.report(JobError::new("`roles` is missing").hint(hint));
        return (size.map(|size| WorldSize(size as u32)), Vec::new());
    };
    let (Some(counts), Some(mut size), Some(size_item)) = (counts(&roles), size, size_item) else {
        return (size.map(|size| WorldSize(size as u32)), Vec::new());
    };
    let named: i64 = counts.iter().map(|(_, count)| if let Count::Ranks(n) = count { *n } else { 0 }).sum();
    let has_rest = counts.iter().any(|(_, count)| *count == Count::Rest);
    // Roles that name every rank say how large the world is, if nobody else does.
    if !has_rest && size_item.origin() == Origin::Default && named <= MOST_RANKS {
        size = named;
    }
    let world = Some(WorldSize(size as u32));
    match fit(named, has_rest, size) {
        Ok(rest) => (world, assign(&counts, rest)),
        Err((problem, hint)) => {
            reader.report(size_item.error(problem).hint(hint));
            (world, Vec::new())
        }
    }
}

/// The ranks left for the role that takes the rest; else what does not fit, and a hint.
fn fit(named: i64, has_rest: bool, size: i64) -> Result<i64, (String, String)> {
    let rest = size - named;
    match has_rest {
        true if rest >= 1 => Ok(rest),
        true => Err((
            format!(
                "leaves nobody for the role that takes the rest: the others take {}",
                counted(named as u64, "rank")
            ),
            format!("use at least {}", named + 1),
        )),
        false if rest == 0 => Ok(0),
        false => Err((
            format!("does not fit the roles, which take {}", counted(named as u64, "rank")),
            format!("use {named}, or let one role take \"rest\""),
        )),
    }
}

fn counts(roles: &Item<'_>) -> Option<Vec<(String, Count)>> {
    let entries = roles.table()?.entries_as_written();
    if entries.is_empty() {
        roles.wrong("has no role", "for example server = 1 and trainer = \"rest\"");
        return None;
    }
    let mut rest: Option<&str> = None;
    let mut read = Vec::new();
    for (name, item) in &entries {
        let count = count(item);
        if let (Some(Count::Rest), Some(other)) = (count, rest) {
            let problem = format!("is the second \"rest\": role `{other}` takes it already");
            item.wrong(problem, "give one of them a number of ranks");
            read.push(None);
            continue;
        }
        if count == Some(Count::Rest) {
            rest = Some(name);
        }
        read.push(role_name(name, item).zip(count));
    }
    read.into_iter().collect()
}

fn count(item: &Item<'_>) -> Option<Count> {
    match item.value() {
        Value::String(_, word) if word == "rest" => Some(Count::Rest),
        Value::String(..) => {
            item.wrong("is not a valid number of ranks", "use a number, or \"rest\" for one role");
            None
        }
        _ => item.integer(1..=MOST_RANKS).map(Count::Ranks),
    }
}

fn role_name(name: &str, item: &Item<'_>) -> Option<String> {
    // Ranks are called by role and number, such as `trainer2`: a digit at the end would be ambiguous.
    let fits = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && !name.ends_with(|c: char| c.is_ascii_digit())
        && name.len() <= 32;
    if !fits {
        let error = JobError::new(format!("`{name}` is not a valid name for a role"));
        let hint = "a name is a letter, then letters, `_` and `-`, with no digit at the end, at most 32";
        item.reader().report(error.from(item.origin()).hint(hint));
        return None;
    }
    Some(name.into())
}

fn assign(counts: &[(String, Count)], rest: i64) -> Vec<Role> {
    let mut next = 0;
    let role = |(name, count): &(String, Count)| {
        let first = next;
        next += match count {
            Count::Ranks(n) => *n,
            Count::Rest => rest,
        };
        Role { name: name.clone(), ranks: (first..next).map(|rank| Rank(rank as u32)).collect() }
    };
    counts.iter().map(role).collect()
}

/// A role by its name.
pub(super) fn role<'r>(item: &Item<'_>, roles: &'r [Role]) -> Option<&'r Role> {
    let name = item.text()?;
    // No roles: they were wrong, which has been said.
    if roles.is_empty() {
        return None;
    }
    let role = roles.iter().find(|role| role.name == name);
    if role.is_none() {
        let names = roles.iter().map(|role| role.name.as_str());
        let hint = crate::config::suggest(name, "roles", names);
        item.wrong("is not a role of this job", hint);
    }
    role
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        assert_eq!(host_and_port("10.0.0.1:29500"), Some(("10.0.0.1".into(), 29500)));
        assert_eq!(host_and_port("[::1]:80"), Some(("::1".into(), 80)));
        assert_eq!(host_and_port("::1:80"), None);
        assert_eq!(host_and_port("host"), None);
        assert_eq!(host_and_port("host:99999"), None);
        assert_eq!(host_and_port(":80"), None);
    }

    #[test]
    fn the_rest_is_what_the_named_roles_leave() {
        assert_eq!(fit(1, true, 4), Ok(3));
        assert_eq!(fit(4, false, 4), Ok(0));
        assert!(fit(4, true, 4).is_err());
        assert!(fit(3, false, 4).is_err());
    }
}
