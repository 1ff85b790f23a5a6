//! The curves of `bench scale`, and the points of each.

use std::time::Duration;

use embar_broker::ReceivePath;
use embar_client::Transport;
use embar_console::setting::BadSetting;
use embar_console::size::{Size, as_seconds};
use serde::Serialize;

use crate::plan::{BenchPlan, Metering};

/// Publishers that share the topics, however many there are.
pub const TOPIC_PUBLISHERS: u32 = 16;
/// Connections of each of many publishers, at most. A publisher has a thread beside those of its connections; with one
/// connection each, 4,000 connections took more threads and open files than many machines allow a process.
const CONNECTIONS_PER_PUBLISHER: u32 = 4;
/// Buffers for each of many connections: one that is filled, and one on its way.
const BUFFERS_PER_CONNECTION: u32 = 2;
/// Bytes of a batch of each of many connections.
const SMALL_BATCH_BYTES: u32 = 16 << 10;
/// Bytes of a batch where there is one publisher.
const BATCH_BYTES: u32 = 2 << 20;

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Curve {
    /// Brokers that take data.
    Brokers,
    /// Connections, four to a publisher, each with a thread. The publishers get messages by turns.
    Connections,
    /// Topics that exist; 16 publishers write to up to 16 of them.
    Topics,
    /// Bytes of a message.
    Messages,
    /// Bytes of a batch.
    Batches,
    /// Application threads that share one publisher.
    Publishers,
}

impl Curve {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Brokers,
        Self::Connections,
        Self::Topics,
        Self::Messages,
        Self::Batches,
        Self::Publishers,
    ];

    /// As it is written in reports and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Brokers => "brokers",
            Self::Connections => "connections",
            Self::Topics => "topics",
            Self::Messages => "messages",
            Self::Batches => "batches",
            Self::Publishers => "publishers",
        }
    }

    /// Whether its points are numbers of bytes.
    pub fn is_in_bytes(self) -> bool {
        matches!(self, Self::Messages | Self::Batches)
    }

    /// From the smallest to the largest.
    pub fn points(self) -> &'static [u32] {
        match self {
            Self::Brokers => &[1, 2, 4, 8, 16],
            Self::Connections => &[1, 4, 16, 64, 256, 1000, 2000, 4000],
            Self::Topics => &[1, 10, 100, 1000, 10_000],
            Self::Messages => &[
                16,
                64,
                256,
                1 << 10,
                4 << 10,
                16 << 10,
                64 << 10,
                256 << 10,
                1 << 20,
            ],
            Self::Batches => &[
                1 << 10,
                4 << 10,
                16 << 10,
                64 << 10,
                256 << 10,
                1 << 20,
                2 << 20,
                8 << 20,
            ],
            Self::Publishers => &[1, 2, 4, 8, 16, 32, 64],
        }
    }

    /// A point as people write it.
    pub fn show(self, value: u32) -> String {
        if self.is_in_bytes() {
            Size(value.into()).to_string()
        } else {
            embar_meter::table::grouped(value.into())
        }
    }
}

/// Parameters of a run; `config` in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct ScalePlan {
    /// What is measured.
    pub curves: Vec<Curve>,
    /// Points above this are left out.
    pub max: Option<u32>,
    /// Order level of all topics.
    pub order: u32,
    /// How long each trial publishes.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
    /// Trials of each point.
    pub trials: usize,
    /// Trials before, thrown away.
    pub warmup: usize,
    /// Bytes of shared memory in all.
    pub region_bytes: u64,
    /// A cost that grows by more than this factor from a point to the next one is a cliff, if the trials do not overlap.
    pub cliff: f64,
}

/// What runs at one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Brokers that take data.
    pub data_brokers: u16,
    /// Publishers, each of a topic.
    pub publishers: u32,
    /// Connections of each publisher to each broker that takes data.
    pub connections_per_broker: u32,
    /// Topics that exist.
    pub topics: u32,
    /// Application threads.
    pub threads: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Bytes of a batch.
    pub batch_bytes: u32,
    /// Whether each publisher has few buffers. Without, it has as many as it has by default.
    pub few_buffers: bool,
}

impl Load {
    /// The load at `value` of `curve`. All else is as at the other points of the curve.
    pub fn at(curve: Curve, value: u32) -> Self {
        let one = Self {
            data_brokers: 3,
            publishers: 1,
            connections_per_broker: 1,
            topics: 1,
            threads: 1,
            message_bytes: 1024,
            batch_bytes: BATCH_BYTES,
            few_buffers: false,
        };
        match curve {
            Curve::Brokers => Self {
                data_brokers: value as u16,
                ..one
            },
            Curve::Connections => Self {
                data_brokers: 1,
                publishers: value.div_ceil(CONNECTIONS_PER_PUBLISHER),
                connections_per_broker: value.min(CONNECTIONS_PER_PUBLISHER),
                batch_bytes: SMALL_BATCH_BYTES,
                few_buffers: true,
                ..one
            },
            Curve::Topics => Self {
                data_brokers: 1,
                publishers: TOPIC_PUBLISHERS,
                topics: value,
                batch_bytes: SMALL_BATCH_BYTES,
                few_buffers: true,
                ..one
            },
            Curve::Messages => Self {
                message_bytes: value,
                ..one
            },
            Curve::Batches => Self {
                message_bytes: 256,
                batch_bytes: value,
                ..one
            },
            Curve::Publishers => Self {
                threads: value,
                ..one
            },
        }
    }

    /// The topic of a publisher.
    pub fn topic(&self, publisher: u32) -> String {
        format!("scale-{}", publisher % self.topics)
    }

    /// Connections of one publisher.
    pub fn connections_of_each(&self) -> u32 {
        self.connections_per_broker * u32::from(self.data_brokers)
    }

    /// Connections of all publishers.
    pub fn connections(&self) -> u64 {
        u64::from(self.publishers) * u64::from(self.connections_of_each())
    }

    /// Buffers of each publisher; as many as it has by default without a number.
    pub fn buffers(&self) -> Option<usize> {
        let buffers = BUFFERS_PER_CONNECTION * self.connections_of_each();
        self.few_buffers.then_some(buffers as usize)
    }
}

impl ScalePlan {
    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        if self.trials == 0 {
            return Err(BadSetting::new(
                &["trials"],
                "there must be at least one trial",
            ));
        }
        if self.duration.is_zero() {
            return Err(BadSetting::new(&["duration"], "a trial must take time"));
        }
        if self.cliff.is_nan() || self.cliff <= 1.0 {
            let why = "a cliff is a factor above 1";
            return Err(BadSetting::new(&["cliff"], why));
        }
        Ok(())
    }

    /// As people read it.
    pub fn describe(&self) -> String {
        format!(
            "order {}, {} trials of {:?} after {} warm-up(s) at each point, region {}",
            self.order,
            self.trials,
            self.duration,
            self.warmup,
            Size(self.region_bytes),
        )
    }

    /// The points of a curve that are measured.
    pub fn points(&self, curve: Curve) -> impl Iterator<Item = u32> + use<> {
        let max = self.max.unwrap_or(u32::MAX);
        let points = curve.points().iter().copied();
        points.filter(move |point| *point <= max)
    }

    /// The cluster for a load.
    pub fn cluster(&self, load: &Load) -> BenchPlan {
        // A broker that is alone is the head, and takes data.
        let brokers = load.data_brokers + u16::from(load.data_brokers > 1);
        BenchPlan {
            topic: load.topic(0),
            message_bytes: load.message_bytes,
            messages: 1,
            total_bytes: load.message_bytes.into(),
            order: self.order,
            acks: 1,
            replication_factor: 1,
            data: Vec::new(),
            same_device_is_fine: false,
            threads_per_broker: load.connections_per_broker,
            publishers: load.threads,
            batch_bytes: load.batch_bytes,
            brokers,
            data_brokers: load.data_brokers,
            network_threads: 1,
            receive: ReceivePath::default(),
            region_bytes: self.region_bytes,
            trials: self.trials,
            warmup: self.warmup,
            metering: Metering::On,
            transport: Transport::Tcp,
            spin: Duration::ZERO,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::ValueEnum;

    use super::*;

    /// A plan that is valid.
    pub fn plan() -> ScalePlan {
        ScalePlan {
            curves: Curve::ALL.to_vec(),
            max: None,
            order: 0,
            duration: Duration::from_millis(300),
            trials: 3,
            warmup: 1,
            region_bytes: 1 << 30,
            cliff: 1.5,
        }
    }

    #[test]
    fn every_point_of_every_curve_can_be_run() {
        for curve in Curve::ALL {
            assert!(curve.points().is_sorted(), "{curve:?}");
            for &value in curve.points() {
                let load = Load::at(curve, value);
                let plan = plan().cluster(&load);
                plan.validate(false)
                    .unwrap_or_else(|error| panic!("{curve:?} at {value}: {error}"));
                assert_eq!(plan.brokers > 1, plan.brokers == plan.data_brokers + 1);
            }
        }
    }

    #[test]
    fn a_point_changes_what_its_curve_is_about() {
        for &value in Curve::Connections.points() {
            let load = Load::at(Curve::Connections, value);
            assert_eq!(load.connections(), u64::from(value));
            let buffers = load.buffers().expect("few") as u64;
            assert_eq!(buffers * u64::from(load.publishers), 2 * u64::from(value));
        }
        assert_eq!(Load::at(Curve::Messages, 64).buffers(), None);
        let topics = Load::at(Curve::Topics, 10_000);
        assert_eq!(
            (topics.topics, topics.publishers),
            (10_000, TOPIC_PUBLISHERS)
        );
        assert_eq!(Load::at(Curve::Publishers, 64).threads, 64);
        assert_eq!(Load::at(Curve::Brokers, 16).data_brokers, 16);
    }

    #[test]
    fn curves_have_one_name_everywhere() {
        for curve in Curve::ALL {
            let value = curve.to_possible_value().expect("an option");
            assert_eq!(value.get_name(), curve.name());
            assert_eq!(serde_json::to_value(curve).expect("JSON"), curve.name());
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        assert!(plan().validate().is_ok());
        let mut none = plan();
        none.trials = 0;
        let mut at_once = plan();
        at_once.duration = Duration::ZERO;
        let mut flat = plan();
        flat.cliff = 1.0;
        for (setting, plan) in [("trials", none), ("duration", at_once), ("cliff", flat)] {
            let error = plan.validate().expect_err(setting);
            assert!(error.settings.contains(&setting), "{error}");
        }
    }
}
