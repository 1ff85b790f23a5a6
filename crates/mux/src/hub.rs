//! A driver, as seen from other threads: what they hand to it, and how they wake it.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker as TaskWaker;

use embar_transport::{Address, Marks, Waker};

use crate::conn::Shared;
use crate::gather::Gather;
use crate::line::Secure;

/// Marked when the driver will look at the marks by itself.
const LOOKS: usize = embar_transport::marks::SLOTS - 1;

/// What other threads hand to a driver.
pub(crate) enum Order<P> {
    /// Connect, and serve the connection.
    Open(Arc<Shared>, Address, Option<Secure>, P),
    /// Close every connection and end.
    End,
}

/// How a driver is woken.
enum Wakeup {
    /// It sleeps in its reactor.
    Reactor(Waker),
    /// It is a task; the waker of its last poll, once there was one.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only tasks are"))]
    Task(Mutex<Option<TaskWaker>>),
}

/// What a connection may ask of its driver.
pub(crate) struct Alarm {
    marks: Marks,
    wakeup: Wakeup,
    pub gather: Gather,
    /// The driver looks at the time of commands in flight now and then.
    watched: AtomicBool,
}

impl Alarm {
    /// For the driver: whether it will look at the time of commands in flight. If it will not, it
    /// looks once more whether there are any after it said so.
    pub fn set_watched(&self, watched: bool) {
        self.watched.store(watched, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// For who has a command in flight of which it told the driver nothing: whether it must.
    #[inline]
    pub fn is_watched(&self) -> bool {
        fence(Ordering::SeqCst);
        self.watched.load(Ordering::Relaxed)
    }

    /// Has the driver look at the connection `id`. No lock, and no system call unless the driver
    /// sleeps.
    #[inline]
    pub fn mark(&self, id: usize) {
        // Also if it is marked already: the driver that takes the mark sees all that came before.
        if self.marks.mark(id) {
            self.wake();
        }
    }

    fn wake(&self) {
        match &self.wakeup {
            Wakeup::Reactor(waker) => waker.wake(),
            Wakeup::Task(task) => {
                let task = task.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(task) = &*task {
                    task.wake_by_ref();
                }
            }
        }
    }
}

struct Inbox<P> {
    orders: Vec<Order<P>>,
    /// The driver has ended: nobody would ever look in here.
    ended: bool,
    /// Numbers of connections that are over.
    free: Vec<usize>,
    next: usize,
}

/// See the module.
pub(crate) struct Hub<P> {
    inbox: Mutex<Inbox<P>>,
    alarm: Arc<Alarm>,
}

impl<P> Hub<P> {
    /// Of a driver that sleeps in its reactor.
    pub fn of_thread(waker: Waker) -> Arc<Self> {
        Self::new(Wakeup::Reactor(waker))
    }

    /// Of a driver that is a task.
    #[cfg(feature = "tokio")]
    pub fn of_task() -> Arc<Self> {
        let hub = Self::new(Wakeup::Task(Mutex::default()));
        // Now rather than later, as this mark takes memory when it is first set.
        hub.will_look();
        hub
    }

    fn new(wakeup: Wakeup) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::new(Inbox {
                orders: Vec::new(),
                ended: false,
                free: Vec::new(),
                next: 0,
            }),
            alarm: Arc::new(Alarm {
                marks: Marks::new(),
                wakeup,
                gather: Gather::default(),
                watched: AtomicBool::new(false),
            }),
        })
    }

    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// A number for a connection. `None`: there are too many.
    pub fn number(&self) -> Option<usize> {
        let mut inbox = self.inbox();
        if let Some(number) = inbox.free.pop() {
            return Some(number);
        }
        let number = inbox.next;
        (number < LOOKS).then(|| {
            inbox.next += 1;
            number
        })
    }

    /// The connection with this number is over.
    pub fn give_number_back(&self, number: usize) {
        self.inbox().free.push(number);
    }

    /// False: the driver has ended, and nobody will ever obey.
    pub fn order(&self, order: Order<P>) -> bool {
        let mut inbox = self.inbox();
        if inbox.ended {
            return false;
        }
        inbox.orders.push(order);
        drop(inbox);
        self.alarm.wake();
        true
    }

    /// For the driver.
    pub fn take_orders(&self, out: &mut Vec<Order<P>>) {
        out.append(&mut self.inbox().orders);
    }

    /// For the driver: the connections to look at.
    pub fn take_marks(&self, out: &mut Vec<usize>) {
        self.alarm.marks.take(out);
        // The last one there may be, and so the last of all.
        if out.last() == Some(&LOOKS) {
            out.pop();
        }
    }

    /// For a driver that soon takes the marks whatever happens: until then, nobody has to wake it.
    #[cfg(feature = "tokio")]
    pub fn will_look(&self) {
        // Not woken if it was the first: it is the one who says so.
        let _ = self.alarm.marks.mark(LOOKS);
    }

    /// For the driver: whether marks are left; those that others are just making wake it.
    pub fn has_marks(&self) -> bool {
        !self.alarm.marks.is_empty()
    }

    /// For a driver that is a task, before it looks at anything: whom to wake.
    #[cfg(feature = "tokio")]
    pub fn set_task(&self, waker: &TaskWaker) {
        if let Wakeup::Task(task) = &self.alarm.wakeup {
            let mut task = task.lock().unwrap_or_else(PoisonError::into_inner);
            if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
                *task = Some(waker.clone());
            }
        }
    }

    /// For the driver that ends: takes nothing any more, and gives what was not looked at.
    pub fn end(&self) -> Vec<Order<P>> {
        let mut inbox = self.inbox();
        inbox.ended = true;
        std::mem::take(&mut inbox.orders)
    }

    fn inbox(&self) -> std::sync::MutexGuard<'_, Inbox<P>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
