//! What applications call: publish, wait, flush.

use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_meter::Snapshot;
use embar_wire::message::Header;
use embar_wire::message::PushError;

use super::batcher::{Current, Filling, HandleBatch};
use super::receipt::{Flush, Receipt, Ticket};
use super::shared::{Ready, Shared, lock};
use crate::error::{ClientError, PublishError};
use crate::profile::publisher::{BUFFER_WRITE, WAIT_FOR_BUFFER};
use crate::wait::Wait;
use crate::wake::block_on;

/// A message to publish: views of the caller's bytes, which are copied into the current batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewMessage<'a> {
    /// The key, at most 65,534 bytes.
    pub key: Option<&'a [u8]>,
    /// Headers, at most 65,535 bytes in all.
    pub headers: &'a [Header<'a>],
    /// The value.
    pub value: &'a [u8],
}

/// Publishes from one thread: it has a current batch of its own and shares the connections of its
/// [`Publisher`](super::Publisher). It may be shared by threads; then they take turns at its lock. One that only ever
/// one thread publishes by has a lock that costs nothing: take one for [each thread](PublisherHandle::handle).
pub struct PublisherHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) batch: Arc<HandleBatch>,
    pub(super) wait_limit: Duration,
    max_message_bytes: usize,
}

impl PublisherHandle {
    pub(super) fn new(shared: Arc<Shared>, wait_limit: Duration) -> Self {
        let batch = Arc::new(HandleBatch::new(shared.profile.recorder()));
        shared.add_handle(&batch);
        let max_message_bytes = shared
            .ready
            .get()
            .map_or(usize::MAX, |ready| ready.max_message_bytes);
        Self {
            shared,
            batch,
            wait_limit,
            max_message_bytes,
        }
    }

    /// Another handle on the same connections, with a current batch of its own: one for each publishing thread.
    #[must_use]
    pub fn handle(&self) -> Self {
        Self::new(self.shared.clone(), self.wait_limit)
    }

    /// Publishes a value without key and headers. Blocks while no batch buffer is free.
    ///
    /// The ticket says nothing yet: ask [`PublisherHandle::acked`], or [`PublisherHandle::flush`] for all.
    ///
    /// # Errors
    /// [`PublishError::BadMessage`] if it fits no batch, [`PublishError::MessageTooLarge`] if the topic takes no message of
    /// that size, [`PublishError::NoBuffer`] if no buffer became free within the delivery timeout, or
    /// [`PublishError::Client`]: why earlier batches found no broker within it, or why the publisher ended. The message is
    /// not published then.
    #[inline]
    pub fn publish(&self, value: &[u8]) -> Result<Ticket, PublishError> {
        if let Some(ticket) = self.push_value(value) {
            return Ok(ticket);
        }
        self.publish_message(&NewMessage {
            value,
            ..NewMessage::default()
        })
    }

    /// As [`PublisherHandle::publish`], with key and headers.
    ///
    /// # Errors
    /// As [`PublisherHandle::publish`].
    #[inline]
    pub fn publish_message(&self, message: &NewMessage<'_>) -> Result<Ticket, PublishError> {
        loop {
            if let Some(ticket) = self.attempt(message)? {
                return Ok(ticket);
            }
            self.wait_for_buffer()?;
        }
    }

    /// As [`PublisherHandle::publish_message`], but never blocks.
    ///
    /// # Errors
    /// [`PublishError::Full`] instead of [`PublishError::NoBuffer`] if no batch buffer is free, otherwise as
    /// [`PublisherHandle::publish`].
    #[inline]
    pub fn try_publish(&self, message: &NewMessage<'_>) -> Result<Ticket, PublishError> {
        self.attempt(message)?.ok_or(PublishError::Full)
    }

    /// As [`PublisherHandle::publish_message`], but waits for a buffer without blocking the thread, and without a limit:
    /// put one around it if you need one. Dropped while it waits, nothing was published.
    ///
    /// # Errors
    /// As [`PublisherHandle::publish`], but never [`PublishError::NoBuffer`].
    pub async fn publish_async(&self, message: &NewMessage<'_>) -> Result<Ticket, PublishError> {
        loop {
            if let Some(ticket) = self.attempt(message)? {
                return Ok(ticket);
            }
            self.shared.buffer(&self.ready().pool).await;
        }
    }

    /// What becomes of a message: a future, which can also be waited for.
    pub fn acked(&self, ticket: Ticket) -> Receipt {
        Receipt::new(self.shared.receipts.clone(), ticket)
    }

    /// Sends what all handles have and waits until every batch so far is resolved.
    ///
    /// # Errors
    /// [`PublishError::Lost`] if messages published since the last flush are not, or may not be, stored;
    /// [`PublishError::Ended`] if the publisher ended first.
    pub fn flush(&self) -> Result<(), PublishError> {
        block_on(self.flush_async(), None).unwrap_or(Err(PublishError::Client(ClientError::Closed)))
    }

    /// As [`PublisherHandle::flush`], without blocking the thread.
    ///
    /// # Errors
    /// As [`PublisherHandle::flush`].
    pub async fn flush_async(&self) -> Result<(), PublishError> {
        let flush = Flush::new(&self.shared.receipts);
        self.shared.seal_all();
        flush.await
    }

    /// As [`PublisherHandle::flush`], but waits no longer than `limit`. What is not resolved then stays on its way.
    ///
    /// # Errors
    /// [`PublishError::Pending`] if something is not resolved, otherwise as [`PublisherHandle::flush`].
    pub fn flush_timeout(&self, limit: Duration) -> Result<(), PublishError> {
        block_on(self.flush_async(), Some(Instant::now() + limit)).unwrap_or_else(|| {
            Err(PublishError::Pending {
                what: "the acknowledgement of what was published",
                limit,
                hint: match self.waiting_for() {
                    Some(wait) => format!(": waiting for {wait}"),
                    None => String::new(),
                },
            })
        })
    }

    /// What is waited for so that everything is stored that was sent; `None` if everything is. Looks at the publisher's
    /// state, under the lock that its threads share. While it is being opened ask a [`WaitProbe`](crate::WaitProbe).
    pub fn waiting_for(&self) -> Option<Wait> {
        self.shared.waiting_for()
    }

    /// Where the time went so far.
    pub fn profile(&self) -> Snapshot {
        self.shared.profile.snapshot()
    }

    /// Switches stage timers and counters on or off.
    pub fn set_metering(&self, on: bool) {
        self.shared.profile.set_enabled(on);
    }

    /// Size of a full batch in bytes: what was asked for, unless the brokers take less.
    pub fn batch_bytes(&self) -> usize {
        self.ready().batch_bytes
    }

    /// Unacknowledged batches that one connection carries, at most.
    pub fn batches_in_flight(&self) -> usize {
        self.ready().batches_in_flight
    }

    pub(super) fn ready(&self) -> &Ready {
        self.shared
            .ready
            .get()
            .expect("handles are made after the publisher has opened")
    }

    /// Most messages: a value that is neither the first of a batch nor timed, and for which there is room. `None` for all
    /// others, of which nothing is published then.
    #[inline]
    fn push_value(&self, value: &[u8]) -> Option<Ticket> {
        if value.len() > self.max_message_bytes {
            return None;
        }
        let mut current = self.batch.current.lock();
        let Current {
            filling, recorder, ..
        } = &mut *current;
        let filling = filling.as_mut()?;
        if filling.builder.is_empty() || !recorder.pass() {
            return None;
        }
        let index = filling.builder.push_value(value)?;
        Some(Ticket {
            batch: filling.number,
            index,
        })
    }

    /// Pushes into the current batch; `None` if a buffer is needed and none is free.
    #[inline]
    fn attempt(&self, message: &NewMessage<'_>) -> Result<Option<Ticket>, PublishError> {
        self.check(message)?;
        let mut guard = self.batch.current.lock();
        let current = &mut *guard;
        if current.recorder.sample() {
            let start = current.recorder.start();
            let result = self.push(current, message);
            current.recorder.stop_sampled(BUFFER_WRITE, start);
            return result;
        }
        self.push(current, message)
    }

    /// A broker would refuse the whole batch for one message that is too large for the topic.
    #[inline]
    fn check(&self, message: &NewMessage<'_>) -> Result<(), PublishError> {
        let headers: usize = message
            .headers
            .iter()
            .map(|header| 3 + header.name.len() + header.value.len())
            .sum();
        self.check_len(message.value.len() + message.key.map_or(0, <[u8]>::len) + headers)
    }

    #[inline]
    pub(super) fn check_len(&self, bytes: usize) -> Result<(), PublishError> {
        if bytes <= self.max_message_bytes {
            return Ok(());
        }
        Err(PublishError::MessageTooLarge {
            bytes,
            limit: self.max_message_bytes,
        })
    }

    #[inline]
    fn push(
        &self,
        current: &mut Current,
        message: &NewMessage<'_>,
    ) -> Result<Option<Ticket>, PublishError> {
        if let Some(filling) = &mut current.filling {
            match filling
                .builder
                .try_push(message.key, message.headers, message.value)
            {
                Ok(index) if index > 0 => {
                    return Ok(Some(Ticket {
                        batch: filling.number,
                        index,
                    }));
                }
                Ok(_) => return Ok(Some(self.began(current))),
                Err(PushError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.push_to_next(current, message)
    }

    #[cold]
    #[inline(never)]
    fn push_to_next(
        &self,
        current: &mut Current,
        message: &NewMessage<'_>,
    ) -> Result<Option<Ticket>, PublishError> {
        let Some(filling) = self.next_filling(current)? else {
            return Ok(None);
        };
        if let Err(error) = filling
            .builder
            .try_push(message.key, message.headers, message.value)
        {
            self.give_back_unused(current);
            return Err(error.into());
        }
        Ok(Some(self.began(current)))
    }

    /// Seals the current batch and puts an empty one in its place; `None` if no buffer is free.
    pub(super) fn next_filling<'a>(
        &self,
        current: &'a mut Current,
    ) -> Result<Option<&'a mut Filling>, PublishError> {
        self.shared.seal(current);
        let ready = self.ready();
        let Some(buffer) = ready.pool.try_take()? else {
            return Ok(None);
        };
        Ok(Some(
            current
                .filling
                .insert(Filling::new(buffer, ready.batch_bytes)),
        ))
    }

    /// A handle keeps a buffer only while there is a message in it, or a reservation on it: others may wait for one, and
    /// with the handle it would be lost to them.
    pub(super) fn give_back_unused(&self, current: &mut Current) {
        if let Some(buffer) = current.take_unused() {
            self.ready().pool.put(buffer);
        }
    }

    /// The current batch has its first message.
    #[cold]
    #[inline(never)]
    pub(super) fn began(&self, current: &mut Current) -> Ticket {
        #[cfg(feature = "profile")]
        self.batch.caller.calls();
        let lingers = !self.shared.linger.is_zero();
        let deadline = self.shared.clock.now().after(self.shared.linger);
        if lingers {
            // Before it has a number: who waits for all numbers up to it then finds it here, and has it sealed.
            current.due.set(deadline);
        }
        let batch = self.shared.receipts.open_batch();
        if let Some(filling) = &mut current.filling {
            filling.number = batch;
            match lingers {
                true => self.shared.deadline_at(deadline),
                false => self.shared.seal(current),
            }
        }
        Ticket { batch, index: 0 }
    }

    #[cold]
    pub(super) fn wait_for_buffer(&self) -> Result<(), PublishError> {
        let start = self.batch.current.lock().recorder.start();
        let deadline = Instant::now() + self.wait_limit;
        let waited = self.shared.wait_for_buffer(&self.ready().pool, deadline);
        let current = self.batch.current.lock();
        current.recorder.stop(WAIT_FOR_BUFFER, start);
        drop(current);
        if waited {
            return Ok(());
        }
        Err(PublishError::NoBuffer {
            limit: self.wait_limit,
            source: lock(&self.shared.state).core.why_unavailable(),
        })
    }
}

impl Drop for PublisherHandle {
    /// What was published through this handle is sent, not dropped with it. An empty batch cannot be left: see
    /// `give_back_unused`.
    fn drop(&mut self) {
        self.shared.seal(&mut self.batch.current.visit());
    }
}

impl std::fmt::Debug for PublisherHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublisherHandle").finish_non_exhaustive()
    }
}
