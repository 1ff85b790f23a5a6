//! A connected socket of the wall, over TCP or over a Unix socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use embar_transport::socket::{LOOPBACK_SEND_BUFFER_BYTES, UNIX_SEND_BUFFER_BYTES};
use rustix::net::sockopt;
use serde::Serialize;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP over the loopback interface.
    #[default]
    Tcp,
    /// Unix stream sockets.
    Unix,
}

/// Where a receiving process listens.
#[derive(Clone, Debug)]
pub struct Place {
    /// Over TCP.
    pub tcp: SocketAddr,
    /// Over a Unix socket.
    pub unix: PathBuf,
}

/// A socket of either kind.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

impl Stream {
    /// Connects, and gives up reading and writing after `silence_max`.
    pub fn connect(place: &Place, transport: Transport, silence_max: Duration) -> Result<Self> {
        let limit = Some(silence_max);
        let stream = match transport {
            Transport::Tcp => {
                let stream = TcpStream::connect(place.tcp)
                    .with_context(|| format!("cannot connect to the receiver at {}", place.tcp))?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
                Self::Tcp(stream)
            }
            Transport::Unix => {
                let path = &place.unix;
                let stream = UnixStream::connect(path).with_context(|| {
                    format!("cannot connect to the receiver at {}", path.display())
                })?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
                Self::Unix(stream)
            }
        };
        stream.set_send_buffer()?;
        Ok(stream)
    }

    /// Sets the send buffer that the log's sockets have on one machine.
    pub fn set_send_buffer(&self) -> io::Result<()> {
        let bytes = match self {
            Self::Tcp(_) => LOOPBACK_SEND_BUFFER_BYTES,
            Self::Unix(_) => UNIX_SEND_BUFFER_BYTES,
        };
        Ok(sockopt::set_socket_send_buffer_size(self, bytes)?)
    }

    /// Has calls return when they would wait.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// Ends this side: the peer reads no more bytes after those that were sent.
    pub fn finish(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}
