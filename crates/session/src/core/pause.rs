//! Time in which this end does not receive for reasons of its own: its owner holds it, the send ring has no room for an
//! answer, or kept messages block the receive ring. It does not count against the peer.

use embar_frame::{Now, Protocol};
use embar_transport::Memory;

use super::SessionCore;

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// This end may have stopped to receive, or begun again, for reasons of its own.
    pub(super) fn note_pause(&mut self) {
        let input = &mut self.input;
        let pauses = input.held || input.lacks_room || input.blocked;
        match input.paused_at {
            None if pauses => input.paused_at = Some(self.clock),
            Some(since) if !pauses => {
                input.paused_at = None;
                self.pass_over(since);
            }
            _ => {}
        }
    }

    /// The time since then does not count against the peer. What it used up before does, or whoever is held again and
    /// again would never be late.
    pub(super) fn pass_over(&mut self, since: Now) {
        let clock = self.clock;
        self.input.heard_at = clock;
        if let Some(began) = &mut self.input.frame_began {
            *began = began.after(clock.since(since.max(*began)));
        }
        if let Some(lanes) = &mut self.lanes {
            lanes.pass_over(since, clock);
        }
    }
}
