//! The end of a session whose worker cannot go on with it: after a panic, or when the worker stops.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use embar_frame::Protocol;

use super::Conn;
use crate::Closed;

impl<P: Protocol> Conn<P> {
    /// Tells everyone who has not been told yet that the session is over. Its link and its buffers
    /// may be in any state and are not touched; what the user's code does here is contained.
    pub(in crate::runtime) fn perish(&mut self, why: Closed) {
        let shared = &self.session.0;
        // An end that was decided already, but not told to all.
        let decided = shared.ended.get().or_else(|| self.link.closed());
        let why = decided.cloned().unwrap_or(why);
        if shared.ended.get().is_none() {
            shared.group.numbers.count_reason(why.reason);
        }
        // Wakes whoever waits for room, too.
        contained(|| shared.end(why.clone()));
        if let Some(mut handler) = self.handler.take() {
            contained(|| {
                handler.closed(&self.session, &why);
                drop(handler);
            });
        }
        if let Some(latch) = self.latch.as_ref().map(Arc::clone) {
            latch.tell(Err(why));
        }
    }
}

/// Runs code of the user; a panic in it ends nothing else.
pub(in crate::runtime) fn contained(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("a handler, its destructor or a waker panicked while its session ended");
    }
}
