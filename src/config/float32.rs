//! Numbers that float32 has.

/// The largest number, by its size, that a job may have. Float32 ends at 3.4e38; what is computed of a number, such as the
/// learning rate times the ranks, has to fit as well.
pub const LARGEST: f64 = 1e30;

/// What of it would become of `number` in a tensor of float32 is neither infinite nor, unless it is that, 0.
///
/// # Errors
/// What is wrong with it, and a hint.
pub fn fits_float32(number: f64) -> Result<(), (String, String)> {
    // The smallest that float32 has.
    const SMALLEST: f64 = 1.4e-45;
    if number.abs() > LARGEST {
        let problem =
            format!("is beyond {LARGEST:e}, the limit for numbers that are computed with in float32");
        return Err((problem, format!("use a number from -{LARGEST:e} to {LARGEST:e}")));
    }
    if number != 0.0 && number as f32 == 0.0 {
        let problem = format!("is 0 in float32, whose smallest number is {SMALLEST:e}");
        return Err((problem, format!("use 0, or a number of at least {SMALLEST:e}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_one_that_float32_has() {
        for fits in [0.0, -0.0, 1e30, -1e30, 1.5e-45, f64::from(f32::MIN_POSITIVE)] {
            assert_eq!(fits_float32(fits), Ok(()), "{fits}");
        }
        for beyond in [1e300, -1e31, f64::MAX, 1e-46, -5e-324] {
            assert!(fits_float32(beyond).is_err(), "{beyond}");
        }
    }
}
