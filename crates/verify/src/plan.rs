//! The parameters of a run of `verify order`, which of them are refused, and the line that describes them. A run uses
//! all of them exactly as given.

use std::time::Duration;

use embar_client::Transport;
use embar_console::setting::BadSetting;
use embar_console::size::{Size, as_seconds};
use serde::{Serialize, Serializer};

use super::faults::{Action, DurationRange, Fault, Victim};
use super::hostile::Pose;
use super::power_plan::PowerPlan;
use super::reference_log::Stream;
use super::stall_detector::STALL_MAX;
use super::stamp::STAMP_BYTES;

/// The topic.
pub const TOPIC: &str = "verify";

/// Longest run.
const DURATION_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Longest time that a process is stopped; well below what counts as hanging.
const PAUSE_MAX: Duration = Duration::from_secs(10);

const _: () = assert!(PAUSE_MAX.as_secs() * 2 < STALL_MAX.as_secs());

/// Parameters of a run; `config` in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyPlan {
    /// Order level of the topic.
    pub order: u32,
    /// Level of the acknowledgements: 0, 1 or 2.
    pub acks: u32,
    /// Of the topic: 1 is in memory alone, and each disk counts one more.
    pub replication_factor: u8,
    /// Publishing processes.
    pub publishers: u32,
    /// Subscribers; the first reads everything.
    pub subscribers: u32,
    /// Bytes of one message.
    pub message_bytes: u32,
    /// Bytes of a batch.
    pub batch_bytes: u32,
    /// Messages per second in all.
    pub rate: u32,
    /// How long publishers publish; where power is cut, they do so until the last cut.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
    /// Brokers, the head included.
    pub brokers: u16,
    /// Standbys.
    pub standbys: u16,
    /// Bytes of shared memory in all.
    pub region_bytes: u64,
    /// Bytes that the topic keeps on each broker; 0: as much as fits.
    pub retention_bytes: u64,
    /// What is done to processes, each once in `every`.
    pub faults: Vec<Fault>,
    /// The interval of faults.
    #[serde(rename = "every_s", serialize_with = "as_seconds")]
    pub every: Duration,
    /// How long a process is stopped.
    pub pause_for: DurationRange,
    /// How clients connect, in turn: one after the other, and each process of a publisher unlike the one before.
    #[serde(serialize_with = "as_texts")]
    pub transports: Vec<Transport>,
    /// Whether the power of the topic's disks is cut.
    pub power: Option<PowerPlan>,
    /// Clients beside the honest ones that keep to no rule of streams by shared memory, a process each.
    pub hostile: Vec<Pose>,
    /// Where random choices begin.
    pub seed: u64,
}

impl VerifyPlan {
    /// How the client of this number connects.
    ///
    /// # Panics
    /// Of a plan without transports, which is not valid.
    pub fn transport_of(&self, number: usize) -> Transport {
        self.transports[number % self.transports.len()]
    }

    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        let wrong = |settings, why: &str| Err(BadSetting::new(settings, why));
        if (self.message_bytes as usize) < STAMP_BYTES {
            let why = format!(
                "a message must have at least {STAMP_BYTES} bytes, for its number and its checksum"
            );
            return wrong(&["message_bytes"], &why);
        }
        if u64::from(self.message_bytes) + 128 > u64::from(self.batch_bytes) {
            let why = format!(
                "a message of {} does not fit into a batch of {}",
                Size(self.message_bytes.into()),
                Size(self.batch_bytes.into())
            );
            return wrong(&["batch_bytes"], &why);
        }
        if self.acks == 0 && self.order >= 2 {
            return wrong(&["acks"], "orders 2 and 5 acknowledge everything");
        }
        if self.acks == 2 && self.replication_factor < 2 {
            let why = "acks 2 needs a topic on a disk, which has a replication factor of 2 or more";
            return wrong(&["replication_factor", "acks"], why);
        }
        self.validate_power()?;
        if self.rate < self.publishers {
            return wrong(
                &["rate"],
                "each publisher must publish at least one message per second",
            );
        }
        let times: [(&'static [&'static str], _); 2] =
            [(&["duration"], self.duration), (&["every"], self.every)];
        for (setting, time) in times {
            if time.is_zero() || time > DURATION_MAX {
                let days = DURATION_MAX.as_secs() / 86_400;
                let why = format!("this time must be above 0 and at most {days} days");
                return wrong(setting, &why);
            }
        }
        if self.transports.is_empty() {
            return wrong(&["transports"], "name at least one transport");
        }
        if self.pause_for.longest > PAUSE_MAX {
            let why = format!(
                "a pause must be at most {PAUSE_MAX:?}: a process that waits much longer counts as hanging"
            );
            return wrong(&["pause_for"], &why);
        }
        if self.brokers < 2 {
            return wrong(
                &["brokers"],
                "a head and at least one data broker are needed",
            );
        }
        for fault in &self.faults {
            if fault.action == Action::Pause && fault.victim == Victim::Cluster {
                return wrong(&["faults"], "the cluster can be killed, and not be paused");
            }
        }
        if self.includes(Fault::DRAIN) && self.brokers < 3 {
            return wrong(
                &["brokers", "faults"],
                "the last broker that takes data cannot leave",
            );
        }
        Ok(())
    }

    fn validate_power(&self) -> Result<(), BadSetting> {
        if self.power.is_none() {
            return Ok(());
        }
        if self.acks < 2 {
            let why = "only what was acknowledged with acks 2 outlives a power cut";
            return Err(BadSetting::new(&["acks"], why));
        }
        if self.order < 2 {
            let why = "power cuts are checked at orders 2 and 5 only";
            return Err(BadSetting::new(&["order"], why));
        }
        if self.subscribers > 0 {
            let why = "beside power cuts the disks are read, and nobody subscribes";
            return Err(BadSetting::new(&["subscribers"], why));
        }
        let others = [Fault::DRAIN, Fault::DELETE];
        if others.iter().any(|fault| self.includes(*fault)) || !self.hostile.is_empty() {
            let why = "beside power cuts, processes can be killed and paused, and nothing else can be done";
            return Err(BadSetting::new(&["cut"], why));
        }
        Ok(())
    }

    /// Whether subscribers read the topic, which are then checks of their own. After a power cut the disks alone are read.
    pub fn has_subscribers(&self) -> bool {
        self.power.is_none()
    }

    /// Whether something is asked for that happens to these.
    pub fn includes(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether what was acknowledged may be out of reach for a while: only the broker that took it has it, and that may
    /// have left the cluster.
    pub fn may_be_away(&self) -> bool {
        self.order < 2 && self.includes(Fault::DRAIN)
    }

    /// The stream that a broker's positions are of.
    pub fn stream(&self, broker: u32) -> Stream {
        (self.order < 2).then_some(broker)
    }

    /// Places of brokers that join: instead of those that left, where these are not missed.
    pub fn spares(&self) -> u16 {
        u16::from(self.order >= 2 && self.includes(Fault::DRAIN))
    }

    /// Bytes of all messages, at the rate that was asked for.
    pub fn bytes(&self) -> u64 {
        let messages = f64::from(self.rate) * self.duration.as_secs_f64();
        (messages * f64::from(self.message_bytes)) as u64
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let faults = if self.faults.is_empty() {
            "no faults".to_owned()
        } else {
            let faults: Vec<String> = self.faults.iter().map(Fault::to_string).collect();
            format!("{} each every {:?}", faults.join(", "), self.every)
        };
        let retention = match self.retention_bytes {
            0 => String::new(),
            bytes => format!(", {} kept on each broker", Size(bytes)),
        };
        let power = match &self.power {
            Some(PowerPlan { file_system, cuts }) => {
                format!("{cuts} power cuts on {file_system}; ")
            }
            None => String::new(),
        };
        let time = match self.power {
            Some(_) => "until the last cut".to_owned(),
            None => format!("for {:?}", self.duration),
        };
        let hostile = match self.hostile.len() {
            0 => String::new(),
            count => format!("{count} hostile clients; "),
        };
        format!(
            "order {}, ack {}, replication factor {}, {} publishers and {} subscribers by {}, {} messages/s of {} bytes in batches of {} {time}; \
             {} brokers and {} standbys, region {}{retention}; {faults}; {power}{hostile}seed {}",
            self.order,
            self.acks,
            self.replication_factor,
            self.publishers,
            self.subscribers,
            texts(&self.transports).join(", "),
            self.rate,
            self.message_bytes,
            Size(self.batch_bytes.into()),
            self.brokers,
            self.standbys,
            Size(self.region_bytes),
            self.seed,
        )
    }
}

fn texts(transports: &[Transport]) -> Vec<String> {
    transports.iter().map(Transport::to_string).collect()
}

fn as_texts<S: Serializer>(transports: &[Transport], serializer: S) -> Result<S::Ok, S::Error> {
    texts(transports).serialize(serializer)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::loop_disk::FileSystem;
    use super::*;

    /// A plan that is valid.
    pub fn plan() -> VerifyPlan {
        VerifyPlan {
            order: 5,
            acks: 1,
            replication_factor: 1,
            publishers: 8,
            subscribers: 3,
            message_bytes: 200,
            batch_bytes: 16 << 10,
            rate: 1000,
            duration: Duration::from_secs(3),
            brokers: 3,
            standbys: 1,
            region_bytes: 1 << 30,
            retention_bytes: 0,
            faults: vec![Fault {
                action: Action::Kill,
                victim: Victim::Publisher,
            }],
            every: Duration::from_secs(2),
            pause_for: "1s".parse().expect("a span"),
            transports: vec![Transport::Auto, Transport::Tcp],
            power: None,
            hostile: vec![Pose::Publisher],
            seed: 7,
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        assert!(plan().validate().is_ok());
        let pause = Fault {
            action: Action::Pause,
            victim: Victim::Cluster,
        };
        let cut = VerifyPlan {
            power: Some(PowerPlan {
                file_system: FileSystem::Ext4,
                cuts: 1,
            }),
            acks: 2,
            replication_factor: 2,
            subscribers: 0,
            hostile: Vec::new(),
            ..plan()
        };
        assert!(cut.validate().is_ok());
        let wrong = [
            VerifyPlan {
                message_bytes: 23,
                ..plan()
            },
            VerifyPlan {
                message_bytes: 16 << 10,
                ..plan()
            },
            VerifyPlan {
                transports: Vec::new(),
                ..plan()
            },
            VerifyPlan { acks: 0, ..plan() },
            VerifyPlan { acks: 2, ..plan() },
            VerifyPlan { rate: 7, ..plan() },
            VerifyPlan {
                every: Duration::ZERO,
                ..plan()
            },
            VerifyPlan {
                duration: Duration::MAX,
                ..plan()
            },
            VerifyPlan {
                pause_for: "1s..20s".parse().expect("a span"),
                ..plan()
            },
            VerifyPlan {
                brokers: 1,
                ..plan()
            },
            VerifyPlan {
                faults: vec![pause],
                ..plan()
            },
            VerifyPlan {
                faults: Fault::ALL.to_vec(),
                brokers: 2,
                ..plan()
            },
            VerifyPlan {
                acks: 1,
                ..cut.clone()
            },
            VerifyPlan {
                order: 1,
                ..cut.clone()
            },
            VerifyPlan {
                subscribers: 1,
                ..cut.clone()
            },
            VerifyPlan {
                faults: Fault::ALL.to_vec(),
                ..cut
            },
        ];
        let settings = [
            "message_bytes",
            "batch_bytes",
            "transports",
            "acks",
            "replication_factor",
            "rate",
            "every",
            "duration",
            "pause_for",
            "brokers",
            "faults",
            "faults",
            "acks",
            "order",
            "subscribers",
            "cut",
        ];
        assert_eq!(settings.len(), wrong.len());
        for (setting, plan) in settings.into_iter().zip(wrong) {
            let error = plan.validate().expect_err("refused");
            assert!(error.settings.contains(&setting), "{error}: {plan:?}");
        }
    }

    #[test]
    fn the_description_has_all_the_numbers() {
        let text = plan().describe();
        for part in [
            "order 5",
            "8 publishers",
            "3 subscribers",
            "200 bytes",
            "16KiB",
            "for 3s",
            "kill publisher each every 2s",
            "1 hostile clients",
            "seed 7",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(plan().bytes(), 3000 * 200);
    }
}
