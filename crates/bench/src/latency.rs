//! How long a message waits for its acknowledgement, by order level and acks, beside a bare round trip and, where the topic is on
//! disks, synced writes.
//!
//! Two loads. *Alone*: one message in flight, the next one when it is acknowledged. *Loaded*: messages leave when they
//! are due, at a given rate or at a share of the highest one of that order level and acks, whatever came back; a batch's latency
//! counts from when its first message was due.

mod alone;
mod bare;
mod loaded;
mod result;

pub use result::{Difference, LatencyLine, LatencyResult, WritesLine};

use std::time::Duration;

use anyhow::Result;
use bare::BareConnection;
use embar_client::PublisherBuilder;
use embar_client::{Publisher, WaitProbe};
use embar_console::context::Context;
use embar_console::setting::BadSetting;
use embar_console::size::as_seconds;
use embar_console::waiting::WaitReporter;
use embar_supervise::work::Abort;
use hdrhistogram::Histogram;
use loaded::Loaded;
use result::Latencies;
use serde::Serialize;

use super::disk::beside::DiskWalls;
use super::plan::{BenchPlan, TOPIC};
use super::private_cluster::PrivateCluster;
use super::publish::create_topic;
use super::shared_cluster::SharedCluster;

/// Bytes of a synced write that a message alone is compared with.
const PAGE_BYTES: u32 = 4 << 10;
/// Bytes that all synced writes of a trial have, at most.
const WRITTEN_BYTES_MAX: u64 = 128 << 20;
/// And those that are due as batches of a load are.
const DUE_BYTES_MAX: u64 = 512 << 20;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyPlan {
    /// All but the order level and the acks. A trial's bytes are published to find the highest rate.
    #[serde(flatten)]
    pub publish: BenchPlan,
    /// Order levels; each round measures all of them.
    pub orders: Vec<u32>,
    /// Levels of the acknowledgements; each round measures all of them.
    #[serde(rename = "all_acks")]
    pub acks: Vec<u32>,
    /// Messages of each trial with one in flight.
    pub iterations: u64,
    /// The load of loaded trials; without, there are none.
    pub load: Option<Load>,
    /// Length of each loaded trial.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
}

/// How much is published when loaded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// This share of the highest rate.
    Share(f64),
    /// So many bytes of messages a second.
    BytesPerS(u64),
}

impl LatencyPlan {
    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        let wrong = |settings, why: &str| Err(BadSetting::new(settings, why));
        for (order, acks) in self.cases() {
            self.of(order, acks).validate(false)?;
        }
        if self.acks.contains(&0) {
            return wrong(
                &["acks"],
                "at acks 0 nothing is acknowledged, so nothing can be waited for",
            );
        }
        if self.iterations == 0 {
            return wrong(&["iterations"], "there must be at least one message");
        }
        match self.load {
            Some(Load::Share(share)) if !(share > 0.0 && share < 1.0) => {
                return wrong(
                    &["load"],
                    "a load is at least 0 and less than 1: 0.5 for half of the highest rate, 0 to leave it out",
                );
            }
            Some(Load::BytesPerS(rate)) if rate < self.publish.message_bytes.into() => {
                return wrong(&["rate"], "this is less than one message a second");
            }
            _ => {}
        }
        if self.duration.is_zero() {
            return wrong(&["duration"], "a loaded trial must be longer than 0 s");
        }
        Ok(())
    }

    /// Order levels, each with all acks.
    fn cases(&self) -> impl Iterator<Item = (u32, u32)> {
        let orders = self.orders.iter();
        orders.flat_map(|order| self.acks.iter().map(|acks| (*order, *acks)))
    }

    fn of(&self, order: u32, acks: u32) -> BenchPlan {
        BenchPlan {
            order,
            acks,
            ..self.publish.clone()
        }
    }

    /// Bytes that synced writes take on each disk at once.
    fn written_bytes(&self) -> u64 {
        match self.load {
            Some(Load::BytesPerS(rate)) => {
                let all = rate as f64 * self.duration.as_secs_f64();
                (all as u64).clamp(WRITTEN_BYTES_MAX, DUE_BYTES_MAX)
            }
            Some(Load::Share(_)) => DUE_BYTES_MAX,
            None => WRITTEN_BYTES_MAX,
        }
    }

    /// Bytes of the synced writes beside it: a page, and, for the loaded trials, a batch.
    fn write_bytes(&self) -> Vec<u32> {
        let batch = self.publish.batch_bytes.next_multiple_of(PAGE_BYTES);
        match (self.publish.disks(), self.load) {
            ([], _) => Vec::new(),
            (_, None) => vec![PAGE_BYTES],
            (_, Some(_)) => vec![PAGE_BYTES, batch],
        }
    }
}

/// Measures all of it on one cluster, with a new topic for each trial.
pub fn measure(plan: &LatencyPlan, context: &Context) -> Result<LatencyResult> {
    let mut private = PrivateCluster::start("bench-", &plan.publish, true, context)?;
    let rounds = Rounds {
        plan: plan.clone(),
        cluster: SharedCluster::new(&private, &plan.publish, true, context),
        disks: DiskWalls::new(plan.publish.disks(), plan.written_bytes(), context)?,
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
    disks: DiskWalls,
}

impl Rounds {
    fn run(&self, abort: &Abort) -> Result<LatencyResult> {
        let cases: Vec<_> = self.plan.cases().collect();
        let write_bytes = self.plan.write_bytes();
        let times = |count| {
            (0..count)
                .map(|_| Latencies::new())
                .collect::<Result<Vec<_>>>()
        };
        let (mut alone, mut loaded) = (times(cases.len())?, times(cases.len())?);
        let (mut bare, mut writes) = (Latencies::new()?, times(write_bytes.len())?);
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
                bare.add(&times)?;
            }
            for (all, case) in alone.iter_mut().zip(&cases) {
                let times = self.alone(*case, abort)?;
                if counts {
                    all.add(&times)?;
                }
            }
            if let (Some(all), Some(bytes)) = (writes.first_mut(), write_bytes.first()) {
                let times = self.writes(*bytes)?;
                if counts {
                    all.add(&times)?;
                }
            }
            let Some(load) = self.plan.load else {
                continue;
            };
            let mut last_rate = 0.0;
            for (all, case) in loaded.iter_mut().zip(&cases) {
                let (rate, trial) = self.loaded(*case, load, abort)?;
                last_rate = rate;
                if counts {
                    all.add(&trial.times)?;
                    all.rates.push(rate);
                    all.reached.push(trial.reached);
                }
            }
            if let (Some(all), Some(bytes)) = (writes.get_mut(1), write_bytes.get(1)) {
                let times = self.writes_of_load(*bytes, last_rate)?;
                if counts {
                    all.add(&times)?;
                }
            }
        }
        let lines = |times: Vec<Latencies>| {
            let times = cases.iter().zip(times).map(|(of, it)| it.line(Some(*of)));
            times.collect::<Vec<_>>()
        };
        let mut loaded = lines(loaded);
        loaded.retain(|line| line.samples > 0);
        let mut all = vec![bare.line(None)];
        all.extend(lines(alone));
        let writes = write_bytes.iter().zip(writes);
        let writes = writes.map(|(bytes, times)| times.writes(*bytes)).collect();
        Ok(LatencyResult::new(all, loaded, writes))
    }

    /// What synced writes took that nobody else kept waiting.
    fn writes(&self, bytes: u32) -> Result<Histogram<u64>> {
        let mut times = Latencies::new()?.histogram;
        let most = WRITTEN_BYTES_MAX / u64::from(bytes);
        let count = self.plan.iterations.min(most.max(1));
        for took in self.disks.time_writes(bytes, count)? {
            times.saturating_record(took);
        }
        Ok(times)
    }

    /// What synced writes of a batch took that were due as batches are at so many messages a second, for as long as those were.
    fn writes_of_load(&self, bytes: u32, rate: f64) -> Result<Histogram<u64>> {
        let mut times = Latencies::new()?.histogram;
        let batches_per_s = rate * f64::from(self.plan.publish.message_bytes) / f64::from(bytes);
        let every = Duration::from_secs_f64(1.0 / batches_per_s);
        let count = self.plan.duration.as_secs_f64() * batches_per_s;
        let most = DUE_BYTES_MAX / u64::from(bytes);
        let count = (count as u64).clamp(1, most.max(1));
        for took in self.disks.time_writes_due(bytes, count, every)? {
            times.saturating_record(took);
        }
        Ok(times)
    }

    fn bare(&self, abort: &Abort) -> Result<Histogram<u64>> {
        let mut times = Latencies::new()?.histogram;
        let mut bare = BareConnection::start(self.plan.publish.message_bytes as usize)?;
        alone::measure(self.plan.iterations, &mut times, abort, || {
            bare.round_trip()
        })?;
        Ok(times)
    }

    fn alone(&self, (order, acks): (u32, u32), abort: &Abort) -> Result<Histogram<u64>> {
        let plan = self.plan.of(order, acks);
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

    fn loaded(
        &self,
        (order, acks): (u32, u32),
        load: Load,
        abort: &Abort,
    ) -> Result<(f64, Loaded)> {
        let plan = self.plan.of(order, acks);
        let rate = match load {
            Load::Share(share) => share * self.highest_rate(&plan, abort)?,
            Load::BytesPerS(bytes) => bytes as f64 / f64::from(plan.message_bytes),
        };
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
            .acks(plan.acks.try_into()?)
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

    fn latency_plan() -> LatencyPlan {
        LatencyPlan {
            publish: plan(),
            orders: vec![2, 5],
            acks: vec![1],
            iterations: 10,
            load: Some(Load::Share(0.5)),
            duration: Duration::from_millis(1500),
        }
    }

    #[test]
    fn the_configuration_has_all_that_was_asked_for() {
        let json = serde_json::to_value(latency_plan()).expect("JSON");
        assert_eq!(json["duration_s"], 1.5);
        assert_eq!(json["message_bytes"], 1024);
        assert_eq!(json["load"]["share"], 0.5);
        let absolute = LatencyPlan {
            load: Some(Load::BytesPerS(250_000_000)),
            ..latency_plan()
        };
        let json = serde_json::to_value(absolute).expect("JSON");
        assert_eq!(json["load"]["bytes_per_s"], 250_000_000);
    }

    #[test]
    fn acks_2_need_disks_and_are_measured_beside_acks_1_and_two_writes() {
        let in_memory = LatencyPlan {
            acks: vec![1, 2],
            ..latency_plan()
        };
        assert!(in_memory.validate().is_err());
        let durable = LatencyPlan {
            publish: BenchPlan {
                replication_factor: 2,
                data: vec!["/mnt/a".into()],
                ..plan()
            },
            ..in_memory
        };
        assert!(durable.validate().is_ok());
        let cases: Vec<_> = durable.cases().collect();
        assert_eq!(cases, [(2, 1), (2, 2), (5, 1), (5, 2)]);
        assert_eq!(durable.write_bytes(), [4 << 10, 2 << 20]);
        assert!(latency_plan().write_bytes().is_empty());
    }

    #[test]
    fn loads_that_nobody_can_run_are_refused() {
        let refused = |load, acks: &[u32]| {
            let plan = LatencyPlan {
                load: Some(load),
                acks: acks.to_vec(),
                orders: vec![0],
                ..latency_plan()
            };
            plan.validate().expect_err("refused").settings[0]
        };
        assert_eq!(refused(Load::Share(1.0), &[1]), "load");
        assert_eq!(refused(Load::BytesPerS(1000), &[1]), "rate");
        assert_eq!(refused(Load::Share(0.5), &[0]), "acks");
    }
}
