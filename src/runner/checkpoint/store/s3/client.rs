//! Requests to a store, each waited for, and each within a bound.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::AmazonS3;
use object_store::path::Path as Key;
use object_store::{
    GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutPayload,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::access::Access;
use super::said::{Failed, told};
use crate::job::{InBucket, Place};

pub struct Client {
    store: AmazonS3,
    /// Without threads: what is on its way moves on while somebody waits.
    runtime: Runtime,
    patience: Duration,
}

impl Client {
    pub fn new(part: &InBucket, access: Access) -> Result<Client> {
        let patience = access.patience;
        let runtime =
            Builder::new_current_thread().enable_all().build().context("no runtime for requests")?;
        let store = access.store(part)?;
        Ok(Client { store, runtime, patience })
    }

    /// Waits for a request and what it takes to try it again.
    pub fn wait<T>(&self, request: impl Future<Output = object_store::Result<T>>) -> Result<T, Failed> {
        self.runtime.block_on(self.bounded(request))
    }

    /// Waits for requests that are bounded one by one.
    pub fn wait_for<T>(&self, requests: impl Future<Output = T>) -> T {
        self.runtime.block_on(requests)
    }

    /// The bound begins when it is first asked whether it is done.
    pub async fn bounded<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failed> {
        within(self.patience, request).await
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// A page of the list is a request.
    pub fn list(&self, prefix: &Key) -> Result<Vec<ObjectMeta>, Failed> {
        self.wait_for(async {
            let (mut found, mut list) = (Vec::new(), self.store.list(Some(prefix)).ready_chunks(1000));
            while let Some(page) = self
                .bounded(async { list.next().await.map(|page| page.into_iter().collect()).transpose() })
                .await?
            {
                let page: Vec<ObjectMeta> = page;
                found.extend(page);
            }
            Ok(found)
        })
    }

    pub fn head(&self, key: &Key) -> Result<ObjectMeta, Failed> {
        self.wait(self.store.head(key))
    }

    /// Bytes of an object, and how many it has in all.
    pub fn get(&self, key: &Key, range: Range<u64>) -> Result<(Vec<u8>, u64), Failed> {
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        self.wait(async {
            let got = self.store.get_opts(key, options).await?;
            let all = got.meta.size;
            Ok((got.bytes().await?.into(), all))
        })
    }

    pub fn put(&self, key: &Key, bytes: Vec<u8>) -> Result<(), Failed> {
        self.wait(async { self.store.put(key, PutPayload::from(bytes)).await.map(drop) })
    }

    pub fn delete(&self, keys: Vec<Key>) -> Result<(), Failed> {
        // As many as one request takes.
        for some in keys.chunks(1000) {
            let some: Vec<_> = some.iter().cloned().map(Ok).collect();
            let deleted = self.store.delete_stream(futures::stream::iter(some).boxed());
            self.wait(deleted.try_for_each(|_| async { Ok(()) }))?;
        }
        Ok(())
    }

    pub fn begin_upload(&self, key: &Key) -> Result<Box<dyn MultipartUpload>, Failed> {
        self.wait(self.store.put_multipart(key))
    }

    /// What to tell of a request about `place`.
    pub fn failed(&self, what: &str, place: &Place, error: Failed) -> anyhow::Error {
        told(what, place, &error, self.patience)
    }
}

/// A request that does not come to its end.
pub async fn within<T>(
    patience: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> Result<T, Failed> {
    match timeout(patience, request).await {
        Ok(done) => done.map_err(Failed::Request),
        Err(_) => Err(Failed::Late),
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of its keys.
        f.debug_struct("Client").field("patience", &self.patience).finish_non_exhaustive()
    }
}
