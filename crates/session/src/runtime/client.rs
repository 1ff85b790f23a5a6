//! The side that connects.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use embar_transport::Address;
use embar_wire::frame::Protocol;

use super::admin::Monitor;
use super::channel::Connector;
use super::group::{Crew, Plan, Settings};
use super::handler::Handler;
use super::hub::Command;
use super::session::Session;
use super::stats::Totals;
use crate::{CloseReason, Closed, Plain, Side};

/// Where a connect's outcome is waited for.
#[derive(Default)]
pub(super) struct Latch {
    state: Mutex<LatchState>,
    told: Condvar,
}

#[derive(Default)]
struct LatchState {
    outcome: Option<Result<Session, Closed>>,
    waker: Option<Waker>,
}

impl Latch {
    /// The first outcome counts.
    pub(super) fn tell(&self, outcome: Result<Session, Closed>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.outcome.is_none() {
            state.outcome = Some(outcome);
            self.told.notify_all();
            if let Some(waker) = state.waker.take() {
                drop(state);
                waker.wake();
            }
        }
    }

    fn wait(&self) -> Result<Session, Closed> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.told.wait_while(state, |state| state.outcome.is_none());
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        state.outcome.clone().unwrap_or_else(|| Err(not_running()))
    }
}

fn not_running() -> Closed {
    Closed {
        by: Side::Local,
        reason: CloseReason::Shutdown,
        code: 0,
        text: "the client is stopped: start another one".to_owned(),
    }
}

/// A connect on its way: waits for the session to open, blocking or as a future. Dropping it does
/// not end the connect.
#[must_use = "the outcome is told here"]
pub struct Connecting {
    latch: Arc<Latch>,
}

impl Connecting {
    /// Blocks until the session is open, or is over. Not for handlers: their worker may be the one
    /// that has to open it.
    ///
    /// # Errors
    /// How the session ended before it opened.
    pub fn wait(self) -> Result<Session, Closed> {
        self.latch.wait()
    }
}

impl Future for Connecting {
    type Output = Result<Session, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = self.latch.state.lock();
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        match &state.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Opens sessions, all of them on the same few threads. Dropping it ends its sessions at once; see
/// [`Client::shutdown`] for a polite end.
pub struct Client {
    crew: Crew,
}

impl Client {
    /// A client of the protocol [`Plain`] with the default settings.
    ///
    /// # Errors
    /// When threads, descriptors or memory are missing.
    pub fn new() -> io::Result<Self> {
        Self::with(Plain, Settings::default())
    }

    /// A client of `protocol`.
    ///
    /// # Errors
    /// When threads, descriptors or memory are missing, or a setting is out of range.
    pub fn with<P>(protocol: P, settings: Settings) -> io::Result<Self>
    where
        P: Protocol + Clone + Send + Sync + 'static,
    {
        let crew = Crew::start(Plan {
            protocol,
            settings,
            make_handler: None,
            acceptor: None,
            listeners: Vec::new(),
            name: "session-client",
        })?;
        Ok(Self { crew })
    }

    /// Connects to `address` and waits until the session is open, at most for the setting
    /// `hello_timeout`. All that happens on it is told to `handler`. Not for handlers, which must
    /// not block: see [`Client::open`].
    ///
    /// # Errors
    /// How the session ended before it opened.
    pub fn connect(
        &self,
        address: impl Into<Address>,
        handler: impl Handler,
    ) -> Result<Session, Closed> {
        self.open(address, &[], handler).wait()
    }

    /// Starts to connect, with a greeting for the peer's handler.
    pub fn open(
        &self,
        address: impl Into<Address>,
        greeting: &[u8],
        handler: impl Handler,
    ) -> Connecting {
        self.begin(address.into(), greeting, Box::new(handler), None)
    }

    /// As [`Client::connect`], encrypted, and only to the server that `tls` names.
    ///
    /// # Errors
    /// How the session ended before it opened: [`CloseReason::Certificate`] if the server could not
    /// prove who it is, [`CloseReason::Tls`] if it does not speak TLS.
    #[cfg(feature = "tls")]
    pub fn connect_tls(
        &self,
        address: impl Into<Address>,
        tls: &super::TlsTarget,
        handler: impl Handler,
    ) -> Result<Session, Closed> {
        self.open_tls(address, tls, &[], handler).wait()
    }

    /// As [`Client::open`], encrypted, and only to the server that `tls` names.
    #[cfg(feature = "tls")]
    pub fn open_tls(
        &self,
        address: impl Into<Address>,
        tls: &super::TlsTarget,
        greeting: &[u8],
        handler: impl Handler,
    ) -> Connecting {
        let tls = Some(Connector::new(tls));
        self.begin(address.into(), greeting, Box::new(handler), tls)
    }

    fn begin(
        &self,
        address: Address,
        greeting: &[u8],
        handler: Box<dyn Handler>,
        tls: Option<Connector>,
    ) -> Connecting {
        let latch = Arc::new(Latch::default());
        let group = &self.crew.group;
        let connections = group.connections.fetch_add(1, Ordering::AcqRel);
        if connections >= group.settings.max_sessions {
            group.connections.fetch_sub(1, Ordering::AcqRel);
            group.numbers.refused.add(1);
            latch.tell(Err(Closed {
                by: Side::Local,
                reason: CloseReason::TooManySessions,
                code: 0,
                text: String::new(),
            }));
        } else {
            self.crew.next_hub().hand(Command::Connect {
                address,
                greeting: greeting.to_vec(),
                handler,
                latch: Arc::clone(&latch),
                tls,
            });
        }
        Connecting { latch }
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Totals {
        self.crew.group.totals()
    }

    /// For [`Admin`](super::Admin), or for looking at the figures from elsewhere.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(Arc::clone(&self.crew.group))
    }

    /// The sessions there are, in the order in which they were made.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        self.crew.group.list()
    }

    /// Ends every session politely: what was committed is sent, the peers are told. What is not
    /// over after `timeout` is cut. Returns when all threads have ended.
    pub fn shutdown(mut self, timeout: Duration) {
        self.crew.shutdown(timeout);
    }
}
