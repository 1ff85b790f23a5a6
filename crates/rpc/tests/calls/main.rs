//! Calls over real sockets.

mod asynchronous;
mod cancelling;
mod deadlines;
mod ends;
mod hostile;
mod limits;
mod names;
mod rude;
mod streams;
mod support;
mod unary;
mod wakers;
