//! Callers tell a driver by this at which connections to look. It wakes the driver if that sleeps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
#[cfg(feature = "tokio")]
use std::sync::{Mutex, PoisonError};
#[cfg(feature = "tokio")]
use std::task::Waker as TaskWaker;

use embar_transport::{Marks, Waker};

use crate::gather::Gather;

/// The mark that says "the driver is going to look at the marks by itself". No connection has this
/// number. It is the last one, so [`Marks::take`] gives it last.
const DRIVER_WILL_LOOK: usize = embar_transport::marks::SLOTS - 1;

/// Connections have numbers below this one.
pub(crate) const MAX_CONNECTIONS: usize = DRIVER_WILL_LOOK;

/// Where the driver sleeps.
enum Sleeper {
    /// In its reactor.
    Reactor(Waker),
    /// As a task: the waker of its last poll, once there was one.
    #[cfg(feature = "tokio")]
    Task(Mutex<Option<TaskWaker>>),
}

/// Tells a driver which connections to look at. Connections hold it, without the driver's other
/// parts.
pub(crate) struct DriverNotifier {
    /// Connections to look at, by their numbers.
    marks: Marks,
    sleeper: Sleeper,
    pub gather: Gather,
    /// The driver looks at the deadlines of commands in flight now and then.
    watches_deadlines: AtomicBool,
    /// How many connections the driver has.
    connections: AtomicU32,
}

impl DriverNotifier {
    /// For a driver that sleeps in its reactor.
    pub fn of_reactor(waker: Waker) -> Self {
        Self::new(Sleeper::Reactor(waker))
    }

    /// For a driver that is a task.
    #[cfg(feature = "tokio")]
    pub fn of_task() -> Self {
        let notifier = Self::new(Sleeper::Task(Mutex::default()));
        // Now rather than later, as the first mark of a chunk allocates.
        notifier.will_look();
        notifier
    }

    fn new(sleeper: Sleeper) -> Self {
        Self {
            marks: Marks::new(),
            sleeper,
            gather: Gather::default(),
            watches_deadlines: AtomicBool::new(false),
            connections: AtomicU32::new(0),
        }
    }

    /// The driver calls this to say how many connections it has.
    pub fn set_connections(&self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.connections.store(count, Ordering::Relaxed);
    }

    /// How many connections the driver has; soon up to date.
    #[inline]
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// The driver calls this to say whether it is going to look at deadlines. After it said that it
    /// will not, it looks once more whether there are commands in flight.
    pub fn set_watches_deadlines(&self, watches: bool) {
        self.watches_deadlines.store(watches, Ordering::Relaxed);
        // Pairs with the fence in `watches_deadlines`: either the driver sees the caller's command in
        // flight, or the caller sees that the driver does not watch.
        fence(Ordering::SeqCst);
    }

    /// Whether the driver looks at deadlines. If it does not, a caller whose command is in flight must
    /// notify the driver.
    #[inline]
    pub fn watches_deadlines(&self) -> bool {
        // Pairs with the fence in `set_watches_deadlines`.
        fence(Ordering::SeqCst);
        self.watches_deadlines.load(Ordering::Relaxed)
    }

    /// Makes the memory that a mark of the connection with this number needs.
    pub fn make_room(&self, number: usize) {
        self.marks.make_room(number);
    }

    /// Has the driver look at the connection with this number. It takes no lock, and makes a system
    /// call only if the driver sleeps.
    #[inline]
    pub fn mark(&self, number: usize) {
        // Also if it is marked already: the driver that takes the mark sees all that came before.
        if self.marks.mark(number) {
            self.wake();
        }
    }

    /// Wakes the driver if it sleeps.
    pub fn wake(&self) {
        match &self.sleeper {
            Sleeper::Reactor(waker) => waker.wake(),
            #[cfg(feature = "tokio")]
            Sleeper::Task(task) => {
                let task = task.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(task) = &*task {
                    task.wake_by_ref();
                }
            }
        }
    }

    /// The driver takes the numbers of the connections to look at.
    pub fn take_marks(&self, out: &mut Vec<usize>) {
        self.marks.take(out);
        if out.last() == Some(&DRIVER_WILL_LOOK) {
            out.pop();
        }
    }

    /// A driver that is going to take the marks in any case calls this: until then, no caller needs
    /// to wake it.
    #[cfg(feature = "tokio")]
    pub fn will_look(&self) {
        // If this is the first mark there is nobody to wake: the driver itself sets it.
        let _ = self.marks.mark(DRIVER_WILL_LOOK);
    }

    /// Whether there are marks. A caller that is just setting one, which this may miss, wakes the
    /// driver.
    pub fn has_marks(&self) -> bool {
        !self.marks.is_empty()
    }

    /// A driver that is a task sets whom to wake, before it looks at anything.
    #[cfg(feature = "tokio")]
    pub fn set_task(&self, waker: &TaskWaker) {
        if let Sleeper::Task(task) = &self.sleeper {
            let mut task = task.lock().unwrap_or_else(PoisonError::into_inner);
            if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
                *task = Some(waker.clone());
            }
        }
    }
}
