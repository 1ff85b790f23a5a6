//! One trial of `bench e2e`: one thread publishes while another one reads the same topic. It measures throughput, and
//! the latency from the publishing of a message to its delivery, and verifies every message.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use embar_client::PublisherHandle;
use embar_client::{Start, Subscriber};
use embar_console::connect::Connector;
use embar_console::interrupt::Interrupted;
use embar_console::progress::Bar;
use embar_meter::Snapshot;
use embar_meter::clock::{self, Scale, ticks};
use embar_supervise::work::Abort;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::BenchPlan;
use super::publish::{broker_profile, create_topic, open};
use super::reader::Reader;
use super::stamp::{Stamper, Verifier, time_of};
use super::usage::{Costs, Meters, Rate};

/// Messages between two looks at whether to stop.
const LOOK_EVERY: u64 = 256;
/// Of so many messages that are not verified one has its time taken: reading the clock costs more than touching a small one.
const TIME_EVERY: u64 = 64;
/// How long a subscriber may be without a message before the trial fails.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Longest latency that a histogram resolves, 60 s.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What one trial gave.
#[derive(Clone, Debug, Serialize)]
pub struct E2eTrial {
    /// From the first publish to the last message read.
    #[serde(flatten)]
    pub rate: Rate,
    /// From the call that publishes a message to its delivery.
    pub latency_us: Latency,
    /// What it cost.
    #[serde(flatten)]
    pub costs: Costs,
    /// Stage times of all brokers together.
    #[serde(skip)]
    pub broker_profile: Snapshot,
    /// Stage times of the publisher.
    #[serde(skip)]
    pub publisher_profile: Snapshot,
    /// Stage times of the subscriber.
    #[serde(skip)]
    pub subscriber_profile: Snapshot,
}

/// Quantiles of a latency, microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Half of all messages are faster.
    pub p50: f64,
    /// Nine of ten messages are faster.
    pub p90: f64,
    /// 99 of 100 messages are faster.
    pub p99: f64,
    /// 999 of 1000 messages are faster.
    pub p999: f64,
    /// The slowest message.
    pub max: f64,
}

impl Latency {
    /// The quantiles of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let micros = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile| micros(histogram.value_at_quantile(quantile));
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(histogram.max()),
        }
    }
}

/// One trial against a cluster that runs already.
pub struct E2eJob {
    /// What to publish and read.
    pub plan: BenchPlan,
    /// Bytes that may be published and not read: what is retained must hold them.
    pub window_bytes: u64,
    /// What becomes of each message that is read. Times are taken of all that are verified, and of one of many others.
    pub reader: Reader,
    /// Bytes per second to publish; as fast as it goes without.
    pub bytes_per_s: Option<u64>,
    /// Whether stages are timed.
    pub metering: bool,
    /// How clients reach the cluster.
    pub connector: Connector,
    /// Processes of the brokers.
    pub pids: Vec<u32>,
    /// Rows of the brokers that take data.
    pub data_brokers: Vec<u32>,
    /// Shows how many bytes were read.
    pub bar: Box<dyn Bar>,
}

/// What the publishing and the reading thread share.
struct Shared<'a> {
    epoch: Instant,
    read: AtomicU64,
    failed: &'a Abort,
}

impl E2eJob {
    /// Publishes and reads until everything arrived.
    pub fn run(&self, abort: &Abort) -> Result<E2eTrial> {
        let plan = &self.plan;
        let admin = self.connector.admin()?;
        create_topic(&admin, plan)?;
        let (publisher, _reporter) = open(plan, &self.connector, self.metering)?;
        let mut subscriber = Subscriber::builder(self.connector.bootstrap())
            .transport(self.connector.transport())
            .topic(&plan.topic)
            .from(Start::Earliest)
            .spin(plan.spin)
            .checksums(self.reader.checksums())
            .metering(self.metering)
            .open()?;
        let before = broker_profile(&admin, &self.data_brokers)?;
        clock::warm_up();
        let meters = Meters::start(&self.pids)?;
        let shared = &Shared {
            epoch: Instant::now(),
            read: AtomicU64::new(0),
            failed: abort,
        };
        let histogram = thread::scope(|scope| -> Result<Histogram<u64>> {
            let handle = publisher.handle();
            // Either one that fails tells the other not to wait for it.
            let failing = |_: &anyhow::Error| shared.failed.set();
            let publishing = scope.spawn(move || self.publish(handle, shared).inspect_err(failing));
            let read = self.read(&mut subscriber, shared).inspect_err(failing);
            let published = publishing
                .join()
                .map_err(|_| anyhow!("the publishing thread panicked"))?;
            both(read, published)
        })?;
        let elapsed = shared.epoch.elapsed();
        let costs = meters.stop(plan.total_bytes)?;
        let broker_profile = broker_profile(&admin, &self.data_brokers)?.since(&before);
        let (publisher_profile, subscriber_profile) = (publisher.profile(), subscriber.profile());
        publisher.close()?;
        Ok(E2eTrial {
            rate: Rate::new(plan.total_bytes, plan.messages, elapsed),
            latency_us: Latency::of(&histogram),
            costs,
            broker_profile,
            publisher_profile,
            subscriber_profile,
        })
    }

    fn publish(&self, publisher: PublisherHandle, shared: &Shared<'_>) -> Result<()> {
        let bytes = self.plan.message_bytes as usize;
        let mut stamper = Stamper::new(bytes);
        let window = (self.window_bytes / bytes as u64).max(LOOK_EVERY);
        for sequence in 0..self.plan.messages {
            if sequence.is_multiple_of(LOOK_EVERY) {
                shared.failed.check()?;
                self.wait_for_turn(sequence, window, shared)?;
            }
            publisher.publish(stamper.stamp(sequence, ticks()))?;
        }
        publisher.flush()?;
        Ok(())
    }

    /// Waits for the window and for the rate.
    fn wait_for_turn(&self, sequence: u64, window: u64, shared: &Shared<'_>) -> Result<()> {
        while sequence.saturating_sub(shared.read.load(Ordering::Relaxed)) >= window {
            shared.failed.check()?;
            thread::sleep(Duration::from_micros(50));
        }
        if let Some(rate) = self.bytes_per_s {
            let bytes = sequence * u64::from(self.plan.message_bytes);
            let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
            thread::sleep(due.saturating_sub(shared.epoch.elapsed()));
        }
        Ok(())
    }

    fn read(&self, subscriber: &mut Subscriber, shared: &Shared<'_>) -> Result<Histogram<u64>> {
        let mut histogram =
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).context("the bounds are valid")?;
        let mut verifier = Verifier::new(self.plan.message_bytes as usize, self.plan.messages);
        let scale = Scale::of_this_machine();
        let verifies = self.reader == Reader::Verifies;
        let mut seen = 0u64;
        while seen < self.plan.messages || (verifies && !verifier.is_complete()) {
            let Some(message) = subscriber.next_timeout(SILENCE_MAX)? else {
                bail!("the subscription ended early");
            };
            let time = match verifies {
                true => verifier.check(message.value),
                false => {
                    self.reader.touch(message.value);
                    time_of(message.value).filter(|_| seen.is_multiple_of(TIME_EVERY))
                }
            };
            if let Some(time) = time {
                histogram.saturating_record(scale.to_ns(ticks().saturating_sub(time)));
            }
            seen += 1;
            if seen.is_multiple_of(LOOK_EVERY) {
                shared.read.store(seen, Ordering::Relaxed);
                shared.failed.check()?;
                self.bar.set(seen * u64::from(self.plan.message_bytes));
            }
        }
        if verifies {
            verifier.verdict()?;
        }
        Ok(histogram)
    }
}

/// The error of the side that failed first; the other only says that it was given up because of it.
fn both<T>(read: Result<T>, published: Result<()>) -> Result<T> {
    let given_up = |error: &anyhow::Error| error.is::<Interrupted>();
    match (read, published) {
        (read, Ok(())) => read,
        (Ok(_), Err(error)) => Err(error),
        (Err(read), Err(published)) => Err(if given_up(&read) { published } else { read }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_the_one_that_is_reported() {
        let interrupted = || anyhow::Error::from(Interrupted);
        let text = |result: Result<()>| result.expect_err("failed").to_string();
        assert_eq!(
            text(both(Err(interrupted()), Err(anyhow!("no broker")))),
            "no broker"
        );
        assert_eq!(
            text(both(Err(anyhow!("evicted")), Err(interrupted()))),
            "evicted"
        );
        assert_eq!(text(both(Ok(()), Err(anyhow!("lost")))), "lost");
        assert!(both(Ok(()), Ok(())).is_ok());
    }

    #[test]
    fn latencies_are_microseconds() {
        let mut histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("valid");
        for us in 1..=1000u64 {
            histogram.saturating_record(us * 1000);
        }
        let latency = Latency::of(&histogram);
        assert!(
            (latency.p50 - 500.0).abs() < 1.0 && (latency.p999 - 999.0).abs() < 1.0,
            "{latency:?}"
        );
        assert!((latency.max - 1000.0).abs() < 1.0);
    }
}
