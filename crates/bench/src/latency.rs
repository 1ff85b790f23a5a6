//! How long a message waits for its acknowledgement, by order level, beside a bare round trip.
//!
//! Two loads. *Alone*: one message in flight, the next one when it is acknowledged. *Loaded*: messages leave when they
//! are due, at a share of the highest rate of that order level, whatever came back; a batch's latency counts from when
//! its first message was due.

mod alone;
mod bare;
mod loaded;

use std::time::Duration;

use anyhow::{Context as _, Result};
use bare::BareConnection;
use embar_client::PublisherBuilder;
use embar_client::{Publisher, WaitProbe};
use embar_console::context::Context;
use embar_console::setting::BadSetting;
use embar_console::size::as_seconds;
use embar_console::waiting::WaitReporter;
use embar_meter::stats::median;
use embar_supervise::work::Abort;
use hdrhistogram::Histogram;
use loaded::Loaded;
use serde::Serialize;

use super::e2e::Latency;
use super::plan::{BenchPlan, TOPIC};
use super::private_cluster::PrivateCluster;
use super::publish::create_topic;
use super::shared_cluster::SharedCluster;

/// Longest latency that a histogram resolves, 60 s.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Share of a rate above which it counts as reached.
const REACHED: f64 = 0.98;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyPlan {
    /// All but the order level. A trial's bytes are published to find the highest rate.
    #[serde(flatten)]
    pub publish: BenchPlan,
    /// Order levels; each round measures all of them.
    pub orders: Vec<u32>,
    /// Messages of each trial with one in flight.
    pub iterations: u64,
    /// Share of the highest rate.
    pub load: f64,
    /// Length of each loaded trial.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
}

impl LatencyPlan {
    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        let wrong = |settings, why: &str| Err(BadSetting::new(settings, why));
        self.publish.validate(false)?;
        if self.iterations == 0 {
            return wrong(&["iterations"], "there must be at least one message");
        }
        if !(0.0..1.0).contains(&self.load) {
            return wrong(
                &["load"],
                "a load is at least 0 and less than 1: 0.5 for half of the highest rate, 0 to leave it out",
            );
        }
        if self.duration.is_zero() {
            return wrong(&["duration"], "a loaded trial must be longer than 0 s");
        }
        Ok(())
    }

    fn of_order(&self, order: u32) -> BenchPlan {
        BenchPlan {
            order,
            ..self.publish.clone()
        }
    }
}

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyLine {
    /// The order level; `None` for the bare round trip.
    pub order: Option<u32>,
    /// Messages, or batches under load.
    pub samples: u64,
    /// Latencies of all trials.
    pub latency_us: Latency,
    /// Messages a second that were due, median of the trials.
    pub messages_per_s: Option<f64>,
    /// Messages a second that left, median of the trials: less when the publisher was held up.
    pub reached_per_s: Option<f64>,
}

impl LatencyLine {
    /// The share of the messages that were due a second which left, unless nearly all did.
    pub fn shortfall(&self) -> Option<f64> {
        let share = self.reached_per_s? / self.messages_per_s?;
        (share < REACHED).then_some(share)
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyResult {
    /// Latencies with one message in flight, the bare round trip first.
    pub alone: Vec<LatencyLine>,
    /// Latencies under load, by order level.
    pub loaded: Vec<LatencyLine>,
}

/// Latencies of several trials.
struct Latencies {
    histogram: Histogram<u64>,
    rates: Vec<f64>,
    reached: Vec<f64>,
}

impl Latencies {
    fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Ok(Self {
            histogram: histogram.context("the bounds are valid")?,
            rates: Vec::new(),
            reached: Vec::new(),
        })
    }

    fn line(self, order: Option<u32>) -> LatencyLine {
        LatencyLine {
            order,
            samples: self.histogram.len(),
            latency_us: Latency::of(&self.histogram),
            messages_per_s: median(&self.rates),
            reached_per_s: median(&self.reached),
        }
    }
}

/// Measures all of it on one cluster, with a new topic for each trial.
pub fn measure(plan: &LatencyPlan, context: &Context) -> Result<LatencyResult> {
    let mut private = PrivateCluster::start("bench-", &plan.publish, true, context)?;
    let rounds = Rounds {
        plan: plan.clone(),
        cluster: SharedCluster::new(&private, &plan.publish, true, context),
    };
    let measured = private
        .cluster
        .run("bench-latency", move |abort| rounds.run(abort))?;
    private.stop();
    Ok(measured)
}

struct Rounds {
    plan: LatencyPlan,
    cluster: SharedCluster,
}

impl Rounds {
    fn run(&self, abort: &Abort) -> Result<LatencyResult> {
        let orders = &self.plan.orders;
        let times =
            || -> Result<Vec<Latencies>> { orders.iter().map(|_| Latencies::new()).collect() };
        let (mut bare, mut alone, mut loaded) = (Latencies::new()?, times()?, times()?);
        let (warmup, trials) = (self.plan.publish.warmup, self.plan.publish.trials);
        for round in 0..warmup + trials {
            let counts = round >= warmup;
            self.cluster.context.note(format_args!(
                "round {} of {}{}",
                round + 1,
                warmup + trials,
                if counts { "" } else { ", to warm up" }
            ));
            let times = self.bare(abort)?;
            if counts {
                bare.histogram.add(times).context("the bounds are equal")?;
            }
            for (index, order) in orders.iter().enumerate() {
                let times = self.alone(*order, abort)?;
                if counts {
                    let all = &mut alone[index].histogram;
                    all.add(times).context("the bounds are equal")?;
                }
            }
            for (index, order) in orders.iter().enumerate() {
                if self.plan.load == 0.0 {
                    break;
                }
                let (rate, trial) = self.loaded(*order, abort)?;
                if counts {
                    let all = &mut loaded[index];
                    let added = all.histogram.add(trial.times);
                    added.context("the bounds are equal")?;
                    all.rates.push(rate);
                    all.reached.push(trial.reached);
                }
            }
        }
        let lines = |times: Vec<Latencies>| {
            let times = orders.iter().zip(times).map(|(o, t)| t.line(Some(*o)));
            times.collect::<Vec<_>>()
        };
        let mut measured = LatencyResult {
            alone: vec![bare.line(None)],
            loaded: lines(loaded),
        };
        measured.loaded.retain(|line| line.samples > 0);
        measured.alone.extend(lines(alone));
        Ok(measured)
    }

    fn bare(&self, abort: &Abort) -> Result<Histogram<u64>> {
        let mut times = Latencies::new()?.histogram;
        let mut bare = BareConnection::start(self.plan.publish.message_bytes as usize)?;
        alone::measure(self.plan.iterations, &mut times, abort, || {
            bare.round_trip()
        })?;
        Ok(times)
    }

    fn alone(&self, order: u32, abort: &Abort) -> Result<Histogram<u64>> {
        let plan = self.plan.of_order(order);
        let mut times = Latencies::new()?.histogram;
        let (publisher, _reporter) = self.publisher(&plan, |it| it.linger(Duration::ZERO))?;
        let message = embar_meter::random::filler(plan.message_bytes as usize);
        alone::measure(self.plan.iterations, &mut times, abort, || {
            let ticket = publisher.publish(&message)?;
            publisher.acked(ticket).wait()?;
            Ok(())
        })?;
        publisher.close()?;
        self.cluster.delete_topic()?;
        Ok(times)
    }

    fn loaded(&self, order: u32, abort: &Abort) -> Result<(f64, Loaded)> {
        let plan = self.plan.of_order(order);
        let highest = self.highest_rate(&plan, abort)?;
        let rate = highest * self.plan.load;
        let batches = loaded::BatchTimes::new(rate, self.plan.duration);
        let acked = batches.clone();
        let (publisher, _reporter) = self.publisher(&plan, move |it| {
            it.on_ack(move |delivery| acked.acked(delivery))
        })?;
        let trial = loaded::measure(&publisher, &plan, &batches, abort)?;
        publisher.close()?;
        self.cluster.delete_topic()?;
        Ok((rate, trial))
    }

    /// The highest rate of a plan, messages per second.
    fn highest_rate(&self, plan: &BenchPlan, abort: &Abort) -> Result<f64> {
        let trial = self.cluster.publish(plan, abort)?;
        Ok(trial.rate.messages_per_s)
    }

    fn publisher(
        &self,
        plan: &BenchPlan,
        also: impl FnOnce(PublisherBuilder) -> PublisherBuilder,
    ) -> Result<(Publisher, WaitReporter)> {
        let (probe, admin) = (WaitProbe::new(), self.cluster.connector.admin()?);
        create_topic(&admin, plan)?;
        let builder = Publisher::builder(self.cluster.connector.bootstrap())
            .transport(self.cluster.connector.transport())
            .topic(TOPIC)
            .batch_bytes(plan.batch_bytes as usize)
            .threads_per_broker(plan.threads_per_broker)
            .spin(plan.spin)
            .wait_probe(&probe)
            .auto_create(false);
        let reporter = self.cluster.connector.report_waits(&probe, None);
        Ok((also(builder).open()?, reporter))
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    #[test]
    fn a_line_has_the_median_of_its_trials_and_says_when_a_rate_was_not_reached() {
        let line = |reached: [f64; 2]| {
            let mut times = Latencies::new().expect("valid");
            times.rates = vec![300.0, 100.0];
            times.reached = reached.to_vec();
            times.line(Some(5))
        };
        assert_eq!(line([300.0, 100.0]).messages_per_s, Some(200.0));
        assert_eq!(line([296.0, 98.0]).shortfall(), None);
        assert_eq!(line([270.0, 90.0]).shortfall(), Some(0.9));
        let alone = Latencies::new().expect("valid").line(None);
        assert_eq!((alone.messages_per_s, alone.shortfall()), (None, None));
    }

    #[test]
    fn the_configuration_has_all_that_was_asked_for() {
        let plan = LatencyPlan {
            publish: plan(),
            orders: vec![0, 5],
            iterations: 10,
            load: 0.5,
            duration: Duration::from_millis(1500),
        };
        let json = serde_json::to_value(&plan).expect("JSON");
        assert_eq!(json["duration_s"], 1.5);
        assert_eq!(json["message_bytes"], 1024);
    }
}
