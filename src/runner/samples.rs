//! From a dataset plug-in's fields to what the model and the loss take.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tch::{Kind, Tensor};

use super::loader::{Planned, Prefetcher, Schedule};
use crate::job::{ModuleSpec, Normalize, PluginLimits, Training};
use crate::layers::InputDtype;
use crate::plugin::{Component, Dataset, DatasetInfo, DatasetState, Host, Purpose, is_floating, kind_name};

/// One batch as a step takes it.
#[derive(Debug)]
pub struct Samples {
    /// `[n, ...]` with the first module's input shape and dtype.
    pub input: Tensor,
    /// `[n, ...]`, int64 or float32.
    pub target: Tensor,
    pub count: u64,
}

impl Samples {
    /// Parts in order, `size` at a time; the last may be smaller. They share the whole's memory.
    ///
    /// # Errors
    /// When libtorch gives no view.
    pub fn chunks(&self, size: u64) -> Result<Vec<Samples>> {
        if size >= self.count {
            let (input, target) = (self.input.shallow_clone(), self.target.shallow_clone());
            return Ok(vec![Samples { input, target, count: self.count }]);
        }
        let starts = (0..self.count).step_by(size.max(1) as usize);
        let chunk = |start: u64| {
            let count = size.min(self.count - start);
            let part = |whole: &Tensor| whole.f_narrow(0, start as i64, count as i64);
            Ok(Samples { input: part(&self.input)?, target: part(&self.target)?, count })
        };
        starts.map(chunk).collect()
    }
}

/// A split of the job's data, opened.
pub struct Split {
    component: Component,
    config: serde_json::Value,
    first: Dataset,
    prepare: Prepare,
    /// Of the first epoch.
    purpose: Purpose,
}

impl Split {
    /// The samples to train on.
    ///
    /// # Errors
    /// When the plug-in cannot open the data, or they do not fit the model.
    pub fn open(host: &Host, job: &Training, root: &Path, config: &serde_json::Value) -> Result<Split> {
        Split::open_for(Purpose::training(job.seed, 0), host, job, root, config, None)
    }

    /// The samples to test on, with what those to train on have settled.
    ///
    /// # Errors
    /// As [`Split::open`].
    pub fn open_test(
        host: &Host,
        job: &Training,
        root: &Path,
        config: &serde_json::Value,
        state: Option<DatasetState>,
    ) -> Result<Split> {
        Split::open_for(Purpose::evaluation(job.seed), host, job, root, config, state)
    }

    fn open_for(
        purpose: Purpose,
        host: &Host,
        job: &Training,
        root: &Path,
        config: &serde_json::Value,
        state: Option<DatasetState>,
    ) -> Result<Split> {
        if !root.is_dir() {
            bail!("the data folder `{}` is not there", root.display());
        }
        let component = host.load_ref(&job.data.plugin)?;
        let first = open_in_time(&component, config, root, job.plugin_limits, state)?;
        let prepare = Prepare::new(job, first.info())?;
        Ok(Split { component, config: config.clone(), first, prepare, purpose })
    }

    pub fn info(&self) -> &DatasetInfo {
        self.first.info()
    }

    pub fn samples(&self) -> u64 {
        self.first.info().samples
    }

    /// One batch, at once.
    ///
    /// # Errors
    /// When the plug-in fails.
    pub fn batch(&mut self, indices: &[u64]) -> Result<Samples> {
        self.prepare.samples(self.first.batch(indices, self.purpose)?)
    }

    /// Starts fetching. Each thread has an instance of the plug-in of its own.
    ///
    /// # Errors
    /// When an instance or a thread cannot be had.
    pub fn fetch(
        self,
        job: &Training,
        root: &Path,
        schedule: Schedule,
    ) -> Result<Prefetcher<Samples, anyhow::Error>> {
        let state = self.first.info().state.clone();
        let mut datasets = vec![self.first];
        while datasets.len() < job.data.threads {
            let opened = open_in_time(&self.component, &self.config, root, job.plugin_limits, state.clone())?;
            datasets.push(opened);
        }
        let fetcher = |mut dataset: Dataset| {
            let (prepare, first) = (self.prepare.clone(), self.purpose);
            move |planned: &Planned| {
                let purpose = Purpose { epoch: planned.epoch, ..first };
                prepare.samples(dataset.batch(&planned.indices, purpose)?)
            }
        };
        let fetchers = datasets.into_iter().map(fetcher).collect();
        let name = format!("plug-in `{}`", self.component.name());
        Prefetcher::start(schedule, fetchers, job.data.prefetch, name, job.plugin_limits.time + HOSTS_OWN)
            .context("cannot start the threads that read data")
    }
}

/// Beyond a plug-in's limit: the host's own work on what it gave.
const HOSTS_OWN: Duration = Duration::from_secs(5);

/// As `Dataset::open`, which ends in time unless it reads a file that never answers. On a thread of its own, which is left
/// behind then.
fn open_in_time(
    component: &Component,
    config: &serde_json::Value,
    root: &Path,
    limits: PluginLimits,
    state: Option<DatasetState>,
) -> Result<Dataset> {
    let limit = limits.open_time + HOSTS_OWN;
    let (give, take) = sync_channel(1);
    let (plugin, config, root) = (component.clone(), config.clone(), root.to_owned());
    let open = move || {
        let _ = give.send(Dataset::open(&plugin, &config, &root, limits, state));
    };
    thread::Builder::new()
        .name("open".into())
        .spawn(open)
        .context("cannot start a thread to open the data")?;
    match take.recv_timeout(limit) {
        Ok(opened) => Ok(opened?),
        Err(RecvTimeoutError::Disconnected) => bail!("the thread that opens the data panicked"),
        Err(RecvTimeoutError::Timeout) => bail!(
            "plug-in `{}` has not come back from `open` within {limit:?}\n  \
             hint: is there a pipe or a dead network drive in the data folder? `plugins.open_time_ms` is for slow ones",
            component.name()
        ),
    }
}

/// Which fields are taken, and how they are changed.
#[derive(Clone, Debug)]
struct Prepare {
    input: usize,
    target: usize,
    /// Shape of one sample.
    input_shape: Vec<i64>,
    input_kind: Kind,
    normalize: Option<Normalize>,
}

impl Prepare {
    fn new(job: &Training, info: &DatasetInfo) -> Result<Prepare> {
        let module: &ModuleSpec = job.modules.first().context("the job has no module")?;
        let input = find(info, job.data.input.as_deref(), 0, "data.input")?;
        let target = find(info, job.data.target.as_deref(), 1, "data.target")?;
        let field = &info.fields[input];
        let (has, wants): (i64, i64) = (field.shape.iter().product(), module.input.iter().product());
        if has != wants {
            bail!(
                "a sample of field `{}` has the shape {:?} ({has} elements); module `{}` takes {:?} ({wants})\n  \
                 hint: set modules.{}.input to the shape of the data",
                field.name,
                field.shape,
                module.name,
                module.input,
                module.name
            );
        }
        let input_kind = match module.input_dtype {
            InputDtype::Float32 => Kind::Float,
            InputDtype::Int64 => Kind::Int64,
        };
        if input_kind == Kind::Int64 && is_floating(field.dtype) {
            bail!(
                "field `{}` of the data is {}, and module `{}` takes whole numbers (input_dtype = \"int64\"): they would \
                 be rounded\n  \
                 hint: let the dataset give int64 (for `csv`: feature_dtype = \"int64\" in [data.train] and [data.test])",
                field.name,
                kind_name(field.dtype),
                module.name
            );
        }
        let normalize = job.data.normalize.clone();
        Ok(Prepare { input, target, input_shape: module.input.clone(), input_kind, normalize })
    }

    fn samples(&self, mut fields: Vec<Tensor>) -> Result<Samples> {
        let target = with_loss_kind(&fields[self.target])?;
        let input = fields.swap_remove(self.input);
        let count = input.size()[0];
        let shape: Vec<i64> = [count].into_iter().chain(self.input_shape.iter().copied()).collect();
        let mut input = exactly(&input.f_reshape(&shape)?, self.input_kind).context("the input")?;
        if let Some(normalize) = &self.normalize {
            // The target may be the same field.
            let own = if input.data_ptr() == target.data_ptr() { input.f_detach_copy()? } else { input };
            input = normalized(own, normalize)?;
        }
        Ok(Samples { input, target, count: count as u64 })
    }
}

fn find(info: &DatasetInfo, name: Option<&str>, position: usize, key: &str) -> Result<usize> {
    let names = || info.fields.iter().map(|field| format!("`{}`", field.name)).collect::<Vec<_>>().join(", ");
    match name {
        Some(name) => info.fields.iter().position(|field| field.name == name).with_context(|| {
            format!("`{key}` = \"{name}\" is not a field of the data\n  hint: the fields are {}", names())
        }),
        None if position < info.fields.len() => Ok(position),
        None => bail!(
            "the data have only {}, and `{key}` is not given\n  hint: name the field in `{key}`",
            names()
        ),
    }
}

/// Classes are int64 to libtorch, numbers float32.
fn with_loss_kind(target: &Tensor) -> Result<Tensor> {
    let kind = match target.kind() {
        Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => Kind::Float,
        _ => Kind::Int64,
    };
    exactly(target, kind).context("the target")
}

/// `values` in another dtype. Fractions may lose digits, as in all of float32; whole numbers stay what they are, and nothing
/// becomes infinite.
fn exactly(values: &Tensor, kind: Kind) -> Result<Tensor> {
    let converted = values.f_to_kind(kind)?;
    let lost = match (values.kind(), kind) {
        // The first one that float32 has not is 16,777,217.
        (Kind::Int | Kind::Int64, Kind::Float) => values.f_ne_tensor(&converted.f_to_kind(values.kind())?)?,
        (Kind::Double, Kind::Float) => converted.f_isinf()?.f_logical_xor(&values.f_isinf()?)?,
        _ => return Ok(converted),
    };
    if lost.f_any()?.f_int64_value(&[])? == 0 {
        return Ok(converted);
    }
    let first = values.f_masked_select(&lost)?.f_double_value(&[0])?;
    bail!(
        "the data hold {first} as {}, and float32, which is wanted, cannot\n  \
         hint: scale such values in the dataset; if they are ids, set input_dtype = \"int64\" in the first module",
        kind_name(values.kind())
    )
}

/// `(x / scale - mean) / std`, folded into one multiplication and one addition where all channels are alike.
/// Writes over `input`, which nobody else holds.
fn normalized(mut input: Tensor, by: &Normalize) -> Result<Tensor> {
    if let ([mean], [std]) = (by.mean.as_slice(), by.std.as_slice()) {
        let scaled = input.f_mul_scalar_(1.0 / (by.scale * std))?.f_sub_scalar_(mean / std)?;
        return Ok(scaled);
    }
    let channels = by.mean.len() as i64;
    let dims = input.dim();
    let mut shape = vec![1; dims];
    if dims < 2 || input.size()[1] != channels {
        bail!("`data.normalize` has {channels} channels; a sample has the shape {:?}", &input.size()[1..]);
    }
    shape[1] = channels;
    let per_channel =
        |values: &[f64]| Tensor::f_from_slice(values)?.f_to_kind(Kind::Float)?.f_reshape(&shape);
    let (mean, std) = (per_channel(&by.mean)?, per_channel(&by.std)?);
    Ok(input.f_div_scalar_(by.scale)?.f_sub_(&mean)?.f_div_(&std)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalising_by_one_channel_equals_the_formula() {
        let by = Normalize { scale: 255.0, mean: vec![0.1307], std: vec![0.3081] };
        let pixels = Tensor::from_slice(&[0.0f32, 51.0, 255.0]).reshape([3, 1]);
        let values = normalized(pixels, &by).unwrap();
        let expected = Tensor::from_slice(&[
            ((0.0 - 0.1307) / 0.3081) as f32,
            ((0.2 - 0.1307) / 0.3081) as f32,
            ((1.0 - 0.1307) / 0.3081) as f32,
        ])
        .reshape([3, 1]);
        assert!(values.allclose(&expected, 1e-6, 1e-6, false), "{values:?}");
    }

    #[test]
    fn normalising_by_channel_takes_each_channels_own() {
        let by = Normalize { scale: 1.0, mean: vec![1.0, 2.0], std: vec![2.0, 4.0] };
        let values = normalized(Tensor::from_slice(&[3.0f32, 10.0]).reshape([1, 2, 1]), &by).unwrap();
        assert_eq!(Vec::<f32>::try_from(values.flatten(0, -1)).unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn a_target_that_is_the_input_stays_as_the_data_have_it() {
        let normalize = Some(Normalize { scale: 10.0, mean: vec![1.0], std: vec![2.0] });
        let prepare =
            Prepare { input: 0, target: 0, input_shape: vec![2], input_kind: Kind::Float, normalize };
        let samples = prepare.samples(vec![Tensor::from_slice(&[10.0f32, 30.0]).reshape([1, 2])]).unwrap();
        assert_eq!(Vec::<f32>::try_from(samples.target.flatten(0, -1)).unwrap(), [10.0, 30.0]);
        assert_eq!(Vec::<f32>::try_from(samples.input.flatten(0, -1)).unwrap(), [0.0, 1.0]);
    }

    #[test]
    fn whole_numbers_that_float32_has_not_are_refused_and_others_kept() {
        let large = |last: i64| Tensor::from_slice(&[1, 1 << 24, last]);
        let kept = exactly(&large((1 << 24) + 2), Kind::Float).unwrap();
        assert_eq!(Vec::<f32>::try_from(kept).unwrap(), [1.0, 16_777_216.0, 16_777_218.0]);
        let error = exactly(&large((1 << 24) + 1), Kind::Float).unwrap_err().to_string();
        assert!(error.starts_with("the data hold 16777217 as int64, and float32"), "{error}");
        let same = exactly(&large((1 << 24) + 1), Kind::Int64).unwrap();
        assert_eq!(Vec::<i64>::try_from(same).unwrap()[2], 16_777_217);
    }

    #[test]
    fn numbers_beyond_float32_are_refused_and_fractions_rounded() {
        let rounded = exactly(&Tensor::from_slice(&[0.1f64, f64::INFINITY]), Kind::Float).unwrap();
        assert_eq!(Vec::<f32>::try_from(rounded).unwrap(), [0.1, f32::INFINITY]);
        let error = exactly(&Tensor::from_slice(&[0.1f64, 1e300]), Kind::Float).unwrap_err().to_string();
        assert!(error.contains("as float64, and float32"), "{error}");
    }

    #[test]
    fn a_wrong_count_of_channels_says_what_came() {
        let by = Normalize { scale: 1.0, mean: vec![1.0, 2.0], std: vec![2.0, 4.0] };
        let error = normalized(Tensor::zeros([1, 3], (Kind::Float, tch::Device::Cpu)), &by).unwrap_err();
        assert_eq!(error.to_string(), "`data.normalize` has 2 channels; a sample has the shape [3]");
    }
}
