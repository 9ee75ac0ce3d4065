//! Calls that may read a file that never answers, a pipe or one on a dead network drive: no deadline of the sandbox ends such
//! a wait (W-3). They run on a thread of their own, which is left behind then.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use tch::Tensor;

use super::component::Component;
use super::dataset::{Dataset, DatasetState, Purpose};
use super::error::{PluginError, PluginErrorKind};
use crate::job::PluginLimits;

/// Beyond a plug-in's limit: the host's own work on what it gave.
pub const HOSTS_OWN: Duration = Duration::from_secs(5);

/// A call of a plug-in, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Waited<'a> {
    pub plugin: &'a str,
    pub call: &'static str,
    /// The key of a job that has its limit.
    pub key: &'static str,
    pub limit: Duration,
}

/// What `work` gives, if it comes back within the limit.
///
/// # Errors
/// It does not, or panics; there is no thread to be had.
pub fn in_time<T: Send + 'static>(
    waited: Waited<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PluginError> {
    let Waited { plugin, call, key, limit } = waited;
    let failed = |kind, message: String| PluginError::new(plugin, call, kind, message);
    let (give, take) = sync_channel(1);
    let run = move || {
        let _ = give.send(work());
    };
    thread::Builder::new()
        .name(call.into())
        .spawn(run)
        .map_err(|error| failed(PluginErrorKind::Host, format!("no thread to be had: {error}")))?;
    take.recv_timeout(limit).map_err(|none| match none {
        RecvTimeoutError::Disconnected => failed(PluginErrorKind::Host, "its thread panicked".into()),
        RecvTimeoutError::Timeout => failed(PluginErrorKind::NotBack { limit }, String::new()).with_hint(
            format!("is there a pipe or a dead network drive in the data folder? `{key}` is for slow ones"),
        ),
    })
}

impl Dataset {
    /// As [`Dataset::open`], which ends in time.
    ///
    /// # Errors
    /// As [`Dataset::open`], and when it does not come back.
    pub fn open_in_time(
        component: &Component,
        config: &serde_json::Value,
        root: &Path,
        limits: PluginLimits,
        state: Option<DatasetState>,
    ) -> Result<Dataset, PluginError> {
        let limit = limits.open_time + HOSTS_OWN;
        let waited = Waited { plugin: component.name(), call: "open", key: "plugins.open_time_ms", limit };
        let (component, config, root) = (component.clone(), config.clone(), root.to_owned());
        in_time(waited, move || Dataset::open(&component, &config, &root, limits, state))?
    }

    /// As [`Dataset::batch`], which ends in time. A dataset that has not come back is gone.
    ///
    /// # Errors
    /// As [`Dataset::batch`], and when it does not come back.
    pub fn batch_in_time(
        mut self,
        indices: &[u64],
        purpose: Purpose,
    ) -> Result<(Dataset, Vec<Tensor>), PluginError> {
        let (name, indices) = (self.name().to_owned(), indices.to_owned());
        let limit = self.time_limit() + HOSTS_OWN;
        let waited = Waited { plugin: &name, call: "batch", key: "plugins.time_ms", limit };
        in_time(waited, move || self.batch(&indices, purpose).map(|batch| (self, batch)))?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_does_not_come_back_is_an_error_and_not_a_hang() {
        let (_go, gate) = channel::<()>();
        let limit = Duration::from_millis(20);
        let waited = Waited { plugin: "x", call: "batch", key: "plugins.time_ms", limit };
        let error = in_time(waited, move || gate.recv()).unwrap_err();
        insta::assert_snapshot!(error, @r"
        plug-in `x` has not come back from `batch` within 20ms
          hint: is there a pipe or a dead network drive in the data folder? `plugins.time_ms` is for slow ones
        ");
        let panicked = in_time(Waited { limit: Duration::from_mins(1), ..waited }, || panic!("boom"));
        assert_eq!(
            panicked.map(|(): ()| ()).unwrap_err().to_string(),
            "plug-in `x`: `batch`: its thread panicked"
        );
    }
}
