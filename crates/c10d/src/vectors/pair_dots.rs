//! The dot products of all pairs of a sample's vectors, with a backward of their own.

use tch::{TchError, Tensor};

use super::{add, check, contiguous, copy, empty, floats, floats_mut, torch};
use crate::{TorchError, with_backward};

/// Numbers of a row that are computed with at once, and rows: what the registers of most machines have room for.
const LANES: usize = 16;
const ROWS: usize = 4;
type Lanes = [f32; LANES];

/// What [`pair_dots`] takes at most, in MACs: more are worth libtorch's threads.
pub const FEW_PRODUCTS: u64 = 1 << 26;

/// The vector `[batch, dim]` that comes first in `inputs`, and behind it the dot product of each pair of vectors of a sample:
/// those of all inputs, of which the others are `[batch, dim]` or `[batch, n, dim]`. The pairs are `(1, 0), (2, 0), (2, 1)` and
/// so on, or with each vector and `itself`, `(0, 0), (1, 0), (1, 1), ...`.
///
/// # Errors
/// Inputs of other shapes or dtypes, or not in this machine's memory.
pub fn pair_dots(inputs: &[&Tensor], itself: bool) -> Result<Tensor, TorchError> {
    let Some([batch, dim]) = inputs.first().and_then(|first| <[i64; 2]>::try_from(first.size()).ok()) else {
        return Err(TorchError { message: "the first of the vectors is to be one for each sample".into() });
    };
    let inputs: Vec<Tensor> = inputs.iter().map(|input| contiguous(input)).collect::<Result<_, _>>()?;
    check(&inputs, |input| {
        let shape = input.size();
        dim > 0
            && shape.first() == Some(&batch)
            && shape.last() == Some(&dim)
            && (2..=3).contains(&shape.len())
    })?;
    let widths = inputs.iter().map(|input| input.size()[1..].iter().product::<i64>() as usize).collect();
    let pairs = Pairs::new(dim as usize, widths, usize::from(itself));
    let mut output = empty(&[batch, pairs.outputs() as i64]).map_err(torch)?;
    {
        let inputs: Vec<&[f32]> = inputs.iter().map(floats).collect();
        widest(Forward { pairs: &pairs, inputs: &inputs, output: floats_mut(&mut output) });
    }
    with_backward(&inputs, &inputs, &output, move |gradient, inputs| {
        let gradient = contiguous(gradient)?;
        let made: Result<Vec<Tensor>, TchError> = inputs.iter().map(|input| empty(&input.size())).collect();
        let mut made = made.map_err(torch)?;
        let inputs: Vec<&[f32]> = inputs.iter().map(floats).collect();
        let gradients = made.iter_mut().map(floats_mut).collect();
        widest(Backward { pairs: &pairs, inputs: &inputs, output: floats(&gradient), gradients });
        Ok(made)
    })
}

/// How the vectors of a sample lie in the inputs.
struct Pairs {
    dim: usize,
    /// Numbers of a sample in each input.
    widths: Vec<usize>,
    /// Vectors of a sample.
    count: usize,
    /// 1 where a vector makes a pair with itself, else 0.
    own: usize,
}

impl Pairs {
    fn new(dim: usize, widths: Vec<usize>, own: usize) -> Pairs {
        let count = widths.iter().sum::<usize>() / dim;
        Pairs { dim, widths, count, own }
    }

    /// Numbers of a sample in the output.
    fn outputs(&self) -> usize {
        self.dim + self.count * (self.count + 2 * self.own - 1) / 2
    }

    /// The vectors of a sample, one behind the other.
    #[inline(always)]
    fn gather(&self, inputs: &[&[f32]], sample: usize, vectors: &mut [f32]) {
        let mut rest = vectors;
        for (input, &width) in inputs.iter().zip(&self.widths) {
            let (own, others) = rest.split_at_mut(width);
            own.copy_from_slice(&input[sample * width..][..width]);
            rest = others;
        }
    }
}

/// What is computed with the widest registers that there are.
trait Work {
    fn run(self);
}

fn widest(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2(work: impl Work) {
            work.run();
        }
        // SAFETY: the processor has been asked.
        return unsafe { with_avx2(work) };
    }
    work.run();
}

struct Forward<'a> {
    pairs: &'a Pairs,
    inputs: &'a [&'a [f32]],
    output: &'a mut [f32],
}

impl Work for Forward<'_> {
    #[inline(always)]
    fn run(self) {
        let Forward { pairs, inputs, output } = self;
        let &Pairs { dim, count, own, .. } = pairs;
        let (rows, blocks) = (count.next_multiple_of(ROWS), count.div_ceil(LANES));
        let mut vectors = vec![0.0; rows * dim];
        // The same with vectors as columns: number k of all of them, then number k + 1.
        let mut columns = vec![[0.0; LANES]; dim * blocks];
        let mut dots = vec![[0.0; LANES]; rows * blocks];
        for (sample, output) in output.chunks_exact_mut(pairs.outputs()).enumerate() {
            pairs.gather(inputs, sample, &mut vectors);
            for (nth, vector) in vectors.chunks_exact(dim).take(count).enumerate() {
                let column = columns.as_flattened_mut()[nth..].iter_mut().step_by(blocks * LANES);
                column.zip(vector).for_each(|(column, number)| *column = *number);
            }
            // Of each vector those with the vectors before it.
            product(&vectors, dim, &columns, &mut dots, |row| row / LANES + 1);
            let (dense, mut rest) = output.split_at_mut(dim);
            dense.copy_from_slice(&vectors[..dim]);
            for (nth, dots) in dots.as_flattened().chunks_exact(blocks * LANES).take(count).enumerate() {
                let (of_vector, others) = rest.split_at_mut(nth + own);
                of_vector.copy_from_slice(&dots[..nth + own]);
                rest = others;
            }
        }
    }
}

struct Backward<'a> {
    pairs: &'a Pairs,
    inputs: &'a [&'a [f32]],
    /// The gradient of the output.
    output: &'a [f32],
    /// The gradient of each input, which is written here.
    gradients: Vec<&'a mut [f32]>,
}

impl Work for Backward<'_> {
    #[inline(always)]
    fn run(self) {
        let Backward { pairs, inputs, output, mut gradients } = self;
        let &Pairs { dim, count, own, .. } = pairs;
        let (rows, blocks) = (count.next_multiple_of(ROWS), dim.div_ceil(LANES));
        let mut vectors = vec![0.0; count * dim];
        let mut padded = vec![[0.0; LANES]; count * blocks];
        let mut sums = vec![[0.0; LANES]; rows * blocks];
        // The gradient of the dot product of each vector with each.
        let mut weights = vec![0.0; rows * count];
        for (sample, output) in output.chunks_exact(pairs.outputs()).enumerate() {
            pairs.gather(inputs, sample, &mut vectors);
            let of_vectors = padded.as_flattened_mut().chunks_exact_mut(blocks * LANES);
            of_vectors
                .zip(vectors.chunks_exact(dim))
                .for_each(|(padded, vector)| copy(vector, &mut padded[..dim]));
            let (dense, mut rest) = output.split_at(dim);
            for row in 0..count {
                let (of_vector, others) = rest.split_at(row + own);
                rest = others;
                weights[row * count..][..row + own].copy_from_slice(of_vector);
                let column = weights[row..].iter_mut().step_by(count);
                column.zip(of_vector).for_each(|(weight, gradient)| *weight = *gradient);
                if own == 1 {
                    weights[row * count + row] *= 2.0;
                }
            }
            product(&weights, count, &padded, &mut sums, |_| blocks);
            let mut of_vectors = sums.as_flattened_mut().chunks_exact_mut(blocks * LANES);
            for (nth, (gradient, &width)) in gradients.iter_mut().zip(&pairs.widths).enumerate() {
                for gradient in gradient[sample * width..][..width].chunks_exact_mut(dim) {
                    let sums = of_vectors.next().expect("a sum for each vector");
                    copy(&sums[..dim], gradient);
                    if nth == 0 {
                        add(dense, gradient);
                    }
                }
            }
        }
    }
}

/// The matrix product of `left`, in which rows of `inner` numbers follow one another, and `right`, in which `inner` rows do: of
/// each row the first of its lanes, as many as `wanted` says of a row.
#[inline(always)]
fn product(left: &[f32], inner: usize, right: &[Lanes], to: &mut [Lanes], wanted: impl Fn(usize) -> usize) {
    let blocks = right.len() / inner;
    let rows = left.chunks_exact(ROWS * inner).zip(to.chunks_exact_mut(ROWS * blocks));
    for (nth, (left, to)) in rows.enumerate() {
        for block in 0..wanted(nth * ROWS + ROWS - 1).min(blocks) {
            let mut sums = [[0.0f32; LANES]; ROWS];
            for (at, right) in right[block..].iter().step_by(blocks).enumerate() {
                for (row, sums) in sums.iter_mut().enumerate() {
                    multiply_add(left[row * inner + at], right, sums);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                to[row * blocks + block] = *sums;
            }
        }
    }
}

#[inline(always)]
fn multiply_add(factor: f32, numbers: &Lanes, sums: &mut Lanes) {
    *sums = std::array::from_fn(|lane| factor.mul_add(numbers[lane], sums[lane]));
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::vectors::tests::{assert_close, gradients, numbers};

    #[test]
    fn the_dots_of_pairs_and_their_gradients_are_those_of_a_product_of_matrices() {
        for (dim, columns) in [(1i64, 1i64), (16, 26), (5, 9), (8, 7)] {
            for itself in [false, true] {
                // The second comes as a view, in another order.
                let inputs = [numbers(&[3, dim], 1), numbers(&[dim, 3], 2), numbers(&[3, columns, dim], 3)];
                let second = inputs[1].transpose(0, 1);
                let ours = pair_dots(&[&inputs[0], &second, &inputs[2]], itself).unwrap();
                let all =
                    Tensor::cat(&[inputs[0].unsqueeze(1), second.unsqueeze(1), inputs[2].shallow_clone()], 1);
                let places = Tensor::tril_indices(
                    columns + 2,
                    columns + 2,
                    if itself { 0 } else { -1 },
                    (Kind::Int64, Device::Cpu),
                );
                let places = places.select(0, 0) * (columns + 2) + places.select(0, 1);
                let dots = all.bmm(&all.transpose(1, 2)).flatten(1, 2).index_select(1, &places);
                let theirs = Tensor::cat(&[inputs[0].shallow_clone(), dots], 1);
                assert_close(&ours, &theirs);
                for (ours, theirs) in gradients(&ours, &inputs).iter().zip(&gradients(&theirs, &inputs)) {
                    assert_close(ours, theirs);
                }
            }
        }
    }

    #[test]
    fn vectors_that_do_not_fit_are_refused() {
        let wrong = [numbers(&[3, 4], 1), numbers(&[2, 4], 2)];
        assert!(pair_dots(&[&wrong[0], &wrong[1]], false).is_err());
        assert!(pair_dots(&[], false).is_err());
    }
}
