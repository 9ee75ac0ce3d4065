//! What reductions do with values.

use std::fmt;

/// What a reduction does with the values that the ranks have at one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    Sum,
    /// The sum divided by the number of ranks; not of whole numbers.
    Avg,
    Product,
    Min,
    Max,
    /// Bit by bit; whole numbers and bool only, as the two that follow.
    BitAnd,
    BitOr,
    BitXor,
    /// Each rank's values times this factor, summed. NCCL only.
    PremulSum(f64),
}

impl ReduceOp {
    /// `c10d::ReduceOp::RedOpType`, and the factor.
    pub(crate) fn to_c10d(self) -> (u8, f64) {
        match self {
            Self::Sum => (0, 0.0),
            Self::Avg => (1, 0.0),
            Self::Product => (2, 0.0),
            Self::Min => (3, 0.0),
            Self::Max => (4, 0.0),
            Self::BitAnd => (5, 0.0),
            Self::BitOr => (6, 0.0),
            Self::BitXor => (7, 0.0),
            Self::PremulSum(factor) => (8, factor),
        }
    }

    pub(crate) fn is_bitwise(self) -> bool {
        matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor)
    }
}

impl fmt::Display for ReduceOp {
    /// PyTorch's name of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "SUM",
            Self::Avg => "AVG",
            Self::Product => "PRODUCT",
            Self::Min => "MIN",
            Self::Max => "MAX",
            Self::BitAnd => "BAND",
            Self::BitOr => "BOR",
            Self::BitXor => "BXOR",
            Self::PremulSum(factor) => return write!(f, "PREMUL_SUM({factor})"),
        })
    }
}
