//! The stores of process groups: each is kept by one rank, and the others reach it by calls. So there is no port for it,
//! and whoever has not joined the job neither reads it nor writes to it.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use c10d::{KeyValues, Store};

use super::calls::group::{self, Added, Compared, Deleted, Got, KeyCount, Waited};
use crate::job::Cluster;
use crate::rpc::{Call, Mesh, Methods};
use crate::topology::Rank;

mod kept;

use kept::Kept;

/// Offers what this rank keeps to the others and to itself.
pub(super) fn register(methods: &mut Methods) {
    let kept = Arc::new(Kept::default());
    let here = kept.clone();
    methods.serve(move |_, group::Wait { group, within_ms, keys }| {
        let here = here.clone();
        async move {
            let all_there = here.wait(&group, &keys, Duration::from_millis(within_ms)).await;
            all_there.map(|all_there| Waited { all_there })
        }
    });
    let here = kept.clone();
    methods.serve(move |_, group::Get { group, key, within_ms }| {
        let here = here.clone();
        async move { anyhow::Ok(Got { value: here.get(&group, &key, Duration::from_millis(within_ms)).await }) }
    });
    let here = kept.clone();
    methods.serve(move |_, group::Set { group, key, value }| ready(here.set(group, key, value)));
    let here = kept.clone();
    methods.serve(move |_, group::Add { group, key, amount }| {
        ready(here.add(group, key, amount).map(|sum| Added { sum }))
    });
    let here = kept.clone();
    methods.serve(move |_, group::CompareSet { group, key, expected, wanted }| {
        ready(here.compare_set(group, key, expected, wanted).map(|value| Compared { value }))
    });
    let here = kept.clone();
    methods.serve(move |_, group::Delete { group, key }| {
        ready(anyhow::Ok(Deleted { was_there: here.delete(group, key) }))
    });
    methods.serve(move |_, group::Count { group }| ready(anyhow::Ok(KeyCount { keys: kept.count(&group) })));
}

/// The store of a group, which lies on its `first` rank.
pub(super) fn open(mesh: &Mesh, first: Rank, group: &str, cluster: &Cluster) -> Result<Store> {
    let reached =
        Reached { mesh: mesh.clone(), first, group: group.into(), rpc_timeout: cluster.rpc_timeout };
    let what = format!("store of group `{group}` on rank {first}");
    Ok(Store::of(reached, what, cluster.join_timeout)?)
}

/// A store as a member of its group reaches it.
struct Reached {
    mesh: Mesh,
    first: Rank,
    group: String,
    rpc_timeout: Duration,
}

impl Reached {
    /// Asks that rank, which may take `within` before it answers.
    fn ask<C: Call>(&self, call: C, within: Duration) -> Result<C::Reply, String> {
        let asked = self.mesh.request_within(self.first, call, within.saturating_add(self.rpc_timeout));
        asked.wait().map_err(|error| error.to_string())
    }

    fn group(&self) -> String {
        self.group.clone()
    }
}

impl KeyValues for Reached {
    fn wait(&self, keys: &[&str], within: Duration) -> Result<bool, String> {
        let keys = keys.iter().map(|&key| key.into()).collect();
        let call = group::Wait { group: self.group(), within_ms: millis(within), keys };
        Ok(self.ask(call, within)?.all_there)
    }

    fn get(&self, key: &str, within: Duration) -> Result<Option<Vec<u8>>, String> {
        let call = group::Get { group: self.group(), key: key.into(), within_ms: millis(within) };
        Ok(self.ask(call, within)?.value)
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.ask(group::Set { group: self.group(), key: key.into(), value: value.into() }, Duration::ZERO)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, String> {
        Ok(self.ask(group::Add { group: self.group(), key: key.into(), amount }, Duration::ZERO)?.sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], wanted: &[u8]) -> Result<Vec<u8>, String> {
        let (expected, wanted) = (expected.into(), wanted.into());
        let call = group::CompareSet { group: self.group(), key: key.into(), expected, wanted };
        Ok(self.ask(call, Duration::ZERO)?.value)
    }

    fn delete(&self, key: &str) -> Result<bool, String> {
        Ok(self.ask(group::Delete { group: self.group(), key: key.into() }, Duration::ZERO)?.was_there)
    }

    fn count(&self) -> Result<u64, String> {
        Ok(self.ask(group::Count { group: self.group() }, Duration::ZERO)?.keys)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::rpc::testing;

    const SOON: Duration = Duration::from_millis(200);

    fn world() -> Vec<Mesh> {
        testing::world(2, register, |_| ())
    }

    fn store(mesh: &Mesh, group: &str) -> Store {
        let rpc_timeout = Duration::from_secs(30);
        let reached = Reached { mesh: mesh.clone(), first: Rank(0), group: group.into(), rpc_timeout };
        Store::of(reached, "the store", SOON).expect("made")
    }

    #[test]
    fn the_members_of_a_group_share_what_the_first_one_keeps_within_limits() {
        let meshes = world();
        let (near, far) = (store(&meshes[0], "g"), store(&meshes[1], "g"));
        far.set("key", "value").expect("set");
        assert_eq!(near.get("key").expect("there"), b"value");
        assert_eq!((near.add("n", 2).expect("a number"), far.add("n", 3).expect("a number")), (2, 5));
        assert_eq!(far.compare_set("key", "value", "other").expect("compared"), b"other");
        assert_eq!(far.compare_set("key", "value", "third").expect("compared"), b"other");
        assert_eq!(far.compare_set("absent", "value", "third").expect("compared"), b"value");
        assert_eq!(far.count_keys().expect("counted"), 2);
        assert!(!far.check_keys(&["key", "absent"]).expect("looked"));
        assert!(far.delete("key").expect("deleted") && !near.check_keys(&["key"]).expect("looked"));
        assert!(!store(&meshes[1], "h").check_keys(&["n"]).expect("looked"), "another group's");
        thread::scope(|scope| {
            let waits = scope.spawn(|| far.wait(&["late"], Duration::from_secs(30)));
            near.set("late", "").expect("set");
            waits.join().expect("no panic").expect("it has come");
        });
        let late = far.get("absent").expect_err("nobody sets it").to_string();
        assert_eq!(late, "the store: get of `absent`: wait timeout after 200 ms, keys: absent");
        let large = far.set("large", vec![0; (1 << 20) + 1]).expect_err("too large").to_string();
        assert!(large.contains("a value of 1048577 bytes, the limit is 1048576"), "{large}");
        let leave = |mesh: Mesh| thread::spawn(move || mesh.shutdown());
        for left in meshes.into_iter().map(leave).collect::<Vec<_>>() {
            left.join().expect("no panic").expect("in order");
        }
        let over = far.get("n").expect_err("the mesh has ended").to_string();
        assert!(over.starts_with("the store: get of `n`: `group.get` on rank 0: "), "{over}");
    }
}
