//! Takes the place of `channel.rs` where the feature `tls` is off: the same types, without any
//! value.

use std::io;

use super::{TlsError, Turn};
use crate::{RecvBuf, SendBuf};

/// Which server to trust; there is none without the feature `tls`.
#[derive(Debug, Clone)]
pub enum TlsTarget {}

impl TlsTarget {
    /// The connecting end of a connection.
    ///
    /// # Errors
    /// With the feature, when the configuration is of no use.
    pub fn connect(&self) -> Result<Channel, TlsError> {
        match *self {}
    }
}

/// The accepting side of a server; there is none without the feature `tls`.
#[derive(Debug, Clone)]
pub enum Acceptor {}

impl Acceptor {
    /// The accepting end of a connection.
    ///
    /// # Errors
    /// With the feature, when the configuration is of no use.
    pub fn accept(&self) -> Result<Channel, TlsError> {
        match *self {}
    }
}

/// One end of an encrypted connection; there is none without the feature `tls`, and its documentation
/// is there.
#[derive(Debug)]
pub enum Channel {}

#[expect(missing_docs, reason = "nobody can call them")]
impl Channel {
    pub fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub fn receive(&mut self, _: RecvBuf) {
        match *self {}
    }

    pub fn send(&mut self, _: SendBuf) {
        match *self {}
    }

    pub fn shutdown(&mut self) {
        match *self {}
    }

    pub fn arrived(&mut self, _: RecvBuf, _: &io::Result<usize>) {
        match *self {}
    }

    pub fn sent(&mut self, _: SendBuf, _: &io::Result<()>) {
        match *self {}
    }

    pub fn take_all(&mut self) -> (Option<RecvBuf>, Option<SendBuf>) {
        match *self {}
    }

    pub fn turn(&mut self) -> Turn {
        match *self {}
    }
}
