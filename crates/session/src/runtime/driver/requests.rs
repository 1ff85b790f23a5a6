//! What other threads, handlers and the worker ask of a session.

use std::mem;

use embar_frame::{Now, Protocol};

use super::{SessionDriver, timing};
use crate::CloseReason;
use crate::runtime::shared::request;

impl<P: Protocol> SessionDriver<P> {
    /// Does what other threads, or handlers, asked for.
    pub(in crate::runtime) fn apply_requests(&mut self, now: Now) {
        let asked = self.session.0.take_requests();
        if asked == 0 {
            return;
        }
        if asked & request::DATAGRAMS != 0 {
            self.due |= timing::due::DATAGRAMS;
        }
        if asked & request::RESUME != 0 {
            if mem::take(&mut self.paused) {
                self.core.hold(self.paced_until().is_some(), now);
            }
            self.resume_lanes(now);
        }
        if asked & request::CANCEL_BODY != 0 {
            self.cancel_bodies();
        }
        if asked & request::LATEST != 0 {
            self.commit_latest();
        }
        if asked & request::STATUS != 0 {
            self.core.request_status();
            self.status_asked = true;
        }
        if asked & request::GOODBYE != 0 {
            self.say_goodbye();
        }
        if asked & request::REFUSE != 0
            && let Some((code, text)) = self.session.0.refusal.get()
        {
            self.core.refuse(*code, text, now);
        }
        if asked & request::CLOSE != 0 {
            let reason = *self.finish_due.get_or_insert(CloseReason::Finished);
            self.core.leave(reason, now);
        }
        if asked & request::ABORT != 0 {
            self.core.close(CloseReason::Finished, "");
        }
        if asked & request::FULL != 0 {
            self.core.close(CloseReason::Full, "");
        }
    }

    /// The worker stops: after a goodbye, and the bodies that wait, the session ends.
    pub(in crate::runtime) fn drain(&mut self) {
        // With the redirect that may have been asked for just now.
        self.say_goodbye();
        self.finish_due.get_or_insert(CloseReason::Shutdown);
    }

    pub(in crate::runtime) fn cut(&mut self, reason: CloseReason) {
        self.core.close(reason, "");
    }
}
