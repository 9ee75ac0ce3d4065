//! What a peer may have asked and not let go of: for each question the RPC system keeps the answer until the peer says that
//! it has it.

use std::cell::Cell;
use std::rc::Rc;

use capnp::capability::Promise;
use capnp_rpc::rpc_capnp::message;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{Connection, FlowController, IncomingMessage, OutgoingMessage, VatNetwork};

/// A peer asks for what this rank offers when the connection is made, and not again.
const MOST_BOOTSTRAPS: u32 = 4;

/// Calls, new objects, barriers, and what belongs to them: an honest peer has some thousand at most.
const MOST_QUESTIONS: u32 = 16 << 10;

/// Counts the questions of one peer.
#[derive(Default)]
struct Questions {
    bootstraps: Cell<u32>,
    /// Not finished.
    open: Cell<u32>,
}

impl Questions {
    /// # Errors
    /// There are more than any honest peer has.
    fn count(&self, message: &dyn IncomingMessage) -> Result<(), capnp::Error> {
        let message: message::Reader<'_> = message.get_body()?.get_as()?;
        match message.which() {
            Ok(message::Bootstrap(_)) => {
                self.bootstraps.update(|before| before.saturating_add(1));
                self.open.update(|before| before.saturating_add(1));
            }
            Ok(message::Call(_)) => self.open.update(|before| before.saturating_add(1)),
            Ok(message::Finish(_)) => self.open.update(|before| before.saturating_sub(1)),
            _ => {}
        }
        match () {
            () if self.bootstraps.get() > MOST_BOOTSTRAPS => {
                Err(capnp::Error::failed("it asks again and again for what this rank offers".into()))
            }
            () if self.open.get() > MOST_QUESTIONS => {
                let why = format!("it has asked {MOST_QUESTIONS} times and let go of no answer");
                Err(capnp::Error::failed(why))
            }
            () => Ok(()),
        }
    }
}

/// A network whose peer's questions are counted.
pub(super) struct Counting<N> {
    network: N,
    questions: Rc<Questions>,
}

impl<N> Counting<N> {
    pub fn new(network: N) -> Counting<N> {
        Counting { network, questions: Rc::default() }
    }
}

impl<N: VatNetwork<Side>> VatNetwork<Side> for Counting<N> {
    fn connect(&mut self, to: Side) -> Option<Box<dyn Connection<Side>>> {
        let connection = self.network.connect(to)?;
        Some(Box::new(Counted { connection, questions: self.questions.clone() }))
    }

    fn accept(&mut self) -> Promise<Box<dyn Connection<Side>>, capnp::Error> {
        let (accepted, questions) = (self.network.accept(), self.questions.clone());
        Promise::from_future(async move {
            let connection = accepted.await?;
            Ok(Box::new(Counted { connection, questions }) as Box<dyn Connection<Side>>)
        })
    }

    fn drive_until_shutdown(&mut self) -> Promise<(), capnp::Error> {
        self.network.drive_until_shutdown()
    }
}

struct Counted {
    connection: Box<dyn Connection<Side>>,
    questions: Rc<Questions>,
}

impl Connection<Side> for Counted {
    fn get_peer_vat_id(&self) -> Side {
        self.connection.get_peer_vat_id()
    }

    fn new_outgoing_message(&mut self, first_segment_word_size: u32) -> Box<dyn OutgoingMessage> {
        self.connection.new_outgoing_message(first_segment_word_size)
    }

    fn receive_incoming_message(&mut self) -> Promise<Option<Box<dyn IncomingMessage>>, capnp::Error> {
        let (received, questions) = (self.connection.receive_incoming_message(), self.questions.clone());
        Promise::from_future(async move {
            let message = received.await?;
            if let Some(message) = &message {
                questions.count(&**message)?;
            }
            Ok(message)
        })
    }

    fn new_stream(&mut self) -> (Box<dyn FlowController>, Promise<(), capnp::Error>) {
        self.connection.new_stream()
    }

    fn shutdown(&mut self, result: capnp::Result<()>) -> Promise<(), capnp::Error> {
        self.connection.shutdown(result)
    }
}

#[cfg(test)]
mod tests {
    use capnp::any_pointer;
    use capnp::message::Builder;

    use super::*;

    struct Said(Builder<capnp::message::HeapAllocator>);

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

    /// How many of these are taken.
    fn taken(questions: &Questions, message: &Said) -> u32 {
        (0..1 << 20).take_while(|_| questions.count(message).is_ok()).count() as u32
    }

    #[test]
    fn a_peer_that_asks_and_lets_go_of_nothing_is_stopped() {
        let bootstrap = said(|to| _ = to.init_bootstrap());
        assert_eq!(taken(&Questions::default(), &bootstrap), MOST_BOOTSTRAPS);
        let call = said(|to| _ = to.init_call());
        assert_eq!(taken(&Questions::default(), &call), MOST_QUESTIONS);
    }

    #[test]
    fn a_peer_that_lets_go_may_ask_for_ever() {
        let (call, finish) = (said(|to| _ = to.init_call()), said(|to| _ = to.init_finish()));
        let questions = Questions::default();
        for _ in 0..4 * MOST_QUESTIONS {
            questions.count(&call).expect("it has let go of the one before");
            questions.count(&finish).expect("nothing is asked");
        }
        // What was never asked makes no room.
        let _ = taken(&questions, &finish);
        assert_eq!(taken(&questions, &call), MOST_QUESTIONS);
    }
}
