//! The I/O threads: one for each channel, and the control thread, which also keeps time.

mod post;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use embar_frame::Now;
use embar_meter::Recorder;
use embar_transport::{Completion, Epoll, IoCounters, Reactor, Token};

use super::batch_memory::BatchMemory;
use super::core::PublisherCore;
use super::model::Event;
use super::outlet::State;
use super::shared::{Shared, lock};
use crate::connection::{ChannelId, ConnectionAction};
use crate::error::ClientError;
use crate::io_error::IoError;
use crate::profile::publisher::{
    SEND_BYTES, SEND_CALLS, SEND_EAGAIN, SEND_PAYLOAD, SHM_CONNECTIONS, TCP_CONNECTIONS,
    UNIX_CONNECTIONS,
};
use crate::socket::{self, Socket};
use crate::transport::Way;
use post::Post;

/// Starts the control thread, which starts the others as channels come up.
pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>, ClientError> {
    spawn(shared, ChannelId::CONTROL, control)
}

fn spawn(
    shared: &Arc<Shared>,
    channel: ChannelId,
    run: fn(ChannelDriver),
) -> Result<JoinHandle<()>, ClientError> {
    let shared = shared.clone();
    // A reactor stays on the thread that makes it.
    let body = move || {
        ending_on_panic(&shared, || match reactor(&shared, channel) {
            Ok(reactor) => {
                shared.set_waker(channel, reactor.waker());
                run(ChannelDriver::new(shared.clone(), channel, reactor));
            }
            Err(error) => shared.stop(ClientError::system("a reactor for a publisher", error)),
        });
    };
    thread::Builder::new()
        .name(format!("embar-pub-{}", channel.0))
        .spawn(body)
        .map_err(|error| ClientError::system("a thread for a publisher", error))
}

/// A reactor for a channel. Brokers that it reaches by shared memory may read the batches where they are.
fn reactor(shared: &Shared, channel: ChannelId) -> io::Result<Epoll> {
    let state = lock(&shared.state);
    let connections = state.core.channel_count() - 1;
    let names_batches = state.core.names_batches(channel);
    drop(state);
    let memory = names_batches.then(|| shared.batch_memory(connections));
    // What the control channel brings is never urgent.
    let spin = match channel {
        ChannelId::CONTROL => Duration::ZERO,
        _ => shared.spin,
    };
    socket::reactor(memory.flatten().map(BatchMemory::file), spin)
}

/// Without one of its threads a publisher would wait for ever, so a panic ends all of it.
fn ending_on_panic(shared: &Shared, run: impl FnOnce()) {
    // Every lock is taken over from a holder that panicked, and nothing of what `run` owns is used again.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        shared.abandon(ClientError::panicked("publisher", &*payload));
    }
}

fn control(mut driver: ChannelDriver) {
    let shared = driver.shared.clone();
    let mut channels: Vec<JoinHandle<()>> = Vec::new();
    while driver.act() {
        while !driver.stopping()
            && channels.len() as u32 + 1 < lock(&shared.state).core.channel_count()
        {
            let channel = ChannelId::of_data(channels.len());
            match spawn(&shared, channel, channel_thread) {
                Ok(thread) => channels.push(thread),
                Err(error) => shared.stop(error),
            }
        }
        shared.sleep_until(None);
        let now = shared.clock.now();
        let linger = shared.seal_due(now);
        let (tick, has_work) = {
            let core = &mut lock(&shared.state).core;
            (
                core.next_tick(),
                core.has_event() || core.has_action(ChannelId::CONTROL),
            )
        };
        let deadline = [linger, tick].into_iter().flatten().min();
        shared.sleep_until(deadline);
        let limit = match deadline {
            _ if has_work => Some(Duration::ZERO),
            Some(at) => Some(shared.clock.until(at)),
            None => None,
        };
        driver.turn(limit);
        if tick.is_some_and(|at| at <= shared.clock.now()) || has_work {
            driver.with_core(PublisherCore::tick);
        }
    }
    for channel in channels {
        // A channel thread that panicked has ended the publisher; the others must still be waited for.
        let _ = channel.join();
    }
}

fn channel_thread(driver: ChannelDriver) {
    let (shared, channel) = (driver.shared.clone(), driver.channel);
    match Post::new(driver) {
        Ok(post) => {
            let post = Arc::new(post);
            let drive: Weak<Post> = Arc::downgrade(&post);
            shared.set_drive(channel, drive);
            post.keep();
        }
        Err(error) => shared.stop(ClientError::system("a descriptor for a publisher", error)),
    }
}

struct ChannelDriver {
    shared: Arc<Shared>,
    channel: ChannelId,
    reactor: Epoll,
    socket: Socket,
    /// What the reactor sends at the moment holds a batch.
    sends_batch: bool,
    completions: Vec<Completion>,
    events: Vec<Event>,
    recorder: Recorder,
    counted: IoCounters,
}

impl ChannelDriver {
    fn new(shared: Arc<Shared>, channel: ChannelId, reactor: Epoll) -> Self {
        Self {
            recorder: shared.profile.recorder(),
            shared,
            channel,
            reactor,
            socket: Socket::default(),
            sends_batch: false,
            completions: Vec::new(),
            events: Vec::new(),
            counted: IoCounters::default(),
        }
    }

    fn count_connection(&self) {
        if self.channel != ChannelId::CONTROL {
            let counter = match self.socket.way() {
                Some(Way::Shm) => SHM_CONNECTIONS,
                Some(Way::Unix) => UNIX_CONNECTIONS,
                Some(Way::Tcp) | None => TCP_CONNECTIONS,
            };
            self.recorder.count(counter, 1);
        }
    }

    fn stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::SeqCst)
    }

    /// Does what the core asks for; false if the thread may return.
    fn act(&mut self) -> bool {
        loop {
            let Some(action) = self.next_action() else {
                break;
            };
            if let ConnectionAction::Send(buf) = &action {
                self.sends_batch = buf.remaining() > buf.unsent_head();
            }
            self.socket.perform(action, &mut self.reactor);
        }
        self.report_end();
        !(self.stopping() && self.socket.is_unused())
    }

    /// What a caller left of a send goes first: the core gives out no other before it is sent.
    fn next_action(&self) -> Option<ConnectionAction> {
        let mut state = lock(&self.shared.state);
        let rest = match self.socket.is_live() {
            true => state.take_rest(self.channel),
            false => None,
        };
        match rest {
            Some(rest) => Some(ConnectionAction::Send(rest)),
            None => state.core.poll(self.channel, self.shared.clock.now()),
        }
    }

    /// How long to wait at most.
    fn limit(&self) -> Option<Duration> {
        if !self.stopping() {
            return None;
        }
        // The control thread keeps no time any more, and a broker that hangs would not end this connection.
        let tick = lock(&self.shared.state).core.next_tick();
        tick.map(|at| self.shared.clock.until(at))
    }

    /// Waits, at most for `limit`, and reports what happened; false if nothing did.
    fn turn(&mut self, limit: Option<Duration>) -> bool {
        self.ask(|reactor, out| reactor.poll(limit, out)).1
    }

    /// As [`ChannelDriver::turn`], without sleeping; false if nothing came, and it is time to sleep.
    fn turn_awake(&mut self, limit: Option<Duration>) -> bool {
        let (result, _) = self.ask(|reactor, out| reactor.poll_awake(limit, out));
        result.unwrap_or(true)
    }

    /// What comes after [`ChannelDriver::turn_awake`] found nothing.
    fn sleep(&mut self, limit: Option<Duration>) {
        self.ask(|reactor, out| reactor.sleep(limit, out));
    }

    /// Asks the reactor, and reports what it said. None: it failed. Beside it, whether anything happened.
    fn ask<R>(
        &mut self,
        ask: impl FnOnce(&mut Epoll, &mut Vec<Completion>) -> io::Result<R>,
    ) -> (Option<R>, bool) {
        let mut completions = std::mem::take(&mut self.completions);
        let result = ask(&mut self.reactor, &mut completions).map_err(|error| {
            let error = IoError::from(error);
            self.socket.end(error.clone().into(), &mut self.reactor);
            self.shared
                .stop(ClientError::system("waiting for sockets", error));
        });
        (result.ok(), self.take_in(completions))
    }

    /// Whether the connection is one by shared memory.
    fn is_shm(&self) -> bool {
        self.socket.is_live() && self.socket.way() == Some(Way::Shm)
    }

    /// Reports what happened, without asking the kernel for more; false if nothing did.
    fn settle(&mut self) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.reactor.poll_known(&mut completions);
        self.take_in(completions)
    }

    fn take_in(&mut self, mut completions: Vec<Completion>) -> bool {
        let any = !completions.is_empty();
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        self.report_end();
        self.count_io();
        any
    }

    /// Reports a completion. What belongs to a connection that has ended is dropped; nothing listens here.
    fn completed(&mut self, completion: Completion) {
        let channel = self.channel;
        match completion {
            Completion::Connected { token, result } if self.is_live(token) => match result {
                Ok(()) => {
                    self.count_connection();
                    let direct = self.reactor.direct(token);
                    let shares_memory = self.socket.way() == Some(Way::Shm);
                    self.with_state(|state, now| {
                        state.open_outlet(channel, direct);
                        state.core.connected(channel, shares_memory, now);
                    });
                    self.shared.find_who_sums();
                }
                Err(error) => self.socket.end(error.into(), &mut self.reactor),
            },
            Completion::Received {
                token, buf, result, ..
            } if self.socket.has(token) => {
                self.socket.buffer_returned();
                if self.socket.is_live() {
                    self.with_core(|core, now| core.received(channel, buf, &result, now));
                }
            }
            Completion::Sent {
                token,
                buf,
                result,
                ticks,
            } if self.socket.has(token) => {
                self.socket.buffer_returned();
                if self.socket.is_live() {
                    if self.sends_batch {
                        self.recorder.add_ticks(SEND_PAYLOAD, ticks, 1);
                    }
                    self.with_core(|core, now| core.sent(channel, buf, &result, now));
                } else {
                    self.with_core(|core, _| core.cut_short(channel, &buf));
                }
            }
            _ => {}
        }
    }

    fn is_live(&self, token: Token) -> bool {
        self.socket.has(token) && self.socket.is_live()
    }

    /// Tells the core that the connection is gone, when all buffers are back, those that callers had included.
    fn report_end(&mut self) {
        let channel = self.channel;
        if !self.socket.has_ended() || !lock(&self.shared.state).close_outlet(channel) {
            return;
        }
        if let Some(cause) = self.socket.take_end() {
            self.with_core(|core, now| core.disconnected(channel, cause, now));
            self.shared.find_who_sums();
        }
    }

    fn with_core(&mut self, f: impl FnOnce(&mut PublisherCore, Now)) {
        self.with_state(|state, now| f(&mut state.core, now));
    }

    fn with_state(&mut self, f: impl FnOnce(&mut State, Now)) {
        self.shared
            .with_state(Some(self.channel), Some(&mut self.events), f);
        self.shared.handle(&mut self.events, &self.recorder);
    }

    fn count_io(&mut self) {
        let now = self.reactor.counters();
        self.recorder
            .count(SEND_CALLS, now.send_calls - self.counted.send_calls);
        self.recorder
            .count(SEND_BYTES, now.send_bytes - self.counted.send_bytes);
        self.recorder
            .count(SEND_EAGAIN, now.send_eagain - self.counted.send_eagain);
        self.counted = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use embar_meter::Profile;

    use super::*;
    use crate::error::PublishError;
    use crate::publisher::buffer_sizes::{BufferSizes, Buffers};
    use crate::publisher::core::PublisherCore;
    use crate::publisher::pool::Pool;
    use crate::publisher::receipt::{Flush, Receipt, Ticket};
    use crate::publisher::shared::{Ready, SharedSettings};
    use crate::publisher::tests::script;
    use crate::wake::block_on;

    /// Far longer than anything takes here; a wait that is never ended shall fail, not hang.
    pub(super) const LONG: Duration = Duration::from_secs(60);

    fn soon() -> Option<Instant> {
        Some(Instant::now() + LONG)
    }

    /// A publisher without connections and buffers.
    pub(super) fn shared() -> Shared {
        Shared::new(
            PublisherCore::new(script::config()),
            Profile::new(&crate::profile::publisher::SCHEMA),
            SharedSettings {
                sizes: BufferSizes {
                    batch_bytes: 256,
                    buffers: Buffers::Count(1),
                },
                linger: Duration::ZERO,
                spin: Duration::ZERO,
                delivery_timeout: Duration::from_secs(1),
                producer: 1,
                on_ack: None,
            },
        )
    }

    fn ready() -> Ready {
        Ready {
            batches_in_flight: 4,
            pool: Pool::new(256, 1, Vec::new()),
            topic_id: 1,
            batch_bytes: 256,
            max_message_bytes: 256,
        }
    }

    #[test]
    fn a_panic_of_an_io_thread_ends_all_waits_with_its_reason() {
        let shared = shared();
        shared.set_ready(ready());
        let batch = shared.receipts.open_batch();
        let pool = &shared.ready.get().expect("set above").pool;
        let taken = pool.try_take().expect("works");
        assert!(taken.is_some(), "the only buffer is in use");
        thread::scope(|scope| {
            let shared = &shared;
            let opening =
                scope.spawn(|| block_on(shared.opened(), soon()).map(|result| result.err()));
            let flush = scope.spawn(|| block_on(Flush::new(&shared.receipts), soon()));
            let receipt = Receipt::new(shared.receipts.clone(), Ticket { batch, index: 0 });
            let receipt = scope.spawn(|| receipt.wait_timeout(LONG));
            let buffer = scope.spawn(|| {
                block_on(shared.buffer(pool), soon());
                pool.try_take().expect_err("no buffer will come")
            });
            ending_on_panic(shared, || {
                let _held = shared.state.lock();
                panic!("a bug");
            });
            let expected = ClientError::Panicked {
                what: "publisher",
                message: "a bug".into(),
            };
            assert_eq!(
                opening.join().expect("no panic"),
                Some(Some(expected.clone()))
            );
            assert_eq!(
                flush.join().expect("no panic"),
                Some(Err(PublishError::Ended(expected.clone())))
            );
            assert_eq!(
                receipt.join().expect("no panic"),
                Err(expected.clone().into())
            );
            assert_eq!(buffer.join().expect("no panic"), expected);
        });
        assert!(shared.stopping.load(Ordering::SeqCst), "the threads end");
    }

    #[test]
    fn a_failure_before_the_buffers_are_there_reaches_them() {
        let shared = shared();
        shared.stop(ClientError::NoDataBrokers);
        shared.set_ready(ready());
        let pool = &shared.ready.get().expect("set above").pool;
        assert_eq!(pool.try_take(), Err(ClientError::NoDataBrokers));
    }
}
