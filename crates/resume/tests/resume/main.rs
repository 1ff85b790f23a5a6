//! Sessions that survive their connection, over real sockets.

mod cuts;
#[cfg(feature = "tls")]
mod encrypted;
mod ends;
mod life;
mod limits;
mod moves;
mod processes;
mod promises;
mod room;
mod strangers;
mod support;
mod tokens;
mod wire;
