//! A module at its owner.

use tch::Tensor;

use crate::rpc::{Bits, Body as _, Field, Fields, RRef, Value, body, call, unexpected};

call! {
    /// The one instance of a module, made by the first who asks.
    pub(in crate::parallel) struct Get = "module.get" -> Reference {
        name: String,
    }
}

body! {
    pub(in crate::parallel) struct Reference {
        module: RRef,
    }
}

call! {
    /// A forward; under a context one that is recorded.
    pub(in crate::parallel) struct Forward = "module.forward" -> Outputs {
        module: RRef,
        /// Dropout and batch statistics as in training.
        train: bool,
        dropout_seed: Bits,
        /// How many of the caller's steps are applied first.
        after: u64,
        ..inputs: Input,
    }
}

body! {
    pub(in crate::parallel) struct Outputs {
        // On the CPU.
        ..outputs: Tensor,
    }
}

/// What a forward gets.
pub(in crate::parallel) enum Input {
    Tensor(Tensor),
    /// A tensor that its owner has lent.
    Lent(RRef),
    /// An output of another module, which is called for it: the forward, and which of its outputs.
    Output(Box<Forward>, u64),
}

impl Field for Input {
    fn into_value(self) -> Value {
        match self {
            Input::Tensor(tensor) => tensor.into_value(),
            Input::Lent(lent) => lent.into_value(),
            Input::Output(forward, nth) => {
                let mut values = vec![nth.into_value()];
                values.extend(forward.encode());
                Value::List(values)
            }
        }
    }

    fn from_value(value: Value) -> Result<Input, String> {
        match value {
            Value::Tensor(sent) => Ok(Input::Tensor(sent.tensor)),
            Value::RRef(lent) => Ok(Input::Lent(lent)),
            // Lists are nested a few times at most: the mesh has looked.
            Value::List(values) => {
                let mut fields = Fields::new(values);
                let nth = fields.take("output");
                let called = nth.and_then(|nth| Ok((Forward::decode(&mut fields)?, nth)));
                let output = called.map(|(forward, nth)| Input::Output(Box::new(forward), nth));
                output.map_err(|error| error.message)
            }
            other => Err(unexpected("a tensor, a reference to one, or a forward", &other)),
        }
    }
}

call! {
    /// A reference to each parameter; to the running statistics of a module that has none, if these wait for steps.
    pub(in crate::parallel) struct Parameters = "module.parameters" -> ParameterList {
        module: RRef,
    }
}

body! {
    pub(in crate::parallel) struct ParameterList {
        ..parameters: RRef,
    }
}

call! {
    /// The caller takes no more steps.
    pub(in crate::parallel) struct Leave = "module.leave" -> () {
        module: RRef,
    }
}
