//! Sending by callers.
//!
//! On a connection with little traffic a caller sends its command by itself, at once: that takes less
//! time than waking the driver. On a busy connection what callers submit gathers, and the driver sends
//! it together.

use std::sync::atomic::{Ordering, fence};

use embar_transport::ring::SendSpan;

use crate::profile::{Stage, Timing};
use crate::shared::Shared;

/// From so many other commands in flight on, commands gather.
const FEW: usize = 4;

/// Sends a command that was just committed while `others` were in flight, or leaves it to the driver.
/// The caller calls this only if its command was the first one that nobody was about to send.
pub(crate) fn send_or_mark(shared: &Shared, others: usize) {
    let direct = shared.direct.get();
    let is_quiet = others < FEW && !shared.notifier.gather.is_on();
    let Some(direct) = direct.filter(|_| is_quiet) else {
        return shared.mark();
    };
    // None: another thread has the right to send by now, and sends all there is.
    let Some(mut span) = shared.ring.span() else {
        return;
    };
    let wanted = span.bytes().len();
    let end_ticket = span.end_ticket();
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

/// Gives the right to send back. True when there is more to send, and no thread is about to.
fn finish(shared: &Shared, span: SendSpan) -> bool {
    let more = span.finish();
    // The driver leaves a large command alone while this caller holds the right to send. Pairs with
    // the fence in `Shared::next_large`: either the driver sees that the right is free, or this sees
    // that a large command waits.
    fence(Ordering::SeqCst);
    more || shared.larges_queued.load(Ordering::Relaxed) > 0
}

#[cfg(test)]
mod tests;
