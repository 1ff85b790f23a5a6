//! What others are told of a session: observers get its span, and that it opened and ended; either end hears the other's goodbye.
//!
//! A span costs nothing unless somebody takes it: then one is made for each session, and entered once for each of its turns.

use std::time::Duration;

use embar_frame::{Now, Protocol};
use tracing::level_filters::LevelFilter;
use tracing::span::EnteredSpan;
use tracing::{Level, Span};

use super::SessionDriver;
use crate::{Closed, Goodbye};

/// What subscribers filter by.
const TARGET: &str = "embar_session::session";

impl<P: Protocol> SessionDriver<P> {
    /// The span of the session, for as long as the value lives.
    #[inline]
    pub(in crate::runtime) fn enter_span(&mut self) -> Option<EnteredSpan> {
        // One relaxed load.
        if LevelFilter::current() < Level::DEBUG {
            return None;
        }
        self.span().map(Span::entered)
    }

    /// Made once, if somebody takes it: until then its place asks each time, by one more load, as what is filtered out now may be let through later.
    #[cold]
    fn span(&mut self) -> Option<Span> {
        if let Some(span) = &self.span {
            return Some(Span::clone(span));
        }
        let session = &self.session;
        let span = tracing::debug_span!(
            target: TARGET,
            "session",
            id = %session.id(),
            peer = %session.peer(),
        );
        if span.is_disabled() {
            return None;
        }
        self.span = Some(Box::new(span.clone()));
        Some(span)
    }

    pub(super) fn tell_opened(&self) {
        let session = &self.session;
        tracing::debug!(target: TARGET, id = %session.id(), peer = %session.peer(), "a session opened");
    }

    pub(super) fn tell_closed(&self, why: &Closed) {
        let session = &self.session;
        tracing::debug!(target: TARGET, id = %session.id(), peer = %session.peer(), %why, "a session ended");
    }

    pub(super) fn hear_goodbye(
        &mut self,
        text: &str,
        redirect: Option<&str>,
        after: Duration,
        now: Now,
    ) {
        let goodbye = Goodbye {
            text,
            redirect,
            after,
        };
        self.call_handler(now, |handler, session| handler.goodbye(session, &goodbye));
    }

    /// Says goodbye, with the redirect that was asked for.
    pub(super) fn say_goodbye(&mut self) {
        let redirect = self.session.0.redirect().take();
        if redirect.is_some() {
            self.session.0.group.counters.redirected.add(1);
        }
        self.core.goodbye_to(redirect, "");
    }
}
