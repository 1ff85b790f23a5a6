//! A worker, as seen from other threads: what they hand to it, and how they wake it.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use embar_transport::tls::TlsTarget;
use embar_transport::{Address, Marks, Peer, Stream, Waker};

use super::client::Promise;
use super::group::Place;
use super::handler::Handler;

/// What other threads hand to a worker.
pub(super) enum Command {
    /// Serve an accepted connection.
    Adopt(Stream, Peer, Place),
    /// Connect, and serve the connection.
    Connect {
        address: Address,
        greeting: Vec<u8>,
        handler: Box<dyn Handler>,
        promise: Promise,
        place: Place,
        /// Encrypted, for this server.
        tls: Option<TlsTarget>,
    },
    /// Take nothing new, end every session politely, cut what is left after this time, and end.
    Drain(Duration),
}

#[derive(Default)]
struct Inbox {
    commands: Vec<Command>,
    /// The worker has ended: nobody would ever look in here.
    dead: bool,
}

/// See the module.
pub(super) struct Hub {
    inbox: Mutex<Inbox>,
    marks: Marks,
    waker: Waker,
}

thread_local! {
    /// The address of the worker that this thread is; 0 for all other threads.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// Whether the calling thread is a worker, of whatever server or client.
pub(super) fn is_worker() -> bool {
    WORKER.get() != 0
}

/// Whether the calling thread is this worker.
pub(super) fn is_current(hub: &Arc<Hub>) -> bool {
    WORKER.get() == Arc::as_ptr(hub).addr()
}

impl Hub {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::default(),
            marks: Marks::new(),
            waker,
        })
    }

    /// The calling thread is this worker from now on.
    pub(super) fn become_current(self: &Arc<Self>) {
        WORKER.set(Arc::as_ptr(self).addr());
    }

    /// Has the worker look at the session in `slot`. No lock, and no system call unless the worker
    /// sleeps; a worker marks its own sessions without waking itself.
    pub(super) fn mark(self: &Arc<Self>, slot: usize) {
        if self.marks.mark(slot) && !is_current(self) {
            self.waker.wake();
        }
    }

    /// Whether the session in `slot` is marked; what another thread does just now may be missed.
    pub(super) fn is_marked(&self, slot: usize) -> bool {
        self.marks.is_marked(slot)
    }

    /// For the worker, after each round: the sessions to look at.
    pub(super) fn take_marks(&self, out: &mut Vec<usize>) {
        self.marks.take(out);
    }

    /// Whether marks are left; those that others are just making wake the worker.
    pub(super) fn has_marks(&self) -> bool {
        !self.marks.is_empty()
    }

    /// # Errors
    /// The command back, if the worker has ended.
    pub(super) fn hand(&self, command: Command) -> Result<(), Box<Command>> {
        let mut inbox = self.inbox();
        if inbox.dead {
            return Err(Box::new(command));
        }
        inbox.commands.push(command);
        drop(inbox);
        self.waker.wake();
        Ok(())
    }

    /// For the worker, after it was woken.
    pub(super) fn take_commands(&self) -> Vec<Command> {
        std::mem::take(&mut self.inbox().commands)
    }

    /// For the worker that ends: takes nothing any more, and gives what was not looked at.
    pub(super) fn die(&self) -> Vec<Command> {
        let mut inbox = self.inbox();
        inbox.dead = true;
        std::mem::take(&mut inbox.commands)
    }

    fn inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
