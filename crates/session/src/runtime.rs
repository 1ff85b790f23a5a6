//! Sessions with sockets, threads and a clock: servers, clients, handlers, async streams.
//!
//! Worker threads each drive one reactor with many sessions. `conn.rs` joins a [`Link`](crate::Link)
//! to it; `shared.rs` says who writes to the socket when.
//!
//! Reading order: [`Handler`], [`Session`], `server.rs`, `client.rs`, `group.rs` (what workers have
//! in common), `hub.rs` (how other threads reach a worker), `shared.rs`, `worker.rs`,
//! `conn.rs`, `timers.rs`, `stream.rs`.

pub mod admin;
mod client;
mod clock;
mod conn;
mod group;
mod handler;
mod hub;
mod mappings;
mod server;
mod session;
mod shared;
mod stats;
mod status;
mod stream;
mod timers;
#[cfg(feature = "tls")]
pub mod tls;
mod worker;

pub use admin::{Admin, AdminBuilder, AdminError, Monitor};
pub use client::{Client, Connecting};
pub use group::Settings;
pub use handler::{BodyStore, BodyTarget, Flow, Handler};
pub use server::{Server, ServerBuilder, StartError};
pub use session::{OnFull, Packet, Session, SessionId};
pub use stats::{SessionStats, Totals};
pub use status::{PeerStatus, StatusAnswer, StatusPolicy};
pub use stream::{AsyncSession, IncomingSessions, Received};
#[cfg(feature = "tls")]
pub use tls::{ServerNameError, TlsTarget};
