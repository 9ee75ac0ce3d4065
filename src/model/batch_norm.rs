//! Batch normalisation that several threads may train at once.
//!
//! PyTorch's kernel writes the running statistics while it computes. Here it writes into fresh tensors with momentum
//! 1, that is, it hands the batch's own statistics out, and [`Module::fold`] takes them in afterwards under the
//! module's lock (M-2). Nor can one thread's update then change what another thread's backward reads.

use tch::{Kind, TchError, Tensor};

use super::plan::Node;
use super::{Module, Statistics};

pub(super) struct Options {
    pub eps: f64,
    pub momentum: f64,
    pub track_running_stats: bool,
    pub train: bool,
}

/// `x` (N, C, ...) normalised per channel. A training forward adds what it saw to `statistics`.
pub(super) fn apply(
    module: &Module,
    node: &Node,
    params: &[Tensor],
    x: &Tensor,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<Tensor, TchError> {
    let normalise = |mean: Option<&Tensor>, var: Option<&Tensor>, train: bool| {
        x.f_batch_norm(params.first(), params.get(1), mean, var, train, 1.0, options.eps, true)
    };
    if options.train || !options.track_running_stats {
        enough_values(x)?;
    }
    if !options.track_running_stats {
        return normalise(None, None, true);
    }
    let features = &x.size()[1..2];
    if !options.train {
        let (mean, var) = {
            let buffers = module.lock_buffers();
            let own = &buffers[node.buffers.clone()];
            (own[0].f_detach_copy()?, own[1].f_detach_copy()?)
        };
        return normalise(Some(&mean), Some(&var), false);
    }
    let mean = Tensor::f_zeros(features, (Kind::Float, node.device))?;
    let var = Tensor::f_zeros(features, (Kind::Float, node.device))?;
    let y = normalise(Some(&mean), Some(&var), true)?;
    statistics.add(node.buffers.clone(), mean, var, options.momentum);
    Ok(y)
}

/// PyTorch's own check, which libtorch leaves out: one value has no variance, and would make the running one NaN.
fn enough_values(x: &Tensor) -> Result<(), TchError> {
    let size = x.size();
    let per_channel: i64 =
        size.iter().enumerate().filter(|(dim, _)| *dim != 1).map(|(_, size)| size).product();
    match per_channel {
        2.. => Ok(()),
        _ => Err(TchError::Shape(
            "batch normalisation trains on more than 1 value per channel\n  \
             hint: set data.drop_last = true, or another train.batch_size"
                .into(),
        )),
    }
}
