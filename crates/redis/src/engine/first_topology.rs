//! What a client of several nodes waits for when it connects: the first topology.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::failures::Failures;
use crate::config::Mode;
use crate::error::Error;

/// Whether the client has a topology; why not, until it does.
#[derive(Default)]
pub(crate) struct FirstTopology(Mutex<State>);

#[derive(Default)]
struct State {
    known: bool,
    failures: Failures,
    /// The task that connects: there is only one.
    waiting: Option<Waker>,
}

impl FirstTopology {
    /// The client has a topology.
    pub(super) fn found(&self) {
        let mut state = self.state();
        state.known = true;
        state.failures = Failures::default();
        Self::wake(state);
    }

    /// A reading of the topology has failed.
    pub(super) fn failed(&self, mut failures: Failures) {
        let mut state = self.state();
        // A reading that could ask nobody tells nothing new.
        if !state.known && !failures.is_empty() {
            failures.recall(mem::take(&mut state.failures));
            state.failures = failures;
        }
        Self::wake(state);
    }

    fn wake(mut state: MutexGuard<'_, State>) {
        let waiting = state.waiting.take();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Ready when there is a topology, or when all nodes refused to tell: it would be no use to ask again. Each reading
    /// wakes the task.
    ///
    /// # Errors
    /// Why one refused.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut state = self.state();
        if state.known {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = state.failures.all_refused() {
            return Poll::Ready(Err(error.clone()));
        }
        let old = state.waiting.replace(cx.waker().clone());
        // Dropping a waker may run any code.
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Whether there is one.
    pub fn is_known(&self) -> bool {
        self.state().known
    }

    /// What a server said, when all nodes refused to tell.
    pub fn refusal(&self) -> Option<Error> {
        self.state().failures.all_refused().cloned()
    }

    /// Why there is none, for the caller of the client.
    pub fn why_not(&self, mode: Mode) -> String {
        let why = &self.state().failures;
        match mode {
            Mode::Standalone | Mode::Cluster => {
                format!("no node tells which serves which slot: {why}")
            }
            Mode::Replicated | Mode::Sentinel => format!("no primary is known: {why}"),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
