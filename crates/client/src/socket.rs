//! The socket of one channel, for the thread that drives it: does on the reactor what the core asks for, and says when
//! the reactor has given all buffers back, so that the core may hear that the connection is gone.

use std::io;
use std::time::Duration;

use embar_memory::sealed::SealedFile;
use embar_transport::socket::{LOOPBACK_SEND_BUFFER_BYTES, SocketOptions, UNIX_SEND_BUFFER_BYTES};
use embar_transport::{Epoll, Reactor, ShmOptions, Token};

use crate::connection::{ConnectionAction, ConnectionError};
use crate::transport::Way;

/// Options of a client's sockets. By a Unix socket it speaks only to its own user's brokers, and root's.
pub(crate) fn options() -> SocketOptions {
    SocketOptions {
        same_user: true,
        unix_send_buffer_bytes: Some(UNIX_SEND_BUFFER_BYTES),
        loopback_send_buffer_bytes: Some(LOOPBACK_SEND_BUFFER_BYTES),
        ..SocketOptions::default()
    }
}

/// A reactor for a publisher's sockets, which looks for so long before it sleeps. Brokers that it connects to by shared memory may
/// read this memory.
pub(crate) fn reactor(readable: Option<&SealedFile>, spin: Duration) -> io::Result<Epoll> {
    let shm = ShmOptions {
        memories: readable.cloned().into_iter().collect(),
        ..ShmOptions::default()
    };
    with_shm(shm, spin)
}

/// A reactor for a subscriber's sockets, which looks for so long before it sleeps. Brokers that it connects to by shared memory
/// lend it their payload.
pub(crate) fn borrowing_reactor(spin: Duration) -> io::Result<Epoll> {
    let shm = ShmOptions {
        borrows: true,
        ..ShmOptions::default()
    };
    with_shm(shm, spin)
}

fn with_shm(shm: ShmOptions, spin: Duration) -> io::Result<Epoll> {
    let mut reactor = Epoll::with_options(SocketOptions { shm, ..options() })?;
    reactor.set_spin(spin);
    Ok(reactor)
}

/// One channel's connection, if it has one. The core may be told that it is gone only when the reactor has given all of
/// its buffers back.
#[derive(Default)]
pub(crate) struct Socket {
    /// Kept until all buffers are back.
    token: Option<Token>,
    /// By what it goes, once it was asked for.
    way: Option<Way>,
    /// Closed, for this reason.
    ending: Option<ConnectionError>,
    /// Buffers with the reactor.
    pending: usize,
}

impl Socket {
    /// Whether there is no connection, and none of which the core still has to be told that it is gone.
    pub(crate) fn is_unused(&self) -> bool {
        self.token.is_none() && self.ending.is_none()
    }

    /// Whether the reactor knows this connection by `token`.
    pub(crate) fn has(&self, token: Token) -> bool {
        self.token == Some(token)
    }

    /// Whether the connection has not ended.
    pub(crate) fn is_live(&self) -> bool {
        self.ending.is_none()
    }

    /// By what its connection goes, if there was one.
    pub(crate) fn way(&self) -> Option<Way> {
        self.way
    }

    /// Does what the core asks for. What it asks for between the end of a connection and the report of it is void.
    pub(crate) fn perform(&mut self, action: ConnectionAction, reactor: &mut Epoll) {
        if let ConnectionAction::Connect(address) = action {
            self.way = Some(Way::of(&address));
            match reactor.connect(address) {
                Ok(token) => self.token = Some(token),
                Err(error) => self.ending = Some(error.into()),
            }
            return;
        }
        let (Some(token), None) = (self.token, &self.ending) else {
            return;
        };
        match action {
            ConnectionAction::Connect(_) => {}
            ConnectionAction::Send(buf) => {
                self.pending += 1;
                reactor.send(token, buf);
            }
            ConnectionAction::Receive(buf) => {
                self.pending += 1;
                reactor.recv(token, buf);
            }
            ConnectionAction::ShutdownWrite => {
                // It fails if the peer is gone, which ends the receive that is out, too.
                let _ = reactor.shutdown_write(token);
            }
            ConnectionAction::Close => self.end(ConnectionError::Local("closed"), reactor),
        }
    }

    /// The reactor gave a buffer back.
    pub(crate) fn buffer_returned(&mut self) {
        self.pending -= 1;
    }

    /// Closes the connection; the first cause counts.
    pub(crate) fn end(&mut self, cause: ConnectionError, reactor: &mut Epoll) {
        if self.ending.is_none() {
            self.ending = Some(cause);
            if let Some(token) = self.token {
                reactor.close(token);
            }
        }
    }

    /// Whether the connection ended, and all buffers are back.
    pub(crate) fn has_ended(&self) -> bool {
        self.ending.is_some() && self.pending == 0
    }

    /// Why the connection ended, once, when all buffers are back: the core is to be told.
    pub(crate) fn take_end(&mut self) -> Option<ConnectionError> {
        if self.pending > 0 {
            return None;
        }
        let cause = self.ending.take()?;
        self.token = None;
        Some(cause)
    }
}
