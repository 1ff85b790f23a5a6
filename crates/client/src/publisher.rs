//! Publishing: messages into batches, batches to whichever data broker takes them first.
//!
//! Read in this order: [`core`] (the rules, without I/O), with its parts `flight`, `lane`, `dispatch` and `session`; [`receipt`]
//! (tickets and what becomes of them); `pool`, `batcher` and `handle` (the way of a message into a batch); `shared` and
//! `driver` (threads and wake-ups); `builder`.

mod batcher;
mod builder;
pub mod core;
mod dispatch;
mod driver;
mod flight;
mod handle;
mod lane;
mod pool;
pub mod receipt;
mod reservation;
mod session;
mod shared;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use self::builder::PublisherBuilder;
pub use self::core::{Acks, OnBrokerLoss};
pub use self::handle::{NewMessage, PublisherHandle};
pub use self::receipt::{Position, Receipt, Ticket};
pub use self::reservation::Reservation;
pub use self::shared::Delivery;

use self::core::PublisherCore;
use self::shared::Shared;
use crate::error::Error;

/// Publishes to one topic. It is a [`PublisherHandle`] itself; make more with [`PublisherHandle::handle`].
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
    pub fn close(mut self) -> Result<(), Error> {
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
    pub async fn close_async(mut self) -> Result<(), Error> {
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
        self.shared.stop(Error::Closed);
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
        self.shared.receipts.end(Error::Closed);
    }
}

impl Deref for Publisher {
    type Target = PublisherHandle;

    fn deref(&self) -> &PublisherHandle {
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
