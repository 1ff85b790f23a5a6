//! What other threads hand to a driver: connections to open, and the request to end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use embar_transport::Address;

use crate::connection_driver::Encryption;
use crate::notifier::{DriverNotifier, MAX_CONNECTIONS};
use crate::shared::Shared;

/// A request to a driver.
pub(crate) enum DriverRequest<P> {
    /// Connect, and serve the connection.
    Open(Arc<Shared>, Address, Option<Encryption>, P),
    /// Close all connections and end.
    End,
}

struct Inbox<P> {
    requests: Vec<DriverRequest<P>>,
    /// The driver has ended, and takes no request any more.
    ended: bool,
    /// Numbers of connections that are over.
    free_numbers: Vec<usize>,
    next_number: usize,
}

/// A driver's inbox, and the numbers of its connections.
pub(crate) struct DriverMailbox<P> {
    inbox: Mutex<Inbox<P>>,
    notifier: Arc<DriverNotifier>,
}

impl<P> DriverMailbox<P> {
    /// The mailbox of the driver that `notifier` notifies.
    pub fn new(notifier: DriverNotifier) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::new(Inbox {
                requests: Vec::new(),
                ended: false,
                free_numbers: Vec::new(),
                next_number: 0,
            }),
            notifier: Arc::new(notifier),
        })
    }

    pub fn notifier(&self) -> &Arc<DriverNotifier> {
        &self.notifier
    }

    /// A number for a connection. `None` when the driver has as many connections as it can serve.
    pub fn allot_number(&self) -> Option<usize> {
        let mut inbox = self.inbox();
        if let Some(number) = inbox.free_numbers.pop() {
            return Some(number);
        }
        let number = inbox.next_number;
        (number < MAX_CONNECTIONS).then(|| {
            inbox.next_number += 1;
            number
        })
    }

    /// The connection with this number is over.
    pub fn free_number(&self, number: usize) {
        self.inbox().free_numbers.push(number);
    }

    /// Hands a request to the driver. False when the driver has ended.
    pub fn send(&self, request: DriverRequest<P>) -> bool {
        let mut inbox = self.inbox();
        if inbox.ended {
            return false;
        }
        inbox.requests.push(request);
        drop(inbox);
        self.notifier.wake();
        true
    }

    /// The driver takes the requests that have come.
    pub fn take_requests(&self, out: &mut Vec<DriverRequest<P>>) {
        out.append(&mut self.inbox().requests);
    }

    /// The driver ends: the mailbox takes nothing any more, and gives back what the driver did not
    /// look at.
    pub fn close(&self) -> Vec<DriverRequest<P>> {
        let mut inbox = self.inbox();
        inbox.ended = true;
        std::mem::take(&mut inbox.requests)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox<P>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
