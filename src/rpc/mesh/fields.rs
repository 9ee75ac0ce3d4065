//! The fields of a message: a value for each, read in their order, with an error that names the one that is wrong.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::rref::RRef;
use crate::rpc::types::value::Value;

/// One value of a message.
pub trait Field: Sized + Send + 'static {
    fn into_value(self) -> Value;

    /// # Errors
    /// What was expected and what was found.
    fn from_value(value: Value) -> Result<Self, String>;
}

/// The values of a message, read field by field in their order.
pub struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    pub fn new(values: Vec<Value>) -> Fields {
        Fields(values.into_iter())
    }

    /// The next field; messages call it `name`.
    ///
    /// # Errors
    /// `BadValue` when it is missing or of another type.
    pub fn take<T: Field>(&mut self, name: &str) -> Result<T, CallError> {
        match self.0.next() {
            Some(value) => T::from_value(value).map_err(|why| bad(format_args!("`{name}`: {why}"))),
            None => Err(bad(format_args!("`{name}` is missing"))),
        }
    }

    /// All fields that are left; messages call them `name`.
    ///
    /// # Errors
    /// `BadValue` when one of them is of another type.
    pub fn rest<T: Field>(&mut self, name: &str) -> Result<Vec<T>, CallError> {
        let mut rest = Vec::with_capacity(self.0.len());
        while !self.is_empty() {
            rest.push(self.take(name)?);
        }
        Ok(rest)
    }

    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    pub(super) fn end(self) -> Result<(), CallError> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(bad(format_args!("{more} values came behind the last field"))),
        }
    }
}

fn bad(what: impl fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, what)
}

macro_rules! plain_field {
    ($($type:ty, $part:ident, $expected:literal;)*) => {
        $(impl Field for $type {
            fn into_value(self) -> Value {
                Value::$part(self.into())
            }

            fn from_value(value: Value) -> Result<$type, String> {
                match value {
                    Value::$part(part) => Ok(part),
                    other => Err(unexpected($expected, &other)),
                }
            }
        })*
    };
}

plain_field! {
    bool, Bool, "a bool";
    i64, Int, "an integer";
    f64, Float, "a float";
    String, Text, "a text";
    Vec<u8>, Bytes, "bytes";
    RRef, RRef, "an RRef";
}

pub(crate) fn unexpected(expected: &str, found: &Value) -> String {
    format!("expected {expected}, found {}", found.kind())
}

/// A count, an index, a version: never negative.
impl Field for u64 {
    fn into_value(self) -> Value {
        // One that is too large arrives as a negative number, and is refused.
        Value::Int(self as i64)
    }

    fn from_value(value: Value) -> Result<u64, String> {
        let number = i64::from_value(value)?;
        u64::try_from(number).map_err(|_| format!("expected an integer of at least 0, found {number}"))
    }
}

impl Field for u16 {
    fn into_value(self) -> Value {
        Value::Int(self.into())
    }

    fn from_value(value: Value) -> Result<u16, String> {
        let number = i64::from_value(value)?;
        u16::try_from(number)
            .map_err(|_| format!("expected an integer from 0 to {}, found {number}", u16::MAX))
    }
}

/// As it travels; an edge of autograd was looked at before.
impl Field for Tensor {
    fn into_value(self) -> Value {
        self.into()
    }

    fn from_value(value: Value) -> Result<Tensor, String> {
        match value {
            Value::Tensor(sent) => Ok(sent.tensor),
            other => Err(unexpected("a tensor", &other)),
        }
    }
}

impl Field for Value {
    fn into_value(self) -> Value {
        self
    }

    fn from_value(value: Value) -> Result<Value, String> {
        Ok(value)
    }
}

impl<T: Field> Field for Option<T> {
    fn into_value(self) -> Value {
        self.map_or(Value::Nil, T::into_value)
    }

    fn from_value(value: Value) -> Result<Option<T>, String> {
        match value {
            Value::Nil => Ok(None),
            some => T::from_value(some).map(Some),
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn into_value(self) -> Value {
        Value::List(self.into_iter().map(T::into_value).collect())
    }

    fn from_value(value: Value) -> Result<Vec<T>, String> {
        match value {
            Value::List(values) => values.into_iter().map(T::from_value).collect(),
            other => Err(unexpected("a list", &other)),
        }
    }
}

/// A list of two.
impl<A: Field, B: Field> Field for (A, B) {
    fn into_value(self) -> Value {
        Value::List(vec![self.0.into_value(), self.1.into_value()])
    }

    fn from_value(value: Value) -> Result<(A, B), String> {
        let Value::List(values) = value else { return Err(unexpected("a list of two", &value)) };
        let [first, second] = <[Value; 2]>::try_from(values)
            .map_err(|values| format!("expected a list of two, found one of {}", values.len()))?;
        Ok((A::from_value(first)?, B::from_value(second)?))
    }
}

/// A number of which every bit counts, as a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits(pub u64);

impl Field for Bits {
    fn into_value(self) -> Value {
        Value::Int(self.0 as i64)
    }

    fn from_value(value: Value) -> Result<Bits, String> {
        i64::from_value(value).map(|number| Bits(number as u64))
    }
}

/// A record that travels as JSON.
#[derive(Clone, Debug)]
pub struct Json<T>(pub T);

impl<T: Serialize + DeserializeOwned + Send + 'static> Field for Json<T> {
    fn into_value(self) -> Value {
        Value::Text(serde_json::to_string(&self.0).expect("a record of plain values is JSON"))
    }

    fn from_value(value: Value) -> Result<Json<T>, String> {
        let text = String::from_value(value)?;
        serde_json::from_str(&text).map(Json).map_err(|error| error.to_string())
    }
}
