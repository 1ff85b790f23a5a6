//! Sessions that survive their connection, over real sockets.

mod cuts;
mod life;
mod support;
