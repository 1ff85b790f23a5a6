//! Trials of the log whose figures are times: one message is under way at once.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use embar_client::{Publisher, Start, Subscriber};
use embar_meter::clock::{self, Scale, ticks};
use embar_meter::random::filler;
use embar_supervise::work::Abort;
use hdrhistogram::Histogram;

use super::{Ours, SILENCE_MAX};
use crate::plan::BenchPlan;
use crate::publish::create_topic;
use crate::wall::shm::ping::RoundTrips;
use crate::walls::plan::{Case, Direction};

/// Messages that go first and do not count: connections, buffers and branches are cold.
const COLD: u64 = 200;
/// Messages between two looks at whether to stop.
const LOOK_EVERY: u64 = 64;
/// Longest time that is resolved, 60 s.
const TIME_NS_MAX: u64 = 60_000_000_000;
/// Bytes at the start of a message that say when it was published.
const TIME_BYTES: usize = 8;

impl Ours {
    /// Times messages one after the other: until they are acknowledged, or until a subscriber in another thread has them.
    pub fn round_trips(&self, case: Case, order: u32, abort: &Abort) -> Result<RoundTrips> {
        let plan = self.plan_of(case, order);
        clock::warm_up();
        let admin = self.connector.admin()?;
        create_topic(&admin, &plan)?;
        // Who spins is who waits for the result. Others would only take its processor.
        let spin = match case.path.direction() {
            Direction::Ack => self.spin,
            _ => Duration::ZERO,
        };
        let publisher = Publisher::builder(self.connector.bootstrap())
            .transport(plan.transport)
            .topic(&plan.topic)
            .batch_bytes(plan.batch_bytes as usize)
            .threads_per_broker(plan.threads_per_broker)
            .linger(Duration::ZERO)
            .spin(spin)
            .auto_create(false)
            .open()?;
        let times = match case.path.direction() {
            Direction::Ack => acks(&publisher, &plan, self.plan.round_trips(), abort),
            Direction::Delivery => self.deliveries(&publisher, &plan, abort),
            _ => bail!("{} has a rate, and no times", case.path.name()),
        }?;
        publisher.close()?;
        self.delete(&plan.topic)?;
        Ok(RoundTrips::of(&times))
    }

    fn deliveries(
        &self,
        publisher: &Publisher,
        plan: &BenchPlan,
        abort: &Abort,
    ) -> Result<Histogram<u64>> {
        let mut subscriber = Subscriber::builder(self.connector.bootstrap())
            .transport(plan.transport)
            .topic(&plan.topic)
            .from(Start::Earliest)
            .spin(self.spin)
            .open()?;
        let round_trips = self.plan.round_trips();
        let (delivered, next) = sync_channel(1);
        thread::scope(|scope| {
            let reading = scope.spawn(move || deliver(&mut subscriber, round_trips, &delivered));
            let published = publish_each(publisher, plan, round_trips, &next, abort);
            // The thread that reads ends when nobody wants to know.
            drop(next);
            let read = reading
                .join()
                .map_err(|_| anyhow!("the thread that reads panicked"))?;
            // Without a message the reader failed, and the publisher waited for it in vain.
            read.and_then(|times| published.map(|()| times))
        })
    }
}

fn acks(
    publisher: &Publisher,
    plan: &BenchPlan,
    round_trips: u64,
    abort: &Abort,
) -> Result<Histogram<u64>> {
    let mut times = times()?;
    let message = filler(plan.message_bytes as usize);
    for number in 0..COLD + round_trips {
        if number.is_multiple_of(LOOK_EVERY) {
            abort.check()?;
        }
        let began = Instant::now();
        let ticket = publisher.publish(&message)?;
        publisher.acked(ticket).wait()?;
        if number >= COLD {
            times.saturating_record(began.elapsed().as_nanos() as u64);
        }
    }
    Ok(times)
}

/// Publishes a message with the time in it once the one before is delivered.
fn publish_each(
    publisher: &Publisher,
    plan: &BenchPlan,
    round_trips: u64,
    next: &Receiver<()>,
    abort: &Abort,
) -> Result<()> {
    let mut message = filler(plan.message_bytes as usize);
    for number in 0..COLD + round_trips {
        if number.is_multiple_of(LOOK_EVERY) {
            abort.check()?;
        }
        message[..TIME_BYTES].copy_from_slice(&ticks().to_le_bytes());
        publisher.publish(&message)?;
        let delivered = next.recv_timeout(SILENCE_MAX);
        delivered.context("a message was not delivered in time")?;
    }
    Ok(())
}

fn deliver(
    subscriber: &mut Subscriber,
    round_trips: u64,
    delivered: &SyncSender<()>,
) -> Result<Histogram<u64>> {
    let scale = Scale::of_this_machine();
    let mut times = times()?;
    for number in 0..COLD + round_trips {
        let message = subscriber.next_timeout(SILENCE_MAX)?;
        let now = ticks();
        let message = message.context("the subscription ended early")?;
        let published = message.value.first_chunk::<TIME_BYTES>();
        let published = published.context("a message has no time")?;
        let elapsed = now.saturating_sub(u64::from_le_bytes(*published));
        if number >= COLD {
            times.saturating_record(scale.to_ns(elapsed));
        }
        if delivered.send(()).is_err() {
            break;
        }
    }
    Ok(times)
}

fn times() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, TIME_NS_MAX, 3).context("the bounds are valid")
}
