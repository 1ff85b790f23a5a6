//! Memory for replies that goes from one reply to the next.
//!
//! Slots are used in rotation, so a slot that kept its memory would keep it for a command that comes after thousands
//! of others. Instead whoever takes a reply keeps its memory for the thread's next command, whichever slot and
//! connection that has. So there is as much memory as there are commands in flight, and a little to spare. A thread
//! has its own spare buffers, so there is neither a lock nor an atomic.
//!
//! Commands come and go in bursts. What lay idle all through [`WINDOW`] commands is more than the thread needs, and is
//! freed.

use std::cell::RefCell;

/// Bytes of the largest buffer that is kept.
pub(crate) const MAX_BUFFER_BYTES: usize = 16 << 10;

/// Most bytes that a thread keeps.
pub(crate) const MAX_THREAD_BYTES: usize = 512 << 10;

/// Most buffers that a thread keeps.
const MAX_BUFFERS: usize = 4096;

/// So many commands show how many buffers a thread needs.
pub(crate) const WINDOW: u32 = 1024;

/// The spare buffers of one thread.
#[derive(Debug)]
pub(crate) struct SpareBuffers {
    /// The one that was used last is at the end.
    buffers: Vec<Vec<u8>>,
    /// Capacity of all.
    bytes: usize,
    /// Commands that took a buffer, or found none, in this window.
    taken: u32,
    /// The fewest buffers that there were in this window.
    idle: usize,
}

thread_local! {
    static OF_THREAD: RefCell<SpareBuffers> = const { RefCell::new(SpareBuffers::new()) };
}

/// Memory for a reply, empty; without capacity when the thread has none to spare.
#[inline]
pub(crate) fn take() -> Vec<u8> {
    // A thread that ends has none any more.
    let taken = OF_THREAD.try_with(|spare| spare.borrow_mut().take());
    taken.unwrap_or_default()
}

/// Keeps the memory of a reply that was read, if it is not too much.
#[inline]
pub(crate) fn give(buffer: Vec<u8>) {
    if buffer.capacity() > 0 {
        let _ = OF_THREAD.try_with(|spare| spare.borrow_mut().give(buffer));
    }
}

impl SpareBuffers {
    pub const fn new() -> Self {
        Self {
            buffers: Vec::new(),
            bytes: 0,
            taken: 0,
            idle: 0,
        }
    }

    fn take(&mut self) -> Vec<u8> {
        self.taken += 1;
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        self.idle = self.idle.min(self.buffers.len());
        if self.taken == WINDOW {
            self.end_window();
        }
        buffer
    }

    #[cold]
    fn end_window(&mut self) {
        // Those that were used longest ago.
        let freed: usize = self
            .buffers
            .drain(..self.idle)
            .map(|one| one.capacity())
            .sum();
        self.bytes -= freed;
        self.idle = self.buffers.len();
        self.taken = 0;
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        let bytes = self.bytes + buffer.capacity();
        let is_small = buffer.capacity() <= MAX_BUFFER_BYTES;
        if is_small && bytes <= MAX_THREAD_BYTES && self.buffers.len() < MAX_BUFFERS {
            buffer.clear();
            self.bytes = bytes;
            self.buffers.push(buffer);
        }
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        assert_eq!(self.bytes, self.buffers.iter().map(Vec::capacity).sum());
        self.bytes
    }
}

/// Bytes that this thread keeps.
#[cfg(test)]
pub(crate) fn bytes_of_thread() -> usize {
    OF_THREAD.with_borrow(SpareBuffers::bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_from_one_reply_to_the_next() {
        let mut spare = SpareBuffers::new();
        assert_eq!(spare.take().capacity(), 0);
        spare.give(vec![1; 100]);
        let buffer = spare.take();
        assert!(buffer.is_empty() && buffer.capacity() >= 100);
        assert_eq!(spare.bytes(), 0);
    }

    #[test]
    fn what_is_too_large_or_too_much_is_not_kept() {
        let mut spare = SpareBuffers::new();
        spare.give(Vec::with_capacity(MAX_BUFFER_BYTES + 1));
        assert_eq!(spare.bytes(), 0);
        for _ in 0..2 * MAX_THREAD_BYTES / MAX_BUFFER_BYTES {
            spare.give(Vec::with_capacity(MAX_BUFFER_BYTES));
        }
        assert_eq!(spare.bytes(), MAX_THREAD_BYTES);
        let mut spare = SpareBuffers::new();
        for _ in 0..2 * MAX_BUFFERS {
            spare.give(Vec::with_capacity(1));
        }
        assert_eq!(spare.bytes(), MAX_BUFFERS);
    }

    #[test]
    fn what_a_burst_needed_is_freed_afterwards_and_what_is_in_use_is_not() {
        let mut spare = SpareBuffers::new();
        for _ in 0..100 {
            spare.give(Vec::with_capacity(1000));
        }
        // Three at a time, up to the end of the first window in which there is no burst.
        for _ in 0..2 * WINDOW {
            let three = [spare.take(), spare.take(), spare.take()];
            three.into_iter().for_each(|one| spare.give(one));
        }
        assert_eq!(spare.bytes(), 3 * 1000);
        for _ in 0..10 * WINDOW {
            let three = [spare.take(), spare.take(), spare.take()];
            assert!(three.iter().all(|one| one.capacity() == 1000));
            three.into_iter().for_each(|one| spare.give(one));
        }
    }
}
