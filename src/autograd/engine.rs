//! Carries a backward between ranks: sends what [`flow`](super::flow) says is ready, asks what it says is open.
//! Everything here runs on threads that serve a peer; it awaits answers and never blocks for one.

use std::pin::pin;

use futures::future::{self, Either, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};

use super::calls::{Discover, PassNumber, Run};
use super::flow::{Asked, Decision, NextSends};
use super::state::ContextState;
use crate::rpc::{Call, CallError, Mesh, PendingReply};
use crate::topology::Rank;

/// A call of the context, whose tensors are gradients and get no edges.
pub(super) fn call<C: Call>(mesh: &Mesh, state: &ContextState, to: Rank, call: C) -> PendingReply<C::Reply> {
    mesh.request_in(Some(state.id()), to, call)
}

/// Takes gradients from rank `from` through the local graph, and sends on what that completes. Done when all that
/// follows from it is done, on whichever ranks.
pub(super) async fn run(mesh: &Mesh, state: &ContextState, from: Rank, run: Run) -> Result<(), CallError> {
    let pass = run.pass;
    let work = state.accept(from, run)?;
    state.add(state.compute(work)?)?;
    drive(mesh, state, pass).await
}

/// Sends and asks until every received tensor that a gradient has reached was sent on, or is left to a gradient that
/// is still to come.
pub(super) async fn drive(mesh: &Mesh, state: &ContextState, pass: PassNumber) -> Result<(), CallError> {
    let mut under_way = FuturesUnordered::new();
    loop {
        let mut changed = pin!(state.changed());
        changed.as_mut().enable();
        let NextSends { runs, questions, waits } = state.next_sends(pass)?;
        for (rank, run) in runs {
            under_way.push(call(mesh, state, rank, run).boxed_local());
        }
        for asked in questions {
            under_way.push(ask(mesh, state, asked).boxed_local());
        }
        match (under_way.is_empty(), waits) {
            (true, false) => return Ok(()),
            (true, true) => changed.await,
            (false, false) => under_way.next().await.transpose()?.unwrap_or_default(),
            (false, true) => {
                if let Either::Left((done, _)) = future::select(under_way.next(), changed).await {
                    done.transpose()?;
                }
            }
        }
    }
}

/// Whether the edge that rank `from` asks about will get a gradient.
pub(super) async fn discover(
    mesh: &Mesh,
    state: &ContextState,
    from: Rank,
    question: Discover,
) -> Result<bool, CallError> {
    decide(mesh, state, || state.answer(from, &question)).await
}

/// Waits until this rank's gradients of all passes up to `last` are there.
pub(super) async fn settle(mesh: &Mesh, state: &ContextState, last: PassNumber) -> Result<(), CallError> {
    decide(mesh, state, || state.settled(last)).await
}

async fn decide<T>(
    mesh: &Mesh,
    state: &ContextState,
    look: impl Fn() -> Result<Decision<T>, CallError>,
) -> Result<T, CallError> {
    loop {
        let mut changed = pin!(state.changed());
        changed.as_mut().enable();
        match look()? {
            Decision::Decided(decision) => return Ok(decision),
            Decision::Ask(questions) => {
                future::try_join_all(questions.into_iter().map(|asked| ask(mesh, state, asked))).await?;
            }
            Decision::Wait => changed.await,
        }
    }
}

async fn ask(mesh: &Mesh, state: &ContextState, asked: Asked) -> Result<(), CallError> {
    let Asked { rank, send, question } = asked;
    let pass = question.pass;
    let answer = call(mesh, state, rank, question).await?;
    state.learn(pass, send, answer.alive)
}
