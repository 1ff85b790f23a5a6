//! The socket beside the memory, by which a peer that sleeps is woken.

use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::handed::{self, Unread};

/// Bytes that a peer may have rung without being heard. It rings twice at most for each time that this side sleeps, and this
/// side hears it each time that it wakes, so an honest one comes nowhere near: who rings for each record is not hurt, either.
const RINGS_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Doorbell(Unread<UnixStream>);

/// What the peer did by the socket.
pub(super) enum Heard {
    /// Nothing of late.
    Nothing,
    /// It rang.
    Rung,
    /// It left.
    Gone,
    /// What no peer does that keeps to the rules.
    Nonsense(&'static str),
}

impl Doorbell {
    pub fn new(socket: UnixStream) -> Self {
        Self(Unread::new(socket))
    }

    pub fn socket(&self) -> &UnixStream {
        &self.0
    }

    /// Wakes the peer. A socket without room holds a byte that wakes it anyway; one that is closed wakes nobody.
    pub fn ring(&self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::send(self.socket(), &[1], flags);
    }

    /// Takes what woke this side, once both have said hello.
    pub fn hear(&self) -> Heard {
        let mut bytes = [0; RINGS_MAX];
        let mut handed = Vec::new();
        loop {
            match handed::receive(self.socket(), &mut bytes, &mut handed) {
                Ok(received) if received.lost || !handed.is_empty() => {
                    return Heard::Nonsense("it hands over descriptors after its hello");
                }
                Ok(received) if received.bytes == RINGS_MAX => {
                    return Heard::Nonsense("it rings without end");
                }
                Ok(received) if received.bytes > 0 => return Heard::Rung,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Heard::Nothing,
                // With an error, if the peer left before it had read what woke it.
                _ => return Heard::Gone,
            }
        }
    }
}
