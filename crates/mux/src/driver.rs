//! The driver: one reactor and the connections that live on it.
//!
//! A turn is: completions, orders, what was marked, and what is due. Callers are woken at its end,
//! all together, so that what they do next gathers for the next turn.

use std::io;
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use embar_transport::{Completion, Epoll, Reactor, Token};

use crate::clock;
use crate::error::Reason;
use crate::hub::{Hub, Order};
use crate::line::Line;
use crate::profile::{Stage, Timing};
use crate::protocol::Protocol;

/// How often the time of commands in flight is looked at.
const TICK_NS: u64 = 5_000_000;

/// See the module.
pub(crate) struct Driver<P: Protocol> {
    reactor: Epoll,
    hub: Arc<Hub<P>>,
    lines: Vec<Option<Line<P>>>,
    /// The number of the line of a token, by the token's index.
    numbers: Vec<usize>,
    live: usize,
    completions: Vec<Completion>,
    orders: Vec<Order<P>>,
    marks: Vec<usize>,
    wakers: Vec<Waker>,
    /// When the time of commands in flight is looked at; `None`: there are none.
    tick_at: Option<u64>,
    /// Something came in since that was looked at.
    busy: bool,
    /// It was not looked at in time.
    late: bool,
    ending: bool,
}

impl<P: Protocol> Driver<P> {
    pub fn new(reactor: Epoll, hub: Arc<Hub<P>>) -> Self {
        Self {
            reactor,
            hub,
            lines: Vec::new(),
            numbers: Vec::new(),
            live: 0,
            completions: Vec::new(),
            orders: Vec::new(),
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

    /// Whether there is nothing left to do, ever.
    pub fn is_over(&self) -> bool {
        self.ending && self.live == 0 && self.reactor.outstanding() == 0
    }

    /// How long nothing needs to be done unless something happens.
    pub fn idle_for(&self) -> Option<Duration> {
        if self.hub.has_marks() {
            return Some(Duration::ZERO);
        }
        let at = self.tick_at?;
        Some(Duration::from_nanos(at.saturating_sub(clock::now())))
    }

    /// One turn; waits at most `timeout` for something to happen. True if anything did.
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
        polled.map(|()| self.see_to_all())
    }

    /// One turn, of which is known that no socket became ready. True if anything happened.
    ///
    /// # Errors
    /// When the reactor is broken.
    #[cfg(feature = "tokio")]
    pub fn turn_known(&mut self) -> io::Result<bool> {
        if self.tick_at.is_some_and(|at| at <= clock::now()) {
            // What came in by now is in time.
            return self.turn(Some(Duration::ZERO));
        }
        let mut completions = mem::take(&mut self.completions);
        let timing = Timing::start();
        self.reactor.poll_known(&mut completions);
        timing.stop(Stage::Receive, 0);
        self.completions = completions;
        Ok(self.see_to_all())
    }

    fn see_to_all(&mut self) -> bool {
        let mut completions = mem::take(&mut self.completions);
        let now = clock::now();
        let mut busy = !completions.is_empty();
        self.busy |= busy;
        for completion in completions.drain(..) {
            self.handle(completion, now);
        }
        self.completions = completions;
        busy |= self.obey(now);
        busy |= self.look_at_marked(now);
        if let Some(at) = self.tick_at
            && at <= now
        {
            // When it is late itself, replies may lie in the sockets that it did not come to read.
            self.late = !self.late && now - at > TICK_NS;
            match self.late {
                true => self.tick_at = Some(now + TICK_NS),
                false => self.tick(now),
            }
        }
        self.hub.alarm().gather.begin(self.wakers.len());
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
                self.with(token, now, |line, reactor, _| {
                    line.connected(reactor, result)
                });
            }
            Completion::Received {
                token, buf, result, ..
            } => self.with(token, now, |line, reactor, wakers| {
                line.received(reactor, buf, &result, now, wakers);
            }),
            Completion::Sent {
                token, buf, result, ..
            } => self.with(token, now, |line, reactor, _| {
                line.sent(reactor, buf, &result)
            }),
            Completion::Woken | Completion::Accepted { .. } | Completion::AcceptFailed { .. } => {}
        }
    }

    fn with(
        &mut self,
        token: Token,
        now: u64,
        f: impl FnOnce(&mut Line<P>, &mut Epoll, &mut Vec<Waker>),
    ) {
        let Some(number) = self.number_of(token) else {
            return;
        };
        if let Some(Some(line)) = self.lines.get_mut(number) {
            f(line, &mut self.reactor, &mut self.wakers);
            self.settle(number, now);
        }
    }

    fn number_of(&self, token: Token) -> Option<usize> {
        let is_it = |number: usize| {
            let line = self.lines.get(number).and_then(Option::as_ref);
            line.is_some_and(|line| line.token == Some(token))
        };
        let number = *self.numbers.get(token.index())?;
        if is_it(number) {
            return Some(number);
        }
        // A line that was cut, while its slot in the reactor has a new user already.
        (0..self.lines.len()).find(|number| is_it(*number))
    }

    /// After anything was done with a line.
    fn settle(&mut self, number: usize, now: u64) {
        let Some(Some(line)) = self.lines.get_mut(number) else {
            return;
        };
        if line.flush(&mut self.reactor, &mut self.wakers) {
            line.shared.mark();
        }
        if line.is_ending() && line.finish(&mut self.wakers) {
            self.lines[number] = None;
            self.live -= 1;
            self.hub.give_number_back(number);
            return;
        }
        self.watch(now);
    }

    fn obey(&mut self, now: u64) -> bool {
        let mut orders = mem::take(&mut self.orders);
        self.hub.take_orders(&mut orders);
        let busy = !orders.is_empty();
        for order in orders.drain(..) {
            match order {
                Order::Open(shared, address, secure, protocol) => {
                    let number = shared.number;
                    let connecting = self.reactor.connect(address);
                    let (token, failed) = match connecting {
                        Ok(token) => (Some(token), None),
                        Err(error) => (None, Some(Reason::Unreachable(error.kind()))),
                    };
                    let mut line = Line::new(shared, token, secure, protocol, now);
                    if let Some(token) = token {
                        self.remember(token, number);
                    }
                    if let Some(reason) = failed {
                        line.end(&mut self.reactor, reason);
                    }
                    if self.lines.len() <= number {
                        self.lines.resize_with(number + 1, || None);
                    }
                    self.lines[number] = Some(line);
                    self.live += 1;
                    if self.ending {
                        self.end(number);
                    }
                    self.settle(number, now);
                }
                Order::End => {
                    self.ending = true;
                    for number in 0..self.lines.len() {
                        self.end(number);
                        self.settle(number, now);
                    }
                }
            }
        }
        self.orders = orders;
        busy
    }

    fn remember(&mut self, token: Token, number: usize) {
        let index = token.index();
        if self.numbers.len() <= index {
            self.numbers.resize(index + 1, 0);
        }
        self.numbers[index] = number;
    }

    fn end(&mut self, number: usize) {
        if let Some(Some(line)) = self.lines.get_mut(number) {
            line.end(&mut self.reactor, Reason::Closed);
        }
    }

    fn look_at_marked(&mut self, now: u64) -> bool {
        let mut marks = mem::take(&mut self.marks);
        self.hub.take_marks(&mut marks);
        let busy = !marks.is_empty();
        for number in marks.drain(..) {
            self.settle(number, now);
        }
        self.marks = marks;
        busy
    }

    /// From now on, the time of commands in flight is looked at.
    fn watch(&mut self, now: u64) {
        if self.tick_at.is_none() {
            self.tick_at = Some(now + TICK_NS);
            self.hub.alarm().set_watched(true);
        }
    }

    fn tick(&mut self, now: u64) {
        self.tick_at = None;
        self.hub.alarm().set_watched(false);
        let mut again = mem::take(&mut self.busy);
        for number in 0..self.lines.len() {
            let Some(line) = &mut self.lines[number] else {
                continue;
            };
            again |= line.tick(&mut self.reactor, now, &mut self.wakers);
            if line.is_ending() {
                self.settle(number, now);
            }
        }
        if again {
            self.watch(now);
        }
    }
}

/// However it ends, also by a panic or with its runtime: all who wait for something are told that it
/// will not come.
impl<P: Protocol> Drop for Driver<P> {
    fn drop(&mut self) {
        let now = clock::now();
        for order in self.hub.end() {
            if let Order::Open(shared, _, secure, protocol) = order {
                self.lines
                    .push(Some(Line::new(shared, None, secure, protocol, now)));
            }
        }
        for line in self.lines.iter_mut().flatten() {
            line.abandon(&mut self.wakers);
        }
        self.lines.clear();
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}
