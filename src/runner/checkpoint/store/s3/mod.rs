//! Checkpoints in a bucket. Nothing there has folders or can be renamed: the files of a checkpoint go to where they stay, and with
//! the manifest, which is one object put at once, it is there. Files without a manifest beside them are of none.
//!
//! Keys and addresses come from the environment alone (`access.rs`). Each request is bounded (`client.rs`), so whoever waits for
//! one finds out.

mod access;
mod client;
mod object;
mod said;
mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::SystemTime;

use anyhow::Result;
use object_store::ObjectMeta;
use object_store::path::Path as Key;

use super::{MANIFEST, Sink, Source, Store, name, step_of};
use crate::job::{InBucket, Place};
use access::Access;
use client::Client;

/// What is under a prefix.
#[derive(Debug)]
pub struct Bucket {
    client: Rc<Client>,
    part: InBucket,
    place: Place,
}

impl Bucket {
    /// # Errors
    /// The environment has no keys, or what it has is wrong. The store is not asked.
    pub fn open(part: &InBucket) -> Result<Bucket> {
        let place = Place::Bucket(part.clone());
        let access = Access::from_environment(&place, |name| std::env::var(name).ok())?;
        let client = Rc::new(Client::new(part, access)?);
        Ok(Bucket { client, part: part.clone(), place })
    }

    fn key(&self, file: &str) -> Key {
        let Place::Bucket(InBucket { prefix, .. }) = self.place.join(file) else {
            unreachable!("it is none")
        };
        Key::from(prefix)
    }

    /// All objects below, by what is behind the prefix in their keys.
    fn all(&self) -> Result<BTreeMap<String, ObjectMeta>> {
        let listed = self.client.list(&Key::from(self.part.prefix.as_str()));
        let listed = listed.map_err(|error| self.client.failed("list", &self.place, error))?;
        let length = if self.part.prefix.is_empty() { 0 } else { self.part.prefix.len() + 1 };
        let behind = |object: ObjectMeta| Some((object.location.as_ref().get(length..)?.to_owned(), object));
        Ok(listed.into_iter().filter_map(behind).collect())
    }

    fn delete(&self, objects: impl Iterator<Item = ObjectMeta>) -> Result<()> {
        let keys: Vec<Key> = objects.map(|object| object.location).collect();
        self.client.delete(keys).map_err(|error| self.client.failed("remove objects in", &self.place, error))
    }

    /// What is of this step: the manifest first, without which the others are none.
    fn take_away(&self, step: u64, all: &BTreeMap<String, ObjectMeta>) -> Result<()> {
        let of_step = format!("{}/", name(step));
        let is_manifest = |key: &str| key.strip_prefix(of_step.as_str()) == Some(MANIFEST);
        let objects = || all.iter().filter(|(key, _)| key.starts_with(of_step.as_str()));
        for first in [true, false] {
            let found = objects().filter(|(key, _)| is_manifest(key) == first);
            self.delete(found.map(|(_, object)| object.clone()))?;
        }
        Ok(())
    }

    /// Removes what is of no checkpoint.
    fn clear(&self, all: &BTreeMap<String, ObjectMeta>) -> Result<()> {
        let whole = steps(all);
        let left = |key: &str| key.split_once('/').and_then(|(name, _)| step_of(name));
        let left = all.iter().filter(|(key, _)| left(key).is_some_and(|step| !whole.contains(&step)));
        self.delete(left.map(|(_, object)| object.clone()))
    }
}

/// Those with a manifest.
fn steps(all: &BTreeMap<String, ObjectMeta>) -> BTreeSet<u64> {
    let manifests = all.keys().filter_map(|key| key.split_once('/')).filter(|(_, file)| *file == MANIFEST);
    manifests.filter_map(|(name, _)| step_of(name)).collect()
}

impl Store for Bucket {
    fn place(&self) -> &Place {
        &self.place
    }

    fn steps(&self) -> Result<Vec<u64>> {
        Ok(steps(&self.all()?).into_iter().collect())
    }

    fn files(&self) -> Result<BTreeMap<String, u64>> {
        Ok(self.all()?.into_iter().map(|(name, object)| (name, object.size)).collect())
    }

    fn is_checkpoint(&self) -> Result<bool> {
        // Not its head: an answer to that says nothing of what is wrong.
        match self.client.get(&self.key(MANIFEST), 0..1) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(self.client.failed("read", &self.place.join(MANIFEST), error)),
        }
    }

    fn saved(&self) -> Option<SystemTime> {
        Some(self.client.head(&self.key(MANIFEST)).ok()?.last_modified.into())
    }

    fn open(&self, file: &str) -> Result<Box<dyn Source>> {
        let object = object::Object::open(&self.client, self.key(file));
        let object = object.map_err(|error| self.client.failed("read", &self.place.join(file), error))?;
        Ok(Box::new(object))
    }

    fn create(&self, file: &str, bytes: u64) -> Result<Box<dyn Sink>> {
        let (client, key) = (self.client.clone(), self.key(file));
        Ok(Box::new(upload::Upload::new(client, key, self.place.join(file), bytes)))
    }

    fn begin(&self, step: u64) -> Result<Place> {
        let all = self.all()?;
        // A run that has gone on from an earlier one comes here again.
        self.take_away(step, &all)?;
        self.clear(&all)?;
        Ok(self.place.join(&name(step)))
    }

    fn appear(&self, begun: &Place, step: u64, manifest: &str) -> Result<Place> {
        let key = self.key(&format!("{}/{MANIFEST}", name(step)));
        let put = self.client.put(&key, manifest.as_bytes().to_vec());
        put.map_err(|error| self.client.failed("write", &begun.join(MANIFEST), error))?;
        Ok(begun.clone())
    }

    fn abandon(&self, _begun: &Place, step: u64) {
        // What cannot be removed now is removed when the next one is begun. One whose manifest may have come all the same loses it.
        let _ = self.all().and_then(|all| self.take_away(step, &all));
    }

    fn remove(&self, step: u64) -> Result<()> {
        self.take_away(step, &self.all()?)
    }

    fn remove_unfinished(&self) -> Result<()> {
        self.clear(&self.all()?)
    }

    fn shared_by(&self) -> &'static str {
        "AWS_ENDPOINT_URL has to be the same for all ranks"
    }
}
