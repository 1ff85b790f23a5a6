//! The driver: one reactor, and the connections that it serves.
//!
//! In a turn the driver handles completions, then requests, then marked connections, then deadlines.
//! It wakes callers at the end, all together, so that what they do next gathers for the next turn.

use std::io;
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use embar_transport::{Completion, Epoll, Reactor, Token};

use crate::clock;
use crate::connection_driver::ConnectionDriver;
use crate::error::CloseReason;
use crate::mailbox::{DriverMailbox, DriverRequest};
use crate::profile::{Stage, Timing};
use crate::protocol::Protocol;

/// How often the driver looks at the deadlines of commands in flight.
const TICK_NS: u64 = 5_000_000;

/// Serves connections; its owner calls [`Driver::turn`] again and again.
pub(crate) struct Driver<P: Protocol> {
    reactor: Epoll,
    mailbox: Arc<DriverMailbox<P>>,
    /// By their numbers.
    connections: Vec<Option<ConnectionDriver<P>>>,
    /// The connection's number, by the index of its token.
    numbers: Vec<usize>,
    live: usize,
    completions: Vec<Completion>,
    requests: Vec<DriverRequest<P>>,
    marks: Vec<usize>,
    /// Callers to wake at the end of the turn.
    wakers: Vec<Waker>,
    /// When to look at deadlines; `None` when no command is in flight.
    tick_at: Option<u64>,
    /// Completions have come since the last look at deadlines.
    busy: bool,
    /// The driver missed the time of its last look.
    late: bool,
    ending: bool,
}

impl<P: Protocol> Driver<P> {
    pub fn new(reactor: Epoll, mailbox: Arc<DriverMailbox<P>>) -> Self {
        Self {
            reactor,
            mailbox,
            connections: Vec::new(),
            numbers: Vec::new(),
            live: 0,
            completions: Vec::new(),
            requests: Vec::new(),
            marks: Vec::new(),
            wakers: Vec::new(),
            tick_at: None,
            busy: false,
            late: false,
            ending: false,
        }
    }

    #[cfg(feature = "tokio")]
    pub fn reactor(&self) -> &Epoll {
        &self.reactor
    }

    /// Whether the driver has closed its connections, as it was asked to, and is done.
    pub fn is_over(&self) -> bool {
        self.ending && self.live == 0 && self.reactor.outstanding() == 0
    }

    /// How long the driver may sleep unless something happens. `None`: for ever.
    pub fn idle_for(&self) -> Option<Duration> {
        if self.mailbox.notifier().has_marks() {
            return Some(Duration::ZERO);
        }
        let at = self.tick_at?;
        Some(Duration::from_nanos(at.saturating_sub(clock::now())))
    }

    /// One turn, which waits at most `timeout` for something to happen. True if anything did.
    ///
    /// # Errors
    /// When the reactor is broken.
    pub fn turn(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut completions = mem::take(&mut self.completions);
        let timing = (timeout == Some(Duration::ZERO)).then(Timing::start);
        let polled = self.reactor.poll(timeout, &mut completions);
        if let Some(timing) = timing {
            timing.stop(Stage::Receive, 0);
        }
        self.completions = completions;
        polled.map(|()| self.handle_all())
    }

    /// One turn for when no socket has become ready: it does not ask the kernel. True if anything
    /// happened.
    ///
    /// # Errors
    /// When the reactor is broken.
    #[cfg(feature = "tokio")]
    pub fn turn_known(&mut self) -> io::Result<bool> {
        if self.tick_at.is_some_and(|at| at <= clock::now()) {
            // Replies that have come by now are in time.
            return self.turn(Some(Duration::ZERO));
        }
        let mut completions = mem::take(&mut self.completions);
        let timing = Timing::start();
        self.reactor.poll_known(&mut completions);
        timing.stop(Stage::Receive, 0);
        self.completions = completions;
        Ok(self.handle_all())
    }

    fn handle_all(&mut self) -> bool {
        let mut completions = mem::take(&mut self.completions);
        let now = clock::now();
        let mut busy = !completions.is_empty();
        self.busy |= busy;
        for completion in completions.drain(..) {
            self.handle(completion, now);
        }
        self.completions = completions;
        busy |= self.handle_requests(now);
        busy |= self.handle_marked(now);
        if let Some(at) = self.tick_at
            && at <= now
        {
            // When the driver itself is late, the sockets may hold replies that it has not read yet.
            self.late = !self.late && now - at > TICK_NS;
            match self.late {
                true => self.tick_at = Some(now + TICK_NS),
                false => self.tick(now),
            }
        }
        self.mailbox.notifier().gather.begin(self.wakers.len());
        if !self.wakers.is_empty() {
            let timing = Timing::start();
            for waker in self.wakers.drain(..) {
                waker.wake();
            }
            timing.stop(Stage::Complete, 0);
        }
        busy
    }

    fn handle(&mut self, completion: Completion, now: u64) {
        match completion {
            Completion::Connected { token, result } => {
                self.with(token, now, |connection, reactor, _| {
                    connection.connected(reactor, result)
                });
            }
            Completion::Received {
                token, buf, result, ..
            } => self.with(token, now, |connection, reactor, wakers| {
                connection.received(reactor, buf, &result, now, wakers);
            }),
            Completion::Sent {
                token, buf, result, ..
            } => self.with(token, now, |connection, reactor, _| {
                connection.sent(reactor, buf, &result)
            }),
            Completion::Woken | Completion::Accepted { .. } | Completion::AcceptFailed { .. } => {}
        }
    }

    fn with(
        &mut self,
        token: Token,
        now: u64,
        f: impl FnOnce(&mut ConnectionDriver<P>, &mut Epoll, &mut Vec<Waker>),
    ) {
        let Some(number) = self.number_of(token) else {
            return;
        };
        if let Some(Some(connection)) = self.connections.get_mut(number) {
            f(connection, &mut self.reactor, &mut self.wakers);
            self.settle(number, now);
        }
    }

    fn number_of(&self, token: Token) -> Option<usize> {
        let is_it = |number: usize| {
            let connection = self.connections.get(number).and_then(Option::as_ref);
            connection.is_some_and(|connection| connection.token == Some(token))
        };
        let number = *self.numbers.get(token.index())?;
        if is_it(number) {
            return Some(number);
        }
        // It is closed, and another connection has its place in the reactor already.
        (0..self.connections.len()).find(|number| is_it(*number))
    }

    /// Sends what a connection has, and drops it if it is over. To be called after anything happened to
    /// it.
    fn settle(&mut self, number: usize, now: u64) {
        let Some(Some(connection)) = self.connections.get_mut(number) else {
            return;
        };
        if connection.flush(&mut self.reactor, &mut self.wakers) {
            connection.shared.mark();
        }
        if connection.is_ending() && connection.finish(&mut self.wakers) {
            self.connections[number] = None;
            self.set_live(self.live - 1);
            self.mailbox.free_number(number);
            return;
        }
        self.watch(now);
    }

    fn handle_requests(&mut self, now: u64) -> bool {
        let mut requests = mem::take(&mut self.requests);
        self.mailbox.take_requests(&mut requests);
        let busy = !requests.is_empty();
        for request in requests.drain(..) {
            match request {
                DriverRequest::Open(shared, address, encryption, protocol) => {
                    let number = shared.number;
                    let connecting = self.reactor.connect(address);
                    let (token, failed) = match connecting {
                        Ok(token) => (Some(token), None),
                        Err(error) => (None, Some(CloseReason::Unreachable(error.kind()))),
                    };
                    let mut connection =
                        ConnectionDriver::new(shared, token, encryption, protocol, now);
                    if let Some(token) = token {
                        self.remember(token, number);
                    }
                    if let Some(reason) = failed {
                        connection.end(&mut self.reactor, reason);
                    }
                    if self.connections.len() <= number {
                        self.connections.resize_with(number + 1, || None);
                    }
                    // The first mark may come late: who makes it allocates nothing then.
                    self.mailbox.notifier().make_room(number);
                    // One more than there are connections: a driver that will look marks itself.
                    self.marks.reserve(self.connections.len() + 1);
                    self.connections[number] = Some(connection);
                    self.set_live(self.live + 1);
                    if self.ending {
                        self.end(number);
                    }
                    self.settle(number, now);
                }
                DriverRequest::End => {
                    self.ending = true;
                    for number in 0..self.connections.len() {
                        self.end(number);
                        self.settle(number, now);
                    }
                }
            }
        }
        self.requests = requests;
        busy
    }

    fn set_live(&mut self, live: usize) {
        self.live = live;
        self.mailbox.notifier().set_connections(live);
    }

    fn remember(&mut self, token: Token, number: usize) {
        let index = token.index();
        if self.numbers.len() <= index {
            self.numbers.resize(index + 1, 0);
        }
        self.numbers[index] = number;
    }

    fn end(&mut self, number: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(number) {
            connection.end(&mut self.reactor, CloseReason::Closed);
        }
    }

    fn handle_marked(&mut self, now: u64) -> bool {
        let mut marks = mem::take(&mut self.marks);
        self.mailbox.notifier().take_marks(&mut marks);
        let busy = !marks.is_empty();
        for number in marks.drain(..) {
            self.settle(number, now);
        }
        self.marks = marks;
        busy
    }

    /// Looks at deadlines from now on.
    fn watch(&mut self, now: u64) {
        if self.tick_at.is_none() {
            self.tick_at = Some(now + TICK_NS);
            self.mailbox.notifier().set_watches_deadlines(true);
        }
    }

    fn tick(&mut self, now: u64) {
        self.tick_at = None;
        self.mailbox.notifier().set_watches_deadlines(false);
        let mut again = mem::take(&mut self.busy);
        for number in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[number] else {
                continue;
            };
            again |= connection.tick(&mut self.reactor, now, &mut self.wakers);
            if connection.is_ending() {
                self.settle(number, now);
            }
        }
        if again {
            self.watch(now);
        }
    }
}

/// However the driver ends, by a panic or with its runtime: fails all calls and wakes their callers.
impl<P: Protocol> Drop for Driver<P> {
    fn drop(&mut self) {
        let now = clock::now();
        for request in self.mailbox.close() {
            if let DriverRequest::Open(shared, _, encryption, protocol) = request {
                self.connections.push(Some(ConnectionDriver::new(
                    shared, None, encryption, protocol, now,
                )));
            }
        }
        for connection in self.connections.iter_mut().flatten() {
            connection.abandon(&mut self.wakers);
        }
        self.connections.clear();
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}
