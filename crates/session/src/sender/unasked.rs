//! Frames that are encoded already, for several sessions at once. Nobody asked for them, so they leave the room for an
//! answer free: an end that has none does not read, and if its peer has none either, both wait for ever.

use std::sync::atomic::Ordering;

use embar_transport::ring::Commit;

use super::{SendError, Sender, refused};

impl Sender {
    /// What of the ring is for answers; 0 unless open.
    pub(crate) fn reply_room(&self) -> usize {
        match self.is_open() {
            true => self.shared.reply_room.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// Sends a frame that is encoded already, with a checksum if [`Sender::is_checked`].
    #[inline]
    pub(crate) fn send_frame(
        &self,
        id: u16,
        len: usize,
        frame: &[u8],
    ) -> Result<Commit, SendError> {
        self.check(id, len)?;
        self.put(frame)
    }

    /// Sends the bytes of a frame of [`Sender::send_frame`], for which there was no room before.
    pub(crate) fn send_encoded(&self, bytes: &[u8]) -> Result<Commit, SendError> {
        self.limit()?;
        self.put(bytes)
    }

    #[inline]
    fn put(&self, bytes: &[u8]) -> Result<Commit, SendError> {
        let refused = |error| refused(&error, bytes.len() - self.frame_bytes(0));
        let spare = self.shared.reply_room.load(Ordering::Relaxed);
        self.ring
            .write_leaving(spare, bytes.len(), refused, |frame| {
                frame.copy_from_slice(bytes);
                Ok(())
            })
    }

    /// The room that [`Sender::send_encoded`] needs for so many bytes.
    pub(crate) fn room_for_encoded(&self, bytes: usize) -> usize {
        (bytes + self.reply_room()).min(self.ring.capacity())
    }
}
