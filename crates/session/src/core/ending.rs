//! How sessions end: politely where that is possible, in time in any case.

use embar_frame::{Now, Protocol};
use embar_transport::Memory;

use super::frames::{close_frame, cut};
use super::inbound::NOBODY;
use super::{SessionCore, State};
use crate::reason::{CloseReason, Closed, Side};

/// How often an ending session looks at its open reservations.
pub(super) const LOOKS_PER_LINGER: u32 = 16;

/// A session on its way out.
#[derive(Debug)]
pub(super) struct Ending {
    /// When it is cut.
    pub deadline: Now,
    /// When to look again whether reservations are still open: a thread that drops one does not
    /// report it.
    pub look: Now,
    /// What the peer may still send.
    pub discard_left: usize,
    /// CLOSE as it is to be sent, behind a goodbye that was still owed; empty once it is.
    pub close_frame: Vec<u8>,
    /// It waits for reservations that are open.
    pub wait: bool,
    pub write_closed: bool,
}

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// Ends the session in good order: sends what is queued, tells the peer, and closes the
    /// connection when the peer has closed its side, at the latest after
    /// [`SessionConfig::linger`](crate::SessionConfig::linger). Discards what still comes in.
    pub fn finish(&mut self, now: Now) {
        self.at(now);
        self.end_with(CloseReason::Finished, 0, "");
    }

    /// As [`SessionCore::finish`], for another reason, which the peer learns.
    pub fn fail(&mut self, reason: CloseReason, text: &str, now: Now) {
        self.at(now);
        self.end_with(reason, 0, text);
    }

    /// Ends the session at once: nothing more is sent.
    pub fn close(&mut self, reason: CloseReason, text: &str) {
        self.set_closed(Side::Local, reason, 0, text);
        self.cut();
    }

    pub(super) fn end_with(&mut self, reason: CloseReason, code: u32, text: &str) {
        if self.is_ending() {
            return;
        }
        self.set_closed(Side::Local, reason, code, text);
        self.sender.shut();
        if self.config.linger.is_zero() {
            self.cut();
            return;
        }
        // Who greeted without a checksum is of another version, and would not understand one.
        let checked = P::CHECKED && !self.input.greeted_unchecked;
        let close = self.closed.as_ref().map(|it| close_frame(it, checked));
        let mut frame = self.owed_goodbye().unwrap_or_default();
        frame.extend(close.unwrap_or_default());
        self.state = State::Ending(Ending {
            deadline: self.clock.after(self.config.linger),
            look: self.clock.after(self.config.linger / LOOKS_PER_LINGER),
            discard_left: self.config.discard_limit_bytes,
            close_frame: frame,
            wait: reason != CloseReason::ReservationHeld,
            write_closed: false,
        });
        self.drop_lanes();
        // Wakes all that wait for room: there will be none.
        self.ring().close();
        self.input.frame_began = None;
        self.input.skip = 0;
    }

    /// The peer said that it sends nothing more, and discards what comes.
    pub(crate) fn over(&mut self, closed: Closed) {
        if self.closed.is_none() {
            self.closed = Some(closed);
        }
        self.cut();
    }

    /// The connection is gone.
    pub(super) fn lost(&mut self, reason: CloseReason) {
        self.set_closed(NOBODY, reason, 0, "");
        self.cut();
    }

    /// The peer closed its side of a session that is ending.
    pub(super) fn peer_ended(&mut self) {
        if let State::Ending(ending) = &self.state
            && ending.write_closed
        {
            self.cut();
        }
    }

    /// Closes the connection: the next poll says so.
    pub(super) fn cut(&mut self) {
        if matches!(self.state, State::Over) {
            return;
        }
        self.state = State::Over;
        self.close_due = true;
        self.sender.shut();
        self.sender.set_wanted(false);
        self.ring().close();
        self.output.drop_pending();
        self.drop_lanes();
    }

    fn set_closed(&mut self, by: Side, reason: CloseReason, code: u32, text: &str) {
        if self.closed.is_none() {
            self.closed = Some(Closed {
                by,
                reason,
                code,
                text: cut(text).to_owned(),
            });
        }
    }
}
