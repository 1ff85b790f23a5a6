//! A driver, as seen from other threads: what they hand to it, and how they wake it.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker as TaskWaker;

use embar_transport::{Address, Marks, Waker};

use crate::conn::Shared;

/// What other threads hand to a driver.
pub(crate) enum Order<P> {
    /// Connect, and serve the connection.
    Open(Arc<Shared>, Address, P),
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
}

impl Alarm {
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
        Self::new(Wakeup::Task(Mutex::default()))
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
        (number < embar_transport::marks::SLOTS).then(|| {
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
