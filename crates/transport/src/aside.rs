//! Work that may take long, done beside the threads that serve connections.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Work of one kind for the whole process, done in its order by one thread. What waits for it may grow: whoever gives knows what
/// bounds it.
pub(crate) struct Aside<T> {
    /// Of the thread.
    name: &'static str,
    work: fn(T),
    queue: Mutex<Queue<T>>,
    /// Something waits.
    given: Condvar,
}

struct Queue<T> {
    waiting: VecDeque<T>,
    has_thread: bool,
}

impl<T: Send> Aside<T> {
    pub const fn new(name: &'static str, work: fn(T)) -> Self {
        Self {
            name,
            work,
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                has_thread: false,
            }),
            given: Condvar::new(),
        }
    }

    /// Leaves `item` to the thread, and starts that if need be. While the process has no threads left, it waits for the next
    /// that is given.
    pub fn give(&'static self, item: T) {
        let mut queue = self.lock();
        queue.waiting.push_back(item);
        self.start_on(&mut queue);
        drop(queue);
        self.given.notify_one();
    }

    /// Starts the thread before anything is given, for work that comes when a thread may be hard to get.
    pub fn start(&'static self) {
        self.start_on(&mut self.lock());
    }

    fn start_on(&'static self, queue: &mut Queue<T>) {
        if !queue.has_thread {
            let thread = thread::Builder::new().name(self.name.into());
            queue.has_thread = thread.spawn(|| self.run()).is_ok();
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    fn run(&self) {
        loop {
            let mut queue = self.lock();
            let item = loop {
                match queue.waiting.pop_front() {
                    Some(item) => break item,
                    None => {
                        let waited = self.given.wait(queue);
                        queue = waited.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(queue);
            (self.work)(item);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
