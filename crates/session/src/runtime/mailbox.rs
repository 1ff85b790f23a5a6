//! Commands for a worker, from other threads.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use embar_transport::tls::TlsTarget;
use embar_transport::{Address, Peer};

use super::admission::Place;
use super::arrivals::Newcomer;
use super::connecting::Promise;
use super::datagrams::UnclaimedLink;
use super::handler::Handler;
use super::listening::Offered;
use super::worker_marks::WorkerMarks;

/// What other threads want of a worker.
pub(super) enum Command {
    /// Take care of an accepted connection.
    Adopt(Newcomer),
    /// Connect, and serve the connection.
    Connect(ConnectRequest),
    /// Take nothing new, end every session politely, cut what is left after this time, and end.
    Drain(Duration),
    /// Accept nothing more, and drop this once that is so.
    StopAccepting(Sender<()>),
    /// What was asked before in this way has been done: drop this.
    Acknowledge(Sender<()>),
    /// Send copies of the listeners.
    OfferListeners(Sender<io::Result<Offered>>),
    /// One that has not greeted is to give up its descriptor, for the worker of this number.
    MakeRoom { asking: usize },
    /// Another worker gave one up: accept again.
    RoomMade,
}

/// A connect that a worker is to begin.
pub(super) struct ConnectRequest {
    pub(super) to: ConnectTo,
    pub(super) greeting: Vec<u8>,
    pub(super) handler: Box<dyn Handler>,
    pub(super) promise: Promise,
    pub(super) place: Place,
    /// Encrypted, for this server.
    pub(super) tls: Option<TlsTarget>,
}

/// What a session is to be opened with.
pub(super) enum ConnectTo {
    /// Whoever listens there.
    Address(Address),
    /// Who is at the other end of a connection that stands: its bytes, and its datagrams, are carried by somebody else.
    Carried(UnixStream, Peer, UnclaimedLink),
}

#[derive(Default)]
struct Inbox {
    commands: Vec<Command>,
    /// The worker has ended: it would never take another command.
    closed: bool,
}

/// The commands that wait for one worker.
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    pub(super) marks: Arc<WorkerMarks>,
}

impl Mailbox {
    pub(super) fn new(marks: Arc<WorkerMarks>) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::default(),
            marks,
        })
    }

    /// # Errors
    /// The command back, if the worker has ended.
    pub(super) fn send(&self, command: Command) -> Result<(), Box<Command>> {
        let mut inbox = self.inbox();
        if inbox.closed {
            return Err(Box::new(command));
        }
        inbox.commands.push(command);
        drop(inbox);
        self.marks.wake();
        Ok(())
    }

    /// For the worker, after a thread woke it.
    pub(super) fn take(&self) -> Vec<Command> {
        std::mem::take(&mut self.inbox().commands)
    }

    /// For the worker that ends: refuses further commands, and returns those that still wait.
    pub(super) fn close(&self) -> Vec<Command> {
        let mut inbox = self.inbox();
        inbox.closed = true;
        std::mem::take(&mut inbox.commands)
    }

    fn inbox(&self) -> std::sync::MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
