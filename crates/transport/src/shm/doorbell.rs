//! The socket beside the memory, by which a peer that sleeps is woken.

use std::os::unix::net::UnixStream;

use rustix::net::SendFlags;

/// Wakes the peer. A socket without room holds a byte that wakes it anyway; one that is closed wakes nobody.
pub(super) fn ring(socket: &UnixStream) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::net::send(socket, &[1], flags);
}
