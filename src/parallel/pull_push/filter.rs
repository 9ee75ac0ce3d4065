//! What a vector becomes on its way, and back. Pure.
//!
//! - `PF-1` What arrives is what [`encode`] says arrives, to the bit: sender and receiver add the same numbers.
//! - `PF-2` Whatever comes, [`decode`] gives a vector of the length that was expected, of finite numbers, or an error.

use anyhow::{Context as _, Result, bail, ensure};
use tch::{Kind, Tensor};

use crate::job::Filter;

/// A vector on its way.
#[derive(Debug, Default)]
pub(super) struct Encoded(pub Vec<Tensor>);

impl Encoded {
    /// The size of what travels.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|part| (part.numel() * part.kind().elt_size_in_bytes()) as u64).sum()
    }
}

/// The largest finite numbers of float16 and bfloat16.
const LARGEST_HALF: f64 = 65504.0;
const LARGEST_BFLOAT16: f64 = 3.3895313892515355e38;
/// The largest of int8, and of the negative ones the smallest, so that zero is in the middle.
const LARGEST_INT8: f64 = 127.0;
/// Offsets within a block are sent from -32768 on, as the sixteen bits of an int16.
const FIRST_OFFSET: i64 = -(1 << 15);

/// A vector of f32 on the CPU, not empty, as it travels, and what of it arrives.
///
/// # Errors
/// A filter that leaves something out takes finite numbers only.
pub(super) fn encode(filter: Filter, values: &Tensor) -> Result<(Encoded, Tensor)> {
    if filter != Filter::None && !all_finite(values)? {
        bail!(
            "numbers that are not finite do not go through a filter\n  hint: lower optimizer.lr, or set pull_push.filter = \"none\""
        );
    }
    let parts = match filter {
        Filter::None => vec![values.shallow_clone()],
        Filter::Fp16 => vec![values.f_clamp(-LARGEST_HALF, LARGEST_HALF)?.f_to_kind(Kind::Half)?],
        Filter::Bf16 => vec![values.f_clamp(-LARGEST_BFLOAT16, LARGEST_BFLOAT16)?.f_to_kind(Kind::BFloat16)?],
        Filter::Int8 => encode_int8(values)?,
        Filter::TopK { share } => encode_top_k(values, share)?,
    };
    let arrives = read(filter, parts.iter().map(Tensor::shallow_clone).collect(), values.numel() as i64)?;
    Ok((Encoded(parts), arrives))
}

/// The vector of f32 of so many elements that `parts` stand for, which may come from anywhere.
///
/// # Errors
/// They stand for none.
pub(super) fn decode(filter: Filter, parts: Vec<Tensor>, elements: i64) -> Result<Tensor> {
    let values = read(filter, parts, elements)?;
    ensure!(
        filter == Filter::None || all_finite(&values)?,
        "numbers that are not finite came through a filter"
    );
    Ok(values)
}

/// As [`decode`], of numbers that need not be finite.
fn read(filter: Filter, parts: Vec<Tensor>, elements: i64) -> Result<Tensor> {
    let mut parts = parts.into_iter();
    let mut next = |kind, elements| part(parts.next(), kind, elements);
    let values = match filter {
        Filter::None => next(Kind::Float, elements)?,
        Filter::Fp16 => next(Kind::Half, elements)?.f_to_kind(Kind::Float)?,
        Filter::Bf16 => next(Kind::BFloat16, elements)?.f_to_kind(Kind::Float)?,
        Filter::Int8 => {
            let blocks = blocks(elements, Filter::INT8_BLOCK);
            decode_int8(&next(Kind::Int8, elements)?, &next(Kind::Float, blocks)?)?
        }
        Filter::TopK { share } => {
            let kept = Filter::kept(share, elements as u64) as i64;
            let counts = next(Kind::Int, blocks(elements, Filter::TOP_K_BLOCK))?;
            decode_top_k(&counts, &next(Kind::Int16, kept)?, &next(Kind::Float, kept)?, elements)?
        }
    };
    ensure!(parts.next().is_none(), "more came than the filter sends");
    Ok(values)
}

fn part(part: Option<Tensor>, kind: Kind, elements: i64) -> Result<Tensor> {
    let part = part.context("less came than the filter sends")?;
    let (came, size) = (part.f_kind()?, part.size());
    ensure!(
        came == kind && size == [elements],
        "{came:?} of shape {size:?} came where the filter sends {elements} of {kind:?}"
    );
    Ok(part)
}

fn all_finite(values: &Tensor) -> Result<bool> {
    // The one pass that sees to NaN and to both infinities: a NaN is the least and the largest.
    let (least, largest) = values.f_aminmax(None, false)?;
    Ok(least.f_double_value(&[])?.is_finite() && largest.f_double_value(&[])?.is_finite())
}

fn blocks(elements: i64, block: u64) -> i64 {
    (elements as u64).div_ceil(block) as i64
}

/// Rows of one block each, the last filled up with zeros.
fn int8_rows(values: &Tensor) -> Result<Tensor> {
    let (elements, block) = (values.numel() as i64, Filter::INT8_BLOCK as i64);
    let rows = blocks(elements, Filter::INT8_BLOCK);
    Ok(values.f_constant_pad_nd([0, rows * block - elements])?.f_view([rows, block])?)
}

/// The nearest of 255 steps from the largest value of the block to its negative, by block (as QSGD, Alistarh et al.
/// 2017, but to the nearest: error feedback sees to the rest).
fn encode_int8(values: &Tensor) -> Result<Vec<Tensor>> {
    let rows = int8_rows(values)?;
    let scales = rows.f_abs()?.f_amax([1], true)?.f_div_scalar(LARGEST_INT8)?;
    // A block of zeros has none; what a scale is too small for is left out.
    let divisors = scales.f_clamp_min(f64::from(f32::MIN_POSITIVE))?;
    let steps = rows.f_div(&divisors)?.f_round_()?.f_clamp_(-LARGEST_INT8, LARGEST_INT8)?;
    let steps = steps.f_to_kind(Kind::Int8)?.f_view([-1])?.f_narrow(0, 0, values.numel() as i64)?;
    Ok(vec![steps, scales.f_view([-1])?])
}

fn decode_int8(steps: &Tensor, scales: &Tensor) -> Result<Tensor> {
    let rows = int8_rows(steps)?.f_to_kind(Kind::Float)?.f_mul(&scales.f_unsqueeze(1)?)?;
    Ok(rows.f_view([-1])?.f_narrow(0, 0, steps.numel() as i64)?)
}

/// How many of the largest are in each block; their offsets in it, ascending; the values.
fn encode_top_k(values: &Tensor, share: f64) -> Result<Vec<Tensor>> {
    let (elements, block) = (values.numel() as i64, Filter::TOP_K_BLOCK as i64);
    let kept = Filter::kept(share, elements as u64) as i64;
    let (_, largest) = values.f_abs()?.f_topk(kept, 0, true, false)?;
    let (indices, _) = largest.f_sort(0, false)?;
    let in_block = indices.f_floor_divide_scalar(block)?;
    let counts = in_block.f_bincount(None::<Tensor>, blocks(elements, Filter::TOP_K_BLOCK))?;
    let offsets = indices.f_remainder(block)?.f_add_scalar(FIRST_OFFSET)?;
    Ok(vec![
        counts.f_to_kind(Kind::Int)?,
        offsets.f_to_kind(Kind::Int16)?,
        values.f_index_select(0, &indices)?,
    ])
}

fn decode_top_k(counts: &Tensor, offsets: &Tensor, kept: &Tensor, elements: i64) -> Result<Tensor> {
    let (block, counts) = (Filter::TOP_K_BLOCK as i64, counts.f_to_kind(Kind::Int64)?);
    let fits = |count: &i64| (0..=block).contains(count);
    let in_blocks = Vec::<i64>::try_from(&counts)?;
    let right = in_blocks.iter().all(fits) && in_blocks.iter().sum::<i64>() == kept.numel() as i64;
    ensure!(right, "the blocks' numbers of values do not add up");
    let in_block = Tensor::f_repeat_interleave(&counts, kept.numel() as i64)?;
    let offsets = offsets.f_to_kind(Kind::Int64)?.f_sub_scalar(FIRST_OFFSET)?;
    let indices = in_block.f_mul_scalar(block)?.f_add(&offsets)?;
    let ascending = Vec::<i64>::try_from(&indices)?;
    let right = ascending.windows(2).all(|pair| pair[0] < pair[1]) && ascending.last() < Some(&elements);
    ensure!(right, "the indices of values are not ascending, or are beyond {elements}");
    let mut values = Tensor::f_zeros([elements], (Kind::Float, kept.device()))?;
    Ok(values.f_index_copy_(0, &indices, kept)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOP_K: Filter = Filter::TopK { share: 0.1 };
    const LOSSY: [Filter; 4] = [Filter::Fp16, Filter::Bf16, Filter::Int8, TOP_K];

    fn vector(values: &[f32]) -> Tensor {
        Tensor::from_slice(values)
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor).unwrap()
    }

    fn sent(filter: Filter, values: &[f32]) -> (Encoded, Vec<f32>) {
        let (encoded, arrives) = encode(filter, &vector(values)).unwrap();
        (encoded, numbers(&arrives))
    }

    /// Values of every magnitude, zeros and subnormal ones among them.
    fn any_values() -> impl Strategy<Value = Vec<f32>> {
        let any = prop_oneof![4 => -1.0f32..1.0, 1 => Just(0.0), 2 => proptest::num::f32::NORMAL
            | proptest::num::f32::SUBNORMAL | proptest::num::f32::ZERO];
        proptest::collection::vec(any, 1..2000)
    }

    proptest! {
        /// PF-1
        #[test]
        fn what_arrives_is_what_the_sender_thinks_and_takes_as_many_bytes_as_planned(values in any_values()) {
            for filter in LOSSY.into_iter().chain([Filter::None]) {
                let (encoded, arrives) = sent(filter, &values);
                prop_assert_eq!(encoded.bytes(), filter.bytes(values.len() as u64));
                let decoded = decode(filter, encoded.0, values.len() as i64).unwrap();
                prop_assert_eq!(numbers(&decoded), arrives);
            }
        }

        #[test]
        fn what_is_left_out_is_small(values in any_values()) {
            let largest = |values: &[f32]| values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let (_, arrives) = sent(Filter::Int8, &values);
            for (block, arrived) in values.chunks(256).zip(arrives.chunks(256)) {
                // Scales are normal numbers: what is below 127 of the smallest is left out.
                let bound = largest(block) / 127.0 * 0.501 + 127.0 * f32::MIN_POSITIVE;
                prop_assert!(block.iter().zip(arrived).all(|(value, arrived)| (value - arrived).abs() <= bound));
            }
            let (_, arrives) = sent(Filter::Bf16, &values);
            for (value, arrived) in values.iter().zip(arrives) {
                prop_assert!((value - arrived).abs() <= value.abs() / 128.0 + f32::MIN_POSITIVE);
            }
        }

        #[test]
        fn top_k_sends_the_largest_as_they_are_and_nothing_else(values in any_values()) {
            let (_, arrives) = sent(TOP_K, &values);
            let kept = Filter::kept(0.1, values.len() as u64) as usize;
            let mut sizes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
            sizes.sort_by(|a, b| b.total_cmp(a));
            for (value, arrived) in values.iter().zip(&arrives) {
                prop_assert!(*arrived == 0.0 && value.abs() <= sizes[kept - 1] || arrived == value);
            }
            let sum = |values: &[f32]| values.iter().map(|value| f64::from(value.abs())).sum::<f64>();
            prop_assert!(sum(&arrives) >= sum(&sizes[..kept]) * (1.0 - 1e-9));
        }

        /// PP-3: whatever is sent again and again arrives in the end.
        #[test]
        fn with_its_error_fed_back_every_filter_delivers_everything(values in proptest::collection::vec(-1.0f32..1.0, 1..300)) {
            for filter in LOSSY {
                let given = vector(&values);
                let mut left = given.shallow_clone();
                for _ in 0..12 {
                    let (_, arrives) = encode(filter, &left).unwrap();
                    left -= arrives;
                }
                let left = left.abs().max().double_value(&[]);
                prop_assert!(left < 1e-6, "{:?}: {}", filter, left);
            }
        }

        /// PF-2
        #[test]
        fn tensors_from_anywhere_are_a_vector_or_an_error(
            parts in proptest::collection::vec((0usize..5, proptest::collection::vec(any::<i16>(), 0..40)), 0..4),
            elements in 1i64..200,
        ) {
            let kinds = [Kind::Float, Kind::Half, Kind::Int8, Kind::Int, Kind::Int16];
            for filter in LOSSY {
                let parts = parts.iter().map(|(kind, values)| Tensor::from_slice(values).to_kind(kinds[*kind]));
                if let Ok(decoded) = decode(filter, parts.collect(), elements) {
                    prop_assert_eq!(decoded.size(), [elements]);
                    prop_assert!(numbers(&decoded).iter().all(|value| value.is_finite()));
                }
            }
        }
    }

    #[test]
    fn large_vectors_go_over_several_blocks() {
        let values: Vec<f32> = (0..200_000).map(|i| ((i * 7919) % 100_003) as f32 - 50_000.0).collect();
        let (encoded, arrives) = sent(TOP_K, &values);
        assert_eq!(encoded.0[0].size(), [4]);
        assert_eq!(arrives.iter().filter(|value| **value != 0.0).count(), 20_000);
        assert_eq!(numbers(&decode(TOP_K, encoded.0, 200_000).unwrap()), arrives);
    }

    #[test]
    fn a_large_number_is_sent_as_the_largest_there_is() {
        assert_eq!(sent(Filter::Fp16, &[1e6, -1e30]).1, [65504.0, -65504.0]);
        assert!(sent(Filter::Bf16, &[f32::MAX]).1[0].is_finite());
    }

    #[test]
    fn a_number_that_is_not_finite_goes_through_no_filter() {
        for filter in LOSSY {
            for bad in [f32::NAN, f32::INFINITY] {
                let said = encode(filter, &vector(&[1.0, bad])).unwrap_err().to_string();
                assert!(said.contains("not finite"), "{said}");
            }
        }
        assert!(encode(Filter::None, &vector(&[f32::NAN])).is_ok());
    }

    #[test]
    fn what_a_hostile_peer_sends_is_refused_with_the_reason() {
        let refused = |filter, parts: Vec<Tensor>, elements, why: &str| {
            let said = decode(filter, parts, elements).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        };
        let scales = |scale: f32| vec![Tensor::from_slice(&[100i8, 3]), vector(&[scale])];
        refused(Filter::Int8, scales(f32::NAN), 2, "not finite");
        refused(Filter::Int8, scales(f32::INFINITY), 2, "not finite");
        refused(Filter::Int8, scales(f32::MAX), 2, "not finite");
        refused(Filter::Int8, scales(1.0), 3, "Int8 of shape [2] came where the filter sends 3 of Int8");
        refused(Filter::Int8, scales(1.0).into_iter().take(1).collect(), 2, "less came");
        refused(Filter::None, vec![vector(&[1.0]), vector(&[1.0])], 1, "more came");
        refused(Filter::None, vec![vector(&[1.0]).view([1, 1])], 1, "of shape [1, 1]");
        let entries = |counts: &[i32], offsets: &[i16]| {
            vec![Tensor::from_slice(counts), Tensor::from_slice(offsets), vector(&vec![1.0; offsets.len()])]
        };
        let share = Filter::TopK { share: 0.2 };
        let at = |offset: i64| (offset + FIRST_OFFSET) as i16;
        assert!(decode(share, entries(&[2], &[at(0), at(9)]), 10).is_ok());
        refused(share, entries(&[2], &[at(0), at(10)]), 10, "beyond 10");
        refused(share, entries(&[2], &[at(4), at(4)]), 10, "not ascending");
        refused(share, entries(&[3], &[at(4), at(5)]), 10, "do not add up");
        refused(share, entries(&[-1], &[at(4), at(5)]), 10, "do not add up");
        refused(share, entries(&[1], &[at(4)]), 10, "of shape [1] came where the filter sends 2 of Int16");
    }
}
