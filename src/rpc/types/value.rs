//! What a call carries.

use tch::Tensor;

use super::error::{CallError, CallErrorKind};
use super::rref::RRef;
use crate::topology::Rank;

/// The values of a call or of its reply, and the autograd context that they belong to.
#[derive(Debug, Default)]
pub struct Message {
    pub values: Vec<Value>,
    pub context: Option<ContextId>,
}

/// One context of distributed autograd, the same on every rank that it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId {
    /// The rank that opened it.
    pub rank: Rank,
    /// Counted by that rank.
    pub number: u64,
}

#[derive(Debug)]
pub enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    /// A count that is no `i64`. Refused where it is sent, so it never arrives.
    TooLarge(u64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Tensor(SentTensor),
    RRef(RRef),
    /// At most 16 deep.
    List(Vec<Value>),
}

/// A tensor on its way. Any dense tensor of any device may be sent; it arrives on the CPU, contiguous, detached from the graph.
/// So may a sparse one (COO, coalesced or not): its indices and its values travel. Its bytes are read after the call has
/// returned, so the sender does not write to it before the answer.
#[derive(Debug)]
pub struct SentTensor {
    pub tensor: Tensor,
    /// The autograd edge that it travels over; the mesh passes it on and does not look at it.
    pub edge: Option<u64>,
}

impl Message {
    pub fn new(values: Vec<Value>) -> Message {
        Message { values, context: None }
    }

    /// Whether it carries any bytes: tensors, texts.
    pub(crate) fn has_payload(&self) -> bool {
        let scalar =
            |value: &Value| matches!(value, Value::Nil | Value::Bool(_) | Value::Int(_) | Value::Float(_));
        !self.values.iter().all(scalar)
    }
}

macro_rules! into_part {
    ($name:ident, $part:ident, $type:ty, $what:literal) => {
        #[doc = concat!("# Errors\n`BadValue` when it is not ", $what, ".")]
        pub fn $name(self) -> Result<$type, CallError> {
            match self {
                Value::$part(part) => Ok(part),
                other => Err(other.is_not($what)),
            }
        }
    };
}

impl Value {
    into_part!(into_bool, Bool, bool, "a bool");
    into_part!(into_int, Int, i64, "an integer");
    into_part!(into_float, Float, f64, "a float");
    into_part!(into_text, Text, String, "a text");
    into_part!(into_bytes, Bytes, Vec<u8>, "bytes");
    into_part!(into_sent, Tensor, SentTensor, "a tensor");
    into_part!(into_rref, RRef, RRef, "an RRef");
    into_part!(into_list, List, Vec<Value>, "a list");

    fn is_not(&self, wanted: &str) -> CallError {
        let is = self.kind();
        CallError::of_kind(CallErrorKind::BadValue, format_args!("{is} came where {wanted} is taken"))
    }

    /// What it is, as messages say it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool(_) => "a bool",
            Value::Int(_) | Value::TooLarge(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Text(_) => "a text",
            Value::Bytes(_) => "bytes",
            Value::Tensor(_) => "a tensor",
            Value::RRef(_) => "an RRef",
            Value::List(_) => "a list",
        }
    }
}

impl From<Tensor> for SentTensor {
    fn from(tensor: Tensor) -> SentTensor {
        SentTensor { tensor, edge: None }
    }
}

macro_rules! value_from {
    ($($from:ty => $part:ident),* $(,)?) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Value {
                Value::$part(value.into())
            }
        })*
    };
}

value_from!(bool => Bool, i64 => Int, i32 => Int, f64 => Float, String => Text, &str => Text, Vec<u8> => Bytes,
    Tensor => Tensor, SentTensor => Tensor, RRef => RRef, Vec<Value> => List);
