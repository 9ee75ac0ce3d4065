//! Random inputs of a given dtype and shape, for trying a loss or a metric.

use std::fmt;
use std::str::FromStr;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use tch::{Kind, Tensor};

use crate::plugin::dtype::{describe, is_floating, kind_named};

/// A tensor's dtype and shape, written as `float32[8,10]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sketch {
    pub dtype: Kind,
    pub shape: Vec<i64>,
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a dtype and shape\n  hint: write it as float32[8,10] or int64[8]")]
pub struct BadSketch(String);

/// More would only make the check slow.
const MOST_ELEMENTS: i64 = 1 << 24;

impl Sketch {
    pub fn new(dtype: Kind, shape: &[i64]) -> Sketch {
        Sketch { dtype, shape: shape.into() }
    }

    /// A model's output: standard normal numbers.
    pub fn output(&self, random: &mut ChaCha8Rng) -> Tensor {
        let n = self.shape.iter().product();
        let numbers: Vec<f64> = (0..n).map(|_| normal(random)).collect();
        self.filled(&numbers)
    }

    /// A target: numbers from 0 to 1, or classes below `classes`.
    pub fn target(&self, classes: i64, random: &mut ChaCha8Rng) -> Tensor {
        let n = self.shape.iter().product();
        let number = |_| match self.dtype {
            kind if is_floating(kind) => uniform(random),
            Kind::Bool => (random.next_u32() % 2).into(),
            _ => (random.next_u64() % classes.max(1) as u64) as f64,
        };
        let numbers: Vec<f64> = (0..n).map(number).collect();
        self.filled(&numbers)
    }

    fn filled(&self, numbers: &[f64]) -> Tensor {
        Tensor::from_slice(numbers).reshape(&self.shape).to_kind(self.dtype)
    }
}

/// A number from 0 to below 1.
fn uniform(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Box and Muller.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    (-2.0 * (1.0 - uniform(random)).ln()).sqrt() * (std::f64::consts::TAU * uniform(random)).cos()
}

impl fmt::Display for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(self.dtype, &self.shape))
    }
}

impl FromStr for Sketch {
    type Err = BadSketch;

    fn from_str(text: &str) -> Result<Sketch, BadSketch> {
        let bad = || BadSketch(text.into());
        let (dtype, shape) =
            text.trim().strip_suffix(']').and_then(|text| text.split_once('[')).ok_or_else(bad)?;
        let dtype = kind_named(dtype.trim()).ok_or_else(bad)?;
        let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape = sizes.map(|size| size.parse().map_err(|_| bad())).collect::<Result<Vec<i64>, _>>()?;
        let elements = shape.iter().try_fold(1i64, |product, &dim| product.checked_mul(dim));
        match elements {
            Some(1..=MOST_ELEMENTS) if shape.iter().all(|&dim| dim > 0) => Ok(Sketch { dtype, shape }),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sketch_is_read_as_it_is_written() {
        for text in ["float32[8, 10]", "int64[8]", "bool[]"] {
            assert_eq!(text.parse::<Sketch>().unwrap().to_string(), text);
        }
        for text in
            ["", "float32", "float31[2]", "int64[-1]", "int64[0]", "int64[x]", "uint8[99999,99999,99999]"]
        {
            assert!(text.parse::<Sketch>().is_err(), "{text}");
        }
    }
}
