//! Subscribing: batches from all data brokers, checked, and read message by message without a copy.
//!
//! Read in this order: [`core`] (the rules, without I/O) and its parts `channel` and `arriving`; `queue`; `io_threads` and `driver` (one of
//! them); `reading` (messages of a batch); [`position`]; `builder`; `stream`.

mod arriving;
mod builder;
mod channel;
pub(crate) mod core;
mod driver;
mod io_threads;
mod merge;
pub(crate) mod model;
pub mod payload;
mod position;
mod queue;
mod reading;
mod starved;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_meter::{Profile, Snapshot};

pub use self::builder::SubscriberBuilder;
pub use self::model::{Checksums, OnEvicted, Start};
pub use self::position::{ParsePositionsError, Positions};
pub use self::reading::{Message, OwnedMessage};
pub use self::stream::MessageStream;

use self::io_threads::IoThreads;
use self::queue::{Item, PositionChange, Queue, Taken};
use self::reading::Reading;
use self::starved::Starved;
#[cfg(feature = "profile")]
use crate::caller::LastCaller;
use crate::error::ReadError;
#[cfg(feature = "profile")]
use crate::profiles::{self, Kind, SubscriberProfile, Told};
use crate::wake::block_on;

/// Reads one topic from all data brokers. Messages of one broker come in its order; between brokers there is none, unless
/// the topic has one order over all of them (order 2 and 5): then they come in that, from one broker at a time.
///
/// Dropping it ends its connections and its threads.
pub struct Subscriber {
    queue: Arc<Queue>,
    profile: Arc<Profile>,
    threads: Arc<IoThreads>,
    reading: Option<Reading>,
    /// Without the batch being read.
    positions: Positions,
    skipped: u64,
    starved: Starved,
    #[cfg(feature = "profile")]
    caller: Arc<LastCaller>,
}

impl Subscriber {
    /// Starts to set up a subscriber. `bootstrap` is `HOST:PORT` of any broker, or several separated by commas.
    pub fn builder(bootstrap: &str) -> SubscriberBuilder {
        SubscriberBuilder::new(bootstrap)
    }

    /// `positions` is where it was told to start, as far as it was: a broker that is away is still to be read from there.
    fn new(
        queue: Arc<Queue>,
        profile: Arc<Profile>,
        threads: Arc<IoThreads>,
        positions: Positions,
    ) -> Self {
        #[cfg(feature = "profile")]
        let caller = Arc::new(LastCaller::default());
        #[cfg(feature = "profile")]
        {
            let weak = Arc::downgrade(&caller);
            profiles::register(Kind::Subscriber, &profile, move |profile| {
                let callers = weak.upgrade()?.told().into_iter().collect();
                Some(Told::Subscriber(SubscriberProfile { profile, callers }))
            });
        }
        Self {
            starved: Starved::new(&profile),
            #[cfg(feature = "profile")]
            caller,
            queue,
            profile,
            threads,
            reading: None,
            positions,
            skipped: 0,
        }
    }

    /// The next message; blocks until there is one. `None` at the end, if there is one
    /// ([`SubscriberBuilder::until_end`]). The message borrows from its batch, so it must be dropped before the next
    /// one is asked for; [`Message::to_owned`] copies it.
    ///
    /// # Errors
    /// Whatever ended the subscription, again at each call. Everything before it was delivered.
    #[expect(
        clippy::should_implement_trait,
        reason = "messages borrow from the subscriber"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Message<'_>>, ReadError> {
        match self.alike() {
            Some(lengths) => Ok(self.take_alike(lengths)),
            None => self.next_within(None),
        }
    }

    /// As [`Subscriber::next`], but waits no longer than `limit`.
    ///
    /// # Errors
    /// [`ReadError::TimedOut`] if no message came, otherwise as [`Subscriber::next`].
    #[inline]
    pub fn next_timeout(&mut self, limit: Duration) -> Result<Option<Message<'_>>, ReadError> {
        match self.alike() {
            Some(lengths) => Ok(self.take_alike(lengths)),
            None => self.next_within(Some(limit)),
        }
    }

    /// As [`Subscriber::next`], without blocking the thread.
    ///
    /// # Errors
    /// As [`Subscriber::next`].
    #[inline]
    pub async fn next_async(&mut self) -> Result<Option<Message<'_>>, ReadError> {
        if let Some(lengths) = self.alike() {
            return Ok(self.take_alike(lengths));
        }
        if !self.has_more() && !poll_fn(|context| self.poll_load(context)).await? {
            return Ok(None);
        }
        self.read().map(Some)
    }

    /// A stream of owned messages.
    pub fn into_stream(self) -> MessageStream {
        MessageStream::new(self)
    }

    /// Where to go on: behind the last message that was returned, or where it started. Give it to [`Start::Positions`]
    /// later.
    pub fn position(&self) -> Positions {
        let mut positions = self.positions.clone();
        if let Some(reading) = &self.reading {
            positions.advance(reading.broker, reading.next_offset());
        }
        positions
    }

    /// Messages that were evicted before they were read, and skipped ([`OnEvicted::SkipToFirst`]).
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Where the time went so far.
    pub fn profile(&self) -> Snapshot {
        self.profile.snapshot()
    }

    /// Switches stage timers and counters on or off.
    pub fn set_metering(&self, on: bool) {
        self.profile.set_enabled(on);
    }

    /// Ends connections and threads.
    pub fn close(mut self) {
        self.end();
    }

    #[inline]
    fn alike(&self) -> Option<(usize, usize)> {
        self.reading.as_ref().and_then(Reading::alike)
    }

    #[inline]
    fn take_alike(&mut self, lengths: (usize, usize)) -> Option<Message<'_>> {
        let reading = self.reading.as_mut();
        reading.map(|reading| reading.take_alike(lengths))
    }

    #[inline(never)]
    fn next_within(&mut self, limit: Option<Duration>) -> Result<Option<Message<'_>>, ReadError> {
        if !self.has_more() && !self.load(limit)? {
            return Ok(None);
        }
        self.read().map(Some)
    }

    fn has_more(&self) -> bool {
        self.reading
            .as_ref()
            .is_some_and(|reading| !reading.is_empty())
    }

    /// The next message of the current batch.
    fn read(&mut self) -> Result<Message<'_>, ReadError> {
        let Self { reading, queue, .. } = self;
        let reading = reading
            .as_mut()
            .expect("a batch is loaded before it is read");
        // A batch with a good checksum and bad records was published so, and nothing behind it may pass for the next
        // message.
        reading.next().inspect_err(|error| queue.abort(error))
    }

    #[cold]
    fn load(&mut self, limit: Option<Duration>) -> Result<bool, ReadError> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        block_on(poll_fn(|context| self.poll_load(context)), deadline).unwrap_or_else(|| {
            self.starved.ends();
            Err(ReadError::TimedOut {
                limit: limit.unwrap_or_default(),
            })
        })
    }

    /// Makes the next message readable; false at the end.
    fn poll_load(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, ReadError>> {
        let polled = self.poll_next(context);
        match &polled {
            Poll::Pending => self.starved.begins(),
            Poll::Ready(_) => self.starved.ends(),
        }
        polled
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, ReadError>> {
        loop {
            if self.has_more() {
                return Poll::Ready(Ok(true));
            }
            if let Some(done) = self.reading.take() {
                self.positions.advance(done.broker, done.next_offset());
                let (channel, buffer) = done.into_buffer();
                self.queue.give_back(channel, buffer);
            }
            match self.queue.poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Taken::End) => return Poll::Ready(Ok(false)),
                Poll::Ready(Taken::Failed(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Taken::Item(Item::PositionChange(moved))) => self.moved(moved),
                Poll::Ready(Taken::Item(Item::Batch(delivered))) => match Reading::new(delivered) {
                    Ok(reading) => {
                        #[cfg(feature = "profile")]
                        self.caller.calls();
                        self.reading = Some(reading);
                    }
                    Err(error) => {
                        self.queue.abort(&error);
                        return Poll::Ready(Err(error));
                    }
                },
            }
        }
    }

    /// Makes [`Subscriber::position`] tell where brokers begin, before anything is read.
    fn take_starts(&mut self) {
        for moved in self.queue.take_starts() {
            self.moved(moved);
        }
    }

    fn moved(&mut self, moved: PositionChange) {
        self.positions.advance(moved.broker, moved.next);
        self.skipped += moved.skipped;
    }

    fn end(&mut self) {
        self.queue.stop();
        self.threads.join();
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}
