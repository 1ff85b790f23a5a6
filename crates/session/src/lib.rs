//! Sessions: messages between two processes, without a copy and without an allocation.
//!
//! A message is encoded straight into the ring it leaves from, and shown to its receiver where the
//! kernel put it.
//!
//! # Serve and call
//! A [`Handler`] says what one session does; a [`Server`] makes one for each peer, and a [`Client`]
//! takes one with each connect. Handlers run on a few worker threads and must not block; what they
//! send leaves when the messages at hand are handled. From any other thread, [`Session`] sends.
//!
//! ```
//! use std::sync::mpsc::{Sender, channel};
//! use embar_session::{Address, Client, Flow, Handler, Message, Server, Session};
//!
//! /// Sends back what it gets.
//! struct Echo;
//!
//! impl Handler for Echo {
//!     fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
//!         let payload = message.payload(); // lies in the ring: no copy was made
//!         let sent = session.send_with(message.id(), payload.len(), |buf| {
//!             buf.copy_from_slice(payload);
//!         });
//!         if sent.is_err() {
//!             session.close();
//!         }
//!         Flow::Continue
//!     }
//! }
//!
//! /// Passes answers on to a channel.
//! struct Answers(Sender<String>);
//!
//! impl Handler for Answers {
//!     fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
//!         let text = String::from_utf8_lossy(message.payload());
//!         let _ = self.0.send(text.into_owned());
//!         Flow::Continue
//!     }
//! }
//!
//! // Also "unix:/path", or a fixed port.
//! let address: Address = "127.0.0.1:0".parse()?;
//! let server = Server::builder().listen(address).start(|_peer| Echo)?;
//!
//! let client = Client::new()?;
//! let (answers, received) = channel();
//! let session = client.connect(server.address(), Answers(answers))?;
//! session.send_with(1, 5, |buf| buf.copy_from_slice(b"hello"))?;
//! assert_eq!(received.recv()?, "hello");
//!
//! let patience = std::time::Duration::from_secs(5);
//! client.shutdown(patience);
//! server.shutdown(patience);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What to use for what
//! - Protobuf messages: [`Session::send`], and [`Message::decode`] for a view that borrows from the
//!   ring. To fill a packet bit by bit: [`Session::reserve`].
//! - Payloads larger than a ring, or in memory of your own: [`Session::send_body`], and
//!   [`Handler::body`] to direct them to memory of the receiver's own.
//! - To leave a message until later: [`Flow::Pause`]. To hold one without copying it:
//!   [`Message::keep`].
//! - Async code: [`ServerBuilder::start_async`], [`Client::connect_async`].
//! - Frames and ids of your own rules: [`Protocol`](embar_frame::Protocol); else [`Plain`].
//! - Encryption: the feature `tls`, with `ServerBuilder::tls` and `Client::connect_tls`; see
//!   `runtime::tls`.
//! - Figures for Prometheus or a look: [`Admin`]. Figures for the peer: [`StatusPolicy`] and
//!   [`Session::request_status`]. Both are off unless asked for.
//! - Limits, timeouts, threads, spinning: [`Settings`] and [`LinkConfig`].
//! - A loop of your own, or a simulator: [`Link`], the core, a state machine without I/O, clock or
//!   threads.
//!
//! A whole program to read and to try is the chat in `examples/chat`.
//!
//! # When the peer is slow
//! Nothing queues without a limit. A full ring makes senders wait, fail or close ([`OnFull`]); a
//! session whose handler does not take messages, or whose peer does not read the answers, is not
//! read, until the peer's own ring is full.
//!
//! Reading order: [`reason`], `incoming.rs`, `sender.rs`, `link.rs` and its parts under `link/`, then
//! [`runtime`].

#![forbid(unsafe_code)]

mod incoming;
pub mod link;
mod plain;
mod proto;
pub mod reason;
pub mod runtime;
mod sender;

pub use embar_transport::ring::{Commit, Kept};
pub use embar_transport::{Address, Peer};
pub use incoming::{
    Head, Incoming, KeepLimit, MAX_ELEMENT_BYTES, MAX_NESTING, MAX_UNKNOWN_FIELDS, Message,
};
pub use link::{
    Limits, Link, LinkConfig, LinkStats, MAX_GREETING_BYTES, MAX_REASON_BYTES, MIN_IDLE_TIMEOUT,
    MIN_RING_BYTES, Rings, Rtt, SESSION_VERSION, Step,
};
pub use plain::Plain;
pub use reason::{CloseReason, Closed, Side};
pub use runtime::{
    Admin, AdminBuilder, AdminError, AsyncSession, BodyStore, BodyTarget, Client, Connecting, Flow,
    Handler, IncomingSessions, Monitor, OnFull, Packet, PeerStatus, Received, Server,
    ServerBuilder, Session, SessionId, SessionStats, Settings, StartError, StatusAnswer,
    StatusPolicy, Totals,
};
#[cfg(feature = "tls")]
pub use runtime::{ServerNameError, TlsTarget};
#[cfg(feature = "tls")]
pub use rustls;
pub use sender::{Draft, SendError, Sender};
