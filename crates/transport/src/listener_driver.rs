//! Accepts connections from one listener. After a failure, such as no free descriptor, it rests for
//! a while instead of trying again at once.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

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
    /// After a failure, until [`Rests`] names it.
    rests: bool,
    /// It is in the queue of those to be tried.
    pub(crate) queued: bool,
}

impl ListenerDriver {
    pub(crate) fn new(listener: socket::Listener) -> Self {
        Self {
            listener,
            // Registering raises an edge if a peer waits already.
            may_accept: false,
            rests: false,
            queued: false,
        }
    }

    pub(crate) fn note_edge(&mut self) {
        self.may_accept = true;
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.may_accept && !self.rests
    }

    /// Ends the rest: a descriptor may have become free.
    pub(crate) fn end_rest(&mut self) {
        self.rests = false;
    }

    /// Accepts what waits, up to a limit. Adds itself to `rests` if it has to rest.
    pub(crate) fn accept_some(
        &mut self,
        token: Token,
        counters: &mut IoCounters,
        rests: &mut Rests,
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
                    self.rests = true;
                    rests.begin(token);
                    let listener = token;
                    out.push(Completion::AcceptFailed { listener, error });
                    return;
                }
            }
        }
    }
}

/// The listeners of one reactor that rest.
#[derive(Default)]
pub(crate) struct Rests {
    /// Each with the end of its rest. All rest equally long, so the first ends first.
    list: VecDeque<(Token, Instant)>,
}

impl Rests {
    fn begin(&mut self, listener: Token) {
        self.list
            .push_back((listener, Instant::now() + ACCEPT_RETRY));
    }

    /// Takes out a listener whose rest is over, or any if `all` are to try again. It may be closed by now.
    pub(crate) fn next_over(&mut self, all: bool) -> Option<Token> {
        let (_, end) = self.list.front()?;
        if !all && *end > Instant::now() {
            return None;
        }
        self.list.pop_front().map(|(listener, _)| listener)
    }

    /// How long a wait may last without oversleeping the end of a rest.
    pub(crate) fn until_next(&self) -> Option<Duration> {
        let (_, end) = self.list.front()?;
        Some(end.saturating_duration_since(Instant::now()))
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
