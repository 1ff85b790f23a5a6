//! The server's side: keeps sessions that lost their connection.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use embar_session::Peer;

use crate::handler::Handler;
use crate::keeping::Keeping;
use crate::kept_connection::{KeptConnection, MakeHandler};
use crate::resumable::Resumable;
use crate::schedule::must_not_block;
use crate::settings::KeeperSettings;

/// Keeps the sessions of a server while they have no connection. Cheap to clone. When the last clone is gone, and the
/// server that has [`Keeper::handlers`], all of its sessions end.
#[derive(Clone)]
pub struct Keeper(Arc<Owner>);

struct Owner {
    keeping: Arc<Keeping>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keeper({} sessions)", self.0.keeping.table().len())
    }
}

impl Keeper {
    /// One with these settings, and a thread that watches over the times of sessions.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn new(settings: KeeperSettings) -> io::Result<Self> {
        let keeping = Arc::new(Keeping::new(settings));
        let watched = Arc::clone(&keeping);
        let watch = move || {
            while let Some(id) = watched.schedule.wait() {
                watched.look_at(id);
            }
            watched.stop();
        };
        let thread = Builder::new().name("session-keeper".into()).spawn(watch)?;
        Ok(Self(Arc::new(Owner {
            keeping,
            thread: Some(thread),
        })))
    }

    /// For [`ServerBuilder::start`](embar_session::ServerBuilder::start): `make` is called for each session that begins,
    /// and gives the handler that it has over all of its connections.
    pub fn handlers<H: Handler>(
        &self,
        make: impl Fn(&Peer) -> H + Send + Sync + 'static,
    ) -> impl Fn(&Peer) -> KeptConnection + Send + Sync + 'static {
        let keeper = self.clone();
        let make: Arc<MakeHandler> = Arc::new(move |peer| Box::new(make(peer)));
        move |peer| KeptConnection::new(&keeper.0.keeping, &make, *peer)
    }

    /// All sessions, in no order.
    #[must_use]
    pub fn sessions(&self) -> Vec<Resumable> {
        let all = self.0.keeping.table().all();
        all.into_iter().map(|kept| kept.session.clone()).collect()
    }

    /// How many sessions have no connection.
    #[must_use]
    pub fn suspended(&self) -> usize {
        self.0.keeping.table().suspended()
    }

    /// Bytes of messages that wait in them, with their headers.
    #[must_use]
    pub fn suspended_bytes(&self) -> usize {
        self.0.keeping.suspended_bytes()
    }

    /// Sends all clients away before the server shuts down: each acknowledges what it got, has all acknowledged that it
    /// sent, and begins anew at its next address, with what it did not send. Who connects meanwhile is sent away at once; who
    /// resumes, after that. Waits until all sessions are over, at most for `timeout`, and returns how many are not. Not for
    /// handlers, in which it does not wait.
    #[must_use = "messages of the sessions that are left may be in doubt"]
    pub fn drain(&self, timeout: Duration) -> usize {
        self.0.keeping.drain(timeout)
    }

    /// Takes clients again after a drain, for instance because the process that was to follow was not ready. Those who are on their
    /// way to another server go there; who has no other comes back.
    pub fn reopen(&self) {
        self.0.keeping.reopen();
    }
}

impl Drop for Owner {
    /// The thread ends the sessions. A handler may own the last keeper, and who drops it has that session's seat.
    fn drop(&mut self) {
        self.keeping.schedule.stop();
        if !must_not_block()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
