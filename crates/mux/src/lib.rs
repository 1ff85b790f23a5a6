#![doc = include_str!("../README.md")]
//!
//! # Where to read
//!
//! [`framing`] and [`protocol`] (what a protocol supplies), [`error`], `reply_slots` (which caller
//! waits for which reply), `spare_buffers` (memory for these), `in_flight` and `larges` (who may submit, and who waits until it may),
//! `shared` (what callers and the driver share of a connection), [`connection`], [`turn`] and [`call`] (what a
//! caller does), `silence` (what it means that a peer says nothing), `connection_driver`, `driver` and `mailbox`
//! (what the driver does), [`mux`] (where the driver runs). [`profile`] measures the stages of a
//! command.
#![forbid(unsafe_code)]

pub mod call;
pub mod clock;
pub mod connection;
mod connection_driver;
mod counter;
mod direct_send;
mod driver;
pub mod error;
pub mod framing;
mod gather;
pub mod histogram;
mod in_flight;
mod larges;
mod mailbox;
pub mod mux;
mod notifier;
pub mod profile;
pub mod protocol;
mod reply_slots;
mod shared;
mod silence;
mod spare_buffers;
pub mod stats;
#[cfg(feature = "tokio")]
mod task;
pub mod turn;

pub use call::{Call, block_on};
pub use connection::{Connection, ConnectionLimits, ConnectionState};
pub use embar_transport::tls::{TlsError, TlsFault, TlsTarget};
pub use embar_transport::{Address, SocketOptions, waiters};
pub use error::{CallError, CloseReason, SubmitError};
pub use framing::{BadReply, FrameKind, Framing, Part};
pub use histogram::Distribution;
pub use mux::{Mux, MuxSettings};
pub use protocol::{Greeting, Protocol};
pub use stats::{Meters, Stats};
pub use turn::Turn;
