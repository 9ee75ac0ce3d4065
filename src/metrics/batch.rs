//! A batch's output and targets as metrics look at them: checked, on one device, without what does not count.

use tch::{Kind, TchError, Tensor};

use super::error::Fault;
use super::layout::{Layout, Takes, Unfit};
use crate::layers::{InputDtype, Signal};

/// Scores of several classes.
pub(super) struct Classes {
    /// [n, classes, ...], of f32 or f64.
    pub scores: Tensor,
    /// [n, ...], of int64, each one of the classes; 0 where it does not count.
    pub targets: Tensor,
    /// Which targets count, where not all do.
    pub counts: Option<Tensor>,
    pub classes: i64,
}

/// The class that each target's scores say, and the class that it is: `[elements]`, of int64.
pub(super) struct Predictions {
    pub predicted: Tensor,
    pub actual: Tensor,
    pub classes: i64,
    /// Is a NaN among the scores?
    pub undefined: bool,
}

/// One score for each target of 0 and 1: `[elements]`.
pub(super) struct Binary {
    pub scores: Tensor,
    pub positive: Tensor,
}

/// Output and target as `[elements]` of f64.
pub(super) fn numbers(output: &Tensor, target: &Tensor) -> Result<(Tensor, Tensor), Fault> {
    let (_, target) = laid(Takes::Numbers, output, target)?;
    let flat = |tensor: &Tensor| tensor.f_to_kind(Kind::Double)?.f_reshape([-1]);
    Ok((flat(output)?, flat(&target)?))
}

/// Scores of classes; a target `ignored` does not count.
pub(super) fn classes(output: &Tensor, target: &Tensor, ignored: i64) -> Result<Classes, Fault> {
    match laid(Takes::Classes, output, target)? {
        (Layout::Classes(classes), target) => of_classes(output, &target, classes, ignored),
        // That is what it does not take.
        (Layout::Elements, _) => Err(Fault::Torch("scores of one class".into())),
    }
}

/// One score for each target; the difference where there are scores of two classes, by which their softmax is ordered.
pub(super) fn binary(output: &Tensor, target: &Tensor, ignored: i64) -> Result<Binary, Fault> {
    let (layout, target) = laid(Takes::Binary, output, target)?;
    match layout {
        Layout::Elements => of_elements(output, &target, ignored),
        Layout::Classes(_) => {
            let output = fractions(output)?;
            let margin = output.f_select(1, 1)?.f_sub(&output.f_select(1, 0)?)?;
            of_elements(&margin, &target, ignored)
        }
    }
}

/// What the scores say: the class with the largest of them (the first of equal ones), or 1 where the only score is above the
/// threshold.
pub(super) fn predictions(
    takes: Takes,
    output: &Tensor,
    target: &Tensor,
    threshold: f64,
    ignored: i64,
) -> Result<Predictions, Fault> {
    match laid(takes, output, target)? {
        (Layout::Classes(classes), target) => {
            let Classes { scores, targets, counts, .. } = of_classes(output, &target, classes, ignored)?;
            // The largest of numbers with a NaN among them is NaN.
            let (largest, predicted) = scores.f_max_dim(1, false)?;
            let [largest, predicted, actual] = counting([&largest, &predicted, &targets], counts.as_ref())?;
            Ok(Predictions { predicted, actual, classes, undefined: has_nan(&largest)? })
        }
        (Layout::Elements, target) => {
            let Binary { scores, positive } = of_elements(output, &target, ignored)?;
            let predicted = scores.f_gt(threshold)?.f_to_kind(Kind::Int64)?;
            let actual = positive.f_to_kind(Kind::Int64)?;
            Ok(Predictions { predicted, actual, classes: 2, undefined: has_nan(&scores)? })
        }
    }
}

/// Classes of a batch against those of the batches before; none before the first.
pub(super) fn same_classes(known: usize, came: i64) -> Result<(), Unfit> {
    if known == 0 || known as i64 == came {
        return Ok(());
    }
    let problem = format!("the output has {came} classes, and {known} in the batches before");
    Err(Unfit::new(problem, "let the model give as many in each batch"))
}

/// Whether there is a NaN in it.
pub(super) fn has_nan(tensor: &Tensor) -> Result<bool, TchError> {
    is_true(&tensor.f_isnan()?.f_any()?)
}

/// How many are true.
pub(super) fn count(tensor: &Tensor) -> Result<i64, TchError> {
    tensor.f_sum(Kind::Int64)?.f_int64_value(&[])
}

/// All numbers of a tensor.
pub(super) fn to_vec<T: tch::kind::Element + Clone + Default>(tensor: &Tensor) -> Result<Vec<T>, TchError> {
    let mut numbers = vec![T::default(); tensor.numel()];
    tensor.f_copy_data(&mut numbers, tensor.numel())?;
    Ok(numbers)
}

/// Those that count, in one row.
pub(super) fn counting<const N: usize>(
    tensors: [&Tensor; N],
    counts: Option<&Tensor>,
) -> Result<[Tensor; N], TchError> {
    let selected = tensors.map(|tensor| match counts {
        Some(counts) => tensor.f_masked_select(counts),
        None => tensor.f_reshape([-1]),
    });
    let selected: Vec<Tensor> = selected.into_iter().collect::<Result<_, _>>()?;
    Ok(selected.try_into().expect("as many come out as went in"))
}

/// How the two go together, and the target on the output's device.
fn laid(takes: Takes, output: &Tensor, target: &Tensor) -> Result<(Layout, Tensor), Fault> {
    let (outputs, targets) = (output.size(), target.size());
    if outputs.is_empty() || outputs.first() != targets.first() {
        let problem =
            format!("the output is {outputs:?} and the target {targets:?}: they are not of one batch");
        return Err(Unfit::new(problem, "samples lie along dimension 0 of both").into());
    }
    let signal = |tensor: &Tensor, shape: &[i64]| -> Result<Signal, TchError> {
        Ok(Signal::new(&shape[1..], dtype_of(tensor)?))
    };
    let (one, other) = (signal(output, &outputs)?, signal(target, &targets)?);
    let layout = takes.layout(Some(&one), Some(&other))?;
    let layout = layout.expect("both signals are known");
    Ok((layout, target.f_to(output.device())?))
}

/// As jobs tell dtypes apart.
fn dtype_of(tensor: &Tensor) -> Result<InputDtype, TchError> {
    match tensor.f_kind()? {
        Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => Ok(InputDtype::Float32),
        Kind::Int64 | Kind::Int | Kind::Int16 | Kind::Int8 | Kind::Uint8 | Kind::Bool => {
            Ok(InputDtype::Int64)
        }
        kind => Err(TchError::Kind(format!("no metric is of {kind:?}"))),
    }
}

/// Scores in a dtype that all of libtorch's operations know on all devices.
fn fractions(output: &Tensor) -> Result<Tensor, TchError> {
    match output.f_kind()? {
        Kind::Float | Kind::Double => Ok(output.shallow_clone()),
        _ => output.f_to_kind(Kind::Float),
    }
}

fn of_classes(output: &Tensor, target: &Tensor, classes: i64, ignored: i64) -> Result<Classes, Fault> {
    let mut targets = target.f_to_kind(Kind::Int64)?;
    let counts = not_ignored(&targets, ignored)?;
    if let Some(counts) = &counts {
        targets = targets.f_masked_fill(&counts.f_logical_not()?, 0)?;
    }
    if targets.numel() > 0 {
        // Looked at before any look-up by them: on a GPU that would end the process.
        let (least, most) = (targets.f_min()?.f_int64_value(&[])?, targets.f_max()?.f_int64_value(&[])?);
        let wrong = [least, most].into_iter().find(|class| !(0..classes).contains(class));
        if let Some(wrong) = wrong {
            let problem =
                format!("a target is {wrong}, and the output has {classes} classes, counted from 0");
            let hint = "correct the data, or name targets that do not count by `ignore_index`";
            return Err(Unfit::new(problem, hint).into());
        }
    }
    Ok(Classes { scores: fractions(output)?, targets, counts, classes })
}

fn of_elements(output: &Tensor, target: &Tensor, ignored: i64) -> Result<Binary, Fault> {
    // Wide enough for any `ignore_index`: a comparison with a number that a dtype has not ends in a panic.
    let wide = match dtype_of(target)? {
        InputDtype::Float32 => Kind::Double,
        InputDtype::Int64 => Kind::Int64,
    };
    let targets = target.f_to_kind(wide)?.f_reshape([-1])?;
    let scores = fractions(output)?.f_reshape([-1])?;
    let counts = not_ignored(&targets, ignored)?;
    let [scores, targets] = counting([&scores, &targets], counts.as_ref())?;
    let positive = targets.f_eq(1)?;
    if !is_true(&targets.f_eq(0)?.f_logical_or(&positive)?.f_all()?)? {
        let problem = "a target is neither 0 nor 1";
        let hint = "for numbers there are mae, mse and r2; for classes give the output a score for each";
        return Err(Unfit::new(problem, hint).into());
    }
    Ok(Binary { scores, positive })
}

/// None: all count.
fn not_ignored(targets: &Tensor, ignored: i64) -> Result<Option<Tensor>, TchError> {
    let counts = targets.f_ne(ignored)?;
    Ok(if is_true(&counts.f_all()?)? { None } else { Some(counts) })
}

fn is_true(tensor: &Tensor) -> Result<bool, TchError> {
    Ok(tensor.f_int64_value(&[])? != 0)
}
