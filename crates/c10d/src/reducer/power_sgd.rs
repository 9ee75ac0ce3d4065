//! PowerSGD: a gradient as the product of two thin matrices.

use std::collections::HashMap;

use tch::Tensor;

use super::ffi;
use super::hooks::{Bucket, CommHook};
use crate::{ProcessGroup, ReduceOp, Result, TorchError, shim};

/// How [`PowerSgd`] compresses. All ranks must choose the same.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerSgdOptions {
    /// Columns of the two factors: a gradient of n x m is sent as (n + m) x rank numbers. 1 to 4 is usual.
    pub rank: u32,
    /// Backwards that all-reduce as they are, before compression starts. Gradients change the most at the beginning;
    /// PyTorch suggests a tenth of all steps. With error feedback or warm start at least 2, because the buckets may
    /// be made anew after the first.
    pub start_iter: u64,
    /// A gradient is compressed only if that makes it smaller than by this factor; else, as those of one dimension,
    /// it is all-reduced as it is.
    pub min_compression_rate: f64,
    /// Adds what the last compression left out to the next gradient. Without, training hardly converges. Takes as much
    /// memory as the gradients.
    pub error_feedback: bool,
    /// Starts from the factors of the backward before, which makes one power iteration enough.
    pub warm_start: bool,
    /// Added to the norm of a column before dividing by it, so that a gradient of zeros stays one. PyTorch's default
    /// is 0, which makes it NaN.
    pub epsilon: f64,
    /// The seed of the random factors at the start. Every further draw takes the next number as its seed.
    pub seed: u64,
}

impl Default for PowerSgdOptions {
    fn default() -> Self {
        Self {
            rank: 1,
            start_iter: 1000,
            min_compression_rate: 2.0,
            error_feedback: true,
            warm_start: true,
            epsilon: 1e-8,
            seed: 0,
        }
    }
}

/// PowerSGD with error feedback and warm start: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient
/// Compression for Distributed Optimization", NeurIPS 2019, algorithms 1 and 2. Its numbers are those of PyTorch's
/// `powerSGD_hook` with the same options and the same random factors.
///
/// A gradient M (its first dimension by the others) becomes P Qᵀ: with Q from before, made orthonormal, P is the sum of
/// all ranks' M Q, made orthonormal, and Q the average of all ranks' Mᵀ P.
pub struct PowerSgd {
    options: PowerSgdOptions,
    iteration: u64,
    draws: u64,
    /// For each bucket.
    memory: HashMap<usize, Memory>,
}

/// What one bucket leaves for the next backward.
#[derive(Default)]
struct Memory {
    /// What compression left out, as long as the buffer.
    error: Option<Tensor>,
    /// All Qs of the bucket, one after the other.
    qs: Option<Tensor>,
}

/// The gradients of a bucket.
struct Sorted {
    /// Those to compress, n x m, each with its rank.
    matrices: Vec<(Tensor, i64)>,
    others: Vec<Tensor>,
}

/// A gradient to be compressed.
struct Matrix {
    /// n x m, a view of the bucket.
    values: Tensor,
    /// n x r and m x r, views of the flat tensors that are sent.
    p: Tensor,
    q: Tensor,
}

impl PowerSgd {
    /// # Errors
    /// A rank of 0, a start before backward 2 where memory is used, or a rate or an epsilon that is not a number.
    pub fn new(options: PowerSgdOptions) -> Result<Self> {
        let PowerSgdOptions { rank, start_iter, min_compression_rate, epsilon, .. } = options;
        let fault = if rank == 0 {
            Some("the rank must be at least 1, it is 0".to_owned())
        } else if start_iter < 2 && (options.error_feedback || options.warm_start) {
            Some(format!(
                "start_iter must be at least 2 with error feedback or warm start, it is {start_iter}"
            ))
        } else if !(min_compression_rate.is_finite() && min_compression_rate > 0.0) {
            Some(format!("min_compression_rate must be above 0, it is {min_compression_rate}"))
        } else if !(epsilon.is_finite() && epsilon >= 0.0) {
            Some(format!("epsilon must not be below 0, it is {epsilon}"))
        } else {
            None
        };
        match fault {
            Some(fault) => Err(TorchError { message: format!("PowerSGD: {fault}") }.into()),
            None => Ok(Self { options, iteration: 0, draws: 0, memory: HashMap::new() }),
        }
    }

    fn is_worth_it(&self, rows: i64, columns: i64, rank: i64) -> bool {
        let (plain, compressed) = (rows * columns, (rows + columns) * rank);
        compressed as f64 * self.options.min_compression_rate < plain as f64
    }

    fn sorted(&self, gradients: &[Tensor]) -> Result<Sorted> {
        let (mut matrices, mut others) = (Vec::new(), Vec::new());
        for gradient in gradients {
            let rows = gradient.size().first().copied().unwrap_or(1).max(1);
            let columns = i64::try_from(gradient.numel()).unwrap_or(i64::MAX) / rows;
            let rank = rows.min(columns).min(i64::from(self.options.rank));
            if self.is_worth_it(rows, columns, rank) {
                matrices.push((gradient.f_view([rows, columns])?, rank));
            } else {
                others.push(gradient.shallow_clone());
            }
        }
        Ok(Sorted { matrices, others })
    }

    /// Orthonormal Qs: those of the last time, or random ones, equal on all ranks.
    fn prepare_qs(&mut self, bucket: usize, matrices: &mut [Matrix], qs: &Tensor) -> Result<()> {
        let known = self.memory.get(&bucket).and_then(|memory| memory.qs.as_ref());
        if let Some(known) = known.filter(|known| known.size() == qs.size()) {
            qs.shallow_clone().f_copy_(known)?;
        } else {
            let targets: Vec<_> = matrices.iter().map(|matrix| shim::pointer(&matrix.q)).collect();
            let seed = self.options.seed.wrapping_add(self.draws);
            self.draws += 1;
            // SAFETY: pointers to tensors borrowed until after the call, of which the shim keeps none.
            let returned = unsafe { ffi::shim_fill_normal(targets.as_ptr(), targets.len(), seed) };
            // SAFETY: just returned by a guarded function.
            unsafe { shim::check(returned) }?;
        }
        matrices.iter_mut().try_for_each(|matrix| orthogonalize(&mut matrix.q, self.options.epsilon))
    }

    fn compressed(&mut self, bucket: &Bucket, group: &ProcessGroup) -> Result<()> {
        let Sorted { matrices, others } = self.sorted(&bucket.gradients)?;
        let ranks = f64::from(group.size());
        let apart = match others.as_slice() {
            [] => None,
            some => {
                let flat: Vec<_> = some.iter().map(|other| other.f_view([-1])).collect::<Result<_, _>>()?;
                Some(group.all_reduce_async(Tensor::f_cat(&flat, 0)?, ReduceOp::Sum)?)
            }
        };
        if !matrices.is_empty() {
            self.low_rank(bucket, matrices, group)?;
        }
        if let Some(apart) = apart {
            let mut sum = apart.wait()?;
            let average = sum.f_div_scalar_(ranks)?;
            let lengths: Vec<_> = others.iter().map(|other| other.numel() as i64).collect();
            for (mut other, part) in others.into_iter().zip(average.f_split_with_sizes(lengths, 0)?) {
                let shape = other.size();
                other.f_copy_(&part.f_view(shape.as_slice())?)?;
            }
        }
        Ok(())
    }

    fn low_rank(&mut self, bucket: &Bucket, found: Vec<(Tensor, i64)>, group: &ProcessGroup) -> Result<()> {
        let like = (bucket.buffer.kind(), bucket.buffer.device());
        let size = |side: usize| found.iter().map(|(values, rank)| values.size()[side] * rank).sum::<i64>();
        let mut ps = Tensor::f_empty([size(0)], like)?;
        let mut qs = Tensor::f_empty([size(1)], like)?;
        let (mut p_at, mut q_at) = (0, 0);
        let mut matrices = Vec::with_capacity(found.len());
        for (values, rank) in found {
            let (n, m) = (values.size()[0], values.size()[1]);
            let p = ps.f_narrow(0, p_at, n * rank)?.f_view([n, rank])?;
            let q = qs.f_narrow(0, q_at, m * rank)?.f_view([m, rank])?;
            (p_at, q_at) = (p_at + n * rank, q_at + m * rank);
            matrices.push(Matrix { values, p, q });
        }
        self.prepare_qs(bucket.index, &mut matrices, &qs)?;
        for Matrix { values, p, q } in &mut matrices {
            p.f_copy_(&values.f_mm(q)?)?;
        }
        // Not divided: they are made orthonormal.
        group.all_reduce(&mut ps, ReduceOp::Sum)?;
        for Matrix { values, p, q } in &mut matrices {
            orthogonalize(p, self.options.epsilon)?;
            q.f_copy_(&values.f_transpose(0, 1)?.f_mm(p)?)?;
        }
        group.all_reduce(&mut qs, ReduceOp::Sum)?;
        let _ = qs.f_div_scalar_(f64::from(group.size()))?;
        for Matrix { values, p, q } in &mut matrices {
            values.f_copy_(&p.f_mm(&q.f_transpose(0, 1)?)?)?;
        }
        if self.options.warm_start {
            self.memory.entry(bucket.index).or_default().qs = Some(qs);
        }
        Ok(())
    }
}

impl CommHook for PowerSgd {
    fn reduce(&mut self, bucket: &Bucket, group: &ProcessGroup) -> Result<Tensor> {
        let mut buffer = bucket.buffer.shallow_clone();
        let iteration = self.iteration;
        self.iteration += u64::from(bucket.is_last);
        if iteration < self.options.start_iter {
            let _ = buffer.f_div_scalar_(f64::from(group.size()))?;
            group.all_reduce(&mut buffer, ReduceOp::Sum)?;
            return Ok(buffer);
        }
        if !self.options.error_feedback {
            self.compressed(bucket, group)?;
            return Ok(buffer);
        }
        // One buffer for what was left out the last time, what is wanted, and what is left out now.
        let error = self.memory.entry(bucket.index).or_default().error.take();
        let mut error = match error.filter(|error| error.size() == buffer.size()) {
            Some(error) => {
                let _ = buffer.f_add_(&error)?;
                error
            }
            None => buffer.f_empty_like()?,
        };
        error.f_copy_(&buffer)?;
        self.compressed(bucket, group)?;
        let _ = error.f_sub_(&buffer)?;
        self.memory.entry(bucket.index).or_default().error = Some(error);
        Ok(buffer)
    }
}

/// Makes the columns of an n x r matrix orthonormal, in place: by Gram and Schmidt's procedure for one or two, by
/// Householder's QR for more.
fn orthogonalize(matrix: &mut Tensor, epsilon: f64) -> Result<()> {
    let columns = matrix.size()[1];
    if columns > 2 {
        let (q, _) = Tensor::f_linalg_qr(matrix, "reduced")?;
        matrix.f_copy_(&q)?;
        return Ok(());
    }
    for i in 0..columns {
        let mut column = matrix.f_narrow(1, i, 1)?;
        let norm = column.f_norm()?.f_add_scalar(epsilon)?;
        let _ = column.f_div_(&norm)?;
        if i + 1 < columns {
            let mut rest = matrix.f_narrow(1, i + 1, columns - i - 1)?;
            let shares = column.f_mul(&rest)?.f_sum_dim_intlist(0, true, None)?;
            let _ = rest.f_sub_(&shares.f_mul(&column)?)?;
        }
    }
    Ok(())
}
