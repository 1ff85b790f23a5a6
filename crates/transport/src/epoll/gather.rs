//! One system call for bytes of many places, some of which other processes may be writing.
//!
//! An `IoSlice` would be a slice of them, which promises that they stay still. So the kernel gets
//! addresses and lengths only. Whether another process wrote there while the kernel copied is for
//! the owner of the buffer to find out.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use embar_memory::Mapped;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::Stream;
use crate::buffer::{PIECES_MAX, Part};

/// Never raises SIGPIPE, never blocks whatever the mode of the socket is.
pub(super) const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// A head, and a header and a payload of each piece: far below what the kernel takes (1024).
const PARTS_MAX: usize = 1 + 2 * PIECES_MAX;

const NOTHING: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

/// Sends as much of `head` and then `parts` as there is room for, by one call; none if there is
/// nothing to send.
pub(super) fn send<'a>(
    stream: &Stream,
    head: &'a [u8],
    parts: impl Iterator<Item = Part<'a, Mapped>>,
) -> rustix::io::Result<usize> {
    let head = Some(Part::Private(head)).filter(|head| !head.is_empty());
    let mut places = [NOTHING; PARTS_MAX];
    let mut count = 0;
    for part in head.into_iter().chain(parts) {
        let (start, len) = match part {
            Part::Private(bytes) => (bytes.as_ptr(), bytes.len()),
            Part::Own(span, from) => {
                let bytes = &span.as_slice()[from..];
                (bytes.as_ptr(), bytes.len())
            }
            Part::Foreign(foreign, from) => {
                (foreign.as_ptr().wrapping_add(from), foreign.len() - from)
            }
        };
        places[count] = libc::iovec {
            // The kernel only reads there.
            iov_base: start.cast_mut().cast(),
            iov_len: len,
        };
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    // SAFETY: all zero is a message without an address, without bytes and without control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = places.as_mut_ptr();
    message.msg_iovlen = count;
    let flags = SEND_FLAGS.bits().cast_signed();
    // SAFETY: `message` names the first `count` of `places`, both of which outlive the call. Each
    // place is mapped for `'a`, which does too: by the borrowed head or piece, whose span or mapping
    // lasts as long. The kernel reads them and keeps nothing, and no reference to the foreign ones
    // exists that a writer could make a lie.
    let sent = unsafe { libc::sendmsg(stream.as_fd().as_raw_fd(), &message, flags) };
    usize::try_from(sent).map_err(|_| {
        let error = io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
