//! Rows of tables: copied, and summed up, with a backward of their own.

use std::mem;
use std::ops::{Deref, Range};
use std::slice;
use std::sync::Arc;

use tch::{TchError, Tensor};

use super::{add, check, contiguous, copy, empty, floats, floats_mut, torch};
use crate::{TorchError, with_backward};

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
#[derive(Debug)]
pub struct Numbers(Tensor);

impl Numbers {
    /// Takes the tensor over: who has another handle on its memory leaves that as it is.
    ///
    /// # Errors
    /// It is not of float32, or not in this machine's memory.
    pub fn of(tensor: Tensor) -> Result<Numbers, TorchError> {
        check(slice::from_ref(&tensor), |_| true)?;
        Ok(Numbers(contiguous(&tensor)?))
    }
}

impl Deref for Numbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        floats(&self.0)
    }
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
    let fits = dim > 0 && length > 0 && sums * length as i64 == numbers.len() as i64 && rows <= NO_ROW.into();
    if !fits || numbers.iter().any(|&number| number != NO_ROW && i64::from(number) >= rows) {
        let count = numbers.len();
        let message = format!("{count} numbers of {rows} rows do not make {shape:?} sums of {length} each");
        return Err(TorchError { message });
    }
    let dim = dim as usize;
    let rows = RowsOfParts::new(&counts, dim);
    let parts: Vec<Tensor> = parts.iter().map(contiguous).collect::<Result<_, _>>()?;
    let mut output = empty(&[shape, &[dim as i64]].concat()).map_err(torch)?;
    {
        let parts: Vec<&[f32]> = parts.iter().map(floats).collect();
        let sums = floats_mut(&mut output).chunks_exact_mut(dim);
        for (sum, numbers) in sums.zip(numbers.chunks_exact(length)) {
            let mut named = numbers.iter().filter(|&&number| number != NO_ROW).map(|&number| {
                let (part, row) = rows.place(number);
                &parts[part][row]
            });
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
        let made: Result<Vec<Tensor>, TchError> =
            counts.iter().map(|&count| empty(&[count, dim as i64])).collect();
        let mut made = made.map_err(torch)?;
        let mut parts: Vec<&mut [f32]> = made.iter_mut().map(floats_mut).collect();
        // Most rows are there once: what they are is copied, not added to zeros.
        let mut begun = vec![false; counts.iter().sum::<i64>() as usize];
        for (gradient, numbers) in floats(&gradient).chunks_exact(dim).zip(numbers.chunks_exact(length)) {
            for &number in numbers.iter().filter(|&&number| number != NO_ROW) {
                let (part, row) = rows.place(number);
                match mem::replace(&mut begun[number as usize], true) {
                    false => copy(gradient, &mut parts[part][row]),
                    true => add(gradient, &mut parts[part][row]),
                }
            }
        }
        for (number, _) in (0..).zip(&begun).filter(|(_, begun)| !**begun) {
            let (part, row) = rows.place(number);
            parts[part][row].fill(0.0);
        }
        Ok(made)
    })
}

/// Where rows stand that are counted through several parts.
struct RowsOfParts {
    dim: usize,
    /// The number of each part's first row.
    firsts: Vec<u32>,
}

impl RowsOfParts {
    fn new(counts: &[i64], dim: usize) -> RowsOfParts {
        let firsts = counts.iter().scan(0, |next, &count| {
            let first = *next;
            *next += count;
            Some(first as u32)
        });
        RowsOfParts { dim, firsts: firsts.collect() }
    }

    /// A row's part, and its numbers there.
    #[inline(always)]
    fn place(&self, number: u32) -> (usize, Range<usize>) {
        // Parts are few, and counting them has no branch to be guessed wrong.
        let part = self.firsts.iter().skip(1).filter(|&&first| first <= number).count();
        let start = (number - self.firsts[part]) as usize * self.dim;
        (part, start..start + self.dim)
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::vectors::tests::{assert_close, gradients, numbers};

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
    fn numbers_that_do_not_fit_are_refused() {
        let parts = [numbers(&[3, 4], 1)];
        for (named, length, shape) in [([3u32, 0], 1, 2), ([0, 0], 1, 3), ([0, 0], 0, 2), ([0, 0], 2, 2)] {
            assert!(sums_of_rows(&parts, &Arc::from(named), length, &[shape]).is_err(), "{named:?}");
        }
        let doubles = [parts[0].to_kind(Kind::Double)];
        assert!(sums_of_rows(&doubles, &Arc::from([0u32]), 1, &[1]).is_err());
        assert!(sums_of_rows(&[], &Arc::from([NO_ROW]), 1, &[1]).is_err());
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
        assert!(Numbers::of(turned.to_kind(Kind::Double)).is_err());
        assert_eq!(Numbers::of(turned).unwrap()[..3], [0.0, 3.0, 6.0]);
    }
}
