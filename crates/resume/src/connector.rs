//! The client's side: opens sessions, and connects again.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use embar_session::Client;

use crate::dialed_connection::DialedConnection;
use crate::dialing::{Attempt, Dialing};
use crate::handler::Handler;
use crate::kept::Kept;
use crate::plan::Plan;
use crate::resumable::Resumable;
use crate::schedule::must_not_block;
use crate::settings::ConnectorSettings;
use crate::target::Target;
use crate::wire::MAX_PROGRAM_GREETING_BYTES;

/// How long what was committed may take to leave when a connector is dropped.
const FAREWELL: Duration = Duration::from_secs(1);

/// Opens sessions, and connects again when their connections are lost. Cheap to clone. When the last clone is gone, all of
/// its sessions end.
#[derive(Clone)]
pub struct Connector(Arc<Owner>);

struct Owner {
    dialing: Arc<Dialing>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// One whose sessions are served by `client`, with a thread that connects.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn new(client: Client, settings: ConnectorSettings) -> io::Result<Self> {
        let dialing = Arc::new(Dialing::new(settings));
        let served = Arc::clone(&dialing);
        // The thread has the client, because a handler may drop the last connector, and a worker cannot wait for itself.
        let serve = move || {
            while let Some(id) = served.schedule.wait() {
                if let Some(attempt) = served.look_at(id) {
                    connect(&client, &served, &attempt);
                }
            }
            served.stop();
            client.shutdown(FAREWELL);
        };
        let thread = Builder::new()
            .name("session-connector".into())
            .spawn(serve)?;
        Ok(Self(Arc::new(Owner {
            dialing,
            thread: Some(thread),
        })))
    }

    /// Opens a session; returns at once. What is sent before it is open waits. `handler` gets all that happens on it.
    ///
    /// # Panics
    /// With a greeting of more than [`MAX_PROGRAM_GREETING_BYTES`].
    pub fn open(&self, target: Target, handler: impl Handler) -> Resumable {
        assert!(
            target.greeting.len() <= MAX_PROGRAM_GREETING_BYTES,
            "a greeting has at most {MAX_PROGRAM_GREETING_BYTES} bytes"
        );
        let dialing = &self.0.dialing;
        let replay = &dialing.settings.replay;
        let plan = Plan::new(target, Instant::now());
        let kept = Kept::new(Box::new(handler), replay, &dialing.schedule, plan);
        let kept = Arc::new(kept);
        dialing.enter(&kept);
        kept.session.clone()
    }
}

fn connect(client: &Client, dialing: &Arc<Dialing>, attempt: &Attempt) {
    let connection = DialedConnection::new(dialing, attempt);
    let (address, hello) = (attempt.address.clone(), &attempt.hello);
    #[cfg(feature = "tls")]
    {
        let tls = attempt.kept.seat().own.target.tls.clone();
        if let Some(tls) = tls {
            drop(client.open_tls(address, &tls, hello, connection));
            return;
        }
    }
    drop(client.open(address, hello, connection));
}

impl Drop for Owner {
    /// The thread ends the sessions. A handler may own the last connector, and who drops it has that session's seat.
    fn drop(&mut self) {
        self.dialing.schedule.stop();
        if !must_not_block()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
