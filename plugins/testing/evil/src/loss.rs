//! Mean squared error, unless told otherwise.

use super::exports::pstrain::plugin::loss;
use super::pstrain::plugin::tensors::Tensor;
use super::{Evil, configure, count_call, sin, sins};

impl loss::Guest for Evil {
    fn open(config: String) -> Result<(), String> {
        let (sin, argument) = configure(&config);
        sin.strip_prefix("open-").map_or(Ok(()), |sin| sins::commit(sin, &argument))
    }

    fn compute(
        outputs: Vec<Tensor>,
        targets: Vec<Tensor>,
        want_metrics: bool,
    ) -> Result<loss::Computed, String> {
        let (sin, argument) = sin();
        count_call();
        let (x, y) = (&outputs[0], &targets[0]);
        let difference = || x.sub(y);
        let mut metrics = Vec::new();
        if want_metrics {
            metrics.push(("largest".to_owned(), difference().abs().max(&[], false).detach().item()));
        }
        let loss = match &*sin {
            "vector" => difference().pow_scalar(2.0),
            "integer" => difference().argmax(0, false),
            "detached" => difference().pow_scalar(2.0).mean(&[], false).detach(),
            "bad-shapes" => x.matmul(x),
            "hoard" => {
                for _ in 0..100_000 {
                    std::mem::forget(x.copy());
                }
                x.sum(&[], false)
            }
            "explode" => {
                let mut all = x.reshape(&[-1, 1]);
                for _ in 0..20 {
                    all = all.mul(&all.transpose(0, 1)).reshape(&[-1, 1]);
                }
                all.sum(&[], false)
            }
            "full" => Tensor::full(&[1 << 40, 1 << 40], 1.0, x),
            "one-hot" => y.one_hot(1 << 50),
            "metric-names" => {
                metrics = vec![("same".into(), 1.0), ("same".into(), 2.0)];
                x.sum(&[], false)
            }
            // For measuring: cross entropy with label smoothing, nine operations.
            "nine" => {
                let logp = x.log_softmax(1);
                let nll = logp.gather(1, &y.unsqueeze(1)).squeeze(1).neg();
                let smooth = logp.mean(&[1], false).mul_scalar(-0.1);
                nll.mul_scalar(0.9).add(&smooth).mean(&[], false)
            }
            "nothing" => x.copy(),
            // Every operation, in some way; the tests know what comes out.
            "everything" => everything(x, y),
            sin => {
                sins::commit(sin, &argument)?;
                difference().pow_scalar(2.0).mean(&[], false)
            }
        };
        Ok(loss::Computed { loss, metrics })
    }
}

/// From `x`, float [n, c], and `y`, int64 [n].
fn everything(x: &Tensor, y: &Tensor) -> Tensor {
    let [n, c] = x.shape()[..] else { panic!("x has the shape {:?}", x.shape()) };
    let one = Tensor::scalar(1.0, x);
    let weights: Vec<u8> = (0..c).flat_map(|i| (1.0 + i as f32).to_le_bytes()).collect();
    let weights = Tensor::from_bytes(super::pstrain::plugin::types::Dtype::Float32, &[c], &weights, x);
    let positive = x.sigmoid().add_scalar(0.5);
    let hot = y.one_hot(c).to_dtype(x.dtype());
    let picked = x.log_softmax(1).gather(1, &y.unsqueeze(1)).squeeze(1);
    let taken = weights.index_select(0, y);
    let rows = Tensor::arange(n, x);
    let off_diagonal = rows.unsqueeze(0).eq(&rows.unsqueeze(1)).logical_not();
    let gram = x.matmul(&x.transpose(0, 1)).mul(&off_diagonal.to_dtype(x.dtype()));
    let large = x.gt_scalar(0.0).logical_and(&x.ge(&x.neg()));
    let parts = [
        picked.mul(&taken).neg().mean(&[], false),
        gram.sum(&[], false).mul_scalar(0.01),
        positive.log().add(&positive.sqrt()).sub(&positive.log1p()).mean(&[0, 1], false),
        positive.pow(&x.abs()).mean(&[], false),
        x.softmax(1).mul(&hot).sum(&[1], true).div(&one.add_scalar(1.0)).mean(&[], false),
        large.where_(&x.tanh(), &x.softplus()).sum(&[], false),
        x.max(&[1], false).sub(&x.min(&[1], false)).mean(&[], false),
        x.logsumexp(&[1], false).mean(&[], false),
        x.clamp(Some(-0.5), None).relu().exp().mean(&[], false),
        x.cumsum(1).select(1, -1).maximum(&x.narrow(1, 0, 1).squeeze(1)).mean(&[], false),
        x.minimum(&Tensor::full(&[c], 0.25, x)).sign().mean(&[], false),
        x.gt(&x.mean(&[1], true)).eq(&large).to_dtype(x.dtype()).mean(&[], false),
        x.argmax(1, false).eq_scalar(0.0).to_dtype(x.dtype()).mean(&[], false),
    ];
    let flat: Vec<Tensor> = parts.iter().map(|part| part.reshape(&[1])).collect();
    Tensor::cat(&flat.iter().collect::<Vec<_>>(), 0).sum(&[], false)
}
