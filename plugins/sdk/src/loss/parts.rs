//! What most losses need besides their formula: the reduction, checks of shapes, the accuracy.

use crate::element::DType;
use crate::tensor::Tensor;
use crate::{Result, bail, ensure};
use serde::Deserialize;

/// The key `reduction` of PyTorch's losses, by which a job knows, too, whether batches and trainers are averaged or added.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    #[default]
    Mean,
    Sum,
}

impl Reduction {
    /// One scalar from the losses of all elements.
    pub fn of(self, losses: &Tensor) -> Tensor {
        match self {
            Reduction::Mean => losses.mean_all(),
            Reduction::Sum => losses.sum_all(),
        }
    }
}

/// The only tensor of a list, for losses of one output and one target. `what` names the list in the error.
///
/// # Errors
/// If there are none or several.
pub fn only<'a>(what: &str, tensors: &'a [Tensor]) -> Result<&'a Tensor> {
    match tensors {
        [tensor] => Ok(tensor),
        _ => bail!("this loss takes one {what}, and got {}", tensors.len()),
    }
}

/// For losses of outputs alone.
///
/// # Errors
/// If there is a target.
pub fn no_targets(targets: &[Tensor]) -> Result<()> {
    ensure!(
        targets.is_empty(),
        "this loss takes no target, and got {}\nhint: write target = [] in [loss], which names none",
        targets.len()
    );
    Ok(())
}

/// For outputs that are compared with one another, by their names.
///
/// # Errors
/// Tells the shapes of two that differ.
pub fn same_shape(outputs: [(&str, &Tensor); 2]) -> Result<()> {
    let [(one, first), (other, second)] = outputs.map(|(name, output)| (name, output.shape()));
    ensure!(
        first == second,
        "the {one} output is {first:?}, and the {other} one {second:?}: they should have one shape"
    );
    Ok(())
}

/// One number for all positions of a dimension, or one for each: a key such as `weight`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "wanted a number or a list of numbers")]
pub enum Weights {
    Same(f64),
    Each(Vec<f64>),
}

impl Weights {
    pub fn numbers(&self) -> &[f64] {
        match self {
            Weights::Same(number) => std::slice::from_ref(number),
            Weights::Each(numbers) => numbers,
        }
    }

    /// Checks what the job wrote for `key`.
    ///
    /// # Errors
    /// If the list is empty, or a number is negative or none.
    pub fn check(&self, key: &str) -> Result<()> {
        let numbers = self.numbers();
        ensure!(!numbers.is_empty(), "`{key}` is an empty list");
        let wrong = numbers.iter().find(|number| !(number.is_finite() && **number >= 0.0));
        match wrong {
            Some(wrong) => bail!("`{key}` = {wrong} is not a number from 0 on"),
            None => Ok(()),
        }
    }

    /// For each position of the last dimension of `output`, in its dtype.
    ///
    /// # Errors
    /// If the list has another length.
    pub fn like(&self, key: &str, output: &Tensor) -> Result<Tensor> {
        let (numbers, shape) = (self.numbers(), output.shape());
        let last = shape.last().copied().unwrap_or(1);
        ensure!(
            numbers.len() == 1 || numbers.len() as i64 == last,
            "`{key}` has {} numbers, and the last dimension of the output {shape:?} is {last}",
            numbers.len()
        );
        Ok(Tensor::from_slice(numbers, &[numbers.len() as i64], output).to_dtype(output.dtype()))
    }
}

/// Checks that `targets` has the class number (int64) of each position of `scores`, whose classes lie along
/// dimension 1: scores [N, C, ...], targets [N, ...].
///
/// # Errors
/// Tells what the targets are and what they should be.
pub fn check_classes(scores: &Tensor, targets: &Tensor) -> Result<()> {
    let (scores, found) = (scores.shape(), targets.shape());
    ensure!(scores.len() >= 2, "the output is {scores:?}, and [samples, classes, ...] is wanted");
    let wanted: Vec<i64> =
        scores.iter().enumerate().filter(|(dim, _)| *dim != 1).map(|(_, &size)| size).collect();
    let dtype = targets.dtype();
    ensure!(
        dtype == DType::Int64 && found == wanted,
        "the targets are {dtype} {found:?}, and for an output of {scores:?} they should be class numbers: int64 {wanted:?}"
    );
    Ok(())
}

/// The part of positions whose largest score is that of the target's class. Shapes as in [`check_classes`].
pub fn accuracy(scores: &Tensor, targets: &Tensor) -> f64 {
    fraction(&scores.argmax(1, false).eq(targets))
}

/// The part of a boolean tensor that is true.
pub fn fraction(right: &Tensor) -> f64 {
    right.to_dtype(DType::Float32).mean_all().item()
}

/// The targets in the output's shape and dtype, for losses that compare them element by element. Dimensions of
/// size 1 may be there or not: an output of [N, 1] goes with targets of [N]. Other shapes are refused and not broadcast,
/// which would give a number without a meaning.
///
/// # Errors
/// Tells both shapes.
pub fn like_output(output: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (wanted, found) = (output.shape(), targets.shape());
    ensure!(
        compatible(&wanted, &found),
        "the targets are {found:?}, and the output is {wanted:?}: they should have one shape"
    );
    let targets = if found == wanted { targets.clone() } else { targets.reshape(&wanted) };
    Ok(if targets.dtype() == output.dtype() { targets } else { targets.to_dtype(output.dtype()) })
}

fn compatible(a: &[i64], b: &[i64]) -> bool {
    let sizes = |shape: &[i64]| shape.iter().copied().filter(|&size| size != 1).collect::<Vec<_>>();
    sizes(a) == sizes(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_is_the_mean_or_the_sum() {
        let read = |text: &str| serde_json::from_str::<Reduction>(text);
        assert_eq!(read("\"mean\"").unwrap(), Reduction::default());
        assert_eq!(read("\"sum\"").unwrap(), Reduction::Sum);
        let error = read("\"none\"").unwrap_err().to_string();
        assert!(error.starts_with("unknown variant `none`, expected `mean` or `sum`"), "{error}");
    }

    #[test]
    fn weights_are_one_number_or_a_list_of_them_from_0_on() {
        let read = |text: &str| serde_json::from_str::<Weights>(text).unwrap();
        assert_eq!(read("2").numbers(), [2.0]);
        assert_eq!(read("[0.5, 0]").numbers(), [0.5, 0.0]);
        let error = |text: &str| read(text).check("weight").unwrap_err().to_string();
        assert_eq!(error("[]"), "`weight` is an empty list");
        assert_eq!(error("[1, -2]"), "`weight` = -2 is not a number from 0 on");
        assert!(read("[1, 0]").check("weight").is_ok());
    }

    #[test]
    fn only_dimensions_of_size_one_may_differ() {
        assert!(compatible(&[32, 1], &[32]));
        assert!(compatible(&[1], &[]));
        assert!(compatible(&[4, 1, 3], &[4, 3]));
        assert!(!compatible(&[32, 1], &[31]));
        assert!(!compatible(&[3, 4], &[4, 3]));
    }
}
