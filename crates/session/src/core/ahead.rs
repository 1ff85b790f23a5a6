//! What an owner received behind a body into memory of its own: it takes whole frames with bodies from there, and puts the
//! rest into the ring.

use embar_frame::{FIRST_RESERVED_ID, FRAME_HEADER_BYTES, FrameHeader, Now, Protocol};
use embar_transport::Memory;

use super::SessionCore;
use crate::incoming::Head;

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// Most bytes that the owner may receive behind the body at hand: so many fit into the ring.
    pub fn ahead_room(&mut self) -> usize {
        self.release();
        self.recv.free()
    }

    /// The frame that `bytes` begin with, if it has a body and all of it is there. `bytes` are what the owner received
    /// behind the body that it reported last, and behind the frames that this call returned since.
    ///
    /// Whatever it returns nothing for goes into the ring, by [`SessionCore::keep_ahead`].
    pub fn next_ahead<'a>(&mut self, bytes: &'a [u8], now: Now) -> Option<Head<'a>> {
        self.at(now);
        self.release();
        let has_room = self.has_room_for_reply();
        let input = &self.input;
        let is_between = input.body_due == 0 && input.skip == 0 && self.recv.readable().is_empty();
        if !is_between || !self.is_open() || input.held || !has_room {
            return None;
        }
        let header = FrameHeader::parse(bytes.first_chunk()?);
        let end = header.frame_bytes();
        if header.id >= FIRST_RESERVED_ID || bytes.len() < end {
            return None;
        }
        let Ok(Some((at, Some(head)))) = self.layout(header, bytes) else {
            return None;
        };
        let head_end = at + head;
        self.input.messages += 1;
        self.input.need = FRAME_HEADER_BYTES;
        self.input.frame_began = None;
        self.arrived(end);
        Some(Head {
            header,
            head: &bytes[at..head_end],
            body: end - head_end,
            early: &bytes[head_end..end],
        })
    }

    /// Puts what the owner received behind a body into the ring, where [`SessionCore::next`] finds it.
    ///
    /// # Panics
    /// If it is more than [`SessionCore::ahead_room`] allowed.
    pub fn keep_ahead(&mut self, bytes: &[u8], now: Now) {
        self.at(now);
        self.release();
        if bytes.is_empty() {
            return;
        }
        let space = self.recv.lend(bytes.len());
        let mut space = space.expect("no receive is out, and there is room");
        space.as_mut_slice().copy_from_slice(bytes);
        self.recv.give_back(space, bytes.len());
        self.arrived(bytes.len());
    }
}
