//! Self-attention of several heads (Vaswani et al., 2017), as `torch.nn.MultiheadAttention`.

use tch::{Kind, TchError, Tensor};

use super::arguments::{BATCH_FIRST, BIAS, arguments, dropout, must_divide, size};
use super::masks::{self, MaskSource};
use super::op::{
    Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position, parameter,
};
use super::python::{Class, Python};
use super::shape::{Output, Signal, steps_of};
use super::{Layer, size::numbers};
use crate::config::{Flag, Integer, Key, Refused, Table, flag, key, refused};

arguments! {
    /// Self-attention of several heads: query, key and value are the layer's input.
    pub struct MultiheadAttention {
        embed_dim: i64 = size("embed_dim").doc("Numbers of each step."),
        num_heads: i64 = NUM_HEADS,
        dropout: f64 = dropout("dropout").doc("Of the weights, in training."),
        bias: bool = BIAS,
        causal: bool = CAUSAL,
    }
    required: BATCH_FIRST;
    refused: ADD_BIAS_KV, ADD_ZERO_ATTN, KDIM, VDIM;
    rules: check;
}

const NUM_HEADS: Key<Integer> = size("num_heads").example("4").doc("Heads; they divide embed_dim.");
const CAUSAL: Key<Flag> = key("causal", flag()).default("false").doc("No step sees those after it.");
const ITS_INPUT: &str = "leave it out: query, key and value are the layer's input";
const ADD_BIAS_KV: Refused = refused("add_bias_kv", ITS_INPUT);
const ADD_ZERO_ATTN: Refused = refused("add_zero_attn", ITS_INPUT);
const KDIM: Refused = refused("kdim", ITS_INPUT);
const VDIM: Refused = refused("vdim", ITS_INPUT);

fn check(layer: MultiheadAttention, table: &Table<'_>) -> Option<MultiheadAttention> {
    must_divide(table, &NUM_HEADS, layer.num_heads, "embed_dim", layer.embed_dim)?;
    Some(layer)
}

const ATTENTION: Class = Class(
    r#"
class SelfAttention(nn.MultiheadAttention):
    """Attention of which query, key and value are the input; causal: no step sees those after it."""

    def __init__(self, *args, causal=False, **options):
        super().__init__(*args, batch_first=True, **options)
        self.causal = causal

    def forward(self, x):
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), x.device, x.dtype)
        return super().forward(x, x, x, need_weights=False, attn_mask=mask, is_causal=self.causal)[0]
"#,
);

impl Op for MultiheadAttention {
    fn parameters(&self) -> Vec<ParameterSpec> {
        let size = self.embed_dim;
        let weights = parameter("in_proj_weight", [3 * size, size]);
        let out = parameter("out_proj.weight", [size, size]);
        match self.bias {
            false => vec![weights, out],
            true => {
                vec![weights, parameter("in_proj_bias", [3 * size]), out, parameter("out_proj.bias", [size])]
            }
        }
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        let size = self.embed_dim as f64;
        let out_weight = if self.bias { 2 } else { 1 };
        // PyTorch makes the output projection first, with a bias that it then sets to zero: it is drawn all the same.
        let _ = parameters[out_weight].f_uniform_(-1.0 / size.sqrt(), 1.0 / size.sqrt())?;
        if self.bias {
            let _ = parameters[3].f_uniform_(-1.0, 1.0)?;
            let _ = parameters[3].f_zero_()?;
        }
        // Xavier's rule.
        let bound = (6.0 / (size + 3.0 * size)).sqrt();
        parameters[0].f_uniform_(-bound, bound).map(drop)
    }

    fn output(&self, input: &Signal) -> Output {
        let steps = steps_of(input, self.embed_dim, "embed_dim", |_| input.shape.clone())?;
        Ok(Signal::floats([steps, self.embed_dim]))
    }

    fn macs(&self, _input: &Signal, output: &Signal) -> u64 {
        at_each_position(numbers(&self.parameters()), output, false)
    }

    fn has_sparse_gradient(&self) -> bool {
        false
    }

    fn rows(&self) -> Option<RowTable> {
        None
    }

    fn joins(&self) -> Option<&dyn Join> {
        None
    }

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::KEEPS_OUTPUT
    }

    fn python(&self) -> Python {
        Python::own(ATTENTION)
            .with(self.embed_dim)
            .with(self.num_heads)
            .named("dropout", self.dropout, 0.0)
            .named("bias", self.bias, true)
            .named("causal", self.causal, false)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let (params, dropout) = (args.params, args.training_masks());
        let (in_bias, out_weight, out_bias) = match self.bias {
            true => (Some(&params[1]), &params[2], Some(&params[3])),
            false => (None, &params[1], None),
        };
        let (batch, length, size) = args.x.size3()?;
        let heads = self.num_heads;
        // (3, N, heads, L, E / heads)
        let projected = args
            .x
            .f_linear(&params[0], in_bias)?
            .f_view([batch, length, 3, heads, size / heads])?
            .f_permute([2, 0, 3, 1, 4])?;
        let (query, key, value) =
            (projected.f_select(0, 0)?, projected.f_select(0, 1)?, projected.f_select(0, 2)?);
        let mixed = match dropout.filter(|_| self.dropout > 0.0) {
            None => Tensor::f_scaled_dot_product_attention(
                &query,
                &key,
                &value,
                None::<&Tensor>,
                0.0,
                self.causal,
                None,
                false,
            )?,
            Some(source) => self.mixed_with_dropout([&query, &key, &value], source)?,
        };
        let joined = mixed.f_transpose(1, 2)?.f_reshape([batch, length, size])?;
        joined.f_linear(out_weight, out_bias)
    }
}

impl MultiheadAttention {
    /// Libtorch's fused attention draws dropout's mask from the process's generator, hence this where there is dropout.
    fn mixed_with_dropout(
        &self,
        [query, key, value]: [&Tensor; 3],
        source: MaskSource,
    ) -> Result<Tensor, TchError> {
        let weights = weights(query, key, self.causal)?;
        masks::elements(&weights, self.dropout, source)?.f_matmul(value)
    }
}

/// Softmax of the scaled products, (N, heads, L, L).
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
