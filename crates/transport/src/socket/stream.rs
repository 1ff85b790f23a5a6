//! One type for listeners and one for streams, each over TCP, a Unix socket or shared memory. TLS is a layer above.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::unix::SocketFile;
use super::{Address, Peer};
use crate::handed::{self, Unread};
use crate::peer_user::has_trusted_peer;
use crate::shm::{Shm, ShmOptions};

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// By TCP.
    Tcp(TcpListener),
    /// By a socket file. If the listener created that file, it removes it when it is dropped.
    Unix(UnixListener, Option<SocketFile>),
    /// By a socket file, for streams by shared memory; these have such options.
    Shm(Unread<UnixListener>, SocketFile, ShmOptions),
}

impl Listener {
    /// Where it listens, with the port that the kernel chose.
    ///
    /// # Errors
    /// `NotFound` for a Unix listener without a file, or what the kernel says.
    pub fn local_address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?)),
            Self::Unix(listener, _) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().ok_or(io::ErrorKind::NotFound)?;
                Ok(Address::Unix(path.to_owned()))
            }
            Self::Shm(_, file, _) => Ok(Address::Shm(file.path().to_owned())),
        }
    }

    /// The next connection; it blocks or not as the listener does.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((Stream::Tcp(stream), Peer::Tcp(peer)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), Peer::Unix))
            }
            Self::Shm(listener, _, options) => {
                let (stream, _) = listener.accept()?;
                Ok((Shm::accepted(stream, options).into(), Peer::Shm))
            }
        }
    }

    /// Whether [`Listener::accept`] returns at once when no peer waits.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(nonblocking),
            Self::Unix(listener, _) => listener.set_nonblocking(nonblocking),
            Self::Shm(listener, ..) => listener.set_nonblocking(nonblocking),
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    /// Its file, if it has one, is not removed with it. From now on its peers can hand over no descriptors.
    fn from(listener: UnixListener) -> Self {
        handed::refuse(&listener);
        Self::Unix(listener, None)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Shm(listener, ..) => listener.as_fd(),
        }
    }
}

/// A connected socket, or one that connects.
#[derive(Debug)]
pub enum Stream {
    /// By TCP.
    Tcp(TcpStream),
    /// By a socket file.
    Unix(UnixStream),
    /// By shared memory.
    Shm(Box<Shm>),
}

impl Stream {
    /// The other end.
    ///
    /// # Errors
    /// What the kernel says, for instance that it is gone already.
    pub fn peer(&self) -> io::Result<Peer> {
        match self {
            Self::Tcp(stream) => Ok(Peer::Tcp(stream.peer_addr()?)),
            Self::Unix(_) => Ok(Peer::Unix),
            Self::Shm(_) => Ok(Peer::Shm),
        }
    }

    /// Whether a process is at the other end of a Unix socket, or of shared memory, that runs as this process's user or as
    /// root (`SO_PEERCRED`: as it did when it connected or listened). TCP knows no users: true.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn is_trusted(&self) -> io::Result<bool> {
        match self {
            Self::Tcp(_) => Ok(true),
            Self::Unix(stream) => has_trusted_peer(stream),
            Self::Shm(stream) => has_trusted_peer(stream.socket()),
        }
    }

    /// Whether calls on it return at once when they would have to wait. Reactors set that
    /// themselves.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Self::Unix(stream) => stream.set_nonblocking(nonblocking),
            Self::Shm(stream) => {
                stream.set_nonblocking(nonblocking);
                Ok(())
            }
        }
    }

    /// How long a blocking read or write may take; `None`: for ever. Reactors do not care.
    ///
    /// # Errors
    /// `InvalidInput` for zero, or what the kernel says.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Shm(stream) => {
                stream.socket().set_read_timeout(timeout)?;
                stream.socket().set_write_timeout(timeout)
            }
        }
    }

    /// Ends one direction or both. By shared memory only sending ends alone; what the peer sends is received all the same.
    ///
    /// # Errors
    /// `NotConnected` when the peer is gone already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
            Self::Shm(stream) => match how {
                Shutdown::Read => Ok(()),
                Shutdown::Write => stream.end(),
                Shutdown::Both => {
                    stream.end()?;
                    stream.socket().shutdown(how)
                }
            },
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
            Self::Shm(stream) => Shm::read(stream, into, &mut []),
        }
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_vectored(into),
            Self::Unix(stream) => stream.read_vectored(into),
            Self::Shm(stream) => match into {
                [] => Ok(0),
                [one] => Shm::read(stream, one, &mut []),
                [first, second, ..] => Shm::read(stream, first, second),
            },
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
            Self::Shm(stream) => Shm::write(stream, from),
        }
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(from),
            Self::Unix(stream) => stream.write_vectored(from),
            Self::Shm(stream) => {
                let first = from.iter().find(|part| !part.is_empty());
                first.map_or(Ok(0), |part| Shm::write(stream, part))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl From<Shm> for Stream {
    fn from(stream: Shm) -> Self {
        Self::Shm(Box::new(stream))
    }
}

impl AsFd for Stream {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Shm(stream) => stream.as_fd(),
        }
    }
}
