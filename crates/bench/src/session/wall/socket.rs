//! A bare socket, TCP or Unix, and the calls on it that the wall measures.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::session::plan::Transport;

/// One end of a connection.
pub struct BareSocket {
    fd: OwnedFd,
    spin: Duration,
}

/// Both ends of a connection inside this process.
pub fn pair(transport: Transport, spin: Duration) -> std::io::Result<(BareSocket, BareSocket)> {
    let (near, far): (OwnedFd, OwnedFd) = match transport {
        Transport::Unix => {
            let (near, far) = UnixStream::pair()?;
            (near.into(), far.into())
        }
        Transport::Tcp => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let near = TcpStream::connect(listener.local_addr()?)?;
            let (far, _) = listener.accept()?;
            near.set_nodelay(true)?;
            far.set_nodelay(true)?;
            (near.into(), far.into())
        }
    };
    Ok((BareSocket { fd: near, spin }, BareSocket { fd: far, spin }))
}

impl AsFd for BareSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl BareSocket {
    /// Takes at least one byte: looks again and again for the time given, then sleeps. The end of the stream is an
    /// error.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let n = match self.look(buffer) {
            Err(Errno::AGAIN) => self.call(buffer, RecvFlags::empty())?,
            other => other?,
        };
        match n {
            0 => Err(Errno::PIPE),
            n => Ok(n),
        }
    }

    fn look(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        if self.spin.is_zero() {
            return Err(Errno::AGAIN);
        }
        let started = Instant::now();
        loop {
            match self.call(buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) if started.elapsed() < self.spin => {}
                other => return other,
            }
        }
    }

    fn call(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        retry_on_intr(|| recv(&self.fd, &mut *buffer, flags)).map(|(n, _)| n)
    }

    /// Fills the buffer.
    pub fn receive_all(&self, buffer: &mut [u8]) -> Result<(), Errno> {
        let mut got = 0;
        while got < buffer.len() {
            got += self.receive(&mut buffer[got..])?;
        }
        Ok(())
    }

    /// Sends what there is room for; [`Errno::AGAIN`] if there is none.
    pub fn try_send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        retry_on_intr(|| send(&self.fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))
    }

    /// Sends all bytes.
    pub fn send_all(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += retry_on_intr(|| send(&self.fd, &bytes[sent..], SendFlags::NOSIGNAL))?;
        }
        Ok(())
    }
}
