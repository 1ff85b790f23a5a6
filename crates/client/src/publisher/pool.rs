//! The batch buffers of a publisher.
//!
//! Their number is the publisher's memory bound: when all are in use, publishing waits. A buffer and its reference
//! counter are allocated and touched once, at the start, and go round for ever after. Of private memory the one used last
//! is used next, since its bytes are the most likely to be in the cache: this process copied them into a socket. Of memory
//! that brokers read, the one that has been free for the longest is used next. Its lines have left the cache of the
//! processor that read them last, from where it takes longer to get them back for writing.

use std::collections::VecDeque;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use embar_memory::Buffer;
use embar_memory::sealed::SealedRange;

use crate::error::ClientError;
use crate::wake::WakeList;

struct Inner {
    free: VecDeque<Arc<Buffer>>,
    waiting: WakeList,
    failed: Option<ClientError>,
    /// Told to the next taker, once.
    warning: Option<ClientError>,
}

/// Buffers of one size, shared by all handles of a publisher.
pub(crate) struct Pool {
    inner: Mutex<Inner>,
    buffer_bytes: usize,
    /// Brokers read what is in the buffers.
    is_read: bool,
}

impl Pool {
    /// So many buffers: these ranges, and private memory for as many as are missing.
    pub(crate) fn new(buffer_bytes: usize, buffers: usize, ranges: Vec<SealedRange>) -> Self {
        let is_read = !ranges.is_empty();
        let ranges = ranges
            .into_iter()
            .map(|range| Arc::new(Buffer::from(range)));
        let private = iter::repeat_with(|| prefaulted(buffer_bytes));
        Self {
            inner: Mutex::new(Inner {
                free: ranges.chain(private).take(buffers).collect(),
                waiting: WakeList::default(),
                failed: None,
                warning: None,
            }),
            buffer_bytes,
            is_read,
        }
    }

    /// A free buffer that nobody else refers to, or `None` if all are in use.
    pub(crate) fn try_take(&self) -> Result<Option<Arc<Buffer>>, ClientError> {
        let mut inner = self.inner();
        match inner.failed.clone().or_else(|| inner.warning.take()) {
            Some(error) => Err(error),
            None if self.is_read => Ok(inner.free.pop_front()),
            None => Ok(inner.free.pop_back()),
        }
    }

    /// Ready once [`Pool::try_take`] may succeed, or fail.
    pub(crate) fn poll_ready(&self, context: &Context<'_>) -> Poll<()> {
        let mut inner = self.inner();
        if inner.failed.is_some() || inner.warning.is_some() || !inner.free.is_empty() {
            return Poll::Ready(());
        }
        inner.waiting.register(context);
        Poll::Pending
    }

    /// Whether anybody waits for a buffer.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.inner().waiting.is_empty()
    }

    /// Gives a buffer back.
    pub(crate) fn put(&self, mut buffer: Arc<Buffer>) {
        // The reactor returns its reference before the core lets go of the batch, so this is the last one; were it not,
        // the buffer would still be read by a socket and must not be written. Only of a batch that is given up a
        // connection by shared memory may still keep the buffer for its broker.
        if Arc::get_mut(&mut buffer).is_none() {
            debug_assert!(
                buffer.place().is_some(),
                "a batch buffer came back while it was still in use"
            );
            buffer = prefaulted(self.buffer_bytes);
        }
        let waiting = {
            let mut inner = self.inner();
            inner.free.push_back(buffer);
            inner.waiting.take()
        };
        waiting.wake_all();
    }

    /// From now on every taker is told `error`.
    pub(crate) fn fail(&self, error: ClientError) {
        let waiting = {
            let mut inner = self.inner();
            inner.failed.get_or_insert(error);
            inner.waiting.take()
        };
        waiting.wake_all();
    }

    /// The next taker is told `error`, and may try again.
    pub(crate) fn warn(&self, error: ClientError) {
        let waiting = {
            let mut inner = self.inner();
            inner.warning = Some(error);
            inner.waiting.take()
        };
        waiting.wake_all();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every step leaves the list valid, so a panic of another holder spoils nothing.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn prefaulted(bytes: usize) -> Arc<Buffer> {
    let mut buffer = vec![0; bytes];
    // Fresh zero pages are mapped on the first write only; writing other than zeros keeps this from being optimised
    // into asking for zeroed memory.
    buffer.fill(0xE5);
    Arc::new(std::hint::black_box(buffer).into())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use embar_memory::Sealed;

    use super::*;
    use crate::wake::block_on;

    async fn ready(pool: &Pool) {
        std::future::poll_fn(|context| pool.poll_ready(context)).await;
    }

    #[test]
    fn it_hands_out_what_it_has_last_used_first() {
        let pool = Pool::new(64, 2, Vec::new());
        let first = pool.try_take().expect("works").expect("free");
        let second = pool.try_take().expect("works").expect("free");
        assert!(pool.try_take().expect("works").is_none());
        let (a, b) = (first.as_ptr(), second.as_ptr());
        pool.put(first);
        pool.put(second);
        assert_eq!(pool.try_take().expect("works").expect("free").as_ptr(), b);
        assert_eq!(pool.try_take().expect("works").expect("free").as_ptr(), a);
    }

    #[test]
    fn what_brokers_read_is_used_again_last() {
        let memory = Sealed::new(4096).expect("memory");
        let pool = Pool::new(64, 2, memory.into_ranges(64));
        let take = || pool.try_take().expect("works").expect("free");
        let (first, second) = (take(), take());
        let a = first.as_ptr();
        pool.put(first);
        pool.put(second);
        assert_eq!(take().as_ptr(), a);
    }

    #[test]
    fn a_waiter_wakes_when_a_buffer_comes_back_and_when_all_is_lost() {
        let pool = Pool::new(64, 1, Vec::new());
        let buffer = pool.try_take().expect("works").expect("free");
        let soon = || Some(Instant::now() + Duration::from_millis(1));
        assert_eq!(block_on(ready(&pool), soon()), None);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| block_on(ready(&pool), None));
            pool.put(buffer);
            assert_eq!(waiter.join().expect("no panic"), Some(()));
        });
        pool.warn(ClientError::NoDataBrokers);
        assert!(matches!(pool.try_take(), Err(ClientError::NoDataBrokers)));
        assert!(pool.try_take().expect("warned once").is_some());
        pool.fail(ClientError::Closed);
        assert_eq!(block_on(ready(&pool), None), Some(()));
        assert!(matches!(pool.try_take(), Err(ClientError::Closed)));
    }
}
