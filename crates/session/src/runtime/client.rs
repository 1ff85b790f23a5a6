//! The side that connects.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use embar_frame::Protocol;
use embar_transport::Address;
use embar_transport::tls::TlsTarget;

use super::admin::Monitor;
use super::conn::perish::contained;
use super::group::{Crew, Place, Plan, Settings};
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
    /// Nobody waits any more: a session that opens is to close.
    abandoned: bool,
}

impl Latch {
    /// The first outcome counts.
    pub(super) fn tell(&self, outcome: Result<Session, Closed>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.outcome.is_some() {
            return;
        }
        let unwanted = outcome.as_ref().ok().filter(|_| state.abandoned).cloned();
        state.outcome = Some(outcome);
        self.told.notify_all();
        let waker = state.waker.take();
        drop(state);
        if let Some(session) = unwanted {
            session.close();
        }
        if let Some(waker) = waker {
            contained(|| waker.wake());
        }
    }

    /// Nobody will take the session: it closes, now or as soon as it opens.
    fn abandon(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.abandoned = true;
        state.waker = None;
        let opened = state.outcome.as_ref().and_then(|told| told.clone().ok());
        drop(state);
        if let Some(session) = opened {
            session.close();
        }
    }

    fn wait(&self) -> Result<Session, Closed> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.told.wait_while(state, |state| state.outcome.is_none());
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        state.outcome.clone().unwrap_or_else(|| Err(not_running()))
    }
}

/// That an outcome will be told. Dropped, whyever, it tells that nothing comes of the connect,
/// unless something else was told before.
pub(super) struct Promise(Option<Arc<Latch>>);

impl Promise {
    fn new(latch: &Arc<Latch>) -> Self {
        Self(Some(Arc::clone(latch)))
    }

    /// Where the session tells the outcome; the promise still holds until it is handed on.
    pub(super) fn latch(&self) -> Option<Arc<Latch>> {
        self.0.clone()
    }

    /// The session keeps it from here on.
    pub(super) fn hand_on(mut self) {
        self.0 = None;
    }

    pub(super) fn fail(self, why: Closed) {
        if let Some(latch) = &self.0 {
            latch.tell(Err(why));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(latch) = &self.0 {
            latch.tell(Err(not_running()));
        }
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

/// A connect that is given up when this is dropped before it is done: a session that opens
/// nevertheless is closed politely.
pub(super) struct Cancellable(Option<Connecting>);

impl Connecting {
    pub(super) fn cancellable(self) -> Cancellable {
        Cancellable(Some(self))
    }
}

impl Future for Cancellable {
    type Output = Result<Session, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(connecting) = &mut self.0 else {
            return Poll::Ready(Err(not_running()));
        };
        let polled = Pin::new(connecting).poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        if let Some(connecting) = &self.0 {
            connecting.latch.abandon();
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
        tls: &TlsTarget,
        handler: impl Handler,
    ) -> Result<Session, Closed> {
        self.open_tls(address, tls, &[], handler).wait()
    }

    /// As [`Client::open`], encrypted, and only to the server that `tls` names.
    #[cfg(feature = "tls")]
    pub fn open_tls(
        &self,
        address: impl Into<Address>,
        tls: &TlsTarget,
        greeting: &[u8],
        handler: impl Handler,
    ) -> Connecting {
        let tls = Some(tls.clone());
        self.begin(address.into(), greeting, Box::new(handler), tls)
    }

    fn begin(
        &self,
        address: Address,
        greeting: &[u8],
        handler: Box<dyn Handler>,
        tls: Option<TlsTarget>,
    ) -> Connecting {
        let latch = Arc::new(Latch::default());
        let group = &self.crew.group;
        if let Some(place) = Place::take(group, group.settings.max_sessions) {
            self.crew.hand(Command::Connect {
                address,
                greeting: greeting.to_vec(),
                handler,
                promise: Promise::new(&latch),
                place,
                tls,
            });
        } else {
            group.numbers.refused.add(1);
            latch.tell(Err(Closed {
                by: Side::Local,
                reason: CloseReason::TooManySessions,
                code: 0,
                text: String::new(),
            }));
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
