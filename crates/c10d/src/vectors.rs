//! Rows of tables and dot products of vectors, each in one pass over the memory where libtorch's operations take several: all
//! of float32, in this machine's memory, with one thread.

use std::slice;
use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use crate::{TorchError, torch_message, with_backward};

/// Numbers of a row that are computed with at once, and rows: what the registers of most machines have room for.
const LANES: usize = 16;
const ROWS: usize = 4;
type Lanes = [f32; LANES];

/// So many rows ahead memory is asked for: as much as can be on its way at once.
const AHEAD: usize = 12;

/// Copies of the rows `places` of a table, in which row follows row: `[places, dim]`.
///
/// # Errors
/// What libtorch refuses.
///
/// # Panics
/// A place is not in the table.
pub fn copied_rows(table: &[f32], places: &[u32], dim: usize) -> Result<Tensor, TchError> {
    let mut rows = empty(&[places.len() as i64, dim as i64])?;
    for (nth, (row, &place)) in floats_mut(&mut rows).chunks_exact_mut(dim).zip(places).enumerate() {
        if let Some(&later) = places.get(nth + AHEAD) {
            prefetch(table, later as usize * dim);
        }
        copy(&table[place as usize * dim..][..dim], row);
    }
    Ok(rows)
}

/// All numbers of a tensor, row after row.
///
/// # Errors
/// It is not of float32, or not in this machine's memory.
pub fn numbers_of(tensor: &Tensor) -> Result<Vec<f32>, TorchError> {
    check(slice::from_ref(tensor), |_| true)?;
    Ok(floats(&contiguous(tensor)?).to_vec())
}

/// Has `numbers[at]` come from memory, if there is such a number, while the program goes on. What is read in no order waits for
/// memory most of its time.
pub fn prefetch(numbers: &[f32], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(number) = numbers.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every such processor has SSE; the address is of a number, and is not even read as one.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(number).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (numbers, at);
}

/// Stands for no row among numbers of rows.
pub const NO_ROW: u32 = u32::MAX;

/// Sums of rows of `parts`, which are `[n, dim]` each and are counted from the first part's first to the last one's last:
/// `numbers` names them, and `length` that follow one another make a sum, in `[.., dim]` with `shape` before it. The gradients of
/// a row are added up in the order of the numbers.
///
/// # Errors
/// Parts of other shapes or dtypes, or not in this machine's memory; a number that no row has; not as many numbers as are wanted.
pub fn sums_of_rows(
    parts: &[Tensor],
    numbers: &Arc<[u32]>,
    length: usize,
    shape: &[i64],
) -> Result<Tensor, TorchError> {
    let dim = parts.first().and_then(|part| part.size().get(1).copied()).unwrap_or(0);
    check(parts, |part| part.dim() == 2 && part.size()[1] == dim && dim > 0)?;
    let counts: Vec<i64> = parts.iter().map(|part| part.size()[0]).collect();
    let (rows, sums) = (counts.iter().sum::<i64>(), shape.iter().product::<i64>());
    let fits = length > 0 && sums * length as i64 == numbers.len() as i64;
    if !fits || numbers.iter().any(|&number| number != NO_ROW && i64::from(number) >= rows) {
        let count = numbers.len();
        let message = format!("{count} numbers of {rows} rows do not make {shape:?} sums of {length} each");
        return Err(TorchError { message });
    }
    let dim = dim as usize;
    let parts: Vec<Tensor> = parts.iter().map(contiguous).collect::<Result<_, _>>()?;
    let mut output = empty(&[shape, &[dim as i64]].concat()).map_err(torch)?;
    {
        let rows: Vec<&[f32]> = parts.iter().flat_map(|part| floats(part).chunks_exact(dim)).collect();
        let sums = floats_mut(&mut output).chunks_exact_mut(dim);
        for (sum, numbers) in sums.zip(numbers.chunks_exact(length)) {
            let mut named =
                numbers.iter().filter(|&&number| number != NO_ROW).map(|&number| rows[number as usize]);
            match named.next() {
                Some(first) => copy(first, sum),
                None => sum.fill(0.0),
            }
            named.for_each(|row| add(row, sum));
        }
    }
    let numbers = numbers.clone();
    with_backward(&parts, &[], &output, move |gradient, _| {
        let gradient = contiguous(gradient)?;
        let zeros = |&count: &i64| Tensor::f_zeros([count, dim as i64], (Kind::Float, Device::Cpu));
        let mut sums: Vec<Tensor> = counts.iter().map(zeros).collect::<Result<_, _>>().map_err(torch)?;
        let mut rows: Vec<&mut [f32]> =
            sums.iter_mut().flat_map(|sum| floats_mut(sum).chunks_exact_mut(dim)).collect();
        for (gradient, numbers) in floats(&gradient).chunks_exact(dim).zip(numbers.chunks_exact(length)) {
            for &number in numbers.iter().filter(|&&number| number != NO_ROW) {
                add(gradient, rows[number as usize]);
            }
        }
        Ok(sums)
    })
}

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

/// Numbers that are copied without a loop.
const FEW: usize = 8;

/// As `copy_from_slice`, for a few numbers: without a call.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<FEW>(), to.as_chunks_mut::<FEW>());
    from.iter().zip(to).for_each(|(from, to)| *to = *from);
    from_rest.iter().zip(to_rest).for_each(|(from, to)| *to = *from);
}

/// Adds a few numbers to others.
#[inline(always)]
fn add(numbers: &[f32], to: &mut [f32]) {
    let ((numbers, rest), (to, to_rest)) = (numbers.as_chunks::<FEW>(), to.as_chunks_mut::<FEW>());
    for (numbers, to) in numbers.iter().zip(to) {
        to.iter_mut().zip(numbers).for_each(|(to, number)| *to += number);
    }
    to_rest.iter_mut().zip(rest).for_each(|(to, number)| *to += number);
}

fn empty(shape: &[i64]) -> Result<Tensor, TchError> {
    Tensor::f_empty(shape, (Kind::Float, Device::Cpu))
}

fn contiguous(tensor: &Tensor) -> Result<Tensor, TorchError> {
    tensor.f_contiguous().map_err(torch)
}

fn check(tensors: &[Tensor], fits: impl Fn(&Tensor) -> bool) -> Result<(), TorchError> {
    let plain = |tensor: &Tensor| {
        tensor.device() == Device::Cpu
            && tensor.kind() == Kind::Float
            && !tensor.is_mkldnn()
            && !tensor.is_sparse()
    };
    match tensors.iter().find(|tensor| !plain(tensor) || !fits(tensor)) {
        None => Ok(()),
        Some(tensor) => Err(TorchError { message: format!("vectors do not come as {tensor:?}") }),
    }
}

fn torch(error: TchError) -> TorchError {
    TorchError { message: torch_message(&error) }
}

/// The numbers of a dense tensor of float32 in this machine's memory, one behind the other.
fn floats(tensor: &Tensor) -> &[f32] {
    if tensor.numel() == 0 {
        return &[];
    }
    // SAFETY: such a tensor (`check` and `contiguous`, or one just made here), which stays there as long as it is borrowed; who
    // calls this writes to no other handle on it meanwhile. Any bits are an f32.
    unsafe { slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

/// As [`floats`], of a tensor that was just made, and has no other handle.
fn floats_mut(tensor: &mut Tensor) -> &mut [f32] {
    if tensor.numel() == 0 {
        return &mut [];
    }
    // SAFETY: as above; nobody else has the memory.
    unsafe { slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;

    fn numbers(shape: &[i64], seed: i64) -> Tensor {
        let count = shape.iter().product::<i64>();
        let numbers = (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.7 + seed as f64).sin();
        numbers.view(shape).set_requires_grad(true)
    }

    fn gradients(output: &Tensor, inputs: &[Tensor]) -> Vec<Tensor> {
        let seed = numbers(&output.size(), 5).detach();
        let found = engine::grad(slice::from_ref(output), inputs, &[seed], true).unwrap();
        found.into_iter().map(Option::unwrap).collect()
    }

    fn assert_close(ours: &Tensor, theirs: &Tensor) {
        assert_eq!(ours.size(), theirs.size());
        assert!(ours.allclose(theirs, 1e-5, 1e-6, false), "{ours}\n{theirs}");
    }

    #[test]
    fn rows_and_their_gradients_are_those_of_index_select() {
        for dim in [1, 8, 19] {
            let parts = [numbers(&[3, dim], 1), numbers(&[0, dim], 2), numbers(&[2, dim], 3)];
            let named = [4u32, 0, 0, 2, 3, 4];
            let places = Tensor::from_slice(&named.map(i64::from));
            let theirs = Tensor::cat(&parts, 0).index_select(0, &places).view([2, 3, dim]);
            let ours = sums_of_rows(&parts, &Arc::from(named), 1, &[2, 3]).unwrap();
            assert_eq!(ours, theirs);
            let sums = sums_of_rows(&parts, &Arc::from(named), 3, &[2]).unwrap();
            let their_sums = theirs.sum_dim_intlist(1, false, None);
            for (ours, theirs) in [(ours, theirs), (sums, their_sums)] {
                assert_close(&ours, &theirs);
                for (ours, theirs) in gradients(&ours, &parts).iter().zip(&gradients(&theirs, &parts)) {
                    assert_close(ours, theirs);
                }
            }
        }
    }

    #[test]
    fn where_no_row_is_named_a_sum_has_none() {
        let parts = [numbers(&[3, 2], 1)];
        let named = [NO_ROW, 2, NO_ROW, NO_ROW];
        let sums = sums_of_rows(&parts, &Arc::from(named), 2, &[2]).unwrap();
        assert_close(&sums, &Tensor::stack(&[parts[0].get(2), Tensor::zeros_like(&parts[0].get(2))], 0));
        let gradient = &gradients(&sums, &parts)[0];
        assert_close(&gradient.get(2), &numbers(&[2, 2], 5).get(0));
        assert_eq!(gradient.narrow(0, 0, 2).abs().max().double_value(&[]), 0.0);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let parts = [numbers(&[3, 4], 1)];
        for (named, length, shape) in [([3u32, 0], 1, 2), ([0, 0], 1, 3), ([0, 0], 0, 2), ([0, 0], 2, 2)] {
            assert!(sums_of_rows(&parts, &Arc::from(named), length, &[shape]).is_err(), "{named:?}");
        }
        let doubles = [parts[0].to_kind(Kind::Double)];
        assert!(sums_of_rows(&doubles, &Arc::from([0u32]), 1, &[1]).is_err());
        let wrong = [numbers(&[3, 4], 1), numbers(&[2, 4], 2)];
        assert!(pair_dots(&[&wrong[0], &wrong[1]], false).is_err());
        assert!(pair_dots(&[], false).is_err());
    }

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
    fn rows_are_copied_wherever_they_stand() {
        let table: Vec<f32> = (0..60).map(|number| number as f32).collect();
        let places: Vec<u32> = (0..20).rev().collect();
        let rows = Vec::<Vec<f32>>::try_from(copied_rows(&table, &places, 3).unwrap()).unwrap();
        assert_eq!(rows[0], [57.0, 58.0, 59.0]);
        assert_eq!(rows.concat().len(), 60);
        assert_eq!(copied_rows(&table, &[], 3).unwrap().size(), [0, 3]);
        prefetch(&table, 1000);
        let turned = Tensor::from_slice(&table).view([20, 3]).transpose(0, 1);
        assert_eq!(numbers_of(&turned).unwrap()[..3], [0.0, 3.0, 6.0]);
        assert!(numbers_of(&turned.to_kind(Kind::Double)).is_err());
    }
}
