//! Sending by callers.
//!
//! On a connection with little traffic a caller sends its command by itself, at once: that takes less
//! time than waking the driver. On a busy connection what callers submit gathers, and the driver sends
//! it together. Once enough has gathered, the caller whose command completes it sends it: then the peer
//! works on it while further callers of the same replies are still running.

use std::sync::atomic::{Ordering, fence};

use embar_transport::ring::SendSpan;

use crate::profile::{Stage, Timing};
use crate::shared::Shared;

/// From so many other commands in flight on, commands gather.
const FEW: usize = 4;

/// So many gathered commands are worth a write, if the driver has one connection. If it has several,
/// their peers work while commands for this one gather, so it is that many times as many.
const ENOUGH: u32 = 16;

/// Sends the command with this ticket, which was just committed while `others` were in flight, or
/// leaves it to the driver. The caller calls this only if its command was the first one that nobody was
/// about to send.
pub(crate) fn send_or_mark(shared: &Shared, others: usize, ticket: u32) {
    let direct = shared.direct.get();
    let is_quiet = others < FEW && !shared.notifier.gather.is_on();
    let Some(direct) = direct.filter(|_| is_quiet || has_gathered_enough(shared, others, ticket))
    else {
        return shared.mark();
    };
    // None: another thread has the right to send by now, and sends all there is.
    let Some(mut span) = shared.ring.span() else {
        return;
    };
    let wanted = span.bytes().len();
    let end_ticket = span.end_ticket();
    shared.written_ticket.store(end_ticket, Ordering::Relaxed);
    let timing = Timing::start();
    let count = direct.try_send(&mut span).unwrap_or(0);
    timing.stop(Stage::Send, 1);
    if count > 0 {
        shared.caller_writes.add_write(count, end_ticket);
    }
    let more = finish(shared, span);
    // The driver waits for a full socket, finds out about a broken one, and watches the deadline.
    if more || count < wanted || !shared.notifier.watches_deadlines() {
        shared.mark();
    }
}

/// Whether a write is worth its cost by now: enough has gathered, and the peer has no more to do than
/// that. An estimate, as other threads may just be writing and reading.
#[inline]
fn has_gathered_enough(shared: &Shared, others: usize, ticket: u32) -> bool {
    let first = shared.written_ticket.load(Ordering::Relaxed);
    // Another thread may have written later commands already: then it is negative.
    let gathered = i64::from(ticket.wrapping_add(1).wrapping_sub(first).cast_signed());
    let enough = ENOUGH.saturating_mul(shared.notifier.connections());
    gathered >= i64::from(enough) && 2 * gathered > others as i64
}

/// Gives the right to send back. True when there is more to send, and no thread is about to.
fn finish(shared: &Shared, span: SendSpan) -> bool {
    let more = span.finish();
    // The driver leaves a large command alone while this caller holds the right to send. Pairs with
    // the fence in `Larges::next`: either the driver sees that the right is free, or this sees
    // that a large command waits.
    fence(Ordering::SeqCst);
    more || !shared.larges.is_empty()
}

#[cfg(test)]
mod tests;
