#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bridge;
mod config;
mod connector;
mod ends;
mod handshakes;
mod listener;
mod thread;

pub use self::config::TlsConfigError;
pub use self::connector::Connector;
pub use self::listener::{ListenError, Listener, ListenerBuilder};
