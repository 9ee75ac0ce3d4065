//! The keys of groups' stores, on the rank that keeps them.
//!
//! Any rank of the job may set some, so there are limits: a rank that means harm fills this and nothing else.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The longest name of a group, and the longest key.
const MAX_NAME_BYTES: usize = 512;

/// What Gloo leaves grows by 8 bytes a rank.
const MAX_VALUE_BYTES: usize = 1 << 20;

/// The most keys of all groups together; the bytes are those of all, too.
const MAX_KEYS: usize = 1 << 16;
const MAX_BYTES: usize = 64 << 20;

/// Waited for at once: one of each rank, where Gloo does.
const MAX_WAITED_FOR: usize = 4096;

/// For a key. Whoever waits gives up long before.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

#[derive(Default)]
pub(super) struct Kept {
    state: Mutex<State>,
    /// Something was set.
    set: Notify,
}

#[derive(Default)]
struct State {
    /// By group and key.
    values: BTreeMap<(String, String), Vec<u8>>,
    /// The bytes of keys and values.
    bytes: usize,
}

impl Kept {
    pub async fn wait(&self, group: &str, keys: &[String], within: Duration) -> Result<bool> {
        let most = MAX_WAITED_FOR;
        ensure!(keys.len() <= most, "group `{group}`: a wait for {} keys, the limit is {most}", keys.len());
        let all_there = |state: &State| keys.iter().all(|key| state.get(group, key).is_some()).then_some(());
        Ok(self.until(within, all_there).await.is_some())
    }

    pub async fn get(&self, group: &str, key: &str, within: Duration) -> Option<Vec<u8>> {
        self.until(within, |state| state.get(group, key).cloned()).await
    }

    pub fn set(&self, group: String, key: String, value: Vec<u8>) -> Result<()> {
        self.change(|state| state.set(group, key, value))
    }

    pub fn add(&self, group: String, key: String, amount: i64) -> Result<i64> {
        self.change(|state| {
            let before = match state.get(&group, &key) {
                Some(value) => {
                    let digits = str::from_utf8(value).ok().and_then(|digits| digits.parse::<i64>().ok());
                    digits.with_context(|| format!("group `{group}`: key `{key}` holds no number"))?
                }
                None => 0,
            };
            let sum = before.checked_add(amount);
            let sum = sum.with_context(|| format!("group `{group}`: key `{key}`: {before} + {amount}"))?;
            state.set(group, key, sum.to_string().into_bytes())?;
            Ok(sum)
        })
    }

    /// The value that the key then has; `expected` where it is not there and was not to be.
    pub fn compare_set(
        &self,
        group: String,
        key: String,
        expected: Vec<u8>,
        wanted: Vec<u8>,
    ) -> Result<Vec<u8>> {
        self.change(|state| match state.get(&group, &key) {
            Some(value) if *value != expected => Ok(value.clone()),
            None if !expected.is_empty() => Ok(expected),
            _ => {
                state.set(group, key, wanted.clone())?;
                Ok(wanted)
            }
        })
    }

    /// Whether the key was there.
    pub fn delete(&self, group: String, key: String) -> bool {
        let mut state = self.state();
        let at = (group, key);
        let value = state.values.remove(&at);
        if let Some(value) = &value {
            state.bytes -= size(&at, value);
        }
        value.is_some()
    }

    pub fn count(&self, group: &str) -> u64 {
        let state = self.state();
        let from = (group.to_owned(), String::new());
        state.values.range(from..).take_while(|((of, _), _)| of == group).count() as u64
    }

    /// What `look` finds, as soon as it does.
    async fn until<T>(&self, within: Duration, look: impl Fn(&State) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + within.min(MAX_WAIT);
        loop {
            let mut set = pin!(self.set.notified());
            // From here on: what is set after the look is not missed.
            set.as_mut().enable();
            let found = look(&self.state());
            if found.is_some() || timeout_at(deadline, set).await.is_err() {
                return found;
            }
        }
    }

    fn change<T>(&self, body: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let changed = body(&mut self.state());
        self.set.notify_waiters();
        changed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn get(&self, group: &str, key: &str) -> Option<&Vec<u8>> {
        self.values.get(&(group.to_owned(), key.to_owned()))
    }

    fn set(&mut self, group: String, key: String, value: Vec<u8>) -> Result<()> {
        for (what, name) in [("name", &group), ("key", &key)] {
            let (bytes, most) = (name.len(), MAX_NAME_BYTES);
            ensure!(bytes <= most, "a group's {what} of {bytes} bytes, the limit is {most}");
        }
        let (bytes, most) = (value.len(), MAX_VALUE_BYTES);
        ensure!(bytes <= most, "group `{group}`: key `{key}`: a value of {bytes} bytes, the limit is {most}");
        let at = (group, key);
        let before = self.values.get(&at).map(|value| size(&at, value));
        let bytes = self.bytes - before.unwrap_or(0) + size(&at, &value);
        let keys = self.values.len() + usize::from(before.is_none());
        let is_within = keys <= MAX_KEYS && bytes <= MAX_BYTES;
        ensure!(
            is_within,
            "group `{}`: all groups have {keys} keys and {bytes} bytes then, the limits are {MAX_KEYS} and {MAX_BYTES}",
            at.0
        );
        self.bytes = bytes;
        self.values.insert(at, value);
        Ok(())
    }
}

fn size((group, key): &(String, String), value: &[u8]) -> usize {
    group.len() + key.len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(kept: &Kept, key: &str, value: &[u8]) -> Result<()> {
        kept.set("g".into(), key.into(), value.into())
    }

    /// What it says to more than it keeps.
    fn refused(changed: Result<()>) -> String {
        changed.expect_err("too much").to_string()
    }

    #[test]
    fn what_is_too_large_or_too_much_is_refused_with_the_limit() {
        let kept = Kept::default();
        assert_eq!(
            refused(set(&kept, &"k".repeat(513), b"")),
            "a group's key of 513 bytes, the limit is 512"
        );
        assert_eq!(
            refused(kept.set("g".repeat(513), "k".into(), Vec::new())),
            "a group's name of 513 bytes, the limit is 512"
        );
        let large = vec![0; MAX_VALUE_BYTES];
        assert_eq!(
            refused(set(&kept, "k", &vec![0; MAX_VALUE_BYTES + 1])),
            "group `g`: key `k`: a value of 1048577 bytes, the limit is 1048576"
        );
        // The names take room, too, so one less than fit by their values.
        for number in 0..MAX_BYTES / MAX_VALUE_BYTES - 1 {
            set(&kept, &number.to_string(), &large).expect("there is room");
        }
        let full = refused(set(&kept, "one more", &large));
        assert!(full.starts_with("group `g`: all groups have 64 keys and 671"), "{full}");
        // What is set again, or deleted, gives its room back.
        set(&kept, "0", &large).expect("instead of the same");
        assert!(kept.delete("g".into(), "0".into()) && !kept.delete("g".into(), "0".into()));
        set(&kept, "one more", &large).expect("there is room");
        assert_eq!((kept.count("g"), kept.count("h")), (63, 0));
    }

    #[test]
    fn there_are_no_more_keys_than_the_limit() {
        let kept = Kept::default();
        for number in 0..MAX_KEYS {
            set(&kept, &number.to_string(), b"").expect("there is room");
        }
        let full = refused(kept.set("another".into(), "k".into(), Vec::new()));
        assert!(full.starts_with("group `another`: all groups have 65537 keys"), "{full}");
    }

    #[tokio::test]
    async fn a_wait_is_bounded_and_ends_when_the_key_comes() {
        let kept = Kept::default();
        let key = ["k".to_owned()];
        assert!(!kept.wait("g", &key, Duration::from_millis(20)).await.expect("one key"));
        let many = vec![String::new(); MAX_WAITED_FOR + 1];
        kept.wait("g", &many, Duration::ZERO).await.expect_err("too many");
        let waits = kept.get("g", "k", Duration::from_secs(60));
        let (value, ()) = tokio::join!(waits, async { set(&kept, "k", b"v").expect("there is room") });
        assert_eq!(value.as_deref(), Some(&b"v"[..]));
        assert!(kept.wait("g", &key, Duration::ZERO).await.expect("one key"));
        assert!(!kept.wait("other", &key, Duration::ZERO).await.expect("one key"), "another group's");
    }

    #[test]
    fn a_counter_counts_numbers_only() {
        let kept = Kept::default();
        let add = |amount| kept.add("g".into(), "n".into(), amount);
        assert_eq!((add(2).expect("a number"), add(-3).expect("a number")), (2, -1));
        add(i64::MIN).expect_err("too small");
        set(&kept, "n", b"words").expect("there is room");
        assert_eq!(add(1).expect_err("words").to_string(), "group `g`: key `n` holds no number");
    }
}
