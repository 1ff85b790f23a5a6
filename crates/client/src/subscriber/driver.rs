//! One I/O thread of a subscriber: its connections on one reactor.

use std::sync::Arc;
use std::time::Duration;

use embar_meter::Recorder;
use embar_transport::{Completion, Epoll, IoCounters, Reactor};

use super::arriving::PayloadCheck;
use super::io_threads::{IoThreads, State};
use super::model::Event;
use super::queue::{Item, PositionChange};
use crate::connection::ChannelId;
use crate::error::ClientError;
use crate::profile::subscriber::{
    BATCHES, DELIVER, LENT_BYTES, MESSAGES, RECEIVE, RECV_BYTES, RECV_CALLS, RECV_EAGAIN,
    SHM_CONNECTIONS, TCP_CONNECTIONS, UNIX_CONNECTIONS, VERIFY,
};
use crate::socket::Socket;
use crate::transport::Way;
use crate::wake::WakeList;

/// A channel, as the thread sees it that has it.
#[derive(Default)]
struct Line {
    socket: Socket,
    /// Of the payload that is being received.
    check: Option<PayloadCheck>,
}

/// Runs one I/O thread until its subscriber ends.
pub(super) fn run(number: usize, threads: Arc<IoThreads>, reactor: Epoll) {
    Driver::new(number, threads, reactor).run();
}

struct Driver {
    number: usize,
    threads: Arc<IoThreads>,
    reactor: Epoll,
    /// By channel; those of others are never used.
    lines: Vec<Line>,
    completions: Vec<Completion>,
    returned: Vec<(ChannelId, Vec<u8>)>,
    /// Who waits for what was delivered, to be woken when the core is given back.
    waiting: WakeList,
    recorder: Recorder,
    counted: IoCounters,
}

impl Driver {
    fn new(number: usize, threads: Arc<IoThreads>, reactor: Epoll) -> Self {
        Self {
            number,
            recorder: threads.profile.recorder(),
            threads,
            reactor,
            lines: Vec::new(),
            completions: Vec::new(),
            returned: Vec::new(),
            waiting: WakeList::default(),
            counted: IoCounters::default(),
        }
    }

    fn run(mut self) {
        let threads = self.threads.clone();
        loop {
            let Some(mut state) = threads.state() else {
                return;
            };
            self.handle_completions(&mut state);
            self.act(&mut state);
            let is_over = state.stopping && self.lines.iter().all(|it| it.socket.is_unused());
            let next_tick = state.core.next_tick();
            drop(state);
            std::mem::take(&mut self.waiting).wake_all();
            if is_over {
                return;
            }
            self.wait(next_tick.map(|at| threads.clock.until(at)));
        }
    }

    /// Does what the core asks for on the channels of this thread, until it asks for nothing.
    fn act(&mut self, state: &mut State) {
        loop {
            let now = self.threads.clock.now();
            if !state.stopping && self.threads.queue.is_stopping() {
                state.stopping = true;
                state.core.stop(now);
            }
            let took = self.take_returned(state);
            if state.core.next_tick().is_some_and(|at| at <= now) {
                state.core.tick(now);
            }
            self.threads.assign(state);
            self.perform(state);
            self.report(state);
            // Buffers that came back may have been used up at once, so only a look that finds none may end in sleep.
            if !took && !state.has_action(self.number) {
                break;
            }
        }
        if self.number == 0 {
            let (now, delivered_at) = (self.threads.clock.now(), state.delivered_at);
            let waits = || state.core.waiting_for(delivered_at, now);
            self.threads.queue.answer_wait(waits);
        }
        for thread in state.wanted().filter(|it| *it != self.number) {
            self.threads.queue.wake_lane(thread);
        }
    }

    fn perform(&mut self, state: &mut State) {
        let channels = state.core.channel_count();
        self.lines.resize_with(channels as usize, Line::default);
        for (index, line) in self.lines.iter_mut().enumerate() {
            let channel = ChannelId(index as u32);
            if !state.is_of(channel, self.number) {
                continue;
            }
            while let Some(action) = state.core.poll(channel) {
                line.socket.perform(action, &mut self.reactor);
            }
            if let Some(check) = state.core.lend_check(channel) {
                line.check = Some(check);
            }
            if let Some(cause) = line.socket.take_end() {
                line.check = None;
                let now = self.threads.clock.now();
                state.core.disconnected(channel, cause, now);
            }
        }
    }

    /// True if there were any. If not, and a broker is held back, the next one wakes this thread.
    fn take_returned(&mut self, state: &mut State) -> bool {
        let starved = state.is_starved(self.number);
        let queue = &self.threads.queue;
        queue.take_returned(self.number, starved, &mut self.returned);
        let now = self.threads.clock.now();
        let took = !self.returned.is_empty();
        for (channel, buffer) in self.returned.drain(..) {
            state.core.returned(channel, buffer, now);
        }
        took
    }

    /// Waits for the sockets, `limit` at most, and checks what came of payloads while it is in the cache.
    fn wait(&mut self, limit: Option<Duration>) {
        let limit = limit.map(round_up);
        if let Err(error) = self.reactor.poll(limit, &mut self.completions) {
            let error = ClientError::system("waiting for sockets", error);
            self.threads.queue.end(Err(error.into()));
            self.threads.queue.stop();
        }
        for completion in &self.completions {
            let Completion::Received { token, buf, .. } = completion else {
                continue;
            };
            let line = self.lines.iter_mut().find(|it| it.socket.has(*token));
            if let Some(check) = line.and_then(|line| line.check.as_mut()) {
                let start = self.recorder.start();
                check.update(buf);
                self.recorder.stop(VERIFY, start);
            }
        }
        self.count_io();
    }

    fn handle_completions(&mut self, state: &mut State) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.completed(completion, state);
        }
        self.completions = completions;
    }

    fn completed(&mut self, completion: Completion, state: &mut State) {
        let (Completion::Connected { token, .. }
        | Completion::Received { token, .. }
        | Completion::Sent { token, .. }) = &completion
        else {
            return;
        };
        let known = self.lines.iter().position(|it| it.socket.has(*token));
        let Some(index) = known else { return };
        let channel = ChannelId(index as u32);
        let Line { socket, check } = &mut self.lines[index];
        let is_live = socket.is_live();
        let now = self.threads.clock.now();
        match completion {
            Completion::Connected { result: Ok(()), .. } if is_live => {
                if channel != ChannelId::CONTROL {
                    let counter = match socket.way() {
                        Some(Way::Shm) => SHM_CONNECTIONS,
                        Some(Way::Unix) => UNIX_CONNECTIONS,
                        Some(Way::Tcp) | None => TCP_CONNECTIONS,
                    };
                    self.recorder.count(counter, 1);
                }
                let shares_memory = socket.way() == Some(Way::Shm);
                state.core.connected(channel, shares_memory, now);
            }
            Completion::Connected {
                result: Err(error), ..
            } => socket.end(error.into(), &mut self.reactor),
            Completion::Received {
                buf, result, ticks, ..
            } => {
                socket.buffer_returned();
                self.recorder.add_ticks(RECEIVE, ticks, 1);
                if let Some(check) = check.take() {
                    state.core.return_check(channel, check);
                }
                if is_live {
                    state.core.received(channel, buf, &result, now);
                    self.report(state);
                }
            }
            Completion::Sent { buf, result, .. } => {
                socket.buffer_returned();
                if is_live {
                    state.core.sent(channel, buf, &result, now);
                }
            }
            _ => {}
        }
    }

    /// Hands on what the core has for the consumer.
    fn report(&mut self, state: &mut State) {
        let threads = &self.threads;
        while let Some(event) = state.core.next_event() {
            match event {
                Event::Opened => {
                    state.delivered_at = threads.clock.now();
                    threads.queue.opened();
                }
                Event::Deliver(delivered) => {
                    let start = self.recorder.start();
                    let counts = delivered.batches().map(|(it, _)| it.message_count());
                    let (mut batches, mut messages) = (0, 0);
                    for count in counts {
                        (batches, messages) = (batches + 1, messages + u64::from(count));
                    }
                    messages -= u64::from(delivered.skip);
                    self.waiting
                        .append(threads.queue.push(Item::Batch(delivered)));
                    self.recorder.stop(DELIVER, start);
                    state.delivered_at = threads.clock.now();
                    self.recorder.count(BATCHES, batches);
                    self.recorder.count(MESSAGES, messages);
                }
                Event::Started { broker, start } => {
                    let change = PositionChange {
                        broker,
                        next: start,
                        skipped: 0,
                    };
                    self.waiting
                        .append(threads.queue.push(Item::PositionChange(change)));
                }
                Event::Skipped {
                    broker,
                    to,
                    messages,
                } => {
                    tracing::warn!(
                        broker,
                        to,
                        messages,
                        "skipped messages that were evicted before they were read"
                    );
                    let change = PositionChange {
                        broker,
                        next: to,
                        skipped: messages,
                    };
                    self.waiting
                        .append(threads.queue.push(Item::PositionChange(change)));
                }
                Event::ChannelLost { broker, cause } => {
                    if !state.stopping {
                        tracing::warn!(broker, cause, "a data broker is away");
                    }
                }
                Event::BrokerLeft { broker } => {
                    tracing::info!(broker, "a data broker was removed from the cluster");
                }
                Event::End => threads.queue.end(Ok(())),
                Event::Failed(error) => threads.queue.end(Err(error)),
            }
        }
    }

    fn count_io(&mut self) {
        let now = self.reactor.counters();
        self.recorder
            .count(RECV_CALLS, now.recv_calls - self.counted.recv_calls);
        self.recorder
            .count(RECV_BYTES, now.recv_bytes - self.counted.recv_bytes);
        self.recorder
            .count(LENT_BYTES, now.lent_bytes - self.counted.lent_bytes);
        self.recorder
            .count(RECV_EAGAIN, now.recv_eagain - self.counted.recv_eagain);
        self.counted = now;
    }
}

/// A wait that ends a little early would be repeated until the time is really there.
fn round_up(wait: Duration) -> Duration {
    wait + Duration::from_micros(50)
}
