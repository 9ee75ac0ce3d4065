//! Means of gradients: over trainers, and as one vector for those who average over ranks.

use anyhow::{Context as _, Result};
use tch::{Device, Kind, Tensor};

use super::Gradients;
use super::norm::scaled;

/// The mean over the trainers by what each weighs, parameter by parameter, added in the order given. A parameter that some
/// did not use counts as zero there; one that nobody used has no gradient. One trainer's are left as they are.
pub(super) fn mean_over_trainers(mut given: Vec<(f64, Gradients)>) -> Result<Gradients> {
    if given.len() == 1 {
        return Ok(given.remove(0).1);
    }
    let trainers = given.len() as f64;
    let weights = weights(given.iter().map(|(weight, _)| *weight));
    // Batches are nearly always of one size: then nothing is multiplied.
    let weighed = |((_, gradients), weight): ((f64, Gradients), f64)| match weight {
        1.0 => Ok(gradients),
        weight => scaled(gradients, weight),
    };
    let mut given = given.into_iter().zip(weights).map(weighed);
    let mut sum = given.next().context("a mean of no trainers")??;
    for gradients in given {
        add(&mut sum, gradients?)?;
    }
    let mean = sum.into_iter().map(|sum| sum.map(|sum| sum.f_div_scalar(trainers)).transpose());
    Ok(mean.collect::<Result<_, _>>()?)
}

/// How much each trainer's batch counts in a round, from their weights, such as their samples: 1 for one of the mean weight.
pub(super) fn weights(given: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let mean = given.clone().sum::<f64>() / given.clone().count() as f64;
    // Where none weighs anything there is nothing to weigh.
    let part = |weight: f64| Some(weight / mean).filter(|part| part.is_finite());
    given.map(|weight| part(weight).unwrap_or(1.0)).collect()
}

/// Adds gradients of the same parameters; what they are made of is not written to, since it may share memory.
pub(super) fn add(sum: &mut Gradients, gradients: Gradients) -> Result<()> {
    for (sum, gradient) in sum.iter_mut().zip(gradients) {
        *sum = match (sum.take(), gradient) {
            (Some(sum), Some(gradient)) => Some(sum.f_add(&gradient)?),
            (one, other) => one.or(other),
        };
    }
    Ok(())
}

/// All gradients, one after another, zeros where there is none; then a number for each, 1 where there is one. So a sum over
/// ranks tells what nobody used from what everybody found to be zero.
pub(super) fn flatten(parameters: &[Tensor], gradients: &[Option<Tensor>]) -> Result<Tensor> {
    let part = |(parameter, gradient): (&Tensor, &Option<Tensor>)| match gradient {
        Some(gradient) => gradient.f_to_dense(None, false)?.f_reshape([-1]),
        None => parameter.f_zeros_like()?.f_reshape([-1]),
    };
    let mut parts = parameters.iter().zip(gradients).map(part).collect::<Result<Vec<_>, tch::TchError>>()?;
    let used: Vec<f32> = gradients.iter().map(|gradient| f32::from(gradient.is_some())).collect();
    let like = parts.first().context("no parameters")?;
    parts.push(Tensor::from_slice(&used).f_to_device(like.device())?.f_to_kind(like.f_kind()?)?);
    Ok(Tensor::f_cat(&parts, 0)?)
}

/// The gradients in a sum or mean of what [`flatten`] made on several ranks; none where no rank had one.
pub(super) fn unflatten(parameters: &[Tensor], flat: &Tensor) -> Result<Gradients> {
    let elements: i64 = parameters.iter().map(|parameter| parameter.numel() as i64).sum();
    let used = flat.f_narrow(0, elements, parameters.len() as i64)?;
    let used = Vec::<f64>::try_from(used.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?)?;
    let mut start = 0;
    let part = |(parameter, used): (&Tensor, f64)| {
        let elements = parameter.numel() as i64;
        let gradient = flat.f_narrow(0, start, elements)?.f_view(parameter.size().as_slice())?;
        start += elements;
        Ok((used > 0.0).then_some(gradient))
    };
    parameters.iter().zip(used).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(values: &[f64]) -> Gradients {
        values.iter().map(|&value| Some(Tensor::from(value))).collect()
    }

    #[test]
    fn a_round_averages_over_the_trainers_and_counts_what_is_missing_as_zero() {
        let mut second = numbers(&[3.0, 9.0]);
        second[1] = None;
        let mean = mean_over_trainers(vec![(8.0, numbers(&[1.0, 4.0])), (8.0, second)]).unwrap();
        let values: Vec<f64> = mean.iter().map(|g| g.as_ref().unwrap().double_value(&[])).collect();
        assert_eq!(values, [2.0, 2.0]);
    }

    #[test]
    fn a_larger_batch_counts_for_more() {
        let mean = mean_over_trainers(vec![(3.0, numbers(&[1.0])), (1.0, numbers(&[5.0]))]).unwrap();
        assert_eq!(mean[0].as_ref().unwrap().double_value(&[]), 2.0);
    }

    #[test]
    fn trainers_that_weigh_nothing_give_what_they_have() {
        let of = |weights: [f64; 2]| {
            let given = vec![(weights[0], numbers(&[0.5])), (weights[1], numbers(&[0.0]))];
            mean_over_trainers(given).unwrap()[0].as_ref().unwrap().double_value(&[])
        };
        assert_eq!(of([0.75, 0.0]), 0.5);
        assert_eq!(of([0.0, 0.0]), 0.25);
    }

    #[test]
    fn a_sum_over_ranks_keeps_what_nobody_used_apart_from_zeros() {
        let parameters = [2, 1, 3].map(|size| Tensor::zeros([size], (Kind::Float, Device::Cpu)));
        let gradient = |value: f64, size: i64| Some(Tensor::full([size], value, (Kind::Float, Device::Cpu)));
        let one = flatten(&parameters, &[gradient(0.0, 2), None, None]).unwrap();
        let other = flatten(&parameters, &[gradient(0.0, 2), None, gradient(3.0, 3)]).unwrap();
        let sum = unflatten(&parameters, &(one + other)).unwrap();
        let values: Vec<_> =
            sum.iter().map(|g| g.as_ref().map(|g| (g.numel(), g.mean(None).double_value(&[])))).collect();
        assert_eq!(values, [Some((2, 0.0)), None, Some((3, 3.0))]);
    }

    #[test]
    fn a_round_of_sparse_gradients_stays_sparse() {
        let rows = |rows: [i64; 2], value: f64| {
            let indices = Tensor::from_slice(&rows).unsqueeze(0);
            let values = Tensor::full([2, 3], value, (Kind::Double, Device::Cpu));
            let options = (Kind::Double, Device::Cpu);
            vec![Some(Tensor::sparse_coo_tensor_indices_size(&indices, &values, [5, 3], options, false))]
        };
        let mean = mean_over_trainers(vec![(3.0, rows([0, 4], 1.0)), (1.0, rows([4, 2], 5.0))]).unwrap();
        let mean = mean[0].as_ref().unwrap();
        assert!(mean.is_sparse());
        let column = mean.to_dense(None, false).select(1, 0);
        assert_eq!(Vec::<f64>::try_from(column).unwrap(), [0.75, 0.0, 1.25, 0.0, 2.0]);
    }
}
