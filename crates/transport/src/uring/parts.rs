//! Where the bytes of one operation lie, if they do not lie together. The kernel may look at this until
//! the operation is over.

use std::mem;
use std::ptr;

use embar_memory::Mapped;

use crate::SendBuf;
use crate::buffer::{PIECES_MAX, Part};

/// A head, and a header and a payload of each piece.
const PARTS_MAX: usize = 1 + 2 * PIECES_MAX;

const NOTHING: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

/// Addresses and lengths. They say nothing of how long the bytes stay: the operation's buffer does.
pub(super) struct Parts {
    message: libc::msghdr,
    places: [libc::iovec; PARTS_MAX],
    count: usize,
}

impl Parts {
    pub fn new() -> Box<Self> {
        Box::new(Self {
            // SAFETY: all zero is a message without an address, without bytes and without control data.
            message: unsafe { mem::zeroed() },
            places: [NOTHING; PARTS_MAX],
            count: 0,
        })
    }

    fn clear(&mut self) {
        self.count = 0;
    }

    fn push(&mut self, start: *const u8, len: usize) {
        if len > 0 {
            self.places[self.count] = libc::iovec {
                iov_base: start.cast_mut().cast(),
                iov_len: len,
            };
            self.count += 1;
        }
    }

    /// To be filled in this order.
    pub fn receive_into(&mut self, spaces: [&mut [u8]; 2]) -> *mut libc::msghdr {
        self.clear();
        for space in spaces {
            self.push(space.as_mut_ptr(), space.len());
        }
        self.message()
    }

    /// All that is unsent, or `None` if that is one slice, which the closure gets.
    pub fn send_from(&mut self, buf: &SendBuf<Mapped>, one: &mut dyn FnMut(&[u8])) -> bool {
        self.clear();
        if let Some((head, parts)) = buf.gathered() {
            self.push(head.as_ptr(), head.len());
            for part in parts {
                match part {
                    Part::Private(bytes) => self.push(bytes.as_ptr(), bytes.len()),
                    Part::Own(span, from) => {
                        let bytes = &span.as_slice()[from..];
                        self.push(bytes.as_ptr(), bytes.len());
                    }
                    Part::Foreign(foreign, from) => {
                        let start = foreign.as_ptr().wrapping_add(from);
                        self.push(start, foreign.len() - from);
                    }
                }
            }
            return true;
        }
        buf.with_unsent(|head, body| match (head.is_empty(), body.is_empty()) {
            (_, true) => one(head),
            (true, false) => one(body),
            (false, false) => {
                self.push(head.as_ptr(), head.len());
                self.push(body.as_ptr(), body.len());
            }
        });
        self.count > 0
    }

    pub fn message(&mut self) -> *mut libc::msghdr {
        self.message.msg_iov = self.places.as_mut_ptr();
        self.message.msg_iovlen = self.count;
        &raw mut self.message
    }
}
