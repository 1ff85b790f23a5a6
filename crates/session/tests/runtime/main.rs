//! The runtime on real sockets.

mod admin;
mod ending;
mod flow;
mod life;
mod many;
mod messages;
mod status;
mod streams;
mod support;
#[cfg(feature = "tls")]
mod tls;
