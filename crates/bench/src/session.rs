//! `bench session`: measures messages there and back over sessions, the classic latency test, and accounts for every
//! message.
//!
//! The bench compares *phases*: ways to get a message into a session and out of it. The first makes a new packet object
//! and a copy of each message, the last makes neither. The phases run interleaved with each other, and with the same
//! bytes over bare sockets.
//!
//! Read [`plan`] (what is measured), [`payloads`] (messages that differ from each other), [`record`] (what became of
//! each), [`run`] and [`summary`] (figures of one run, and of all), then [`wall`] (bare sockets), [`placement`] (on
//! which processors), `copying` (how a message gets in and out), [`server`] and `client` (both ends), `pace` (messages
//! by the clock), [`measure`] (one run) and [`report`] (what is printed and logged). [`drill`] attacks a server.

pub(crate) mod certificate;
mod client;
pub(crate) mod copying;
pub mod drill;
pub mod measure;
mod pace;
pub mod payloads;
pub mod placement;
pub mod plan;
pub(crate) mod proto;
pub mod record;
pub mod report;
pub mod run;
pub mod server;
pub mod summary;
pub mod wall;
