//! A range of a module's parameters, piece by piece. Pure.

use std::ops::Range;

use anyhow::Result;
use tch::{Device, Tensor};

/// A part of one parameter, which lies in one range. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Its position in the module.
    pub parameter: usize,
    /// In elements, of the parameter taken as a vector.
    pub from: i64,
    pub to: i64,
}

/// The segments of a range of parameters of these sizes, in elements, taken as one vector.
pub(super) fn segments(sizes: &[u64], range: &Range<u64>) -> Vec<Segment> {
    let mut start = 0;
    let segment = |(parameter, size): (usize, &u64)| {
        let whole = start..start + size;
        start = whole.end;
        let (from, to) = (range.start.max(whole.start), range.end.min(whole.end));
        (from < to).then(|| Segment {
            parameter,
            from: (from - whole.start) as i64,
            to: (to - whole.start) as i64,
        })
    };
    sizes.iter().enumerate().filter_map(segment).collect()
}

impl Segment {
    pub(super) fn len(&self) -> i64 {
        self.to - self.from
    }

    /// This part of `parameter`, a vector over the same storage.
    pub(super) fn view(&self, parameter: &Tensor) -> Result<Tensor> {
        Ok(parameter.f_view([-1])?.f_narrow(0, self.from, self.len())?)
    }

    /// This part of `gradient`, on the CPU.
    pub(super) fn of(&self, gradient: &Tensor) -> Result<Tensor> {
        Ok(gradient.f_reshape([-1])?.f_narrow(0, self.from, self.len())?.f_to_device(Device::Cpu)?)
    }
}

/// The marked ones of `pieces`, one behind the other. `None`: none is marked.
pub(super) fn gather(pieces: &[Tensor], marks: &[bool]) -> Result<Option<Tensor>> {
    let marked: Vec<&Tensor> =
        pieces.iter().zip(marks).filter(|(_, marked)| **marked).map(|(piece, _)| piece).collect();
    Ok(if marked.is_empty() { None } else { Some(Tensor::f_cat(&marked, 0)?) })
}

/// The reverse: for each segment its part of `gathered`, which is as long as the marked ones together.
pub(super) fn spread(
    gathered: Option<&Tensor>,
    lengths: &[i64],
    marks: &[bool],
) -> Result<Vec<Option<Tensor>>> {
    let mut start = 0;
    let part = |(length, marked): (&i64, &bool)| {
        let Some(gathered) = gathered.filter(|_| *marked) else { return Ok(None) };
        let part = gathered.f_narrow(0, start, *length)?;
        start += length;
        Ok(Some(part))
    };
    lengths.iter().zip(marks).map(part).collect()
}

/// How long the marked segments are together.
pub(super) fn marked_length(lengths: &[i64], marks: &[bool]) -> i64 {
    lengths.iter().zip(marks).filter(|(_, marked)| **marked).map(|(length, _)| length).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::ranges;

    #[test]
    fn a_large_parameter_is_cut_where_a_range_ends() {
        let cut = |range| segments(&[4, 10, 0, 2], &range);
        let segment = |parameter, from, to| Segment { parameter, from, to };
        assert_eq!(cut(0..8), [segment(0, 0, 4), segment(1, 0, 4)]);
        assert_eq!(cut(8..16), [segment(1, 4, 10), segment(3, 0, 2)]);
        assert_eq!(cut(3..3), []);
    }

    #[test]
    fn what_is_gathered_is_spread_again() {
        let pieces = [1.0, 2.0, 3.0].map(|value| Tensor::from_slice(&[value, value]));
        let marks = [true, false, true];
        let gathered = gather(&pieces, &marks).unwrap().unwrap();
        assert_eq!(marked_length(&[2, 2, 2], &marks), 4);
        let parts = spread(Some(&gathered), &[2, 2, 2], &marks).unwrap();
        assert!(parts[1].is_none() && parts[2].as_ref().unwrap() == &pieces[2]);
        assert!(gather(&pieces, &[false; 3]).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn every_element_of_every_parameter_is_in_one_segment(
            sizes in proptest::collection::vec(0u64..300, 1..12),
            servers in 1usize..9,
        ) {
            let mut reached = vec![0i64; sizes.len()];
            for range in ranges(sizes.iter().sum(), servers) {
                let mut length = 0;
                for segment in segments(&sizes, &range) {
                    prop_assert_eq!(segment.from, reached[segment.parameter]);
                    reached[segment.parameter] = segment.to;
                    length += segment.len();
                }
                prop_assert_eq!(length as u64, range.end - range.start);
            }
            prop_assert!(reached.iter().zip(&sizes).all(|(reached, size)| *reached as u64 == *size));
        }
    }
}
