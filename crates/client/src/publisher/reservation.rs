//! Room for one message's value in the batch that a publisher's handle is filling. The application writes the value in
//! place, without a copy, and then publishes it.

use embar_transport::biased::BiasedGuard;
use embar_wire::message::PushError;
use std::io;

use super::batcher::Current;
use super::handle::PublisherHandle;
use super::receipt::Ticket;
use crate::error::PublishError;

/// The builder clears the last word of every record it opens, for the padding. The record is opened again for each
/// write and at the commit, so this much more is asked for, and the cleared word never belongs to the value.
const SLACK_BYTES: usize = 8;

/// Room for one value in the current batch of a handle. Dropped without [`Reservation::commit`], nothing was published.
///
/// Write by [`Reservation::with`], or as an [`io::Write`]. What is not written holds old bytes.
#[must_use = "nothing is published before commit"]
pub struct Reservation<'a> {
    handle: &'a PublisherHandle,
    current: BiasedGuard<'a, Current>,
    len: usize,
    written: usize,
}

impl PublisherHandle {
    /// Room for a value of `len` bytes to be written in place. Blocks while no batch buffer is free. Nothing is
    /// published before [`Reservation::commit`]; until then this handle does nothing else, and flushing waits if messages
    /// were published by it before.
    ///
    /// # Errors
    /// As [`PublisherHandle::publish`].
    pub fn reserve(&self, len: usize) -> Result<Reservation<'_>, PublishError> {
        loop {
            if let Some(reservation) = Reservation::attempt(self, len)? {
                return Ok(reservation);
            }
            self.wait_for_buffer()?;
        }
    }
}

impl<'a> Reservation<'a> {
    /// `None` if a buffer is needed and none is free.
    fn attempt(handle: &'a PublisherHandle, len: usize) -> Result<Option<Self>, PublishError> {
        handle.check_len(len)?;
        let mut current = handle.batch.current.lock();
        let room = match &mut current.filling {
            Some(filling) => filling
                .builder
                .reserve(len.saturating_add(SLACK_BYTES))
                .map(drop),
            None => Err(PushError::Full),
        };
        match room {
            Ok(()) => {}
            Err(PushError::Full) => {
                let Some(filling) = handle.next_filling(&mut current)? else {
                    return Ok(None);
                };
                let room = filling.builder.reserve(len.saturating_add(SLACK_BYTES));
                if let Err(error) = room.map(drop) {
                    handle.give_back_unused(&mut current);
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Some(Self {
            handle,
            current,
            len,
            written: 0,
        }))
    }

    /// Bytes reserved.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no byte was reserved.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets `write` see and change the value's bytes.
    pub fn with<R>(&mut self, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut reserved = open(&mut self.current, self.len);
        write(&mut reserved[..self.len])
    }

    /// Publishes the value, all reserved bytes of it.
    pub fn commit(self) -> Ticket {
        let len = self.len;
        self.commit_first(len)
    }

    /// Publishes the first `len` bytes (all of them if `len` is larger).
    pub fn commit_first(mut self, len: usize) -> Ticket {
        let mut reserved = open(&mut self.current, self.len);
        reserved.shrink(len.min(self.len));
        let index = reserved.commit();
        if index == 0 {
            return self.handle.began(&mut self.current);
        }
        let filling = self
            .current
            .filling
            .as_ref()
            .expect("the batch stays while it is locked");
        Ticket {
            batch: filling.number,
            index,
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.handle.give_back_unused(&mut self.current);
    }
}

fn open(current: &mut Current, len: usize) -> embar_wire::builder::Reserved<'_> {
    let filling = current
        .filling
        .as_mut()
        .expect("the batch stays while it is locked");
    filling
        .builder
        .reserve(len + SLACK_BYTES)
        .expect("the same room was there before")
}

impl io::Write for Reservation<'_> {
    /// Writes behind what was written this way before; 0 at the end of the reservation.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = self.written;
        let count = bytes.len().min(self.len - at);
        self.with(|value| value[at..at + count].copy_from_slice(&bytes[..count]));
        self.written += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
