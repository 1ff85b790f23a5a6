//! Calls over real sockets.

mod asynchronous;
mod cancelling;
mod deadlines;
mod ends;
mod hostile;
mod limits;
mod streams;
mod support;
mod unary;
