//! Learned positions (Gehring et al., 2017).

use tch::{Kind, TchError, Tensor};

use super::Layer;
use super::arguments::{arguments, size};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, weight_and_bias};
use super::python::{Class, Python};
use super::shape::{Output, Refusal, Signal, steps_of};

arguments! {
    /// x + E(0), E(1), ...: adds row t of a learned table to step t of a sequence, as `x + nn.Embedding(n, d)(arange(steps))`.
    pub struct PositionalEmbedding {
        num_embeddings: i64 = size("num_embeddings").doc("RowTable of the table: the most steps that a sequence may have."),
        embedding_dim: i64 = size("embedding_dim").doc("Numbers of each step."),
    }
}

const POSITIONAL: Class = Class(
    r#"
class PositionalEmbedding(nn.Embedding):
    """Adds row t of a table to step t of a sequence."""

    def forward(self, x):
        return x + super().forward(torch.arange(x.size(1), device=x.device))
"#,
);

impl Op for PositionalEmbedding {
    fn parameters(&self) -> Vec<ParameterSpec> {
        weight_and_bias(vec![self.num_embeddings, self.embedding_dim], None)
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        parameters[0].f_normal_(0.0, 1.0).map(drop)
    }

    fn output(&self, input: &Signal) -> Output {
        let shape = &input.shape;
        let steps = steps_of(input, self.embedding_dim, "embedding_dim", |_| shape.clone())?;
        if steps > self.num_embeddings {
            let expects = format!("at most {} steps (num_embeddings)", self.num_embeddings);
            return Err(
                Refusal::new(expects, format!("write num_embeddings = {steps}")).otherwise(shape.clone())
            );
        }
        Ok(input.clone())
    }

    fn macs(&self, _input: &Signal, _output: &Signal) -> u64 {
        0
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
        Python::own(POSITIONAL).with(self.num_embeddings).with(self.embedding_dim)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let (x, weight) = (args.x, &args.params[0]);
        let steps = Tensor::f_arange(x.size()[1], (Kind::Int64, x.device()))?;
        x.f_add(&Tensor::f_embedding(weight, &steps, -1, false, false)?)
    }
}
