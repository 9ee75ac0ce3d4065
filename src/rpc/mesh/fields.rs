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
        elements((&mut self.0).map(T::from_value)).map_err(|why| bad(format_args!("`{name}`: {why}")))
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

/// All of a list, or what is wrong with one of them, counted from 0.
fn elements<T>(read: impl Iterator<Item = Result<T, String>>) -> Result<Vec<T>, String> {
    read.enumerate()
        .map(|(index, element)| element.map_err(|why| format!("element {index}: {why}")))
        .collect()
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
        i64::try_from(self).map_or(Value::TooLarge(self), Value::Int)
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
            Value::List(values) => elements(values.into_iter().map(T::from_value)),
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
        let first = A::from_value(first).map_err(|why| format!("the first of two: {why}"))?;
        let second = B::from_value(second).map_err(|why| format!("the second of two: {why}"))?;
        Ok((first, second))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::message::prepare::prepare;
    use crate::rpc::types::value::Message;

    /// What reading a value as `T` says.
    fn refused<T: Field>(value: impl Into<Value>) -> String {
        Fields::new(vec![value.into()]).take::<T>("steps").err().expect("another type").message
    }

    #[test]
    fn a_field_arrives_as_it_was_sent() {
        fn came<T: Field + Clone + PartialEq + fmt::Debug>(sent: &T) {
            assert_eq!(&T::from_value(sent.clone().into_value()).expect("its own value"), sent);
        }
        [0, 1, i64::MAX as u64].iter().for_each(came);
        [0, u16::MAX].iter().for_each(came);
        [Bits(0), Bits(u64::MAX)].iter().for_each(came);
        came(&Some(7i64));
        came(&None::<String>);
        came(&vec![("a".to_owned(), 1.5), ("b".to_owned(), f64::INFINITY)]);
        came(&vec![1u8, 255]);
    }

    #[test]
    fn a_value_of_another_type_is_refused_with_its_place() {
        let said = [
            refused::<u64>(-1),
            refused::<u16>(65_536),
            refused::<Vec<bool>>("yes"),
            refused::<Vec<u64>>(vec![Value::Int(1), Value::Int(2), Value::Int(-3)]),
            refused::<Vec<Vec<bool>>>(vec![Value::List(vec![]), Value::List(vec![Value::Nil])]),
            refused::<(String, u64)>(vec![Value::Int(1)]),
            refused::<(String, u64)>(vec![Value::from("a"), Value::from("b")]),
        ];
        insta::assert_snapshot!(said.join("\n"), @r"
        `steps`: expected an integer of at least 0, found -1
        `steps`: expected an integer from 0 to 65535, found 65536
        `steps`: expected a list, found a text
        `steps`: element 2: expected an integer of at least 0, found -3
        `steps`: element 1: element 0: expected a bool, found nil
        `steps`: expected a list of two, found one of 1
        `steps`: the second of two: expected an integer, found a text
        ");
        let json = refused::<Json<Vec<u32>>>("[1, -2]");
        assert!(json.starts_with("`steps`: invalid value: integer `-2`, expected u32"), "{json}");
        let mut fields = Fields::new(vec![Value::Bool(true), Value::Int(1)]);
        let error = fields.rest::<bool>("flags").expect_err("an integer");
        assert_eq!(error.message, "`flags`: element 1: expected a bool, found an integer");
    }

    #[test]
    fn a_count_that_is_too_large_fails_where_it_is_sent() {
        for value in [u64::MAX.into_value(), Some(1u64 << 63).into_value(), vec![1, u64::MAX].into_value()] {
            for local in [true, false] {
                let message = Message::new(vec![value_of(&value)]);
                let error = prepare(message, 1 << 20, local).expect_err("it has no place in the message");
                assert_eq!(error.kind, CallErrorKind::BadValue);
                assert!(
                    error.message.ends_with("cannot be sent, the limit is 9223372036854775807"),
                    "{error}"
                );
            }
        }
    }

    fn value_of(value: &Value) -> Value {
        match value {
            Value::TooLarge(number) => Value::TooLarge(*number),
            Value::Int(number) => Value::Int(*number),
            Value::List(list) => Value::List(list.iter().map(value_of).collect()),
            other => panic!("{other:?}"),
        }
    }
}
