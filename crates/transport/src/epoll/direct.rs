//! Lets any thread write to a connection by itself, without handing the bytes to the thread that
//! runs the reactor.

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use super::connection::send_once;
use super::gather::SEND_FLAGS;
use super::{Entry, Epoll};
use crate::ring::SendSpan;
use crate::{SendBuf, Shm, Stream, Token};

/// Writes to one connection of a reactor from any thread. That of several threads one at a time
/// does so, and not while the reactor sends, is what the span is for: it holds the right to send.
///
/// It does not keep the connection open: once its token is closed every call fails.
#[derive(Clone)]
pub struct DirectSend(Weak<Stream>);

impl DirectSend {
    /// Whether the connection goes by shared memory.
    pub fn is_shm(&self) -> bool {
        let stream = self.0.upgrade();
        stream.is_some_and(|stream| matches!(*stream, Stream::Shm(_)))
    }

    /// Hands as much of `span` to the kernel as fits, and advances it by that. Never blocks.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room: give the span to the reactor, which waits for room.
    /// `NotConnected` when the token is closed. Others are the connection's.
    pub fn try_send(&self, span: &mut SendSpan) -> io::Result<usize> {
        let stream = self.0.upgrade().ok_or(ErrorKind::NotConnected)?;
        if span.bytes().is_empty() {
            return Ok(0);
        }
        if let Stream::Shm(shm) = &*stream {
            reactor_greeted(shm)?;
            let count = shm.try_send_bytes(span.bytes())?;
            span.advance(count);
            return some(count);
        }
        loop {
            match rustix::net::send(&*stream, span.bytes(), SEND_FLAGS) {
                Ok(count) => {
                    span.advance(count);
                    return Ok(count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`DirectSend::try_send`], of a buffer as [`Reactor::send`](crate::Reactor::send) takes it. Returns how many bytes it
    /// was advanced by; who gets fewer than remain gives the buffer to the reactor, which waits for room.
    ///
    /// # Errors
    /// As [`DirectSend::try_send`].
    pub fn try_send_buf(&self, buf: &mut SendBuf) -> io::Result<usize> {
        let stream = self.0.upgrade().ok_or(ErrorKind::NotConnected)?;
        if buf.remaining() == 0 {
            return Ok(0);
        }
        let count = match &*stream {
            Stream::Shm(shm) => {
                reactor_greeted(shm)?;
                let (count, wakes) = shm.try_send(buf)?;
                if wakes {
                    shm.ring();
                }
                return some(count);
            }
            _ => loop {
                match send_once(&stream, buf) {
                    Err(Errno::INTR) => {}
                    other => break other?,
                }
            },
        };
        buf.advance(count);
        Ok(count)
    }
}

/// The greeting is the reactor's: it would wait for what another thread took from the socket.
fn reactor_greeted(shm: &Shm) -> io::Result<()> {
    match shm.is_linked() {
        true => Ok(()),
        false => Err(ErrorKind::WouldBlock.into()),
    }
}

/// Streams by shared memory have no error of their own for want of room.
fn some(count: usize) -> io::Result<usize> {
    match count {
        0 => Err(ErrorKind::WouldBlock.into()),
        count => Ok(count),
    }
}

impl fmt::Debug for DirectSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.0.strong_count() > 0;
        write!(f, "DirectSend({})", if open { "open" } else { "closed" })
    }
}

impl Epoll {
    /// For sending on a connection from other threads, once it is connected. `None` for a stale
    /// token and for a listener. What is sent so is not in [`IoCounters`](crate::IoCounters).
    pub fn direct(&self, token: Token) -> Option<DirectSend> {
        match self.entries.get(token)? {
            Entry::Stream(connection) => Some(DirectSend(Arc::downgrade(&connection.stream))),
            Entry::Listener(_) => None,
        }
    }
}
