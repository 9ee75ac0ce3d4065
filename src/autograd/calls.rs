//! The calls by which ranks run a backward together. A peer's numbers are checked here for being numbers, and by whoever
//! uses them for what they name.

use tch::Tensor;

use crate::rpc::{Body, Call, CallError, CallErrorKind, Field, Fields, RRef, Value, body, call};

/// Counted by the rank that begins the backward, from 1, for each context.
pub type PassNumber = u64;

/// Gradients for sent tensors of one rank, and what else the sender knows of its tensors. Answered when everything that
/// follows from it is done.
#[derive(Debug)]
pub struct Run {
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

impl Call for Run {
    const NAME: &'static str = "autograd.run";
    type Reply = ();
}

impl Body for Run {
    fn encode(self) -> Vec<Value> {
        let (edges, gradients): (Vec<u64>, Vec<_>) = self.gradients.into_iter().unzip();
        vec![
            self.pass.into_value(),
            self.floor.into_value(),
            self.retain.into_value(),
            edges.into_value(),
            gradients.into_value(),
            self.dead.into_value(),
            self.coming.into_value(),
        ]
    }

    fn decode(fields: &mut Fields) -> Result<Run, CallError> {
        let (pass, floor) = passes(fields)?;
        let retain = fields.take("retain")?;
        let (edges, gradients): (Vec<u64>, Vec<_>) = (fields.take("edges")?, fields.take("gradients")?);
        if edges.len() != gradients.len() {
            return Err(bad(format_args!("{} edges came with {} gradients", edges.len(), gradients.len())));
        }
        let gradients = edges.into_iter().zip(gradients).collect();
        Ok(Run { pass, floor, retain, gradients, dead: fields.take("dead")?, coming: fields.take("coming")? })
    }
}

/// "Will this edge get a gradient in this pass?" One edge each: were an answer for two edges to wait for both, two such
/// questions could wait for each other.
#[derive(Debug, PartialEq, Eq)]
pub struct Discover {
    pub pass: PassNumber,
    pub floor: PassNumber,
    pub edge: u64,
}

impl Call for Discover {
    const NAME: &'static str = "autograd.discover";
    type Reply = Discovered;
}

impl Body for Discover {
    fn encode(self) -> Vec<Value> {
        vec![self.pass.into_value(), self.floor.into_value(), self.edge.into_value()]
    }

    fn decode(fields: &mut Fields) -> Result<Discover, CallError> {
        let (pass, floor) = passes(fields)?;
        Ok(Discover { pass, floor, edge: fields.take("edge")? })
    }
}

body! {
    pub struct Discovered {
        /// The edge will get a gradient.
        alive: bool,
    }
}

call! {
    /// The root of a backward calls this on itself when it has something to ask.
    pub(super) struct Resume = "autograd.resume" -> () {
        pass: PassNumber,
    }
}

call! {
    /// The gradients that the context has on a rank.
    pub struct Gradients = "autograd.gradients" -> GradientsByName {}
}

/// Each gradient's name and the gradient, one after the other.
pub struct GradientsByName(pub Vec<(String, Tensor)>);

impl Body for GradientsByName {
    fn encode(self) -> Vec<Value> {
        self.0.into_iter().flat_map(|(name, gradient)| [name.into_value(), gradient.into_value()]).collect()
    }

    fn decode(fields: &mut Fields) -> Result<GradientsByName, CallError> {
        let mut by_name = Vec::new();
        while !fields.is_empty() {
            by_name.push((fields.take("name")?, fields.take("gradient")?));
        }
        Ok(GradientsByName(by_name))
    }
}

call! {
    /// The context has failed.
    pub(super) struct Fail = "autograd.fail" -> () {
        reason: String,
    }
}

call! {
    /// The context has ended. Nobody waits for the answer.
    pub struct Release = "autograd.release" -> () {}
}

call! {
    /// The tensor behind a reference, connected with its graph.
    pub(super) struct Borrow = "tensor.borrow" -> Borrowed {
        lent: RRef,
    }
}

body! {
    pub struct Borrowed {
        tensor: Tensor,
    }
}

fn passes(fields: &mut Fields) -> Result<(PassNumber, PassNumber), CallError> {
    let (pass, floor) = (fields.take("pass")?, fields.take("floor")?);
    if floor > pass {
        return Err(bad(format_args!("pass {pass} came with all before {floor} done")));
    }
    Ok((pass, floor))
}

fn bad(what: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::decode_request;
    use crate::topology::Rank;

    fn int(number: i64) -> Value {
        Value::Int(number)
    }

    #[test]
    fn a_run_arrives_as_it_was_sent() {
        let gradients = vec![(4, Some(Tensor::from_slice(&[1.5]))), (2, None)];
        let run = Run { pass: 3, floor: 2, retain: true, gradients, dead: vec![7], coming: vec![8, 9] };
        let came: Run = decode_request(run.encode(), Rank(1)).expect("well formed");
        assert_eq!((came.pass, came.floor, came.retain), (3, 2, true));
        assert_eq!(came.gradients[0].0, 4);
        assert_eq!(came.gradients[0].1.as_ref().expect("given").double_value(&[0]), 1.5);
        assert!(came.gradients[1].0 == 2 && came.gradients[1].1.is_none());
        assert_eq!((came.dead, came.coming), (vec![7], vec![8, 9]));
    }

    #[test]
    fn nonsense_of_a_peer_is_refused() {
        let question = |values| decode_request::<Discover>(values, Rank(1)).expect_err("nonsense").message;
        let uneven = vec![
            int(1),
            int(1),
            Value::Bool(false),
            Value::List(vec![int(1)]),
            Value::List(vec![]),
            Value::List(vec![]),
            Value::List(vec![]),
        ];
        let refused = [
            question(vec![int(1), int(2), int(0)]),
            question(vec![int(1), int(-1), int(0)]),
            question(vec![int(1)]),
            decode_request::<Run>(uneven, Rank(1)).expect_err("uneven").message,
        ];
        insta::assert_snapshot!(refused.join("\n"), @r"
        the request of rank 1: pass 1 came with all before 2 done
        the request of rank 1: `floor`: expected an integer of at least 0, found -1
        the request of rank 1: `floor` is missing
        the request of rank 1: 1 edges came with 0 gradients
        ");
    }
}
