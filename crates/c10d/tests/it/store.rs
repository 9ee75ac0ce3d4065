//! Every kind of store, and what they all can do.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use c10d::{Error, KeyValues, STORE_TIMEOUT, Store, TcpOptions};

/// Somebody else's.
#[derive(Default)]
struct Map {
    values: Mutex<BTreeMap<String, Vec<u8>>>,
    set: Condvar,
}

impl KeyValues for Map {
    fn wait(&self, keys: &[&str], within: Duration) -> Result<bool, String> {
        let missing =
            |values: &mut BTreeMap<_, _>| !keys.iter().all(|&key| values.contains_key(&key.to_owned()));
        let values = self.values.lock().unwrap();
        Ok(!self.set.wait_timeout_while(values, within, missing).unwrap().1.timed_out())
    }

    fn get(&self, key: &str, within: Duration) -> Result<Option<Vec<u8>>, String> {
        self.wait(&[key], within)?;
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.values.lock().unwrap().insert(key.into(), value.into());
        self.set.notify_all();
        Ok(())
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, String> {
        let before = self.get(key, Duration::ZERO)?.unwrap_or(b"0".into());
        let sum =
            str::from_utf8(&before).unwrap().parse::<i64>().map_err(|error| error.to_string())? + amount;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], wanted: &[u8]) -> Result<Vec<u8>, String> {
        match self.get(key, Duration::ZERO)? {
            Some(value) if value != expected => return Ok(value),
            None if !expected.is_empty() => return Ok(expected.into()),
            _ => self.set(key, wanted)?,
        }
        Ok(wanted.into())
    }

    fn delete(&self, key: &str) -> Result<bool, String> {
        Ok(self.values.lock().unwrap().remove(key).is_some())
    }

    fn count(&self) -> Result<u64, String> {
        assert!(!self.values.lock().unwrap().contains_key("panic"), "it was asked to");
        Ok(self.values.lock().unwrap().len() as u64)
    }
}

fn every_store(body: impl Fn(&Store)) {
    let tcp = TcpOptions { wait_workers: false, ..TcpOptions::new("127.0.0.1", 0, 0, 1) };
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{:?}", std::thread::current().id()));
    let _ = std::fs::remove_file(&path);
    let kept = Store::of(Map::default(), "a map", STORE_TIMEOUT).unwrap();
    for store in [Store::hash().unwrap(), Store::tcp(&tcp).unwrap(), Store::file(&path, 1).unwrap(), kept] {
        println!("{store:?}");
        body(&store);
        body(&store.prefix("somewhere/else").unwrap());
    }
    assert!(!path.exists(), "the last one leaves");
}

#[test]
fn values_are_set_and_got_counted_compared_and_deleted() {
    every_store(|store| {
        store.set("bytes", [0, 255, 0]).unwrap();
        assert_eq!(store.get("bytes").unwrap(), [0, 255, 0]);
        store.set("bytes", "").unwrap();
        assert_eq!(store.get("bytes").unwrap(), b"");
        assert_eq!((store.add("n", 2).unwrap(), store.add("n", -3).unwrap()), (2, -1));
        assert_eq!(store.compare_set("flag", "", "mine").unwrap(), b"mine");
        assert_eq!(store.compare_set("flag", "other", "theirs").unwrap(), b"mine");
        assert_eq!(store.compare_set("flag", "mine", "theirs").unwrap(), b"theirs");
        assert!(store.check_keys(&["flag", "n"]).unwrap());
        assert!(!store.check_keys(&["flag", "absent"]).unwrap());
        assert!(store.count_keys().unwrap() >= 3);
        assert!(store.delete("flag").unwrap());
        assert!(!store.check_keys(&["flag"]).unwrap());
    });
}

#[test]
fn a_key_that_nobody_sets_is_named_when_the_wait_ends() {
    every_store(|store| {
        let start = Instant::now();
        let error = store.wait(&["absent"], Duration::from_millis(50)).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(matches!(&error, Error::Store { operation: "wait", key, .. } if key == "absent"), "{error}");
        assert!(error.to_string().contains("wait of `absent`: "), "{error}");
    });
}

#[test]
fn a_wait_ends_when_somebody_else_sets_the_key() {
    every_store(|store| {
        let other = if store.port().is_some() { store.reconnect().unwrap() } else { store.clone() };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| store.wait(&["late"], Duration::from_secs(20)));
            other.set("late", "now").unwrap();
            waits.join().unwrap().unwrap();
        });
    });
}

#[test]
fn prefixes_keep_apart_what_has_the_same_name() {
    every_store(|store| {
        let (one, two) = (store.prefix("one").unwrap(), store.prefix("two").unwrap());
        one.set("key", "1").unwrap();
        two.set("key", "2").unwrap();
        assert_eq!(store.get("one/key").unwrap(), b"1");
        assert_eq!(two.get("key").unwrap(), b"2");
    });
}

#[test]
fn the_last_to_leave_a_file_takes_it_away() {
    let path = std::env::temp_dir().join(format!("c10d-last-to-leave-{}", std::process::id()));
    let stores = [(); 3].map(|()| Store::file(&path, 3).unwrap());
    for store in stores {
        assert!(path.exists());
        drop(store);
    }
    assert!(!path.exists());
}

#[test]
fn a_store_that_cannot_be_opened_says_which_and_why() {
    let error = Store::file("/nowhere/at/all", 2).unwrap_err();
    assert_eq!(error.to_string(), "file store /nowhere/at/all: open: there is no folder /nowhere/at");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options =
        TcpOptions { timeout: Duration::from_millis(300), ..TcpOptions::new("127.0.0.1", port, 1, 2) };
    let error = Store::tcp(&options).unwrap_err().to_string();
    assert!(error.starts_with(&format!("TCP store at 127.0.0.1:{port}: open: ")), "{error}");
    assert!(!error.contains("frame #"), "{error}");
    assert!(Store::hash().unwrap().set("nul\0", "").unwrap_err().to_string().contains("a NUL byte"));
}

#[test]
fn what_whoever_keeps_the_keys_says_is_the_error_and_a_panic_is_one_too() {
    let store = Store::of(Map::default(), "a map", Duration::from_millis(50)).unwrap();
    store.set("words", "some").unwrap();
    let error = store.add("words", 1).unwrap_err();
    assert_eq!(error.to_string(), "a map: add of `words`: invalid digit found in string");
    let error = store.get("absent").unwrap_err().to_string();
    assert_eq!(error, "a map: get of `absent`: wait timeout after 50 ms, keys: absent");
    store.set("panic", "").unwrap();
    assert_eq!(store.count_keys().unwrap_err().to_string(), "a map: count_keys: a panic: it was asked to");
}
