//! An object that is written: small ones at once, others in parts, of which few are on their way together.

use std::io::{self, Write};
use std::rc::Rc;

use anyhow::Result;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use object_store::path::Path as Key;
use object_store::{MultipartUpload, PutPayload};

use super::client::{Client, within};
use super::said::Failed;
use crate::job::Place;
use crate::profile::beat;
use crate::runner::checkpoint::store::Sink;

/// The size of a part, unless the object would have too many: a store takes 10,000.
const PART_BYTES: u64 = 8 << 20;
const MOST_PARTS: u64 = 9_000;
/// So many parts are on their way at once, and one more is being filled.
const ON_THEIR_WAY: usize = 3;

pub struct Upload {
    client: Rc<Client>,
    key: Key,
    place: Place,
    part_bytes: usize,
    part: Vec<u8>,
    parts: Option<UploadParts>,
}

/// The parts of an object that is too large to be put at once.
struct UploadParts {
    upload: Box<dyn MultipartUpload>,
    sent: FuturesUnordered<BoxFuture<'static, Result<(), Failed>>>,
}

impl Upload {
    /// `bytes`: of the whole object.
    pub fn new(client: Rc<Client>, key: Key, place: Place, bytes: u64) -> Upload {
        let part_bytes = part_bytes(bytes) as usize;
        Upload { client, key, place, part_bytes, part: Vec::new(), parts: None }
    }

    /// The part is full, or the last one.
    fn send(&mut self) -> Result<(), Failed> {
        let client = &self.client;
        if self.parts.is_none() {
            let upload = client.begin_upload(&self.key)?;
            self.parts = Some(UploadParts { upload, sent: FuturesUnordered::new() });
        }
        let Some(UploadParts { upload, sent }) = &mut self.parts else { return Ok(()) };
        let part = std::mem::take(&mut self.part);
        sent.push(Box::pin(within(client.patience(), upload.put_part(PutPayload::from(part)))));
        while sent.len() >= ON_THEIR_WAY {
            client.wait_for(sent.next()).transpose()?;
            beat();
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Failed> {
        if self.parts.is_none() {
            return self.client.put(&self.key, std::mem::take(&mut self.part));
        }
        if !self.part.is_empty() {
            self.send()?;
        }
        let Some(UploadParts { upload, sent }) = &mut self.parts else { return Ok(()) };
        while let Some(sent) = self.client.wait_for(sent.next()) {
            sent?;
            beat();
        }
        self.client.wait(upload.complete())?;
        self.parts = None;
        Ok(())
    }
}

/// How large the parts of an object of so many bytes are: all but the last alike, as some stores want them.
fn part_bytes(bytes: u64) -> u64 {
    PART_BYTES.max(bytes.div_ceil(MOST_PARTS).next_multiple_of(1 << 20))
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Not before more comes: what fits into one part is put at once.
        if self.part.len() == self.part_bytes {
            self.send().map_err(|error| io::Error::other(error.said()))?;
        }
        let count = bytes.len().min(self.part_bytes - self.part.len());
        self.part.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Upload {
    fn finish(mut self: Box<Self>) -> Result<()> {
        let completed = self.complete();
        completed.map_err(|error| self.client.failed("write", &self.place, error))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Of what was not completed the store keeps the parts, if it is not told: when it cannot be told now, docs/checkpoints.md
        // says how the bucket loses them.
        if let Some(UploadParts { mut upload, sent }) = self.parts.take() {
            drop(sent);
            let _ = self.client.wait(async { upload.abort().await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_object_has_more_parts_than_a_store_takes() {
        let mib = |bytes: u64| part_bytes(bytes) >> 20;
        assert_eq!([0, 1 << 20, 70 << 30].map(mib), [8, 8, 8]);
        assert_eq!(mib(5 << 40), 583);
        for bytes in [1 << 40, (5 << 40) - 1] {
            assert!(bytes / part_bytes(bytes) < 10_000);
            assert_eq!(part_bytes(bytes) % (1 << 20), 0);
        }
    }
}
