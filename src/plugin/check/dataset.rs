//! A dataset's check: it opens, hands over batches, and hands over the same sample twice.

use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;
use tch::Tensor;

use super::{MEASURED_FOR, Request, measure, ms};
use crate::plugin::component::Component;
use crate::plugin::dataset::{Dataset, Purpose};
use crate::plugin::dtype::kind_name;
use crate::plugin::error::PluginError;
use crate::plugin::in_time::{HOSTS_OWN, Waited, in_time};

#[derive(Clone, Debug, Serialize)]
pub struct DatasetReport {
    pub open_ms: f64,
    pub samples: u64,
    pub fields: Vec<FieldReport>,
    pub batch_size: u64,
    pub batch_bytes: u64,
    /// Median and longest of batches of random samples.
    pub batch_us: f64,
    pub longest_us: f64,
    pub samples_per_s: f64,
    /// What it has settled for other samples, in bytes.
    pub state_bytes: Option<u64>,
    /// Whether a sample is the same when it is asked for again, in another batch.
    pub repeats: bool,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct FieldReport {
    pub name: String,
    pub dtype: &'static str,
    /// Shape of one sample.
    pub shape: Vec<i64>,
}

/// How often it is opened, and how often asked for a batch beside the measured ones, of which one may begin too late.
const OPENED: u32 = 2;
const ASKED: u32 = 4 + 1;

/// Ends, also where a file of the data never answers.
pub fn check(component: &Component, request: &Request) -> Result<DatasetReport, PluginError> {
    let limits = request.limits;
    let limit = limits.open_time * OPENED + limits.time * ASKED + MEASURED_FOR + HOSTS_OWN;
    let waited = Waited { plugin: component.name(), call: "check", key: "plugins.open_time_ms", limit };
    let (component, config, root) = (component.clone(), request.config.clone(), request.root.to_owned());
    let batch_size = request.batch_size;
    in_time(waited, move || {
        let (outputs, targets) = (Vec::new(), Vec::new());
        let request = Request { config: &config, root: &root, limits, batch_size, outputs, targets };
        look(&component, &request)
    })?
}

fn look(component: &Component, request: &Request) -> Result<DatasetReport, PluginError> {
    let begun = Instant::now();
    let mut dataset = Dataset::open(component, request.config, request.root, request.limits, None)?;
    let open_ms = ms(begun.elapsed());
    let info = dataset.info().clone();
    let size = request.batch_size.clamp(1, info.samples);

    // Both ends, in one batch and alone; what is random when it trains is a function of the purpose.
    let last = info.samples - 1;
    let mut repeats = true;
    for purpose in [Purpose::evaluation(0), Purpose::training(0, 1)] {
        let both = dataset.batch(&[last, 0], purpose)?;
        let alone = dataset.batch(&[last], purpose)?;
        repeats &= both.iter().zip(&alone).all(|(both, alone)| same(&both.narrow(0, 0, 1), alone));
    }
    if let Some(state) = &info.state {
        let state = Some(state.clone());
        let other = Dataset::open(component, request.config, request.root, request.limits, state)?;
        repeats &= *other.info() == info;
    }

    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut batch_bytes = 0;
    let (batch_us, longest_us) = measure(|_| {
        let indices: Vec<u64> = (0..size).map(|_| random.next_u64() % info.samples).collect();
        let batch = dataset.batch(&indices, Purpose::training(0, 0))?;
        batch_bytes =
            batch.iter().map(|field| (field.numel() * field.kind().elt_size_in_bytes()) as u64).sum();
        Ok(())
    })?;
    let fields = info.fields.into_iter();
    Ok(DatasetReport {
        open_ms,
        samples: info.samples,
        fields: fields
            .map(|field| FieldReport { name: field.name, dtype: kind_name(field.dtype), shape: field.shape })
            .collect(),
        batch_size: size,
        batch_bytes,
        batch_us,
        longest_us,
        samples_per_s: size as f64 / batch_us * 1e6,
        state_bytes: info.state.as_ref().map(|state| state.len() as u64),
        repeats,
        memory_bytes: dataset.memory_bytes(),
    })
}

/// Bit by bit, so that NaN is the same as NaN.
fn same(a: &Tensor, b: &Tensor) -> bool {
    let bytes = |tensor: &Tensor| {
        let tensor = tensor.contiguous();
        let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        bytes
    };
    a.size() == b.size() && bytes(a) == bytes(b)
}
