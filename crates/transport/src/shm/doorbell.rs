//! The socket beside the memory, by which a peer that sleeps is woken.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::aside::Aside;
use crate::handed::{self, Unread};

/// Bytes that a peer may have rung without being heard. It rings twice at most for each time that this side sleeps, and this
/// side hears it each time that it wakes, so an honest one comes nowhere near: who rings for each record is not hurt, either.
const RINGS_MAX: usize = 4096;

/// Between two tries to ring while the kernel has no memory for a byte.
const RING_RETRY: Duration = Duration::from_millis(1);

/// Rings for which the kernel had no memory. Each peer is rung for once in its nap, so one that is lost would let it sleep on. None
/// is given twice before its peer naps again, so no more wait than there are connections.
static UNRUNG: Aside<Weak<Doorbell>> = Aside::new("embar-doorbells", |doorbell| {
    while let Some(doorbell) = doorbell.upgrade()
        && !doorbell.try_ring()
    {
        drop(doorbell);
        thread::sleep(RING_RETRY);
    }
});

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
    pub fn new(socket: UnixStream) -> Arc<Self> {
        UNRUNG.start();
        Arc::new(Self(Unread::new(socket)))
    }

    pub fn socket(&self) -> &UnixStream {
        &self.0
    }

    /// Wakes the peer, as soon as the kernel can.
    pub fn ring(self: &Arc<Self>) {
        if !self.try_ring() {
            UNRUNG.give(Arc::downgrade(self));
        }
    }

    /// False: the kernel has no memory for it now. A socket without room holds a byte that wakes the peer anyway; one that is closed
    /// wakes nobody.
    fn try_ring(&self) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let rung = rustix::net::send(self.socket(), &[1], flags);
        !matches!(rung, Err(Errno::NOBUFS | Errno::NOMEM))
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
