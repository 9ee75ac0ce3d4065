//! What a peer may have asked and not let go of: for each question the RPC system keeps the answer until the peer says that
//! it has it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use capnp::any_pointer;
use capnp::capability::Promise;
use capnp::message::{Builder, HeapAllocator};
use capnp_rpc::rpc_capnp::{message, return_};
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{Connection, FlowController, IncomingMessage, OutgoingMessage, VatNetwork};

/// A peer asks for what this rank offers when the connection is made, and not again.
const MOST_BOOTSTRAPS: u32 = 4;

/// Calls, new objects, barriers, and what belongs to them: an honest peer has some thousand at most.
const MOST_QUESTIONS: usize = 16 << 10;

/// The questions of one peer.
#[derive(Default)]
struct Questions {
    bootstraps: Cell<u32>,
    /// Numbers of those that are not over.
    open: RefCell<HashSet<u32>>,
}

impl Questions {
    /// Notes what the peer says.
    ///
    /// # Errors
    /// There are more than any honest peer has.
    fn came(&self, message: &dyn IncomingMessage) -> Result<(), capnp::Error> {
        let message: message::Reader<'_> = message.get_body()?.get_as()?;
        let mut open = self.open.borrow_mut();
        match message.which() {
            Ok(message::Bootstrap(asked)) => {
                self.bootstraps.update(|before| before.saturating_add(1));
                open.insert(asked?.get_question_id());
            }
            Ok(message::Call(call)) => _ = open.insert(call?.get_question_id()),
            Ok(message::Finish(finish)) => _ = open.remove(&finish?.get_question_id()),
            _ => {}
        }
        match () {
            () if self.bootstraps.get() > MOST_BOOTSTRAPS => {
                Err(capnp::Error::failed("it asks again and again for what this rank offers".into()))
            }
            () if open.len() > MOST_QUESTIONS => {
                let why = format!("it has asked {MOST_QUESTIONS} times and let go of no answer");
                Err(capnp::Error::failed(why))
            }
            () => Ok(()),
        }
    }

    /// Notes what is said to the peer: an answer that says so is over without another word of its.
    fn left(&self, message: &dyn OutgoingMessage) -> Result<(), capnp::Error> {
        let message: message::Reader<'_> = message.get_body_as_reader()?.get_as()?;
        if let Ok(message::Return(answer)) = message.which() {
            let answer: return_::Reader<'_> = answer?;
            if answer.get_no_finish_needed() {
                self.open.borrow_mut().remove(&answer.get_answer_id());
            }
        }
        Ok(())
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
        let message = self.connection.new_outgoing_message(first_segment_word_size);
        Box::new(Outgoing { message, questions: self.questions.clone() })
    }

    fn receive_incoming_message(&mut self) -> Promise<Option<Box<dyn IncomingMessage>>, capnp::Error> {
        let (received, questions) = (self.connection.receive_incoming_message(), self.questions.clone());
        Promise::from_future(async move {
            let message = received.await?;
            if let Some(message) = &message {
                questions.came(&**message)?;
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

/// A message to the peer.
struct Outgoing {
    message: Box<dyn OutgoingMessage>,
    questions: Rc<Questions>,
}

impl OutgoingMessage for Outgoing {
    fn get_body(&mut self) -> capnp::Result<any_pointer::Builder<'_>> {
        self.message.get_body()
    }

    fn get_body_as_reader(&self) -> capnp::Result<any_pointer::Reader<'_>> {
        self.message.get_body_as_reader()
    }

    fn send(self: Box<Self>) -> (Promise<(), capnp::Error>, Rc<Builder<HeapAllocator>>) {
        let noted = self.questions.left(&*self.message);
        let (sent, message) = self.message.send();
        (noted.map_or_else(Promise::err, |()| sent), message)
    }

    fn take(self: Box<Self>) -> Builder<HeapAllocator> {
        self.message.take()
    }

    fn size_in_words(&self) -> usize {
        self.message.size_in_words()
    }
}

#[cfg(test)]
mod tests {
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

    fn asked(number: u32) -> Said {
        said(|to| to.init_call().set_question_id(number))
    }

    /// How many questions are taken that nobody lets go of, from this number on.
    fn taken(questions: &Questions, from: u32) -> usize {
        (from..from + (1 << 20)).take_while(|number| questions.came(&asked(*number)).is_ok()).count()
    }

    #[test]
    fn a_peer_that_asks_and_lets_go_of_nothing_is_stopped() {
        let (questions, bootstrap) = (Questions::default(), said(|to| _ = to.init_bootstrap()));
        let bootstraps = (0..1 << 20).take_while(|_| questions.came(&bootstrap).is_ok()).count();
        assert_eq!(bootstraps as u32, MOST_BOOTSTRAPS);
        assert_eq!(taken(&Questions::default(), 0), MOST_QUESTIONS);
    }

    #[test]
    fn a_peer_that_lets_go_may_ask_for_ever_and_makes_no_room_with_what_it_never_asked() {
        let questions = Questions::default();
        for number in 0..4 * MOST_QUESTIONS as u32 {
            questions.came(&asked(number)).expect("it has let go of the one before");
            for finished in [number, number + 1] {
                let finish = said(|to| to.init_finish().set_question_id(finished));
                questions.came(&finish).expect("nothing is asked");
            }
        }
        assert_eq!(taken(&questions, 0), MOST_QUESTIONS);
    }
}
