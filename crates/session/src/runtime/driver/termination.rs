//! The end of a session whose worker cannot go on with it: after a panic, or when the worker stops.

use std::sync::Arc;

use embar_frame::Protocol;

use super::SessionDriver;
use crate::Closed;
use crate::runtime::panics::catch_panic;

impl<P: Protocol> SessionDriver<P> {
    /// Reports the end to all who have not learned of it yet. Its core and its buffers
    /// may be in any state and are not touched; a panic of the user's code ends here.
    pub(in crate::runtime) fn terminate(&mut self, why: Closed) {
        let _in_span = self.enter_span();
        let shared = &self.session.0;
        // An end that was decided already, but not reported to all.
        let decided = shared.ended.get().or_else(|| self.core.closed());
        let why = decided.cloned().unwrap_or(why);
        if shared.ended.get().is_none() {
            shared.group.counters.count_reason(why.reason);
            self.tell_closed(&why);
        }
        // Wakes all that wait for room, too.
        catch_panic(|| shared.end(why.clone()));
        if let Some(mut handler) = self.handler.take() {
            catch_panic(|| {
                handler.closed(&self.session, &why);
                drop(handler);
            });
        }
        if let Some(outcome) = self.outcome.as_ref().map(Arc::clone) {
            outcome.set(Err(why));
        }
    }
}
