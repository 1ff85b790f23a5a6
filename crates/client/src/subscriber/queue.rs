//! The queue between a subscriber's I/O thread and the application: the I/O thread puts in whole batches, and the
//! application gives their buffers back when it has read them.
//!
//! The queue needs no limit of its own: the core delivers only as many batches as there are buffers.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_transport::Waker;

use super::model::Delivered;
use crate::connection::ChannelId;
use crate::error::ReadError;
use crate::wait::Wait;
use crate::wake::{WakeList, block_on};

/// The I/O thread answers at once, unless it is checking a batch.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What the consumer takes, in order.
#[derive(Debug)]
pub(super) enum Item {
    Batch(Delivered),
    PositionChange(PositionChange),
}

/// Offsets of a broker go on, or begin, here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PositionChange {
    pub(super) broker: Option<u32>,
    pub(super) next: u64,
    pub(super) skipped: u64,
}

/// What [`Queue::poll_next`] finds.
#[derive(Debug)]
pub(super) enum Taken {
    Item(Item),
    End,
    Failed(ReadError),
}

#[derive(Default)]
struct Inner {
    items: VecDeque<Item>,
    returned: Vec<(ChannelId, Vec<u8>)>,
    /// The I/O thread sleeps although a broker has more, until a buffer is returned.
    starved: bool,
    opened: bool,
    end: Option<Result<(), ReadError>>,
    waiting: WakeList,
    io: Option<Waker>,
    stopping: bool,
    /// Somebody wants to know what is waited for.
    asked: bool,
    /// The I/O thread's answer to that.
    waits: Option<Option<Wait>>,
}

#[derive(Default)]
pub(super) struct Queue(Mutex<Inner>);

impl Queue {
    // The consumer's side.

    /// Resolves when the subscription stands, or cannot.
    pub(super) fn poll_opened(&self, context: &Context<'_>) -> Poll<Result<(), ReadError>> {
        let mut inner = self.inner();
        match &inner.end {
            Some(Err(error)) if !inner.opened => Poll::Ready(Err(error.clone())),
            _ if inner.opened => Poll::Ready(Ok(())),
            _ => {
                inner.waiting.register(context);
                Poll::Pending
            }
        }
    }

    /// Takes what says where reading begins: of each broker whatever lies before its first batch.
    pub(super) fn take_starts(&self) -> Vec<PositionChange> {
        let (mut starts, mut delivering) = (Vec::new(), BTreeSet::new());
        self.inner().items.retain(|item| {
            match item {
                Item::PositionChange(moved) if !delivering.contains(&moved.broker) => {
                    starts.push(*moved);
                    return false;
                }
                Item::PositionChange(_) => {}
                Item::Batch(delivered) => {
                    delivering.insert(delivered.owner());
                }
            }
            true
        });
        starts
    }

    /// The next item; the end comes behind all items, and again and again.
    pub(super) fn poll_next(&self, context: &Context<'_>) -> Poll<Taken> {
        let mut inner = self.inner();
        if let Some(item) = inner.items.pop_front() {
            return Poll::Ready(Taken::Item(item));
        }
        match &inner.end {
            Some(Ok(())) => Poll::Ready(Taken::End),
            Some(Err(error)) => Poll::Ready(Taken::Failed(error.clone())),
            None => {
                inner.waiting.register(context);
                Poll::Pending
            }
        }
    }

    /// Gives a buffer back.
    pub(super) fn give_back(&self, channel: ChannelId, buffer: Vec<u8>) {
        let waker = {
            let mut inner = self.inner();
            inner.returned.push((channel, buffer));
            let wake = std::mem::take(&mut inner.starved);
            if wake { inner.io.clone() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Asks the I/O thread to end.
    pub(super) fn stop(&self) {
        let waker = {
            let mut inner = self.inner();
            inner.stopping = true;
            inner.io.clone()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Reading cannot go on: what is queued is dropped, and the I/O thread ends.
    pub(super) fn abort(&self, error: &ReadError) {
        {
            let mut inner = self.inner();
            inner.items.clear();
            inner.end = Some(Err(error.clone()));
        }
        self.stop();
    }

    /// What the subscriber waits for, as its I/O thread says; `None` also if there is something to take.
    pub(super) fn waiting_for(&self) -> Option<Wait> {
        let waker = {
            let mut inner = self.inner();
            if !inner.items.is_empty() || inner.end.is_some() {
                return None;
            }
            (inner.asked, inner.waits) = (true, None);
            inner.io.clone()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        let answer = poll_fn(|context| {
            let mut inner = self.inner();
            match (inner.waits.take(), &inner.end) {
                (Some(waits), _) => Poll::Ready(waits),
                (None, Some(_)) => Poll::Ready(None),
                (None, None) => {
                    inner.waiting.register(context);
                    Poll::Pending
                }
            }
        });
        block_on(answer, Some(Instant::now() + ANSWER_WITHIN)).flatten()
    }

    // The I/O thread's side.

    /// The answer to the question of which [`Queue::take_returned`] told.
    pub(super) fn answer_wait(&self, waits: Option<Wait>) {
        self.change(|inner| inner.waits = Some(waits));
    }

    pub(super) fn set_waker(&self, waker: Waker) {
        self.inner().io = Some(waker);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.inner().stopping
    }

    pub(super) fn opened(&self) {
        self.change(|inner| inner.opened = true);
    }

    /// Dropped if the end is there already.
    pub(super) fn push(&self, item: Item) {
        self.change(|inner| {
            if inner.end.is_none() {
                inner.items.push_back(item);
            }
        });
    }

    /// Nothing follows: the first reason stays.
    pub(super) fn end(&self, why: Result<(), ReadError>) {
        self.change(|inner| {
            inner.end.get_or_insert(why);
        });
    }

    /// Takes returned buffers into `into`. If there is none and the caller is `starved`, it will be woken by the next.
    /// True if somebody wants to know what is waited for.
    pub(super) fn take_returned(
        &self,
        starved: bool,
        into: &mut Vec<(ChannelId, Vec<u8>)>,
    ) -> bool {
        let mut inner = self.inner();
        into.append(&mut inner.returned);
        inner.starved = starved && into.is_empty();
        std::mem::take(&mut inner.asked)
    }

    fn change(&self, f: impl FnOnce(&mut Inner)) {
        let waiting = {
            let mut inner = self.inner();
            f(&mut inner);
            if inner.waiting.is_empty() {
                return;
            }
            inner.waiting.take()
        };
        waiting.wake_all();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every step leaves the queue valid, so a panic of another holder spoils nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::tests::{delivered, frame};
    use super::*;
    use crate::error::ClientError;

    fn of_broker(broker: u32, next: u64) -> PositionChange {
        PositionChange {
            broker: Some(broker),
            next,
            skipped: 0,
        }
    }

    fn moved(next: u64) -> Item {
        Item::PositionChange(of_broker(1, next))
    }

    #[test]
    fn items_come_in_order_and_the_end_behind_them() {
        let queue = Queue::default();
        let next = || {
            block_on(
                poll_fn(|context| queue.poll_next(context)),
                Some(Instant::now() + Duration::from_millis(1)),
            )
        };
        assert!(next().is_none());
        queue.push(moved(1));
        queue.push(moved(2));
        queue.end(Err(ClientError::Closed.into()));
        queue.end(Ok(()));
        for expected in [1, 2] {
            assert!(
                matches!(next(), Some(Taken::Item(Item::PositionChange(it))) if it.next == expected)
            );
        }
        for _ in 0..2 {
            assert!(
                matches!(
                    next(),
                    Some(Taken::Failed(ReadError::Client(ClientError::Closed)))
                ),
                "the first reason stays"
            );
        }
    }

    #[test]
    fn where_brokers_begin_is_known_before_what_they_delivered_is_taken() {
        let queue = Queue::default();
        let batch = delivered(&frame(7, 1, &[b"a"]), 0);
        let broker = batch.broker;
        queue.push(Item::PositionChange(of_broker(broker, 7)));
        queue.push(Item::Batch(batch));
        queue.push(Item::PositionChange(of_broker(broker, 9)));
        queue.push(Item::PositionChange(of_broker(broker + 1, 5)));
        let starts = [of_broker(broker, 7), of_broker(broker + 1, 5)];
        assert_eq!(queue.take_starts(), starts);
        let next = || block_on(poll_fn(|context| queue.poll_next(context)), None);
        assert!(matches!(next(), Some(Taken::Item(Item::Batch(_)))));
        let skipped = of_broker(broker, 9);
        assert!(matches!(next(), Some(Taken::Item(Item::PositionChange(it))) if it == skipped));
    }

    #[test]
    fn returned_buffers_are_taken_once() {
        let queue = Queue::default();
        let mut into = Vec::new();
        queue.take_returned(true, &mut into);
        assert!(into.is_empty());
        queue.give_back(ChannelId(1), vec![1]);
        queue.give_back(ChannelId(2), vec![2]);
        queue.take_returned(false, &mut into);
        assert_eq!(into, [(ChannelId(1), vec![1]), (ChannelId(2), vec![2])]);
        into.clear();
        queue.take_returned(false, &mut into);
        assert!(into.is_empty());
    }
}
