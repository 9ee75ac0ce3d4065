//! Residual connections (He et al., 2016).

use tch::{TchError, Tensor};

use super::arguments::arguments;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position};
use super::python::{Class, Python};
use super::shape::{Output, Refusal, Signal, infer};
use super::{Layer, read, size};
use crate::config::{By, Key, Kind, by, key};

arguments! {
    /// x + layers(x).
    pub struct Residual {
        layers: Vec<Layer> = LAYERS,
    }
}

const LAYERS: Key<By<Vec<Layer>>> = key("layers", by(read::list, || Kind::list(Kind::Named("layer"))))
    .example("[\"relu\"]")
    .doc("What is added to the input.");

const RESIDUAL: Class = Class(
    r#"
class Residual(nn.Sequential):
    """x + layers(x)."""

    def __init__(self, *layers, **named):
        super().__init__(*layers)
        for name, layer in named.items():
            setattr(self, name, layer)

    def forward(self, x):
        return x + super().forward(x)
"#,
);

impl Op for Residual {
    fn parameters(&self) -> Vec<ParameterSpec> {
        vec![]
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, _parameters: &mut [Tensor]) -> Result<(), TchError> {
        Ok(())
    }

    fn output(&self, input: &Signal) -> Output {
        let inner = infer(&self.layers, std::slice::from_ref(input));
        match inner.output() {
            Some(output) if output == input => Ok(output.clone()),
            Some(output) => {
                let expects =
                    format!("its layers to output the shape of their input, and they output {output}");
                let hint = format!("let them end in {input}, so that it can be added to the input");
                Err(Refusal::new(expects, hint).otherwise(input.shape.clone()))
            }
            None => Err(Refusal::new("layers that take its input", "see what is said of them")),
        }
    }

    fn macs(&self, _input: &Signal, output: &Signal) -> u64 {
        at_each_position(size::total(&self.layers, size::parameters), output, false)
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
        &self.layers
    }

    fn memory(&self) -> Memory {
        Memory::KEEPS_OUTPUT
    }

    fn python(&self) -> Python {
        let inner = self.layers.iter().map(|layer| (layer.name.as_str(), layer.op.python()));
        Python::own(RESIDUAL).over(inner.collect())
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        match args.inner {
            Some(y) => args.x.f_add(y),
            None => Err(TchError::Shape("a residual without its layers' output".into())),
        }
    }
}
