//! Which user is at the other end of a Unix socket, as the kernel says.

use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// The effective user of the process at the other end, as it was when that connected or listened.
pub(crate) fn user_of_peer(socket: impl AsFd) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Whether this process may trust processes of a user: its own, or root.
pub(crate) fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Whether a process that may be trusted is at the other end.
pub(crate) fn has_trusted_peer(socket: impl AsFd) -> io::Result<bool> {
    Ok(is_trusted(user_of_peer(socket)?))
}
