//! An object that is read in ranges. Small ones are read with what is behind them, as tensors that follow one another are.

use std::io;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use object_store::path::Path as Key;

use super::client::Client;
use super::said::Failed;
use crate::runner::checkpoint::store::Source;

/// At least so much is asked for at once.
const WINDOW: u64 = 1 << 20;

pub struct Object {
    client: Rc<Client>,
    key: Key,
    bytes: u64,
    /// The last that was read of it beyond what was wanted, and where that begins.
    window: Mutex<(u64, Vec<u8>)>,
}

impl Object {
    pub fn open(client: &Rc<Client>, key: Key) -> Result<Object, Failed> {
        let (window, bytes) = client.get(&key, 0..WINDOW)?;
        Ok(Object { client: client.clone(), key, bytes, window: Mutex::new((0, window)) })
    }

    fn get(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let (bytes, _) =
            self.client.get(&self.key, from..to).map_err(|error| io::Error::other(error.said()))?;
        match bytes.len() as u64 == to - from {
            true => Ok(bytes),
            false => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the store sent {} bytes, and {} were asked for", bytes.len(), to - from),
            )),
        }
    }
}

impl Source for Object {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let wanted = buffer.len() as u64;
        if wanted == 0 {
            return Ok(());
        }
        let end = at + wanted;
        if end > self.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, held) = &*window;
        if at < *from || end > from + held.len() as u64 {
            if wanted >= WINDOW {
                buffer.copy_from_slice(&self.get(at, end)?);
                return Ok(());
            }
            *window = (at, self.get(at, self.bytes.min(at + WINDOW))?);
        }
        let (from, held) = &*window;
        let start = (at - from) as usize;
        buffer.copy_from_slice(&held[start..start + buffer.len()]);
        Ok(())
    }
}
