//! Many callers, one connection, replies in order.
//!
//! A caller writes its command straight into the connection's send ring and gets a [`Call`], by
//! which it waits for the reply. The driver writes what has gathered in one call, cuts what it
//! reads into replies, and puts each where its caller finds it. Nothing is allocated for a command
//! once as many as ever were in flight, and no lock is held while anybody waits.
//!
//! This crate knows no protocol ([`Protocol`] does), and never decides whether to try again.
//!
//! Reading order: [`framing`] and [`protocol`] (what a protocol tells), [`error`], `slots` (who
//! waits for which reply), [`conn`] (what a caller does), [`call`], then `line` and `driver` (what
//! is done for it), and [`drive`] (where). [`profile`] tells where the time goes.
#![forbid(unsafe_code)]

pub mod call;
mod clock;
pub mod conn;
mod direct;
pub mod drive;
mod driver;
pub mod error;
pub mod framing;
mod gather;
pub mod histogram;
mod hub;
mod line;
pub mod profile;
pub mod protocol;
mod slots;
pub mod stats;
#[cfg(feature = "tokio")]
mod task;

pub use call::{Call, block_on};
pub use conn::{Conn, Limits, Standing};
pub use drive::{Mux, Settings};
pub use error::{CallError, Reason, SubmitError};
pub use framing::{BadReply, Framing, Kind, Part};
pub use histogram::Distribution;
pub use protocol::{Greeting, Protocol};
pub use stats::{Meters, Stats};
