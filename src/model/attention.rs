//! Self-attention of several heads, as `torch.nn.MultiheadAttention`.

use tch::{Kind, TchError, Tensor};

use super::dropout::{self, MaskSource};

pub(super) struct Options {
    pub num_heads: i64,
    pub dropout: f64,
    pub bias: bool,
    pub batch_first: bool,
    pub causal: bool,
}

/// `x` is (N, L, E) if `batch_first`, else (L, N, E); so is the result.
pub(super) fn apply(
    options: &Options,
    params: &[Tensor],
    x: &Tensor,
    dropout: Option<MaskSource>,
) -> Result<Tensor, TchError> {
    let (in_bias, out_weight, out_bias) = match options.bias {
        true => (Some(&params[1]), &params[2], Some(&params[3])),
        false => (None, &params[1], None),
    };
    let batch_first =
        |x: &Tensor| if options.batch_first { Ok(x.shallow_clone()) } else { x.f_transpose(0, 1) };
    let x = batch_first(x)?;
    let (batch, length, size) = x.size3()?;
    let heads = options.num_heads;
    // (3, N, heads, L, E / heads)
    let projected = x
        .f_linear(&params[0], in_bias)?
        .f_view([batch, length, 3, heads, size / heads])?
        .f_permute([2, 0, 3, 1, 4])?;
    let (query, key, value) =
        (projected.f_select(0, 0)?, projected.f_select(0, 1)?, projected.f_select(0, 2)?);
    let mixed = match dropout.filter(|_| options.dropout > 0.0) {
        None => Tensor::f_scaled_dot_product_attention(
            &query,
            &key,
            &value,
            None::<&Tensor>,
            0.0,
            options.causal,
            None,
            false,
        )?,
        Some(source) => {
            let weights = weights(&query, &key, options.causal)?;
            dropout::elements(&weights, options.dropout, source)?.f_matmul(&value)?
        }
    };
    let joined = mixed.f_transpose(1, 2)?.f_reshape([batch, length, size])?;
    batch_first(&joined.f_linear(out_weight, out_bias)?)
}

/// Softmax of the scaled products, (N, heads, L, L). Libtorch's fused attention draws dropout's mask from the
/// process's generator, hence this where there is dropout.
fn weights(query: &Tensor, key: &Tensor, causal: bool) -> Result<Tensor, TchError> {
    let size = query.size();
    let (length, per_head) = (size[2], size[3] as f64);
    let mut scores = query.f_mul_scalar(1.0 / per_head.sqrt())?.f_matmul(&key.f_transpose(2, 3)?)?;
    if causal {
        let later = Tensor::f_ones([length, length], (Kind::Bool, query.device()))?.f_triu(1)?;
        scores = scores.f_masked_fill(&later, f64::NEG_INFINITY)?;
    }
    scores.f_softmax(-1, None)
}
