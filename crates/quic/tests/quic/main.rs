//! Sessions over QUIC, by real UDP sockets.

mod datagrams;
mod ends;
mod messages;
mod network;
mod support;
