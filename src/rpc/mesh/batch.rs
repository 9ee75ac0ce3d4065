//! Calls that leave together: one message to each rank instead of one for each call.
//!
//! RB-1: what is held back leaves in the order in which it was called.
//! RB-2: a thread that waits for an answer lets go of what it holds back first, so nobody waits for a call that has not
//! left.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem;

use tokio::sync::mpsc;

use super::command::{Call, Command};

type Commands = mpsc::UnboundedSender<Command>;

thread_local! {
    /// What this thread holds back, and where it is to go. None: it holds nothing back.
    static HELD: RefCell<Option<(Commands, Vec<Call>)>> = const { RefCell::new(None) };
}

/// While it lives, the calls that this thread makes are held back; they leave when it is dropped, or when the thread
/// waits for an answer. One within another changes nothing.
#[must_use = "calls are held back while it lives"]
pub struct Batch {
    outer: bool,
    of_this_thread: PhantomData<*const ()>,
}

impl Batch {
    pub(crate) fn begin(commands: &Commands) -> Batch {
        let outer = HELD.with_borrow_mut(|held| {
            let outer = held.is_none();
            held.get_or_insert_with(|| (commands.clone(), Vec::new()));
            outer
        });
        Batch { outer, of_this_thread: PhantomData }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.outer
            && let Some((commands, calls)) = HELD.take()
        {
            send(&commands, calls);
        }
    }
}

/// Sends the calls now, unless this thread holds back what goes there.
pub(crate) fn send_or_hold(commands: &Commands, calls: Vec<Call>) {
    let calls = HELD.with_borrow_mut(|held| match held {
        Some((of, before)) if of.same_channel(commands) => {
            before.extend(calls);
            Vec::new()
        }
        _ => calls,
    });
    send(commands, calls);
}

/// Sends what this thread holds back (RB-2).
pub(crate) fn send_held() {
    let held = HELD
        .with_borrow_mut(|held| held.as_mut().map(|(commands, calls)| (commands.clone(), mem::take(calls))));
    if let Some((commands, calls)) = held {
        send(&commands, calls);
    }
}

fn send(commands: &Commands, calls: Vec<Call>) {
    if !calls.is_empty() {
        // When the RPC thread is gone the replies are dropped, and `Pending` says why.
        let _ = commands.send(Command::Calls(calls));
    }
}
