//! Numbers and shapes as libtorch takes them: what it would refuse of them is refused here, or made into what is meant.
//!
//! `tch` frees a scalar before it looks whether the operation that got it has failed, and then takes the failure for one
//! of freeing it, which ends the process. So no operation that is given a scalar may fail.

use tch::Kind;

use super::cost::elements;
use crate::plugin::dtype::{is_floating, kind_name};
use crate::plugin::error::Refusal;

/// libtorch has no more in most operations.
const MOST_DIMS: usize = 64;
/// Sizes multiplied, where 0 counts as 1: strides are such products.
const MOST_SPREAD: u64 = 1 << 48;

/// The elements of a shape that a tensor may have.
pub fn sized(op: &str, shape: &[i64]) -> wasmtime::Result<u64> {
    let wrong = |reason: &str| Err(Refusal::operation(format!("{op}: {} {reason}", shown(shape))));
    if shape.len() > MOST_DIMS {
        return wrong(&format!("has {} dimensions; {MOST_DIMS} are possible", shape.len()));
    }
    if shape.iter().any(|&dim| dim < 0) {
        return wrong("is not a valid shape: sizes are not negative");
    }
    let spread = shape.iter().fold(1u64, |product, &dim| product.saturating_mul(dim.max(1) as u64));
    if spread > MOST_SPREAD {
        return wrong("is not a valid shape: its sizes multiplied are over 2^48");
    }
    Ok(elements(shape))
}

/// A list that a person can read to its end.
fn shown(shape: &[i64]) -> String {
    match shape {
        [first, second, .., last] if shape.len() > 16 => format!("[{first}, {second}, ... {last}]"),
        _ => format!("{shape:?}"),
    }
}

/// The largest finite number of a dtype and the smallest; those of whole numbers as far as float64 has them.
fn range(kind: Kind) -> (f64, f64) {
    match kind {
        Kind::Bool => (0.0, 1.0),
        Kind::Uint8 => (0.0, f64::from(u8::MAX)),
        Kind::Int8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
        Kind::Int16 => (f64::from(i16::MIN), f64::from(i16::MAX)),
        Kind::Int => (f64::from(i32::MIN), f64::from(i32::MAX)),
        Kind::Int64 => (i64::MIN as f64, (i64::MAX - 1023) as f64),
        Kind::Half => (-65504.0, 65504.0),
        // The exponents of float32, and eight bits.
        Kind::BFloat16 => (-f64::from(f32::from_bits(0x7f7f_0000)), f64::from(f32::from_bits(0x7f7f_0000))),
        Kind::Float => (f64::from(f32::MIN), f64::from(f32::MAX)),
        _ => (f64::MIN, f64::MAX),
    }
}

/// `value` as `kind` has it: fractions of whole numbers are cut off, and any number but 0 is true.
///
/// # Errors
/// It is outside of the dtype's range.
pub fn fitting(op: &str, value: f64, kind: Kind) -> wasmtime::Result<f64> {
    if kind == Kind::Bool {
        return Ok(f64::from(u8::from(value != 0.0)));
    }
    let (least, most) = range(kind);
    let value = if is_floating(kind) { value } else { value.trunc() };
    let fits = (least..=most).contains(&value) || (is_floating(kind) && !value.is_finite());
    match fits {
        true => Ok(value),
        false => Err(Refusal::operation(format!(
            "{op}: {value:e} is not a number that {} has: {least:e} to {most:e}",
            kind_name(kind)
        ))),
    }
}

/// `value` as `kind` has it, a floating one: infinite where it is larger than all that are finite.
pub fn saturated(value: f64, kind: Kind) -> f64 {
    let (least, most) = range(kind);
    match value {
        value if value > most => f64::INFINITY,
        value if value < least => f64::NEG_INFINITY,
        value => value,
    }
}

/// The dtype of what arithmetic with a fraction gives.
pub fn with_fraction(kind: Kind) -> Kind {
    if is_floating(kind) { kind } else { Kind::Float }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_of_a_dtype_are_refused_and_infinities_kept() {
        let fits = |value, kind| fitting("full", value, kind).is_ok();
        assert!(fits(f64::INFINITY, Kind::Half) && fits(f64::NAN, Kind::Float) && fits(-1e300, Kind::Double));
        assert!(fits(255.9, Kind::Uint8) && fits(i64::MIN as f64, Kind::Int64));
        for (value, kind) in [
            (1e300, Kind::Float),
            (65505.0, Kind::Half),
            (f64::NAN, Kind::Int64),
            (i64::MAX as f64, Kind::Int64),
            (-1.0, Kind::Uint8),
            (f64::INFINITY, Kind::Int),
        ] {
            assert!(!fits(value, kind), "{value} {kind:?}");
        }
        // libtorch compares before it cuts.
        assert_eq!(fitting("full", 255.9, Kind::Uint8).unwrap(), 255.0);
        assert_eq!(fitting("full", f64::NAN, Kind::Bool).unwrap(), 1.0);
        assert_eq!(saturated(1e308, Kind::Float), f64::INFINITY);
        assert_eq!(saturated(-7e4, Kind::Half), f64::NEG_INFINITY);
        assert!(saturated(f64::NAN, Kind::Half).is_nan());
    }

    #[test]
    fn a_shape_without_elements_has_sizes_that_can_be_multiplied_all_the_same() {
        assert_eq!(sized("full", &[0, 1 << 40]).unwrap(), 0);
        for shape in [&[-1][..], &[0, 1 << 62, 1 << 62], &[1; 65]] {
            assert!(sized("full", shape).is_err(), "{shape:?}");
        }
    }
}
