//! Publishing: messages into batches, batches to whichever data broker takes them first.
//!
//! Read in this order: [`core`] (the rules, without I/O), with its parts `in_flight`, `channel`, `dispatch` and `session`; [`receipt`]
//! (tickets and what becomes of them); `batch_memory`, `pool`, `batcher` and `handle` (the way of a message into a batch);
//! `shared`, `outlet`, `submit` and `driver` (threads, and which of them sends); `builder`.

mod batch_memory;
mod batcher;
mod buffer_sizes;
mod builder;
mod channel;
pub(crate) mod core;
mod dispatch;
mod driver;
mod handle;
mod in_flight;
pub(crate) mod model;
mod outlet;
mod pool;
pub(crate) mod receipt;
mod reservation;
mod session;
mod shared;
mod submit;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use embar_meter::Snapshot;

pub use self::builder::PublisherBuilder;
pub use self::handle::{NewMessage, PublisherHandle};
pub use self::model::OnBrokerLoss;
pub use self::receipt::{Position, Receipt, Ticket};
pub use self::reservation::Reservation;
pub use self::shared::Delivery;

use self::core::PublisherCore;
use self::shared::Shared;
use crate::error::{ClientError, PublishError};
use crate::wait::Wait;

/// Publishes to one topic, from any thread. Threads that publish much have a [handle](Publisher::handle) each.
///
/// Close it with [`Publisher::close`]. Dropped without, it ends at once, and what was not acknowledged is lost or in
/// doubt.
pub struct Publisher {
    shared: Arc<Shared>,
    /// There once the publisher is open.
    handle: Option<PublisherHandle>,
    control: Option<JoinHandle<()>>,
}

impl Publisher {
    /// Starts to set up a publisher. `bootstrap` is `HOST:PORT` of any broker, or several separated by commas.
    pub fn builder(bootstrap: &str) -> PublisherBuilder {
        PublisherBuilder::new(bootstrap)
    }

    fn starting(shared: Arc<Shared>, control: JoinHandle<()>) -> Self {
        Self {
            shared,
            handle: None,
            control: Some(control),
        }
    }

    fn ready(&mut self, wait_limit: Duration) {
        self.handle = Some(PublisherHandle::new(self.shared.clone(), wait_limit));
    }

    /// Sends everything, waits until it is resolved, and ends connections and threads. Handles made from this publisher
    /// find it closed.
    ///
    /// # Errors
    /// As [`PublisherHandle::flush`]; the publisher is closed all the same.
    ///
    /// On topics of order 2 and 5 the producer's session ends with it: its numbers are forgotten.
    pub fn close(mut self) -> Result<(), PublishError> {
        let flushed = self.flush();
        self.shared
            .with_core(None, None, PublisherCore::close_session);
        self.end();
        flushed
    }

    /// As [`Publisher::close`], without blocking the thread while batches are on their way.
    ///
    /// # Errors
    /// As [`Publisher::close`].
    pub async fn close_async(mut self) -> Result<(), PublishError> {
        let flushed = self.flush_async().await;
        self.shared
            .with_core(None, None, PublisherCore::close_session);
        self.end();
        flushed
    }

    fn end(&mut self) {
        let Some(control) = self.control.take() else {
            return;
        };
        self.shared.stop(ClientError::Closed);
        // A thread that panicked has told everyone who waits, and there is nothing more to end.
        let _ = control.join();
        let mut events = Vec::new();
        self.shared.with_core(None, Some(&mut events), |_, _| ());
        self.shared
            .handle(&mut events, &self.shared.profile.recorder());
        let unresolved = self.shared.receipts.unresolved();
        if unresolved > 0 {
            tracing::warn!(
                batches = unresolved,
                "a publisher ended before its batches were resolved"
            );
        }
        self.shared.receipts.end(ClientError::Closed);
    }
}

/// What a [`PublisherHandle`] does, with the batch that belongs to the publisher itself.
impl Publisher {
    /// Makes a handle on the same connections, with a current batch of its own: one for each publishing thread.
    #[must_use]
    pub fn handle(&self) -> PublisherHandle {
        self.own().handle()
    }

    /// As [`PublisherHandle::publish`].
    ///
    /// # Errors
    /// As [`PublisherHandle::publish`].
    #[inline]
    pub fn publish(&self, value: &[u8]) -> Result<Ticket, PublishError> {
        self.own().publish(value)
    }

    /// As [`PublisherHandle::publish_message`].
    ///
    /// # Errors
    /// As [`PublisherHandle::publish`].
    #[inline]
    pub fn publish_message(&self, message: &NewMessage<'_>) -> Result<Ticket, PublishError> {
        self.own().publish_message(message)
    }

    /// As [`PublisherHandle::try_publish`].
    ///
    /// # Errors
    /// As [`PublisherHandle::try_publish`].
    #[inline]
    pub fn try_publish(&self, message: &NewMessage<'_>) -> Result<Ticket, PublishError> {
        self.own().try_publish(message)
    }

    /// As [`PublisherHandle::publish_async`].
    ///
    /// # Errors
    /// As [`PublisherHandle::publish_async`].
    pub async fn publish_async(&self, message: &NewMessage<'_>) -> Result<Ticket, PublishError> {
        self.own().publish_async(message).await
    }

    /// As [`PublisherHandle::reserve`].
    ///
    /// # Errors
    /// As [`PublisherHandle::publish`].
    pub fn reserve(&self, len: usize) -> Result<Reservation<'_>, PublishError> {
        self.own().reserve(len)
    }

    /// As [`PublisherHandle::acked`].
    pub fn acked(&self, ticket: Ticket) -> Receipt {
        self.own().acked(ticket)
    }

    /// As [`PublisherHandle::flush`].
    ///
    /// # Errors
    /// As [`PublisherHandle::flush`].
    pub fn flush(&self) -> Result<(), PublishError> {
        self.own().flush()
    }

    /// As [`PublisherHandle::flush_async`].
    ///
    /// # Errors
    /// As [`PublisherHandle::flush`].
    pub async fn flush_async(&self) -> Result<(), PublishError> {
        self.own().flush_async().await
    }

    /// As [`PublisherHandle::flush_timeout`].
    ///
    /// # Errors
    /// As [`PublisherHandle::flush_timeout`].
    pub fn flush_timeout(&self, limit: Duration) -> Result<(), PublishError> {
        self.own().flush_timeout(limit)
    }

    /// As [`PublisherHandle::waiting_for`].
    pub fn waiting_for(&self) -> Option<Wait> {
        self.own().waiting_for()
    }

    /// As [`PublisherHandle::profile`].
    pub fn profile(&self) -> Snapshot {
        self.own().profile()
    }

    /// As [`PublisherHandle::set_metering`].
    pub fn set_metering(&self, on: bool) {
        self.own().set_metering(on);
    }

    /// As [`PublisherHandle::batch_bytes`].
    pub fn batch_bytes(&self) -> usize {
        self.own().batch_bytes()
    }

    /// As [`PublisherHandle::batches_in_flight`].
    pub fn batches_in_flight(&self) -> usize {
        self.own().batches_in_flight()
    }

    fn own(&self) -> &PublisherHandle {
        self.handle
            .as_ref()
            .expect("a publisher is given out only after it has opened")
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}
