//! What a user writes: the handler of one session, over all of its connections.

use embar_session::{Closed, Flow, Message};

use crate::resumable::Resumable;
use crate::state::{Ended, Restart};

/// Handles one session, as long as it lives, whatever becomes of its connections. Calls come one after the other, from
/// worker threads and, while there is no connection, from the thread of the [`Keeper`](crate::Keeper) or
/// [`Connector`](crate::Connector). They must not block.
///
/// A handler that panics loses its session, with [`End::Panicked`](crate::End::Panicked).
pub trait Handler: Send + 'static {
    /// At a server: a client opens a session, with a greeting of its own. The bytes returned are the greeting it gets
    /// back, at most [`MAX_PROGRAM_GREETING_BYTES`](crate::MAX_PROGRAM_GREETING_BYTES); an error refuses it with that
    /// text. Not called when a session resumes.
    ///
    /// # Errors
    /// The text for the client that is refused.
    fn greeted(&mut self, session: &Resumable, greeting: &[u8]) -> Result<Vec<u8>, String> {
        let _ = (session, greeting);
        Ok(Vec::new())
    }

    /// The session is open for the first time. `greeting` is what the peer sent.
    fn opened(&mut self, session: &Resumable, greeting: &[u8]) {
        let _ = (session, greeting);
    }

    /// A message arrived: within the window each of them comes once, and in order. With [`Flow::Pause`] it comes again
    /// after [`Resumable::go_on`], or on the next connection. It counts as handled when this returns [`Flow::Continue`].
    ///
    /// While a message waits, nothing behind it is read, not even what the peer acknowledges. So never pause until there
    /// is room for an answer, or until something is acknowledged: neither comes.
    fn message(&mut self, session: &Resumable, message: Message<'_>) -> Flow;

    /// The time is there for which [`Resumable::wake_after`] was called.
    fn woken(&mut self, session: &Resumable) {
        let _ = session;
    }

    /// The connection is lost. What is sent meanwhile waits.
    fn suspended(&mut self, session: &Resumable, why: &Closed) {
        let _ = (session, why);
    }

    /// The session has resumed, on another connection. Nothing was lost.
    fn resumed(&mut self, session: &Resumable) {
        let _ = session;
    }

    /// At a client: the server knows nothing of what was before. `greeting` is what it sent.
    fn restarted(&mut self, session: &Resumable, restart: &Restart, greeting: &[u8]) {
        let _ = (session, restart, greeting);
    }

    /// The session is over: called exactly once, last, also if it never opened; but not at a server that refused it.
    fn closed(&mut self, session: &Resumable, ended: &Ended) {
        let _ = (session, ended);
    }
}
