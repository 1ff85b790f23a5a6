//! Sessions over QUIC, by real UDP sockets.

mod amplification;
mod datagrams;
mod ends;
mod messages;
mod network;
mod support;
