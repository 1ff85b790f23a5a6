//! The I/O thread of a subscriber: all its connections on one reactor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use embar_frame::Now;
use embar_meter::{Profile, Recorder};
use embar_transport::{Completion, Epoll, IoCounters, Reactor};

use super::core::SubscriberCore;
use super::model::Event;
use super::queue::{Item, PositionChange, Queue};
use crate::clock::Clock;
use crate::connection::ChannelId;
use crate::error::ClientError;
use crate::profile::subscriber::{
    BATCHES, DELIVER, MESSAGES, RECEIVE, RECV_BYTES, RECV_CALLS, RECV_EAGAIN, VERIFY,
};
use crate::socket::Socket;

pub(super) fn start(
    core: SubscriberCore,
    queue: &Arc<Queue>,
    profile: &Arc<Profile>,
) -> Result<JoinHandle<()>, ClientError> {
    let (queue, profile) = (queue.clone(), profile.clone());
    thread::Builder::new()
        .name("embar-sub".into())
        .spawn(move || {
            ending_on_panic(&queue, || match Epoll::new() {
                Ok(reactor) => Driver::new(core, queue.clone(), profile.recorder(), reactor).run(),
                Err(error) => {
                    let error = ClientError::system("a reactor for a subscriber", error);
                    queue.end(Err(error.into()));
                }
            });
        })
        .map_err(|error| ClientError::system("a thread for a subscriber", error))
}

/// Without its thread a subscriber would wait for ever, so a panic ends it, behind what was delivered.
fn ending_on_panic(queue: &Queue, run: impl FnOnce()) {
    // The queue's lock is taken over from a holder that panicked, and nothing of what `run` owns is used again.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        let error = ClientError::panicked("subscriber", &*payload);
        tracing::error!(%error, "a subscriber ends");
        queue.end(Err(error.into()));
    }
}

struct Driver {
    core: SubscriberCore,
    queue: Arc<Queue>,
    clock: Clock,
    reactor: Epoll,
    sockets: Vec<Socket>,
    completions: Vec<Completion>,
    returned: Vec<(ChannelId, Vec<u8>)>,
    recorder: Recorder,
    counted: IoCounters,
    /// When the last batch was delivered, or the subscription stood.
    delivered_at: Now,
    /// Somebody wants to know what is waited for.
    asked: bool,
    stopping: bool,
}

impl Driver {
    fn new(core: SubscriberCore, queue: Arc<Queue>, recorder: Recorder, reactor: Epoll) -> Self {
        queue.set_waker(reactor.waker());
        Self {
            core,
            queue,
            clock: Clock::new(),
            reactor,
            sockets: Vec::new(),
            completions: Vec::new(),
            returned: Vec::new(),
            recorder,
            counted: IoCounters::default(),
            delivered_at: Now(0),
            asked: false,
            stopping: false,
        }
    }

    fn run(mut self) {
        self.core.start(self.clock.now());
        loop {
            if !self.stopping && self.queue.is_stopping() {
                self.stopping = true;
                self.core.stop(self.clock.now());
            }
            self.act();
            if self.stopping && self.sockets.iter().all(Socket::is_unused) {
                return;
            }
            self.turn();
        }
    }

    /// Does what the core asks for, until it asks for nothing.
    fn act(&mut self) {
        loop {
            let took = self.take_returned();
            let now = self.clock.now();
            if self.core.next_tick().is_some_and(|at| at <= now) {
                self.core.tick(now);
            }
            let channels = self.core.channel_count() as usize;
            self.sockets.resize_with(channels, Socket::default);
            for index in 0..channels {
                let channel = ChannelId(index as u32);
                let socket = &mut self.sockets[index];
                while let Some(action) = self.core.poll(channel) {
                    socket.perform(action, &mut self.reactor);
                }
                if let Some(cause) = socket.take_end() {
                    self.core.disconnected(channel, cause, self.clock.now());
                }
            }
            self.report();
            let asks = (0..self.core.channel_count())
                .any(|channel| self.core.has_action(ChannelId(channel)));
            // Buffers that came back may have been used up at once, so only a look that finds none may end in sleep.
            if !asks && !took {
                self.answer_question();
                return;
            }
        }
    }

    fn answer_question(&mut self) {
        if std::mem::take(&mut self.asked) {
            let now = self.clock.now();
            self.queue
                .answer_wait(self.core.waiting_for(self.delivered_at, now));
        }
    }

    /// True if there were any. If not, and a broker is held back, the next one wakes this thread.
    fn take_returned(&mut self) -> bool {
        let mut returned = std::mem::take(&mut self.returned);
        let starved = self.core.is_starved();
        self.asked |= self.queue.take_returned(starved, &mut returned);
        let now = self.clock.now();
        let took = !returned.is_empty();
        for (channel, buffer) in returned.drain(..) {
            self.core.returned(channel, buffer, now);
        }
        self.returned = returned;
        took
    }

    /// Waits for the sockets, or for the core's next deadline, and reports what happened.
    fn turn(&mut self) {
        let limit = self.core.next_tick().map(|at| self.clock.until(at));
        let mut completions = std::mem::take(&mut self.completions);
        if let Err(error) = self.reactor.poll(limit.map(round_up), &mut completions) {
            let error = ClientError::system("waiting for sockets", error);
            self.queue.end(Err(error.into()));
            self.stopping = true;
            self.core.stop(self.clock.now());
        }
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        self.count_io();
    }

    fn completed(&mut self, completion: Completion) {
        let (Completion::Connected { token, .. }
        | Completion::Received { token, .. }
        | Completion::Sent { token, .. }) = &completion
        else {
            return;
        };
        let known = self.sockets.iter().position(|socket| socket.has(*token));
        let Some(index) = known else { return };
        let channel = ChannelId(index as u32);
        let socket = &mut self.sockets[index];
        let is_live = socket.is_live();
        let now = self.clock.now();
        match completion {
            Completion::Connected { result: Ok(()), .. } if is_live => {
                self.core.connected(channel, now);
            }
            Completion::Connected {
                result: Err(error), ..
            } => socket.end(error.into(), &mut self.reactor),
            Completion::Received {
                buf, result, ticks, ..
            } => {
                socket.buffer_returned();
                self.recorder.add_ticks(RECEIVE, ticks, 1);
                if is_live {
                    let start = self.recorder.start();
                    self.core.received(channel, buf, &result, now);
                    self.recorder.stop(VERIFY, start);
                    self.report();
                }
            }
            Completion::Sent { buf, result, .. } => {
                socket.buffer_returned();
                if is_live {
                    self.core.sent(channel, buf, &result, now);
                }
            }
            _ => {}
        }
    }

    /// Hands on what the core has for the consumer.
    fn report(&mut self) {
        while let Some(event) = self.core.next_event() {
            match event {
                Event::Opened => {
                    self.delivered_at = self.clock.now();
                    self.queue.opened();
                }
                Event::Deliver(delivered) => {
                    let start = self.recorder.start();
                    let messages = u64::from(delivered.header.message_count() - delivered.skip);
                    self.queue.push(Item::Batch(delivered));
                    self.recorder.stop(DELIVER, start);
                    self.delivered_at = self.clock.now();
                    self.recorder.count(BATCHES, 1);
                    self.recorder.count(MESSAGES, messages);
                }
                Event::Started { broker, start } => {
                    self.queue.push(Item::PositionChange(PositionChange {
                        broker,
                        next: start,
                        skipped: 0,
                    }))
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
                    self.queue.push(Item::PositionChange(PositionChange {
                        broker,
                        next: to,
                        skipped: messages,
                    }));
                }
                Event::ChannelLost { broker, cause } => {
                    if !self.stopping {
                        tracing::warn!(broker, cause, "a data broker is away");
                    }
                }
                Event::BrokerLeft { broker } => {
                    tracing::info!(broker, "a data broker was removed from the cluster");
                }
                Event::End => self.queue.end(Ok(())),
                Event::Failed(error) => self.queue.end(Err(error)),
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
            .count(RECV_EAGAIN, now.recv_eagain - self.counted.recv_eagain);
        self.counted = now;
    }
}

/// A wait that ends a little early would be repeated until the time is really there.
fn round_up(wait: Duration) -> Duration {
    wait + Duration::from_micros(50)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Instant;

    use super::*;
    use crate::error::ReadError;
    use crate::subscriber::queue::Taken;
    use crate::wake::block_on;

    #[test]
    fn a_panic_of_the_io_thread_ends_the_wait_for_the_next_message() {
        let queue = Queue::default();
        thread::scope(|scope| {
            let queue = &queue;
            let deadline = Instant::now() + Duration::from_secs(60);
            let next =
                move || block_on(poll_fn(|context| queue.poll_next(context)), Some(deadline));
            let consumer = scope.spawn(next);
            ending_on_panic(queue, || panic!("a bug"));
            let taken = consumer.join().expect("no panic");
            let Some(Taken::Failed(ReadError::Client(ClientError::Panicked { message, .. }))) =
                taken
            else {
                panic!("{taken:?}");
            };
            assert_eq!(message, "a bug");
        });
    }
}
