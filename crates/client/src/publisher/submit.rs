//! From a handle's batch to the core, and on to a connection that takes it at once: then no other thread has to be woken.

use std::io;

use embar_frame::Now;
use embar_meter::Recorder;
use embar_meter::clock::ticks;
use embar_transport::{DirectSend, SendBuf};
use embar_wire::batch::{BatchFlags, SealFields};

use super::batcher::Current;
use super::model::SealedBatch;
use super::outlet::{Lent, State};
use super::shared::Shared;
use crate::clock::wall;
use crate::connection::ChannelId;
use crate::profile::publisher::{CALLER_SENDS, SEND_BYTES, SEND_CALLS, SEND_EAGAIN, SEND_PAYLOAD};

impl Shared {
    /// Seals what a handle has, and hands it on.
    pub(super) fn seal(&self, current: &mut Current) {
        let Some(ready) = self.ready.get() else {
            return;
        };
        let fields = |number| SealFields {
            producer: self.producer,
            sequence: number,
            topic: ready.topic_id,
            epoch: 0,
            append_time: wall(),
            flags: match self.sums() {
                true => BatchFlags::NONE,
                false => BatchFlags::UNSUMMED,
            },
        };
        if let Some(sealed) = current.seal(fields) {
            self.submit(sealed, &current.recorder);
        }
    }

    /// Hands a sealed batch to the core, and sends it if it can go at once.
    pub(super) fn submit(&self, sealed: SealedBatch, recorder: &Recorder) {
        let lent = self.with_state(None, None, |state, now| {
            state.core.submit(sealed, now);
            state.lend(now)
        });
        if let Some(lent) = lent {
            let (channel, by_shm) = (lent.channel, lent.direct.is_shm());
            Loan::new(self, lent).carry_out(recorder);
            if by_shm {
                self.pass(channel);
            }
        }
    }

    /// As [`Shared::with_state`], for a thread of the application, which may hold a handle's lock: it acts on what the core
    /// reports, unless that would call its own code back.
    pub(super) fn with_own_events(&self, recorder: &Recorder, f: impl FnOnce(&mut State, Now)) {
        let mut events = Vec::new();
        let own = self.on_ack.is_none().then_some(&mut events);
        self.with_state(None, own, f);
        self.handle(&mut events, recorder);
    }
}

/// A send that a caller carries out. Dropped, what is left of it goes to the channel's thread.
pub(super) struct Loan<'a> {
    shared: &'a Shared,
    channel: ChannelId,
    direct: DirectSend,
    buf: Option<SendBuf>,
}

impl<'a> Loan<'a> {
    pub(super) fn new(shared: &'a Shared, lent: Lent) -> Self {
        Self {
            shared,
            channel: lent.channel,
            direct: lent.direct,
            buf: Some(lent.buf),
        }
    }

    /// Sends what the connection takes at once. Call it without the lock.
    fn carry_out(mut self, recorder: &Recorder) {
        let Some(buf) = &mut self.buf else { return };
        let before = ticks();
        let result = self.direct.try_send_buf(buf);
        let took = ticks().saturating_sub(before);
        recorder.count(SEND_CALLS, 1);
        let whole = buf.remaining() == 0;
        recorder.add_ticks(SEND_PAYLOAD, took, u64::from(whole));
        match result {
            Ok(bytes) => {
                recorder.count(SEND_BYTES, bytes as u64);
                if whole {
                    recorder.count(CALLER_SENDS, 1);
                    self.over(&Ok(()), recorder);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => recorder.count(SEND_EAGAIN, 1),
                // The channel's thread has closed the connection, and reports that.
                io::ErrorKind::NotConnected => {}
                _ => self.over(&Err(error), recorder),
            },
        }
    }

    /// The core hears of the end of the send from here.
    fn over(&mut self, result: &io::Result<()>, recorder: &Recorder) {
        let (channel, buf) = (self.channel, self.buf.take());
        self.shared.with_own_events(recorder, |state, now| {
            state.returned(channel, None);
            if let Some(buf) = buf {
                state.core.sent(channel, buf, result, now);
            }
        });
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if let Some(rest) = self.buf.take() {
            let shared = self.shared;
            shared.with_state(None, None, |state, _| {
                state.returned(self.channel, Some(rest));
            });
        }
    }
}
