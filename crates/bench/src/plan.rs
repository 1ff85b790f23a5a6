//! The parameters of a bench of the log: sizes, order level, brokers, trials. A bench uses them exactly as given, and
//! prints them.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use embar_broker::ReceivePath;
use embar_client::{Acks, Order, Transport, UnknownOrder};
use embar_console::connect::Connector;
use embar_console::progress::Progress;
use embar_console::setting::BadSetting;
use embar_console::size::Size;
use serde::{Serialize, Serializer};

use super::stamp::STAMP_BYTES;

/// The topic of a bench that has one.
pub const TOPIC: &str = "bench";

/// Parameters of a run; `config` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchPlan {
    /// The topic.
    #[serde(skip)]
    pub topic: String,
    /// Bytes of one message's value.
    pub message_bytes: u32,
    /// Messages of one trial.
    pub messages: u64,
    /// Bytes of all values of one trial.
    pub total_bytes: u64,
    /// Order level of the topic.
    pub order: u32,
    /// Level of the acknowledgements: 0, 1 or 2.
    pub acks: u32,
    /// Of the topic: 1 is in memory alone, and each disk counts one more.
    pub replication_factor: u8,
    /// Directories for the log, one for each disk. A cluster gets a new one below each of them.
    pub data: Vec<PathBuf>,
    /// Whether they may be on one device.
    pub same_device_is_fine: bool,
    /// Connections, and threads that serve them, for each data broker.
    pub threads_per_broker: u32,
    /// Application threads that publish.
    pub publishers: u32,
    /// Bytes of a batch.
    pub batch_bytes: u32,
    /// Brokers, the head included.
    pub brokers: u16,
    /// Brokers that take data.
    pub data_brokers: u16,
    /// Threads of each broker.
    pub network_threads: u16,
    /// How brokers receive payloads.
    #[serde(serialize_with = "as_text")]
    pub receive: ReceivePath,
    /// Bytes of shared memory in all.
    pub region_bytes: u64,
    /// Rounds measured.
    pub trials: usize,
    /// Rounds run before and thrown away.
    pub warmup: usize,
    /// `on` or `off`.
    pub metering: Metering,
    /// How clients connect to brokers: `tcp`, `unix` or `auto`.
    #[serde(serialize_with = "as_text")]
    pub transport: Transport,
    /// How long clients and brokers look before they sleep; in JSON `spin_us`.
    #[serde(rename = "spin_us", serialize_with = "as_micros")]
    pub spin: Duration,
}

fn as_text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u128(time.as_micros())
}

/// Whether stages are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Metering {
    /// Stages are timed.
    On,
    /// Stages are not timed: there are no profiles.
    Off,
}

/// Reads an order level.
pub fn parse_order(text: &str) -> Result<u32, String> {
    let order: Order = text
        .parse()
        .map_err(|wrong: UnknownOrder| wrong.to_string())?;
    Ok(order.into())
}

impl BenchPlan {
    /// The way to a cluster for the clients of this plan.
    pub fn connector(&self, head: SocketAddr, progress: Arc<dyn Progress>) -> Connector {
        Connector::to(head, progress).by(self.transport)
    }

    /// Refuses what cannot be run.
    pub fn validate(&self, stamped: bool) -> Result<(), BadSetting> {
        let wrong = |settings, why: &str| Err(BadSetting::new(settings, why));
        let smallest = if stamped { STAMP_BYTES as u32 } else { 1 };
        if self.message_bytes < smallest {
            let why = if stamped {
                ", for its sequence number and its checksum"
            } else {
                ""
            };
            let why = format!("a message must have at least {smallest} bytes{why}");
            return wrong(&["message_bytes"], &why);
        }
        if self.messages == 0 {
            return wrong(&["total_bytes"], "this is less than one message");
        }
        if self.trials == 0 {
            return wrong(&["trials"], "there must be at least one trial");
        }
        if let Err(why) = Acks::try_from(self.acks) {
            return wrong(&["acks"], &why.to_string());
        }
        if self.acks == 2 && self.replication_factor < 2 {
            let why = "acks 2 needs a topic on a disk, which has a replication factor of 2 or more";
            return wrong(&["replication_factor", "acks"], why);
        }
        let disks = usize::from(self.replication_factor.saturating_sub(1));
        if self.data.len() < disks {
            let why = format!(
                "a topic with a replication factor of {} is on {disks} disk(s), and {} were given: name a directory on each",
                self.replication_factor,
                self.data.len()
            );
            return wrong(&["data", "replication_factor"], &why);
        }
        if self.acks == 0 && self.order >= 2 {
            return wrong(&["acks"], "orders 2 and 5 acknowledge everything");
        }
        if u64::from(self.message_bytes) + 128 > u64::from(self.batch_bytes) {
            let why = format!(
                "a message of {} does not fit into a batch of {}",
                Size(self.message_bytes.into()),
                Size(self.batch_bytes.into())
            );
            return wrong(&["batch_bytes"], &why);
        }
        Ok(())
    }

    /// The directories of as many disks as the topic is on.
    pub fn disks(&self) -> &[PathBuf] {
        let disks = usize::from(self.replication_factor.saturating_sub(1));
        &self.data[..disks.min(self.data.len())]
    }

    /// ` (disks: A, B)`; nothing without any.
    fn describe_disks(&self) -> String {
        let dirs: Vec<_> = self
            .data
            .iter()
            .map(|dir| dir.display().to_string())
            .collect();
        match dirs.is_empty() {
            true => String::new(),
            false => format!(" (disks: {})", dirs.join(", ")),
        }
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        format!(
            "{} messages of {} bytes ({}) per trial, order {}, ack {}, replication factor {}{}, {} brokers ({} take data), \
             {} threads per broker, {} publishing thread(s), batches of {}, region {}, transport {}, receive {}, spin {:?}, metering {}, {} trials after {} warm-up(s)",
            embar_meter::table::grouped(self.messages),
            self.message_bytes,
            Size(self.total_bytes),
            self.order,
            self.acks,
            self.replication_factor,
            self.describe_disks(),
            self.brokers,
            self.data_brokers,
            self.threads_per_broker,
            self.publishers,
            Size(self.batch_bytes.into()),
            Size(self.region_bytes),
            self.transport,
            self.receive,
            self.spin,
            match self.metering {
                Metering::On => "on",
                Metering::Off => "off",
            },
            self.trials,
            self.warmup,
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan that is valid.
    pub fn plan() -> BenchPlan {
        BenchPlan {
            topic: TOPIC.to_owned(),
            message_bytes: 1024,
            messages: 1024,
            total_bytes: 1 << 20,
            order: 0,
            acks: 1,
            replication_factor: 1,
            data: Vec::new(),
            same_device_is_fine: false,
            threads_per_broker: 1,
            publishers: 1,
            batch_bytes: 2 << 20,
            brokers: 4,
            data_brokers: 3,
            network_threads: 1,
            receive: ReceivePath::Direct,
            region_bytes: 1 << 30,
            trials: 3,
            warmup: 1,
            metering: Metering::On,
            transport: Transport::Tcp,
            spin: Duration::ZERO,
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        assert!(plan().validate(true).is_ok());
        let wrong = [
            (
                "message_bytes",
                BenchPlan {
                    message_bytes: 0,
                    ..plan()
                },
            ),
            (
                "total_bytes",
                BenchPlan {
                    messages: 0,
                    ..plan()
                },
            ),
            (
                "trials",
                BenchPlan {
                    trials: 0,
                    ..plan()
                },
            ),
            ("acks", BenchPlan { acks: 3, ..plan() }),
            ("replication_factor", BenchPlan { acks: 2, ..plan() }),
            (
                "acks",
                BenchPlan {
                    acks: 0,
                    order: 5,
                    ..plan()
                },
            ),
            (
                "batch_bytes",
                BenchPlan {
                    message_bytes: 2 << 20,
                    ..plan()
                },
            ),
        ];
        for (setting, plan) in wrong {
            let error = plan.validate(false).expect_err("refused");
            assert!(error.settings.contains(&setting), "{error}: {plan:?}");
        }
        let small = BenchPlan {
            message_bytes: 16,
            ..plan()
        };
        assert!(small.validate(false).is_ok() && small.validate(true).is_err());
    }

    #[test]
    fn a_topic_on_disks_needs_directories() {
        let durable = BenchPlan {
            order: 5,
            acks: 2,
            replication_factor: 3,
            data: vec!["/mnt/a".into(), "/mnt/b".into()],
            ..plan()
        };
        assert!(durable.validate(false).is_ok());
        assert!(durable.describe().contains("(disks: /mnt/a, /mnt/b)"));
        let refused = |plan: BenchPlan| {
            let error = plan.validate(false).expect_err("refused");
            (error.settings[0], error.why)
        };
        let (setting, why) = refused(BenchPlan {
            data: vec!["/mnt/a".into()],
            ..durable.clone()
        });
        assert_eq!(setting, "data");
        assert!(why.contains("is on 2 disk(s), and 1 were given"), "{why}");
        let in_memory_beside = BenchPlan {
            acks: 1,
            replication_factor: 1,
            ..durable
        };
        assert!(in_memory_beside.validate(false).is_ok());
    }

    #[test]
    fn the_description_has_all_the_numbers() {
        let text = plan().describe();
        for part in [
            "1024 bytes",
            "1MiB",
            "order 0",
            "ack 1",
            "replication factor 1",
            "4 brokers",
            "3 take data",
            "2MiB",
            "1GiB",
            "transport tcp",
            "3 trials",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
