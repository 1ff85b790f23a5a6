//! A connect on its way, and how its outcome gets from the worker to its caller.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::panics::catch_panic;
use super::session::Session;
use super::worker_marks::is_worker;
use crate::{CloseReason, Closed, Side};

/// How a connect ended; its caller waits here.
#[derive(Default)]
pub(super) struct ConnectOutcome {
    state: Mutex<OutcomeState>,
    decided: Condvar,
}

#[derive(Default)]
struct OutcomeState {
    outcome: Option<Result<Session, Closed>>,
    waker: Option<Waker>,
    /// The caller waits no more: a session that opens is to close.
    abandoned: bool,
}

impl ConnectOutcome {
    /// The first outcome counts.
    pub(super) fn set(&self, outcome: Result<Session, Closed>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.outcome.is_some() {
            return;
        }
        let unwanted = outcome.as_ref().ok().filter(|_| state.abandoned).cloned();
        state.outcome = Some(outcome);
        self.decided.notify_all();
        let waker = state.waker.take();
        drop(state);
        if let Some(session) = unwanted {
            session.close();
        }
        if let Some(waker) = waker {
            catch_panic(|| waker.wake());
        }
    }

    /// The caller will not take the session: it closes, now or as soon as it opens.
    fn abandon(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.abandoned = true;
        state.waker = None;
        let opened = state
            .outcome
            .as_ref()
            .and_then(|outcome| outcome.clone().ok());
        drop(state);
        if let Some(session) = opened {
            session.close();
        }
    }

    fn wait(&self) -> Result<Session, Closed> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.outcome.is_none() && is_worker() {
            drop(state);
            self.abandon();
            return Err(blocks_a_handler());
        }
        let waited = self
            .decided
            .wait_while(state, |state| state.outcome.is_none());
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        state.outcome.clone().unwrap_or_else(|| Err(not_running()))
    }
}

/// The duty to set an outcome. Dropped, for whatever reason, it sets that nothing comes of the
/// connect, unless there is an outcome already.
pub(super) struct Promise(Option<Arc<ConnectOutcome>>);

impl Promise {
    pub(super) fn new(outcome: &Arc<ConnectOutcome>) -> Self {
        Self(Some(Arc::clone(outcome)))
    }

    /// Where the session sets the outcome; the promise still holds until [`Promise::hand_on`].
    pub(super) fn outcome(&self) -> Option<Arc<ConnectOutcome>> {
        self.0.clone()
    }

    /// The session keeps the promise from here on.
    pub(super) fn hand_on(mut self) {
        self.0 = None;
    }

    pub(super) fn fail(self, why: Closed) {
        if let Some(outcome) = &self.0 {
            outcome.set(Err(why));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(outcome) = &self.0 {
            outcome.set(Err(not_running()));
        }
    }
}

fn not_running() -> Closed {
    Closed {
        by: Side::Local,
        reason: CloseReason::Shutdown,
        code: 0,
        text: "the client is stopped: start another one".to_owned(),
    }
}

fn blocks_a_handler() -> Closed {
    Closed {
        by: Side::Local,
        reason: CloseReason::Io(io::ErrorKind::Deadlock),
        code: 0,
        text: "a handler must not wait for a connect: begin it with Client::open, and go on in the opened of its handler".to_owned(),
    }
}

/// A connect on its way: waits for the session to open, blocking or as a future. Dropping it does
/// not end the connect.
#[must_use = "this is where the outcome is"]
pub struct Connecting {
    outcome: Arc<ConnectOutcome>,
}

impl Connecting {
    pub(super) fn new(outcome: Arc<ConnectOutcome>) -> Self {
        Self { outcome }
    }

    /// Blocks until the session is open, or is over. Not for handlers: their worker may be the one
    /// that has to open it.
    ///
    /// # Errors
    /// How the session ended before it opened. In a handler, unless the outcome is there already:
    /// [`Deadlock`](io::ErrorKind::Deadlock) at once, and a session that opens nevertheless is closed.
    pub fn wait(self) -> Result<Session, Closed> {
        self.outcome.wait()
    }
}

impl Future for Connecting {
    type Output = Result<Session, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = self.outcome.state.lock();
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        match &state.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A connect that is abandoned when this is dropped before it is done: a session that opens
/// nevertheless is closed politely.
pub(super) struct Cancellable(Option<Connecting>);

impl Connecting {
    pub(super) fn cancellable(self) -> Cancellable {
        Cancellable(Some(self))
    }
}

impl Future for Cancellable {
    type Output = Result<Session, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(connecting) = &mut self.0 else {
            return Poll::Ready(Err(not_running()));
        };
        let polled = Pin::new(connecting).poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        if let Some(connecting) = &self.0 {
            connecting.outcome.abandon();
        }
    }
}
