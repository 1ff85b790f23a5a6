//! A channel: one session on which any thread calls.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use embar_session::{
    Address, Client, Closed, Connecting, Farewell, NO_REPLY_ROOM, Session, Settings,
};

use super::arrivals::Arrivals;
use super::items::Items;
use super::link::Link;
use super::pending_call::PendingCall;
use super::settings::{ChannelSettings, ChannelStats};
use super::start::Start;
use super::table::Table;
use crate::protocol::{Role, Rpc};
use crate::{Metadata, Method, Outgoing, Status};

/// What a frame has in a ring beside its content, at most.
const FRAME_BYTES: usize = 32;

/// A client of sessions that speaks this protocol: [`Channel::connect`] opens channels on it. Replies
/// that wait to be taken block at most as much of the receive ring as leaves room for the longest
/// frame ([`max_kept_bytes`](embar_session::SessionConfig::max_kept_bytes) is lowered to that): in a ring
/// that is not larger than the longest frame, each reply is copied. Replies come also while requests fill the send ring
/// ([`reply_room`](embar_session::SessionConfig::reply_room) is none): a server takes no requests while its replies wait, so its
/// clients must always take those.
///
/// # Errors
/// As [`Client::with`].
pub fn client(mut settings: Settings) -> io::Result<Client> {
    let longest = settings.session.max_frame_bytes as usize + FRAME_BYTES;
    let room = settings.recv_ring_bytes.saturating_sub(longest);
    let kept = &mut settings.session.max_kept_bytes;
    *kept = room.min(*kept);
    settings.session.reply_room = NO_REPLY_ROOM;
    Client::with(Rpc::new(Role::Client), settings)
}

/// A session on which any thread calls. Cheap to clone. It lives until one of its ends closes it, and
/// does not connect again by itself: only a program knows what it may call twice.
#[derive(Clone)]
pub struct Channel {
    link: Link,
    timeout: Option<Duration>,
}

impl Channel {
    /// Connects to `address` and waits until the session is open. `client` is one of [`client`], and
    /// must live as long as the channel is to.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(client: &Client, address: impl Into<Address>) -> Result<Self, Closed> {
        Self::open(client, address, ChannelSettings::default()).wait()
    }

    /// Begins to connect to `address`.
    pub fn open(
        client: &Client,
        address: impl Into<Address>,
        settings: ChannelSettings,
    ) -> Opening {
        Self::open_with(settings, |arrivals| client.open(address, b"", arrivals))
    }

    /// Begins to connect to `address` with TLS.
    #[cfg(feature = "tls")]
    pub fn open_tls(
        client: &Client,
        address: impl Into<Address>,
        tls: &embar_session::TlsTarget,
        settings: ChannelSettings,
    ) -> Opening {
        Self::open_with(settings, |arrivals| {
            client.open_tls(address, tls, b"", arrivals)
        })
    }

    fn open_with(settings: ChannelSettings, open: impl FnOnce(Arrivals) -> Connecting) -> Opening {
        let table = Table::new(settings);
        let connecting = open(Arrivals::new(Arc::clone(&table)));
        let wanted = Wanted { table, kept: false };
        Opening { wanted, connecting }
    }

    fn new(table: Arc<Table>, session: Session) -> Self {
        let timeout = table.settings.timeout;
        let link = Link::new(table, session);
        Self { link, timeout }
    }

    /// A handle whose calls may take so long, unless they say otherwise.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let link = self.link.clone();
        let timeout = Some(timeout);
        Self { link, timeout }
    }

    /// A handle that has `interceptor` add metadata to each of its calls, after those of the handle
    /// that it is made of. An error fails the call before it is sent. A call without metadata allocates
    /// nothing; metadata that is added to it does.
    #[must_use]
    pub fn intercept(
        &self,
        interceptor: impl Fn(&Method, &mut Metadata) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        Self {
            link: self.link.intercept(interceptor),
            timeout: self.timeout,
        }
    }

    /// Calls a method with one reply; for generated code.
    pub fn call<Q: Outgoing, R>(&self, method: &'static Method, request: Q) -> PendingCall<Q, R> {
        PendingCall::new(Start::new(&self.link, method, request, self.timeout, None))
    }

    /// Calls a method whose reply is a stream; for generated code.
    pub fn stream<Q: Outgoing, R>(&self, method: &'static Method, request: Q) -> Items<Q, R> {
        let window = self.link.table.settings.window();
        Items::new(Start::new(
            &self.link,
            method,
            request,
            self.timeout,
            Some(window),
        ))
    }

    /// The session that carries the calls: to close it, or for its figures.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.link.session
    }

    /// What the server said, if it asks its clients to leave. From then on no call begins: each fails with
    /// [`Unavailable`](crate::Code::Unavailable) before it is sent. Those in flight go on; when all of them have
    /// ended, and their callers have that, the channel closes its session. So whoever drains a server waits until its sessions are gone.
    #[must_use]
    pub fn farewell(&self) -> Option<Farewell> {
        self.link.table.farewell()
    }

    /// What the channel did so far.
    #[must_use]
    pub fn stats(&self) -> ChannelStats {
        self.link.table.stats()
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({:?})", self.link.session)
    }
}

/// A channel on its way: waits for its session to open, blocking or as a future. Dropped before that, it gives the
/// channel up: a session that opens nevertheless is closed.
#[must_use = "this is where the channel is"]
pub struct Opening {
    wanted: Wanted,
    connecting: Connecting,
}

/// The table of a channel that may be given up before it is one.
struct Wanted {
    table: Arc<Table>,
    kept: bool,
}

impl Wanted {
    fn keep(&mut self) -> Arc<Table> {
        self.kept = true;
        Arc::clone(&self.table)
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        if !self.kept {
            self.table.leave_server(Farewell::default());
        }
    }
}

impl Opening {
    /// Blocks until the channel is open.
    ///
    /// # Errors
    /// As [`Connecting::wait`].
    pub fn wait(mut self) -> Result<Channel, Closed> {
        let session = self.connecting.wait()?;
        Ok(Channel::new(self.wanted.keep(), session))
    }
}

impl Future for Opening {
    type Output = Result<Channel, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let session = ready!(Pin::new(&mut self.connecting).poll(cx))?;
        Poll::Ready(Ok(Channel::new(self.wanted.keep(), session)))
    }
}
