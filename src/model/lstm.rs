//! The LSTM, with dropout between its layers that is seeded as all dropout is.

use tch::{TchError, Tensor};

use super::dropout::{self, MaskSource};
use crate::job::layer::{Lstm, LstmOutput};

/// `x` is (N, T, input) if `batch_first`, else (T, N, input). Gives the hidden state of the last layer: at every step,
/// in the same layout, or after the last step as (N, hidden); both directions side by side. `dropout` is there in
/// training, whether the layer has any or not.
pub(super) fn apply(
    spec: &Lstm,
    params: &[Tensor],
    x: &Tensor,
    dropout: Option<MaskSource>,
) -> Result<Tensor, TchError> {
    let train = dropout.is_some();
    let (y, last) = match dropout.filter(|_| spec.dropout > 0.0 && spec.num_layers > 1) {
        None => run(spec, params, spec.num_layers, x, train)?,
        // Libtorch would draw the masks from the process's generator. Layer by layer they can be drawn here.
        Some(source) => {
            let per_layer = params.len() / usize::try_from(spec.num_layers).unwrap_or(1);
            let mut weights = params.chunks(per_layer);
            let first = weights.next().unwrap_or_default();
            let mut state = run(spec, first, 1, x, train)?;
            for (number, layer) in weights.enumerate() {
                let kept = dropout::elements(&state.0, spec.dropout, source.numbered(number as u64))?;
                state = run(spec, layer, 1, &kept, train)?;
            }
            state
        }
    };
    match spec.output {
        LstmOutput::Sequence => Ok(y),
        LstmOutput::Last => {
            let directions = if spec.bidirectional { 2 } else { 1 };
            let layers = last.size()[0];
            let of_last_layer = last.f_narrow(0, layers - directions, directions)?;
            Tensor::f_cat(&of_last_layer.f_unbind(0)?, 1)
        }
    }
}

/// The hidden states of the last of `layers` at every step, and the last state of each layer and direction.
///
/// With `train` cuDNN keeps what its backward needs; there is no dropout here either way.
fn run(
    spec: &Lstm,
    params: &[Tensor],
    layers: i64,
    x: &Tensor,
    train: bool,
) -> Result<(Tensor, Tensor), TchError> {
    let directions = if spec.bidirectional { 2 } else { 1 };
    let batch = x.size()[usize::from(!spec.batch_first)];
    let zeros = Tensor::f_zeros([layers * directions, batch, spec.hidden_size], (x.f_kind()?, x.device()))?;
    let (y, hidden, _) = x.f_lstm(
        &[&zeros, &zeros],
        &params.iter().collect::<Vec<_>>(),
        spec.bias,
        layers,
        0.0,
        train,
        spec.bidirectional,
        spec.batch_first,
    )?;
    Ok((y, hidden))
}
