//! What a session has of its carrier: the link, and what users send and ask of it.

use std::sync::{Arc, Weak};
use std::task::Wake;

use buffa::Message as Protobuf;

use super::datagrams::{DATAGRAM_HEADER_BYTES, DatagramError, DatagramLink, UnclaimedLink};
use super::session::Session;
use super::shared::{Shared, request};
use super::stats::DatagramStats;
use crate::sender::{Bounded, with_sizes};
use crate::{Closed, Side};

impl Shared {
    /// Somebody carries the session's datagrams, and its bytes.
    pub(super) fn carry(&self, link: Option<UnclaimedLink>) {
        if let Some(link) = link.and_then(UnclaimedLink::claim) {
            let _ = self.link.set(link);
        }
    }

    /// Of a connection that was lost, its carrier may know more than that.
    pub(super) fn as_carrier_says(&self, why: Closed) -> Closed {
        if why.by != Side::Network {
            return why;
        }
        let known = self.link.get().and_then(DatagramLink::take_lost);
        known.unwrap_or(why)
    }

    /// The session is over.
    pub(super) fn end_link(&self) {
        if let Some(link) = self.link.get() {
            link.end();
        }
    }
}

/// Has the worker look at the datagrams of a session. The session owns the link that has this.
struct Arrived(Weak<Shared>);

impl Wake for Arrived {
    fn wake(self: Arc<Self>) {
        if let Some(session) = self.0.upgrade() {
            session.request(request::DATAGRAMS);
        }
    }
}

impl Session {
    pub(super) fn open_link(&self) {
        if let Some(link) = self.0.link.get() {
            let worker = Arc::new(Arrived(Arc::downgrade(&self.0)));
            link.open(worker.into(), self.0.group.settings.datagrams);
        }
    }

    /// Sends a Protobuf message that may be lost, or arrive before what was sent earlier; what arrives is whole, and arrives once. For
    /// state of which only the newest counts. Works on sessions that are carried by QUIC.
    ///
    /// Never waits. While the path has no room, [`DatagramSettings::max_queued`](super::DatagramSettings::max_queued) of them wait, for
    /// [`DatagramSettings::max_wait`](super::DatagramSettings::max_wait), and a further one takes the place of the oldest. Allocates once.
    ///
    /// # Errors
    /// [`DatagramError`]: where a session has no datagrams, or the message is too long for one,
    /// [`Session::send`] is left.
    pub fn send_datagram<M: Protobuf>(&self, id: u16, message: &M) -> Result<(), DatagramError> {
        with_sizes(|sizes| {
            let len = message.compute_size(sizes) as usize;
            self.datagram(id, len, |payload| {
                Bounded::fill(payload, |out| message.write_to(sizes, out))
                    .map_err(|_| DatagramError::Encoding)
            })
        })
    }

    /// Sends a datagram of `len` bytes that `fill` writes; they are zero before. Otherwise as [`Session::send_datagram`].
    ///
    /// # Errors
    /// [`DatagramError`]; `fill` is not called then, unless the session ends just now.
    pub fn send_datagram_with(
        &self,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), DatagramError> {
        self.datagram(id, len, |payload| {
            fill(payload);
            Ok(())
        })
    }

    fn datagram(
        &self,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), DatagramError>,
    ) -> Result<(), DatagramError> {
        if id >= embar_frame::FIRST_RESERVED_ID {
            return Err(DatagramError::ReservedId { id });
        }
        let link = self.0.link.get().ok_or(DatagramError::Unsupported)?;
        let sender = &self.0.sender;
        if !sender.is_open() {
            return Err(match sender.ring().is_closed() {
                true => DatagramError::Closed,
                false => DatagramError::NotOpen,
            });
        }
        let max = link.max_payload().ok_or(DatagramError::Unsupported)?;
        if len > max {
            return Err(DatagramError::TooLong { bytes: len, max });
        }
        let mut bytes = vec![0; DATAGRAM_HEADER_BYTES + len];
        fill(&mut bytes[DATAGRAM_HEADER_BYTES..])?;
        link.send(id, bytes)
    }

    /// Most bytes of a datagram's payload, as the path is now; `None` where the session has no datagrams. It
    /// may grow while the path is explored, and shrink when it changes.
    #[must_use]
    pub fn max_datagram_bytes(&self) -> Option<usize> {
        self.0.link.get()?.max_payload()
    }

    /// What became of its datagrams; `None` where it has none.
    #[must_use]
    pub fn datagram_stats(&self) -> Option<DatagramStats> {
        Some(self.0.link.get()?.stats())
    }
}
