//! Layers that make one of several inputs. They stand first in a module that takes a list, and have no parameters.

use super::shape::{Refusal, Signal};

/// Makes of a [`Join`](super::op::Join) with a method `join`, which gives its output for a batch of each input, and a method
/// `in_python` a layer: all else that there is to say of it.
macro_rules! joining {
    ($layer:ident) => {
        impl $crate::layers::op::Op for $layer {
            fn parameters(&self) -> Vec<$crate::layers::ParameterSpec> {
                vec![]
            }

            fn buffers(&self) -> Vec<$crate::layers::op::Buffer> {
                vec![]
            }

            fn draw(&self, _parameters: &mut [tch::Tensor]) -> Result<(), tch::TchError> {
                Ok(())
            }

            fn output(&self, _input: &$crate::layers::Signal) -> $crate::layers::shape::Output {
                Err($crate::layers::join::single())
            }

            fn macs(&self, _input: &$crate::layers::Signal, _output: &$crate::layers::Signal) -> u64 {
                0
            }

            fn has_sparse_gradient(&self) -> bool {
                false
            }

            fn rows(&self) -> Option<$crate::layers::RowTable> {
                None
            }

            fn joins(&self) -> Option<&dyn $crate::layers::op::Join> {
                Some(self)
            }

            fn inner(&self) -> &[$crate::layers::Layer] {
                &[]
            }

            fn memory(&self) -> $crate::layers::op::Memory {
                $crate::layers::op::Memory::KEEPS_OUTPUT
            }

            fn python(&self) -> $crate::layers::python::Python {
                self.in_python()
            }

            fn forward(
                &self,
                args: &mut $crate::layers::ForwardArgs<'_>,
            ) -> Result<tch::Tensor, tch::TchError> {
                self.join(&args.inputs())
            }
        }
    };
}
pub(super) use joining;

/// Why it does not take one input.
pub(super) fn single() -> Refusal {
    let hint = "let it be the first layer of a module whose `from` is a list of two or more";
    Refusal::new("several inputs, which it makes one of", hint)
}

/// The shapes of inputs of a layer that computes with fractions.
///
/// # Errors
/// One is of whole numbers.
pub(super) fn floats(inputs: &[Signal]) -> Result<Vec<&[i64]>, Refusal> {
    let each = inputs.iter().enumerate();
    each.map(|(number, input)| input.expect_floats().map_err(|refusal| refusal.of_input(number))).collect()
}

/// The shape that all inputs have, and the shapes as a message shows them.
///
/// # Errors
/// They are of whole numbers, or differ.
pub(super) fn one_shape(inputs: &[Signal]) -> Result<Vec<i64>, Refusal> {
    let shapes = floats(inputs)?;
    let first = shapes.first().copied().unwrap_or_default();
    match shapes.iter().all(|shape| *shape == first) {
        true => Ok(first.to_vec()),
        false => {
            let hint = "bring them to one shape, for example with a linear layer at the end of each module";
            Err(Refusal::new("inputs of one shape", hint).otherwise(first))
        }
    }
}
