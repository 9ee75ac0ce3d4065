//! Waiting for what others send, without a call, for as long as all ranks are there.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::rpc::Mesh;

/// The next that comes. `ended`: why, where nobody can send any more.
///
/// # Errors
/// When a rank is lost before it comes, or nobody can send any more.
pub fn receive<T>(mesh: &Mesh, from: &Receiver<T>, ended: &'static str) -> Result<T> {
    loop {
        match from.recv_timeout(LOOK_EVERY) {
            Ok(came) => return Ok(came),
            Err(RecvTimeoutError::Disconnected) => bail!(ended),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(lost) = mesh.lost().now() {
            bail!("{lost}");
        }
    }
}

/// How often it is looked whether all ranks are still there.
const LOOK_EVERY: Duration = Duration::from_millis(50);
