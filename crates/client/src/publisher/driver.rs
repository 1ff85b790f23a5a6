//! The I/O threads: one for each lane, and the control thread, which also keeps time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use embar_frame::Now;
use embar_meter::Recorder;
use embar_transport::{Completion, Epoll, IoCounters, Reactor, Token};

use super::core::{Event, PublisherCore};
use super::shared::{Shared, lock};
use crate::connection::{Lane, LinkAction};
use crate::error::Error;
use crate::profile::publisher::{SEND_BYTES, SEND_CALLS, SEND_EAGAIN, SEND_PAYLOAD};

/// Starts the control thread, which starts the others as lanes come up.
pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    spawn(shared, Lane::CONTROL, control)
}

fn spawn(shared: &Arc<Shared>, lane: Lane, run: fn(LaneDriver)) -> Result<JoinHandle<()>, Error> {
    let shared = shared.clone();
    // A reactor stays on the thread that makes it.
    let body = move || {
        ending_on_panic(&shared, || match Epoll::new() {
            Ok(reactor) => {
                shared.set_waker(lane, reactor.waker());
                run(LaneDriver::new(shared.clone(), lane, reactor));
            }
            Err(error) => shared.stop(Error::system("a reactor for a publisher", &error)),
        });
    };
    thread::Builder::new()
        .name(format!("embar-pub-{}", lane.0))
        .spawn(body)
        .map_err(|error| Error::system("a thread for a publisher", &error))
}

/// Without one of its threads a publisher would wait for ever, so a panic ends all of it.
fn ending_on_panic(shared: &Shared, run: impl FnOnce()) {
    // Every lock is taken over from a holder that panicked, and nothing of what `run` owns is used again.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        shared.abandon(Error::panicked("publisher", &*payload));
    }
}

fn control(mut driver: LaneDriver) {
    let shared = driver.shared.clone();
    let mut lanes: Vec<JoinHandle<()>> = Vec::new();
    while driver.act() {
        while !driver.stopping() && lanes.len() as u32 + 1 < lock(&shared.core).lane_count() {
            let lane = Lane(lanes.len() as u32 + 1);
            match spawn(&shared, lane, lane_thread) {
                Ok(thread) => lanes.push(thread),
                Err(error) => shared.stop(error),
            }
        }
        shared.sleep_until(None);
        let now = shared.clock.now();
        let linger = shared.seal_due(now);
        let (tick, has_work) = {
            let mut core = lock(&shared.core);
            (
                core.next_tick(),
                core.has_event() || core.has_action(Lane::CONTROL),
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
    for lane in lanes {
        // A lane thread that panicked has ended the publisher; the others must still be waited for.
        let _ = lane.join();
    }
}

fn lane_thread(mut driver: LaneDriver) {
    while driver.act() {
        if !driver.stopping() {
            driver.turn(None);
            continue;
        }
        // The control thread keeps no time any more, and a broker that hangs would not end this connection.
        let tick = lock(&driver.shared.core).next_tick();
        driver.turn(tick.map(|at| driver.shared.clock.until(at)));
        driver.with_core(PublisherCore::tick);
    }
}

struct LaneDriver {
    shared: Arc<Shared>,
    lane: Lane,
    reactor: Epoll,
    /// The open connection.
    token: Option<Token>,
    /// What is being sent on it is a batch.
    batch_out: bool,
    /// The connection is closed, for this reason, and its buffers are awaited.
    ending: Option<String>,
    completions: Vec<Completion>,
    events: Vec<Event>,
    recorder: Recorder,
    counted: IoCounters,
}

impl LaneDriver {
    fn new(shared: Arc<Shared>, lane: Lane, reactor: Epoll) -> Self {
        Self {
            recorder: shared.profile.recorder(),
            shared,
            lane,
            reactor,
            token: None,
            batch_out: false,
            ending: None,
            completions: Vec::new(),
            events: Vec::new(),
            counted: IoCounters::default(),
        }
    }

    fn stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::SeqCst)
    }

    /// Does what the core asks for; false if the thread may return.
    fn act(&mut self) -> bool {
        loop {
            let action = {
                let mut core = lock(&self.shared.core);
                core.poll(self.lane, self.shared.clock.now())
            };
            let Some(action) = action else { break };
            self.perform(action);
        }
        self.settle();
        !(self.stopping() && self.token.is_none() && self.ending.is_none())
    }

    fn perform(&mut self, action: LinkAction) {
        if let LinkAction::Connect(address) = action {
            match self.reactor.connect(address) {
                Ok(token) => self.token = Some(token),
                Err(error) => self.end(error.to_string()),
            }
            return;
        }
        // Without a connection the core will be told so; what it asks for meanwhile is void.
        let Some(token) = self.token else { return };
        match action {
            LinkAction::Connect(_) => {}
            LinkAction::Send(buf) => {
                self.batch_out = buf.with_unsent(|_, batch| !batch.is_empty());
                self.reactor.send(token, buf);
            }
            LinkAction::Receive(buf) => self.reactor.recv(token, buf),
            LinkAction::ShutdownWrite => {
                // It fails if the peer is gone, which the receive that is out tells too.
                let _ = self.reactor.shutdown_write(token);
            }
            LinkAction::Close => self.end("closed".into()),
        }
    }

    /// Waits, at most for `limit`, and reports what happened.
    fn turn(&mut self, limit: Option<Duration>) {
        let mut completions = std::mem::take(&mut self.completions);
        if let Err(error) = self.reactor.poll(limit, &mut completions) {
            self.shared
                .stop(Error::system("waiting for sockets", &error));
            self.end(error.to_string());
        }
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        self.settle();
        self.count_io();
    }

    fn completed(&mut self, completion: Completion) {
        let lane = self.lane;
        match completion {
            Completion::Connected { token, result } if Some(token) == self.token => match result {
                Ok(()) => self.with_core(|core, now| core.connected(lane, now)),
                Err(error) => self.end(error.to_string()),
            },
            Completion::Received {
                token, buf, result, ..
            } if Some(token) == self.token => {
                self.with_core(|core, now| core.received(lane, buf, &result, now));
            }
            Completion::Sent {
                token,
                buf,
                result,
                ticks,
            } if Some(token) == self.token => {
                if self.batch_out {
                    self.recorder.add_ticks(SEND_PAYLOAD, ticks, 1);
                }
                self.with_core(|core, now| core.sent(lane, buf, &result, now));
            }
            // What belongs to a connection that has ended is dropped; nothing listens here.
            _ => {}
        }
    }

    /// The connection is over; the core hears of it when all buffers are back.
    fn end(&mut self, cause: String) {
        if let Some(token) = self.token.take() {
            self.reactor.close(token);
        }
        self.ending.get_or_insert(cause);
    }

    fn settle(&mut self) {
        if self.reactor.outstanding() == 0
            && let Some(cause) = self.ending.take()
        {
            let lane = self.lane;
            self.with_core(|core, now| core.disconnected(lane, &cause, now));
        }
    }

    fn with_core(&mut self, f: impl FnOnce(&mut PublisherCore, Now)) {
        self.shared
            .with_core(Some(self.lane), Some(&mut self.events), f);
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
    use crate::publisher::core::PublisherCore;
    use crate::publisher::pool::Pool;
    use crate::publisher::receipt::{Flush, Receipt, Ticket};
    use crate::publisher::shared::{Ready, SharedSettings};
    use crate::publisher::tests::script;
    use crate::wake::block_on;

    /// Far longer than anything takes here; a wait that is never ended shall fail, not hang.
    const LONG: Duration = Duration::from_secs(60);

    fn soon() -> Option<Instant> {
        Some(Instant::now() + LONG)
    }

    fn shared() -> Shared {
        Shared::new(
            PublisherCore::new(script::config()),
            Profile::new(&crate::profile::publisher::SCHEMA),
            SharedSettings {
                linger: Duration::ZERO,
                delivery_timeout: Duration::from_secs(1),
                producer: 1,
                on_ack: None,
            },
        )
    }

    fn ready() -> Ready {
        Ready {
            pool: Pool::new(256, 1),
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
                block_on(pool.ready(), soon());
                pool.try_take().expect_err("no buffer will come")
            });
            ending_on_panic(shared, || {
                let _held = shared.core.lock();
                panic!("a bug");
            });
            let expected = Error::Panicked {
                what: "publisher",
                cause: "a bug".into(),
            };
            assert_eq!(
                opening.join().expect("no panic"),
                Some(Some(expected.clone()))
            );
            assert_eq!(flush.join().expect("no panic"), Some(Err(expected.clone())));
            assert_eq!(receipt.join().expect("no panic"), Err(expected.clone()));
            assert_eq!(buffer.join().expect("no panic"), expected);
        });
        assert!(shared.stopping.load(Ordering::SeqCst), "the threads end");
    }

    #[test]
    fn a_failure_before_the_buffers_are_there_reaches_them() {
        let shared = shared();
        shared.stop(Error::NoDataBrokers);
        shared.set_ready(ready());
        let pool = &shared.ready.get().expect("set above").pool;
        assert_eq!(pool.try_take(), Err(Error::NoDataBrokers));
    }
}
