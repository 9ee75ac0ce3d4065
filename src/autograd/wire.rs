//! What ranks tell each other about a backward, as values of a call. A peer's numbers are checked here for being numbers,
//! and by whoever uses them for what they name.

use tch::Tensor;

use crate::rpc::{CallError, CallErrorKind, Message, SentTensor, Value};

/// Counted by the rank that begins the backward, from 1, for each context.
pub(super) type PassNumber = u64;

/// Gradients for sent tensors of one rank, and what else the sender knows of its tensors. Answered when everything that
/// follows from it is done.
#[derive(Debug)]
pub(super) struct Run {
    pub pass: PassNumber,
    /// All passes before this one are done on every rank.
    pub floor: PassNumber,
    pub retain: bool,
    /// Edge and gradient; none for an edge that was reached but got nothing.
    pub gradients: Vec<(u64, Option<Tensor>)>,
    /// Edges that will never get a gradient in this pass.
    pub dead: Vec<u64>,
    /// Edges whose gradient will come in another message.
    pub coming: Vec<u64>,
}

/// "Will this edge get a gradient in this pass?" Answered with a bool. One edge each: were an answer for two edges to
/// wait for both, two such questions could wait for each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub pass: PassNumber,
    pub floor: PassNumber,
    pub edge: u64,
}

impl Run {
    pub fn encode(self) -> Vec<Value> {
        let (edges, gradients): (Vec<u64>, Vec<_>) = self.gradients.into_iter().unzip();
        let gradient = |gradient: Option<Tensor>| gradient.map_or(Value::Nil, Value::from);
        vec![
            int(self.pass),
            int(self.floor),
            Value::Bool(self.retain),
            ints(&edges),
            Value::List(gradients.into_iter().map(gradient).collect()),
            ints(&self.dead),
            ints(&self.coming),
        ]
    }

    pub fn decode(message: Message) -> Result<Run, CallError> {
        let [pass, floor, retain, edges, gradients, dead, coming] = message.into_array()?;
        let (edges, gradients) = (numbers(edges)?, gradients.into_list()?);
        if edges.len() != gradients.len() {
            return Err(bad(format_args!("{} edges came with {} gradients", edges.len(), gradients.len())));
        }
        let gradient = |value: Value| match value {
            Value::Nil => Ok(None),
            Value::Tensor(SentTensor { tensor, .. }) => Ok(Some(tensor)),
            other => other.into_tensor().map(Some),
        };
        let gradients = gradients.into_iter().map(gradient).collect::<Result<Vec<_>, _>>()?;
        let (pass, floor) = passes(pass, floor)?;
        let gradients = edges.into_iter().zip(gradients).collect();
        Ok(Run { pass, floor, retain: retain.into_bool()?, gradients, dead: numbers(dead)?, coming: numbers(coming)? })
    }
}

impl Question {
    pub fn encode(&self) -> Vec<Value> {
        vec![int(self.pass), int(self.floor), int(self.edge)]
    }

    pub fn decode(message: Message) -> Result<Question, CallError> {
        let [pass, floor, edge] = message.into_array()?;
        let (pass, floor) = passes(pass, floor)?;
        Ok(Question { pass, floor, edge: number(edge)? })
    }
}

pub(super) fn encode_answer(alive: bool) -> Vec<Value> {
    vec![Value::Bool(alive)]
}

pub(super) fn decode_answer(message: Message) -> Result<bool, CallError> {
    let [alive] = message.into_array()?;
    alive.into_bool()
}

pub(super) fn encode_pass(pass: PassNumber) -> Vec<Value> {
    vec![int(pass)]
}

pub(super) fn decode_pass(message: Message) -> Result<PassNumber, CallError> {
    let [pass] = message.into_array()?;
    number(pass)
}

fn passes(pass: Value, floor: Value) -> Result<(PassNumber, PassNumber), CallError> {
    let (pass, floor) = (number(pass)?, number(floor)?);
    if floor > pass {
        return Err(bad(format_args!("pass {pass} came with all before {floor} done")));
    }
    Ok((pass, floor))
}

fn int(number: u64) -> Value {
    Value::Int(i64::try_from(number).expect("edges and passes are counted one by one"))
}

fn ints(numbers: &[u64]) -> Value {
    Value::List(numbers.iter().copied().map(int).collect())
}

fn number(value: Value) -> Result<u64, CallError> {
    let number = value.into_int()?;
    u64::try_from(number).map_err(|_| bad(format_args!("{number} came where a count is taken")))
}

fn numbers(value: Value) -> Result<Vec<u64>, CallError> {
    value.into_list()?.into_iter().map(number).collect()
}

fn bad(what: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_arrives_as_it_was_sent() {
        let gradients = vec![(4, Some(Tensor::from_slice(&[1.5]))), (2, None)];
        let run = Run { pass: 3, floor: 2, retain: true, gradients, dead: vec![7], coming: vec![8, 9] };
        let came = Run::decode(Message::new(run.encode())).expect("well formed");
        assert_eq!((came.pass, came.floor, came.retain), (3, 2, true));
        assert_eq!(came.gradients[0].0, 4);
        assert_eq!(came.gradients[0].1.as_ref().expect("given").double_value(&[0]), 1.5);
        assert!(came.gradients[1].0 == 2 && came.gradients[1].1.is_none());
        assert_eq!((came.dead, came.coming), (vec![7], vec![8, 9]));
    }

    #[test]
    fn nonsense_of_a_peer_is_refused() {
        let question = |values| Question::decode(Message::new(values)).expect_err("nonsense").message;
        assert_eq!(question(vec![int(1), int(2), int(0)]), "pass 1 came with all before 2 done");
        assert_eq!(question(vec![int(1), Value::Int(-1), int(0)]), "-1 came where a count is taken");
        assert!(question(vec![int(1)]).contains("1 values came"));
        let uneven = vec![int(1), int(1), Value::Bool(false), ints(&[1]), Value::List(vec![]), ints(&[]), ints(&[])];
        assert_eq!(Run::decode(Message::new(uneven)).expect_err("uneven").message, "1 edges came with 0 gradients");
    }
}
