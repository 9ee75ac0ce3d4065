//! A run of a tensor's numbers as boxes, which is how safetensors and PyTorch's distributed checkpoints know parts of tensors.

/// Part of a tensor: where it begins in each dimension, and how far it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub offsets: Vec<i64>,
    pub sizes: Vec<i64>,
    /// Its first number, of the tensor taken as a vector. The others follow one another.
    pub from: u64,
    pub count: u64,
}

/// The numbers `from..to` of a tensor taken as a vector, in as few blocks as may be, in order.
pub fn blocks(shape: &[i64], from: u64, to: u64) -> Vec<Block> {
    let whole: u64 = shape.iter().map(|&size| size as u64).product();
    if from == to {
        // That it has nothing is said of an empty tensor, too.
        let empty = Block { offsets: vec![0; shape.len()], sizes: shape.into(), from, count: 0 };
        return if whole == 0 { vec![empty] } else { Vec::new() };
    }
    // So many numbers has an index of each dimension.
    let mut strides = vec![1u64; shape.len()];
    for dimension in (1..shape.len()).rev() {
        strides[dimension - 1] = strides[dimension] * shape[dimension] as u64;
    }
    let (mut found, mut at) = (Vec::new(), from);
    while at < to {
        let fits =
            |&dimension: &usize| at.is_multiple_of(strides[dimension]) && at + strides[dimension] <= to;
        let Some(dimension) = (0..shape.len()).find(fits) else {
            // A number alone.
            found.push(Block { offsets: Vec::new(), sizes: Vec::new(), from: at, count: 1 });
            break;
        };
        let index = |dimension: usize| (at / strides[dimension]) as i64 % shape[dimension];
        let room = (shape[dimension] - index(dimension)) as u64;
        let steps = room.min((to - at) / strides[dimension]);
        let offsets = (0..shape.len()).map(|of| if of <= dimension { index(of) } else { 0 }).collect();
        let size = |of: usize| match of.cmp(&dimension) {
            std::cmp::Ordering::Less => 1,
            std::cmp::Ordering::Equal => steps as i64,
            std::cmp::Ordering::Greater => shape[of],
        };
        let count = steps * strides[dimension];
        found.push(Block { offsets, sizes: (0..shape.len()).map(size).collect(), from: at, count });
        at += count;
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_run_of_a_matrix_is_the_end_of_a_row_rows_and_the_beginning_of_one() {
        let shown: Vec<(Vec<i64>, Vec<i64>)> =
            blocks(&[5, 4], 3, 14).into_iter().map(|block| (block.offsets, block.sizes)).collect();
        assert_eq!(shown, [(vec![0, 3], vec![1, 1]), (vec![1, 0], vec![2, 4]), (vec![3, 0], vec![1, 2])]);
        assert_eq!(blocks(&[], 0, 1).len(), 1);
        assert_eq!(blocks(&[0, 3], 0, 0)[0].sizes, [0, 3]);
        assert_eq!(blocks(&[5, 4], 7, 7), []);
    }

    proptest! {
        #[test]
        fn blocks_have_each_number_of_the_run_once_and_in_order(
            shape in prop::collection::vec(1i64..5, 1..4),
            ends in (0u64..100, 0u64..100),
        ) {
            let all: u64 = shape.iter().map(|&size| size as u64).product();
            let (from, to) = (ends.0.min(ends.1).min(all), ends.0.max(ends.1).min(all));
            let mut at = from;
            for block in blocks(&shape, from, to) {
                prop_assert_eq!(block.from, at);
                prop_assert_eq!(block.count, block.sizes.iter().product::<i64>() as u64);
                let first = block.offsets.iter().zip(&shape).fold(0, |at, (offset, size)| at * size + offset);
                prop_assert_eq!(first as u64, at);
                let fits = block.offsets.iter().zip(&block.sizes).zip(&shape);
                prop_assert!(fits.into_iter().all(|((offset, size), whole)| offset + size <= *whole));
                at += block.count;
            }
            prop_assert!(at == to || from == to);
        }
    }
}
