//! Clients of the shared log.
#![forbid(unsafe_code)]

pub mod backoff;
mod bootstrap;
mod clock;
pub mod connection;
mod directory;
pub mod error;
pub mod profile;
pub mod publisher;
mod wake;

pub use error::Error;
