//! Whether numbers are finite: one look at each, with no kernel and no tensor made for the question where they lie in this
//! machine's memory.

use std::fmt;
use std::ops::BitOr;

use tch::{Device, Kind, TchError, Tensor};

/// What is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFinite {
    Nan,
    Infinite,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotFinite::Nan => "NaN",
            NotFinite::Infinite => "infinite",
        })
    }
}

/// What of `tensor` is not finite: NaN, if there is one. Of a sparse tensor its values count; whole numbers are finite.
///
/// # Errors
/// What libtorch refuses.
pub fn not_finite(tensor: &Tensor) -> Result<Option<NotFinite>, TchError> {
    if tensor.is_sparse() {
        return not_finite(&tensor.f_internal_values()?);
    }
    let kind = tensor.f_kind()?;
    let is_plain = tensor.device() == Device::Cpu && !tensor.is_mkldnn() && tensor.is_contiguous();
    let count = tensor.numel();
    let all_finite = match kind {
        _ if count == 0 => true,
        Kind::Float | Kind::Double if !is_plain || count > FEW => are_finite_by_sum(tensor)?,
        Kind::Float => {
            // SAFETY: a dense tensor in this machine's memory, whose `count` numbers of four bytes lie one behind the other
            // and stay there as long as it is borrowed. Any bits are a u32.
            are_finite(unsafe { std::slice::from_raw_parts(tensor.data_ptr() as *const u32, count) })
        }
        Kind::Double => {
            // SAFETY: as above, of eight bytes each.
            are_finite(unsafe { std::slice::from_raw_parts(tensor.data_ptr() as *const u64, count) })
        }
        Kind::Half | Kind::BFloat16 => bool::try_from(tensor.f_isfinite()?.f_all()?)?,
        _ => true,
    };
    if all_finite {
        return Ok(None);
    }
    let has_nan = bool::try_from(tensor.f_isnan()?.f_any()?)?;
    Ok(Some(if has_nan { NotFinite::Nan } else { NotFinite::Infinite }))
}

/// Up to so many numbers are looked at here; more are worth libtorch's threads, and what is on a GPU stays there.
const FEW: usize = 1 << 18;

/// One number that is not finite makes a sum that is not. Large finite ones may, too: then each is looked at.
fn are_finite_by_sum(tensor: &Tensor) -> Result<bool, TchError> {
    let sum = tensor.f_sum(tensor.f_kind()?)?.f_double_value(&[])?;
    if sum.is_finite() {
        return Ok(true);
    }
    bool::try_from(tensor.f_isfinite()?.f_all()?)
}

/// What of `numbers` is not finite: NaN, if there is one.
pub fn not_finite_numbers(numbers: &[f32]) -> Option<NotFinite> {
    let wrong = |what: fn(f32) -> bool| numbers.iter().fold(false, |wrong, &number| wrong | what(number));
    if !wrong(|number| !number.is_finite()) {
        return None;
    }
    Some(if wrong(f32::is_nan) { NotFinite::Nan } else { NotFinite::Infinite })
}

/// The bits of a number.
trait Bits: Copy + Default + BitOr<Output = Self> {
    /// Those of its exponent and one added to that: the highest bit becomes one where all of the exponent were, as in
    /// infinities and NaN.
    fn beyond_exponent(self) -> Self;

    fn has_highest(self) -> bool;
}

impl Bits for u32 {
    fn beyond_exponent(self) -> u32 {
        (self & 0x7f80_0000).wrapping_add(0x0080_0000)
    }

    fn has_highest(self) -> bool {
        self >> 31 == 1
    }
}

impl Bits for u64 {
    fn beyond_exponent(self) -> u64 {
        (self & 0x7ff0_0000_0000_0000).wrapping_add(0x0010_0000_0000_0000)
    }

    fn has_highest(self) -> bool {
        self >> 63 == 1
    }
}

/// Every gradient of every step comes by here, so it takes the widest registers that there are.
fn are_finite<T: Bits>(numbers: &[T]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn with_avx2<T: Bits>(numbers: &[T]) -> bool {
            scan(numbers)
        }
        // SAFETY: the processor has been asked.
        return unsafe { with_avx2(numbers) };
    }
    scan(numbers)
}

/// Without a branch for each number, so that many are looked at at once.
#[inline(always)]
fn scan<T: Bits>(numbers: &[T]) -> bool {
    const AT_ONCE: usize = 4096;
    let all = |some: &[T]| some.iter().fold(T::default(), |all, number| all | number.beyond_exponent());
    numbers.chunks(AT_ONCE).all(|some| !all(some).has_highest())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: [(f64, NotFinite); 3] = [
        (f64::NAN, NotFinite::Nan),
        (f64::INFINITY, NotFinite::Infinite),
        (f64::NEG_INFINITY, NotFinite::Infinite),
    ];

    #[test]
    fn one_number_of_many_is_found_wherever_it_is_and_whatever_the_dtype() {
        for kind in [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16] {
            let plain = Tensor::full([3, 5000], 1e4, (kind, Device::Cpu));
            assert_eq!(not_finite(&plain).unwrap(), None);
            for (odd, what) in ODD {
                for (row, column) in [(0, 0), (1, 4095), (2, 4999)] {
                    let tensor = plain.copy();
                    let _ = tensor.get(row).get(column).fill_(odd);
                    assert_eq!(not_finite(&tensor).unwrap(), Some(what), "{kind:?} {odd}");
                    assert_eq!(not_finite(&tensor.transpose(0, 1)).unwrap(), Some(what), "{kind:?} {odd}");
                }
            }
        }
    }

    #[test]
    fn the_largest_numbers_are_finite_and_so_is_nothing() {
        let largest = Tensor::from_slice(&[f32::MAX, f32::MIN, f32::MIN_POSITIVE, 0.0, -0.0]);
        assert_eq!(not_finite(&largest).unwrap(), None);
        assert_eq!(not_finite(&Tensor::from_slice(&[f64::MAX, f64::MIN])).unwrap(), None);
        assert_eq!(not_finite(&Tensor::zeros([0, 3], (Kind::Float, Device::Cpu))).unwrap(), None);
        assert_eq!(not_finite(&Tensor::from_slice(&[i64::MAX])).unwrap(), None);
        assert_eq!(not_finite_numbers(&[]), None);
    }

    #[test]
    fn many_numbers_whose_sum_is_too_large_are_finite_all_the_same() {
        let many = Tensor::full([2, FEW as i64], f64::from(f32::MAX), (Kind::Float, Device::Cpu));
        assert_eq!(not_finite(&many).unwrap(), None);
        for (odd, what) in ODD {
            let tensor = many.copy();
            let _ = tensor.get(1).get(FEW as i64 - 1).fill_(odd);
            assert_eq!(not_finite(&tensor).unwrap(), Some(what), "{odd}");
        }
    }

    #[test]
    fn nan_is_told_where_there_are_both() {
        let both = [f32::INFINITY, f32::NAN];
        assert_eq!(not_finite(&Tensor::from_slice(&both)).unwrap(), Some(NotFinite::Nan));
        assert_eq!(not_finite_numbers(&both), Some(NotFinite::Nan));
        assert_eq!(not_finite_numbers(&both[..1]), Some(NotFinite::Infinite));
    }

    #[test]
    fn of_a_sparse_tensor_the_values_count() {
        let indices = Tensor::from_slice(&[0i64, 4]).unsqueeze(0);
        let values = Tensor::from_slice(&[1.0f32, f32::NAN]);
        let options = (Kind::Float, Device::Cpu);
        let sparse = Tensor::sparse_coo_tensor_indices_size(&indices, &values, [5], options, false);
        assert_eq!(not_finite(&sparse).unwrap(), Some(NotFinite::Nan));
    }
}
