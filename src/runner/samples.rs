//! Batches of a split of the job's data, as steps take them.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use tch::Tensor;

use super::loader::{Planned, Prefetcher, Schedule};
use super::prepare::Prepare;
use crate::job::Training;
use crate::plugin::{Component, Dataset, DatasetInfo, DatasetState, HOSTS_OWN, Host, Purpose};

/// One batch as a step takes it.
#[derive(Debug)]
pub struct Samples {
    /// The job's fields in their order, each `[n, ...]`: with the shape and the dtype that a module takes, or as the data have
    /// them, int64 or float32, for the loss.
    pub fields: Vec<Tensor>,
    pub count: u64,
}

impl Samples {
    /// Parts in order, `size` at a time; the last may be smaller. They share the whole's memory.
    ///
    /// # Errors
    /// When libtorch gives no view.
    pub fn chunks(&self, size: u64) -> Result<Vec<Samples>> {
        if size >= self.count {
            let fields = self.fields.iter().map(Tensor::shallow_clone).collect();
            return Ok(vec![Samples { fields, count: self.count }]);
        }
        let starts = (0..self.count).step_by(size.max(1) as usize);
        let chunk = |start: u64| {
            let count = size.min(self.count - start);
            let part = |whole: &Tensor| whole.f_narrow(0, start as i64, count as i64);
            Ok(Samples { fields: self.fields.iter().map(part).collect::<Result<_, _>>()?, count })
        };
        starts.map(chunk).collect()
    }

    /// Some of them.
    pub fn take(&self, fields: &[usize]) -> Vec<Tensor> {
        fields.iter().map(|&field| self.fields[field].shallow_clone()).collect()
    }
}

/// One of the job's splits, before it is opened.
struct Unopened<'a> {
    /// Parameters of the plug-in.
    config: &'a serde_json::Value,
    purpose: Purpose,
    /// What the samples to train on have settled.
    state: Option<DatasetState>,
}

/// A split of the job's data, opened.
pub struct Split {
    component: Component,
    config: serde_json::Value,
    first: Dataset,
    prepare: Prepare,
    /// What the samples of the first epoch are for.
    purpose: Purpose,
}

impl Split {
    /// The samples to train on.
    ///
    /// # Errors
    /// When the plug-in cannot open the data, or they do not fit the model.
    pub fn open(host: &Host, job: &Training, root: &Path) -> Result<Split> {
        let purpose = Purpose::training(job.seed, 0);
        Split::open_one(host, job, root, Unopened { config: &job.data.train, purpose, state: None })
    }

    /// The samples to test on, with what those to train on have settled. `None`: the job has none.
    ///
    /// # Errors
    /// As [`Split::open`].
    pub fn open_test(
        host: &Host,
        job: &Training,
        root: &Path,
        state: Option<DatasetState>,
    ) -> Result<Option<Split>> {
        let Some(config) = &job.data.test else { return Ok(None) };
        let purpose = Purpose::evaluation(job.seed);
        Split::open_one(host, job, root, Unopened { config, purpose, state }).map(Some)
    }

    fn open_one(host: &Host, job: &Training, root: &Path, split: Unopened<'_>) -> Result<Split> {
        let Unopened { config, purpose, state } = split;
        if !root.is_dir() {
            bail!("the data folder `{}` is not there", root.display());
        }
        let component = host.load_ref(&job.data.plugin)?;
        let first = Dataset::open_in_time(&component, config, root, job.plugin_limits, state)?;
        let prepare = Prepare::new(job, first.info())?;
        Ok(Split { component, config: config.clone(), first, prepare, purpose })
    }

    pub fn info(&self) -> &DatasetInfo {
        self.first.info()
    }

    pub fn samples(&self) -> u64 {
        self.first.info().samples
    }

    /// One batch, at once. Waits as long as the data's files do.
    ///
    /// # Errors
    /// When the plug-in fails.
    pub fn batch(&mut self, indices: &[u64]) -> Result<Samples> {
        self.prepare.samples(&self.first.batch(indices, self.purpose)?)
    }

    /// One batch, within the plug-in's time, which is all that is taken of the split.
    ///
    /// # Errors
    /// When the plug-in fails, or does not come back.
    pub fn batch_in_time(self, indices: &[u64]) -> Result<Samples> {
        let (_, batch) = self.first.batch_in_time(indices, self.purpose)?;
        self.prepare.samples(&batch)
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
            let (component, limits) = (&self.component, job.plugin_limits);
            datasets.push(Dataset::open_in_time(component, &self.config, root, limits, state.clone())?);
        }
        let fetcher = |mut dataset: Dataset| {
            let (prepare, first) = (self.prepare.clone(), self.purpose);
            move |planned: &Planned| {
                let purpose = Purpose { epoch: planned.epoch, ..first };
                prepare.samples(&dataset.batch(&planned.indices, purpose)?)
            }
        };
        let fetchers = datasets.into_iter().map(fetcher).collect();
        let name = format!("plug-in `{}`", self.component.name());
        Prefetcher::start(schedule, fetchers, job.data.prefetch, name, job.plugin_limits.time + HOSTS_OWN)
            .context("cannot start the threads that read data")
    }
}
