//! Payloads of batches on their way into buffers: one large batch, or a run of small ones.

use std::collections::VecDeque;
use std::io;

use embar_frame::{Now, crc32c};
use embar_transport::RecvBuf;
use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::{Interruption, SubscribeChannel};
use crate::connection::ChannelId;
use crate::subscriber::arriving::{Arriving, PayloadCheck, SMALL_BYTES};
use crate::subscriber::model::{Delivered, Event};
use crate::subscriber::payload::Payload;

impl SubscribeChannel {
    /// See [`SubscriberCore::lend_check`](crate::subscriber::core::SubscriberCore::lend_check).
    pub(in crate::subscriber) fn lend_check(&mut self) -> Option<PayloadCheck> {
        let batch = self.arriving.as_mut().filter(|batch| batch.buf.is_none())?;
        batch.check.take()
    }

    /// See [`SubscriberCore::return_check`](crate::subscriber::core::SubscriberCore::return_check).
    pub(in crate::subscriber) fn return_check(&mut self, check: PayloadCheck) {
        if let Some(batch) = &mut self.arriving {
            batch.check = Some(check);
        }
    }

    pub(super) fn has_payload_space(&self) -> bool {
        self.arriving
            .as_ref()
            .is_some_and(|batch| batch.buf.is_some())
    }

    /// The receive with the driver is for the payload.
    pub(super) fn is_payload_with_driver(&self) -> bool {
        self.arriving
            .as_ref()
            .is_some_and(|batch| batch.buf.is_none())
    }

    pub(super) fn payload_received(
        &mut self,
        buf: RecvBuf,
        result: &io::Result<usize>,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Interruption> {
        let (connection, Some(mut batch)) = (&mut self.peer.connection, self.arriving.take())
        else {
            return Ok(());
        };
        let mut check = batch.check.take();
        let check = check.as_mut();
        let check = check.expect("a driver returns the checksum before the buffer");
        check.update(&buf);
        let len = batch.header.payload_len() as usize;
        let filled = buf.filled().end;
        let came = std::mem::replace(&mut batch.came, filled.min(len));
        connection.payload_received(batch.came - came, now);
        let is_over = !matches!(result, Ok(1..)) || connection.is_closing();
        if batch.came < len && !is_over {
            batch.check = Some(std::mem::take(check));
            batch.buf = Some(buf);
            self.arriving = Some(batch);
            return Ok(());
        }
        self.check = std::mem::take(check);
        let ahead = buf.overflow();
        let (store, space) = buf.into_parts();
        if let Some(space) = space {
            connection.ahead_received(space, ahead, now);
        }
        connection.payload_ended(result, now);
        let Some(mut payload) = Payload::of(store) else {
            return Ok(());
        };
        self.spare.extend(payload.spare_space());
        if batch.came == len && !connection.is_closing() {
            self.arrived(&batch.header, payload, self.check.value(), out)?;
            return self.take_behind(filled, now, out);
        }
        connection.discard_payload(now);
        self.give_up(payload);
        Ok(())
    }

    /// Takes the whole batches that came behind the one that was delivered last, into its buffer, of which `filled` bytes are
    /// filled. The rest goes through the connection's ring.
    fn take_behind(
        &mut self,
        filled: usize,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Interruption> {
        let Some(run) = last_run(self.channel, out) else {
            return Ok(());
        };
        while run.len < filled {
            let bytes = &run.payload[run.len..filled];
            let joins = |header: BatchHeader| self.joins.allow(run, &header);
            if self.joins.are_limited()
                && !BatchHeader::parse(bytes, MAX_BATCH_BYTES).is_ok_and(joins)
            {
                self.peer.connection.keep_ahead(bytes, now);
                break;
            }
            let Some(header) = self.peer.connection.next_ahead(bytes, now)? else {
                self.peer.connection.keep_ahead(bytes, now);
                break;
            };
            let begin = run.len + BATCH_HEADER_BYTES;
            let payload = &run.payload[begin..begin + header.payload_len() as usize];
            let crc = self.check.value_behind(begin);
            self.accept(&header, Some(crc.unwrap_or_else(|| crc32c(payload))))?;
            run.push(&header);
        }
        Ok(())
    }

    /// The rest of a payload of which the first `came` bytes are there. Behind a small one comes whatever there is, into the
    /// same buffer.
    pub(super) fn receive_rest(&mut self, header: BatchHeader, payload: Vec<u8>, came: usize) {
        let connection = &mut self.peer.connection;
        let len = header.payload_len() as usize;
        let is_small = len <= SMALL_BYTES;
        let end = match is_small {
            true => payload.len().min(len + connection.ahead_room()),
            false => len,
        };
        let mut buf = RecvBuf::heap(payload, came..end);
        if came == 0 {
            // A whole payload may stay where a broker lends it.
            buf = buf.or_lent(len);
        }
        if !is_small && let Some(space) = connection.lend_ahead() {
            buf = buf.then(space);
        }
        self.arriving = Some(Arriving {
            header,
            buf: Some(buf),
            came,
            check: Some(std::mem::take(&mut self.check)),
        });
    }

    /// Nobody gets the payload.
    pub(super) fn give_up(&mut self, payload: Payload) {
        let space = payload.into_space();
        if !space.is_empty() {
            self.spare.push(space);
        }
    }

    /// The payload is complete.
    pub(super) fn arrived(
        &mut self,
        header: &BatchHeader,
        payload: Payload,
        crc: Option<u32>,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Interruption> {
        match self.accept(header, crc) {
            Ok(skip) => {
                self.with_consumer += 1;
                self.lent += usize::from(payload.is_lent());
                out.push_back(Event::Deliver(Delivered {
                    channel: self.channel,
                    broker: self.peer.broker,
                    ordered: self.ordered,
                    header: *header,
                    len: header.payload_len() as usize,
                    payload,
                    skip,
                    next: header.base_offset() + u64::from(header.message_count()),
                }));
                Ok(())
            }
            Err(why) => {
                self.give_up(payload);
                Err(why)
            }
        }
    }
}

/// What was delivered last, if it is of this channel and the driver has not taken it yet.
pub(super) fn last_run(channel: ChannelId, out: &mut VecDeque<Event>) -> Option<&mut Delivered> {
    match out.back_mut()? {
        Event::Deliver(delivered) => (delivered.channel == channel).then_some(delivered),
        _ => None,
    }
}
