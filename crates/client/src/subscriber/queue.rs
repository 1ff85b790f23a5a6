//! The queue between a subscriber's I/O threads and the application: I/O threads put in whole batches, and the
//! application gives their buffers back when it has read them, each to the thread that receives into it.
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

/// An I/O thread answers at once, unless it is checking a batch.
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

/// One I/O thread, as the application sees it.
struct Lane {
    waker: Waker,
    returned: Vec<(ChannelId, Vec<u8>)>,
    /// The thread sleeps although a broker has more, until a buffer is returned.
    starved: bool,
}

#[derive(Default)]
struct Inner {
    items: VecDeque<Item>,
    lanes: Vec<Lane>,
    /// By channel, the lane whose thread has it; 0 of those that are not named.
    owners: Vec<usize>,
    opened: bool,
    end: Option<Result<(), ReadError>>,
    waiting: WakeList,
    stopping: bool,
    /// Somebody wants to know what is waited for.
    asked: bool,
    /// The first I/O thread's answer to that.
    waits: Option<Option<Wait>>,
}

impl Inner {
    fn wakers(&self) -> Vec<Waker> {
        self.lanes.iter().map(|lane| lane.waker.clone()).collect()
    }
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
            let owner = inner.owners.get(channel.index()).copied().unwrap_or(0);
            // Whoever has a buffer got it from a thread.
            let lane = &mut inner.lanes[owner];
            lane.returned.push((channel, buffer));
            std::mem::take(&mut lane.starved).then(|| lane.waker.clone())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Asks the I/O threads to end.
    pub(super) fn stop(&self) {
        let wakers = {
            let mut inner = self.inner();
            inner.stopping = true;
            inner.wakers()
        };
        wakers.iter().for_each(Waker::wake);
    }

    /// Reading cannot go on: what is queued is dropped, and the I/O threads end.
    pub(super) fn abort(&self, error: &ReadError) {
        {
            let mut inner = self.inner();
            inner.items.clear();
            inner.end = Some(Err(error.clone()));
        }
        self.stop();
    }

    /// What the subscriber waits for, as its first I/O thread says; `None` also if there is something to take.
    pub(super) fn waiting_for(&self) -> Option<Wait> {
        let waker = {
            let mut inner = self.inner();
            if !inner.items.is_empty() || inner.end.is_some() {
                return None;
            }
            (inner.asked, inner.waits) = (true, None);
            inner.lanes.first().map(|lane| lane.waker.clone())
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

    // The I/O threads' side.

    /// What the subscriber waits for, if somebody has asked.
    pub(super) fn answer_wait(&self, waits: impl FnOnce() -> Option<Wait>) {
        if !std::mem::take(&mut self.inner().asked) {
            return;
        }
        let waits = waits();
        self.change(|inner| inner.waits = Some(waits)).wake_all();
    }

    /// Adds an I/O thread, which `waker` wakes; returns its number.
    pub(super) fn add_lane(&self, waker: Waker) -> usize {
        let mut inner = self.inner();
        inner.lanes.push(Lane {
            waker,
            returned: Vec::new(),
            starved: false,
        });
        inner.lanes.len() - 1
    }

    /// Takes back the lane that was added last: there is no thread for it.
    pub(super) fn remove_lane(&self) {
        self.inner().lanes.pop();
    }

    /// From now on this lane's thread has `channel`.
    pub(super) fn assign(&self, channel: ChannelId, lane: usize) {
        let mut inner = self.inner();
        let channels = inner.owners.len().max(channel.index() + 1);
        inner.owners.resize(channels, 0);
        inner.owners[channel.index()] = lane;
    }

    /// Wakes the thread of this lane.
    pub(super) fn wake_lane(&self, lane: usize) {
        let waker = self.inner().lanes.get(lane).map(|lane| lane.waker.clone());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.inner().stopping
    }

    pub(super) fn opened(&self) {
        self.change(|inner| inner.opened = true).wake_all();
    }

    /// Dropped if the end is there already. Returns whom to wake.
    #[must_use = "the consumer may wait for it"]
    pub(super) fn push(&self, item: Item) -> WakeList {
        self.change(|inner| {
            if inner.end.is_none() {
                inner.items.push_back(item);
            }
        })
    }

    /// Nothing follows: the first reason stays.
    pub(super) fn end(&self, why: Result<(), ReadError>) {
        self.change(|inner| {
            inner.end.get_or_insert(why);
        })
        .wake_all();
    }

    /// Takes the buffers that came back to `lane` into `into`. If there is none and the lane is `starved`, the next one
    /// wakes its thread.
    pub(super) fn take_returned(
        &self,
        lane: usize,
        starved: bool,
        into: &mut Vec<(ChannelId, Vec<u8>)>,
    ) {
        let mut inner = self.inner();
        let lane = &mut inner.lanes[lane];
        into.append(&mut lane.returned);
        lane.starved = starved && into.is_empty();
    }

    /// Returns whom to wake.
    fn change(&self, f: impl FnOnce(&mut Inner)) -> WakeList {
        let mut inner = self.inner();
        f(&mut inner);
        inner.waiting.take()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every step leaves the queue valid, so a panic of another holder spoils nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use embar_transport::{Epoll, Reactor as _};

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
        queue.push(moved(1)).wake_all();
        queue.push(moved(2)).wake_all();
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
        for item in [
            Item::PositionChange(of_broker(broker, 7)),
            Item::Batch(batch),
            Item::PositionChange(of_broker(broker, 9)),
            Item::PositionChange(of_broker(broker + 1, 5)),
        ] {
            queue.push(item).wake_all();
        }
        let starts = [of_broker(broker, 7), of_broker(broker + 1, 5)];
        assert_eq!(queue.take_starts(), starts);
        let next = || block_on(poll_fn(|context| queue.poll_next(context)), None);
        assert!(matches!(next(), Some(Taken::Item(Item::Batch(_)))));
        let skipped = of_broker(broker, 9);
        assert!(matches!(next(), Some(Taken::Item(Item::PositionChange(it))) if it == skipped));
    }

    #[test]
    fn returned_buffers_are_taken_once_and_by_the_thread_that_has_the_channel() {
        let queue = Queue::default();
        let reactors = [
            Epoll::new().expect("a reactor"),
            Epoll::new().expect("a reactor"),
        ];
        for reactor in &reactors {
            queue.add_lane(reactor.waker());
        }
        let taken = |lane| {
            let mut into = Vec::new();
            queue.take_returned(lane, true, &mut into);
            into
        };
        queue.assign(ChannelId(3), 1);
        assert_eq!((taken(0), taken(1)), (vec![], vec![]));
        for channel in [1, 2, 3] {
            queue.give_back(ChannelId(channel), vec![channel as u8]);
        }
        assert_eq!(taken(1), [(ChannelId(3), vec![3])]);
        assert_eq!(taken(0), [(ChannelId(1), vec![1]), (ChannelId(2), vec![2])]);
        assert_eq!((taken(0), taken(1)), (vec![], vec![]));
    }
}
