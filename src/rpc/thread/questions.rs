//! What a peer may have asked and not let go of: for each question the RPC system keeps the answer until the peer says that
//! it has it. A question's number is taken again once it is over, the lowest first, and never while it is open; so a bound on
//! the numbers bounds what is kept.

use capnp::capability::Promise;
use capnp_rpc::rpc_capnp::message;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{Connection, FlowController, IncomingMessage, OutgoingMessage, VatNetwork};

/// Calls, new objects, barriers, and what belongs to them: an honest peer has some thousand at most.
const MOST_QUESTIONS: u32 = 16 << 10;

/// What a message begins with, in words: most calls fit in, and what does not gets a segment of its own. (The RPC system asks for 8 KiB,
/// all of which is cleared for each call.)
const FIRST_SEGMENT_WORDS: u32 = 128;

/// # Errors
/// The peer has asked more than any honest one does, or numbers its questions as none would.
fn check(message: &dyn IncomingMessage) -> Result<(), capnp::Error> {
    let message: message::Reader<'_> = message.get_body()?.get_as()?;
    let number = match message.which() {
        Ok(message::Call(call)) => call?.get_question_id(),
        Ok(message::Bootstrap(asked)) => asked?.get_question_id(),
        _ => return Ok(()),
    };
    match number {
        0..MOST_QUESTIONS => Ok(()),
        _ => {
            let why =
                format!("it has asked {MOST_QUESTIONS} times and let go of no answer (question {number})");
            Err(capnp::Error::failed(why))
        }
    }
}

/// A network whose peer's questions are bounded.
pub(super) struct Bounded<N>(pub N);

impl<N: VatNetwork<Side>> VatNetwork<Side> for Bounded<N> {
    fn connect(&mut self, to: Side) -> Option<Box<dyn Connection<Side>>> {
        let connection = self.0.connect(to)?;
        Some(Box::new(BoundedConnection(connection)))
    }

    fn accept(&mut self) -> Promise<Box<dyn Connection<Side>>, capnp::Error> {
        let accepted = self.0.accept();
        Promise::from_future(async {
            let connection = accepted.await?;
            Ok(Box::new(BoundedConnection(connection)) as Box<dyn Connection<Side>>)
        })
    }

    fn drive_until_shutdown(&mut self) -> Promise<(), capnp::Error> {
        self.0.drive_until_shutdown()
    }
}

struct BoundedConnection(Box<dyn Connection<Side>>);

impl Connection<Side> for BoundedConnection {
    fn get_peer_vat_id(&self) -> Side {
        self.0.get_peer_vat_id()
    }

    fn new_outgoing_message(&mut self, first_segment_word_size: u32) -> Box<dyn OutgoingMessage> {
        self.0.new_outgoing_message(first_segment_word_size.min(FIRST_SEGMENT_WORDS))
    }

    fn receive_incoming_message(&mut self) -> Promise<Option<Box<dyn IncomingMessage>>, capnp::Error> {
        let received = self.0.receive_incoming_message();
        Promise::from_future(async {
            let message = received.await?;
            if let Some(message) = &message {
                check(&**message)?;
            }
            Ok(message)
        })
    }

    fn new_stream(&mut self) -> (Box<dyn FlowController>, Promise<(), capnp::Error>) {
        self.0.new_stream()
    }

    fn shutdown(&mut self, result: capnp::Result<()>) -> Promise<(), capnp::Error> {
        self.0.shutdown(result)
    }
}

#[cfg(test)]
mod tests {
    use capnp::any_pointer;
    use capnp::message::{Builder, HeapAllocator};

    use super::*;

    struct Said(Builder<HeapAllocator>);

    impl IncomingMessage for Said {
        fn get_body(&self) -> capnp::Result<any_pointer::Reader<'_>> {
            self.0.get_root_as_reader()
        }
    }

    fn said(write: impl FnOnce(message::Builder<'_>)) -> Said {
        let mut message = Builder::new_default();
        write(message.init_root());
        Said(message)
    }

    #[test]
    fn questions_beyond_those_of_an_honest_peer_are_refused() {
        for number in [0, 1, MOST_QUESTIONS - 1, MOST_QUESTIONS, u32::MAX] {
            let asked = [
                said(|to| to.init_call().set_question_id(number)),
                said(|to| to.init_bootstrap().set_question_id(number)),
            ];
            for message in asked {
                assert_eq!(check(&message).is_ok(), number < MOST_QUESTIONS, "{number}");
            }
            check(&said(|to| to.init_finish().set_question_id(number))).expect("it asks nothing");
        }
    }
}
