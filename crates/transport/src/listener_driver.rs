//! Accepts connections from one listener. After a failure, such as no free descriptor, it rests for
//! a while instead of trying again at once.

use std::io;
use std::time::Instant;

use embar_memory::Mapped;

use crate::reactor::ACCEPT_RETRY;
use crate::socket;
use crate::{Completion, IoCounters, Peer, Stream, Token};

/// Connections accepted per round, so that a storm of them leaves room for those that work.
const ACCEPTS_PER_ROUND: usize = 64;

/// A listener that the reactor accepts from.
pub(crate) struct ListenerDriver {
    pub(crate) listener: socket::Listener,
    may_accept: bool,
    /// After a failure: rest until then.
    resting_until: Option<Instant>,
    /// It is in the queue of those to be tried.
    pub(crate) queued: bool,
}

impl ListenerDriver {
    pub(crate) fn new(listener: socket::Listener) -> Self {
        Self {
            listener,
            // Registering raises an edge if a peer waits already.
            may_accept: false,
            resting_until: None,
            queued: false,
        }
    }

    pub(crate) fn note_edge(&mut self) {
        self.may_accept = true;
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.may_accept && self.resting_until.is_none()
    }

    pub(crate) fn resting_until(&self) -> Option<Instant> {
        self.resting_until
    }

    /// Ends the rest: a descriptor may have become free.
    pub(crate) fn end_rest(&mut self) {
        self.resting_until = None;
    }

    /// Accepts what waits, up to a limit.
    pub(crate) fn accept_some(
        &mut self,
        token: Token,
        counters: &mut IoCounters,
        out: &mut Vec<Completion<Mapped>>,
    ) {
        for _ in 0..ACCEPTS_PER_ROUND {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    counters.accepted += 1;
                    out.push(accepted(token, stream, peer));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.may_accept = false;
                    return;
                }
                Err(error) if concerns_one_peer(&error) => {}
                Err(error) => {
                    counters.accept_failures += 1;
                    // The waiting peers raise no further edge, so the clock has to.
                    self.resting_until = Some(Instant::now() + ACCEPT_RETRY);
                    let listener = token;
                    out.push(Completion::AcceptFailed { listener, error });
                    return;
                }
            }
        }
    }
}

fn accepted(listener: Token, stream: Stream, peer: Peer) -> Completion<Mapped> {
    Completion::Accepted {
        listener,
        stream,
        peer,
    }
}

/// Linux reports errors of a connection that died in the backlog here; the next may be well.
fn concerns_one_peer(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::INTR
                | Errno::PROTO
                | Errno::NETDOWN
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
        )
    )
}
