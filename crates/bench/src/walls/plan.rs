//! What `bench walls` measures: paths, orders, sizes of batches, rounds.

use std::time::Duration;

use embar_broker::ReceivePath;
use embar_console::setting::BadSetting;
use embar_console::size::Size;
use serde::Serialize;

use crate::plan::{BenchPlan, Metering};
use crate::stamp::STAMP_BYTES;
use crate::wall::drive::WallPlan;
use crate::wall::shm::drive::ShmPlan;
use crate::wall::shm::messages::Shape;
use crate::wall::stream::Transport;
use crate::wall::wire::BATCH_HEAD_BYTES;

/// Largest batch: a receiving process hands out its ring in blocks of so many bytes.
const BATCH_BYTES_MAX: u32 = 16 << 20;
/// A trial that is timed has one round trip for so many bytes of the others.
const BYTES_PER_ROUND_TRIP: u64 = 64 << 10;

/// Bytes of a batch in shared memory: as much as is handed over at once at most.
pub const SHM_BATCH_BYTES: u32 = 256 << 10;
/// How long brokers and clients look before they sleep, where times are measured of those that spin: longer than any message
/// takes that meets no other work.
pub const SPIN: Duration = Duration::from_millis(1);
/// Bytes of shared memory of a broker that spins.
pub const SPINNING_REGION_BYTES: u64 = 512 << 20;
/// In shared memory messages of this size are measured, too: there a message costs more than its bytes do.
pub const SMALL_MESSAGE_BYTES: u32 = 64;

/// Where bytes go, and what carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Path {
    /// From a publisher into the log, over TCP.
    PublishTcp,
    /// From the log to a subscriber, over TCP.
    ReadTcp,
    /// Both at once, over TCP.
    E2eTcp,
    /// As `PublishTcp`, over Unix sockets.
    PublishUnix,
    /// As `ReadTcp`, over Unix sockets.
    ReadUnix,
    /// As `E2eTcp`, over Unix sockets.
    E2eUnix,
    /// As `PublishTcp`, through shared memory.
    PublishShm,
    /// As `ReadTcp`, in shared memory.
    ReadShm,
    /// As `E2eTcp`, through shared memory.
    E2eShm,
    /// The time from a message to its acknowledgement, through shared memory.
    AckShm,
    /// The time from a message to its delivery, through shared memory.
    DeliveryShm,
    /// From a publisher into the log, over TCP, while another client publishes, too.
    BesideTcp,
}

/// What carries the bytes of a [`Path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Sockets of this kind.
    Sockets(Transport),
    /// Memory that both sides map.
    Shm,
}

/// The part of a [`Path`] that says where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the log.
    Publish,
    /// Out of it.
    Read,
    /// Through it.
    E2e,
    /// One message into it, and its acknowledgement back.
    Ack,
    /// One message through it.
    Delivery,
    /// Into the log, beside a neighbour.
    Beside,
}

/// What ours runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// A head and data brokers, as the plan says.
    Several,
    /// One broker, which also sequences.
    One,
    /// As `One`; it and its clients spin before they sleep.
    Spinning,
}

impl Cluster {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Several, Self::One, Self::Spinning];
}

/// What is measured in one go: trials of it alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Where bytes go.
    pub path: Path,
    /// Bytes of a batch.
    pub batch_bytes: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
}

impl Path {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::PublishTcp,
        Self::ReadTcp,
        Self::E2eTcp,
        Self::PublishUnix,
        Self::ReadUnix,
        Self::E2eUnix,
        Self::PublishShm,
        Self::ReadShm,
        Self::E2eShm,
        Self::AckShm,
        Self::DeliveryShm,
        Self::BesideTcp,
    ];

    /// As it is written in reports and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::PublishTcp => "publish_tcp",
            Self::ReadTcp => "read_tcp",
            Self::E2eTcp => "e2e_tcp",
            Self::PublishUnix => "publish_unix",
            Self::ReadUnix => "read_unix",
            Self::E2eUnix => "e2e_unix",
            Self::PublishShm => "publish_shm",
            Self::ReadShm => "read_shm",
            Self::E2eShm => "e2e_shm",
            Self::AckShm => "ack_shm",
            Self::DeliveryShm => "delivery_shm",
            Self::BesideTcp => "beside_tcp",
        }
    }

    /// Where its bytes go.
    pub fn direction(self) -> Direction {
        match self {
            Self::PublishTcp | Self::PublishUnix | Self::PublishShm => Direction::Publish,
            Self::ReadTcp | Self::ReadUnix | Self::ReadShm => Direction::Read,
            Self::E2eTcp | Self::E2eUnix | Self::E2eShm => Direction::E2e,
            Self::AckShm => Direction::Ack,
            Self::DeliveryShm => Direction::Delivery,
            Self::BesideTcp => Direction::Beside,
        }
    }

    /// Whether it begins with what is in the log.
    pub fn is_read(self) -> bool {
        self.direction() == Direction::Read
    }

    /// Whether its figures are times, and not rates.
    pub fn is_timed(self) -> bool {
        matches!(self.direction(), Direction::Ack | Direction::Delivery)
    }

    /// Which clusters ours is measured on. One broker and one client have a core each, of two.
    pub fn clusters(self) -> &'static [Cluster] {
        match (self.is_timed(), self.carrier()) {
            (true, _) => &[Cluster::Several, Cluster::Spinning],
            (false, Carrier::Shm) => &[Cluster::Several, Cluster::One],
            (false, Carrier::Sockets(_)) => &[Cluster::Several],
        }
    }

    /// What the log's clients are told to take.
    pub fn client_transport(self) -> embar_client::Transport {
        match self.carrier() {
            Carrier::Sockets(Transport::Tcp) => embar_client::Transport::Tcp,
            Carrier::Sockets(Transport::Unix) => embar_client::Transport::Unix,
            Carrier::Shm => embar_client::Transport::Shm,
        }
    }

    /// What carries its bytes.
    pub fn carrier(self) -> Carrier {
        match self {
            Self::PublishTcp | Self::ReadTcp | Self::E2eTcp | Self::BesideTcp => {
                Carrier::Sockets(Transport::Tcp)
            }
            Self::PublishUnix | Self::ReadUnix | Self::E2eUnix => Carrier::Sockets(Transport::Unix),
            Self::PublishShm | Self::ReadShm | Self::E2eShm | Self::AckShm | Self::DeliveryShm => {
                Carrier::Shm
            }
        }
    }
}

/// Parameters of a run; `config` in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct WallsPlan {
    /// What is measured.
    pub paths: Vec<Path>,
    /// Order levels of topics.
    pub orders: Vec<u32>,
    /// Bytes of a batch over sockets.
    pub batch_bytes: Vec<u32>,
    /// Bytes of a message; through shared memory, messages of 64 bytes are measured as well.
    pub message_bytes: u32,
    /// Bytes of all values of one trial.
    pub total_bytes: u64,
    /// Connections, and threads that serve them, for each data broker.
    pub threads_per_broker: u32,
    /// Connections from each receiving process to readers of the wall.
    pub read_connections: u16,
    /// Threads that read in the working walls; `null`: as many as a subscriber has.
    pub read_threads: Option<u16>,
    /// Brokers, the head included.
    pub brokers: u16,
    /// Brokers that take data, and receiving processes of the walls.
    pub data_brokers: u16,
    /// Threads of each broker.
    pub network_threads: u16,
    /// Bytes of shared memory in all, and of the rings of the walls.
    pub region_bytes: u64,
    /// Rounds measured.
    pub trials: usize,
    /// Rounds run before and thrown away.
    pub warmup: usize,
    /// Whether only the walls are measured, without the log.
    pub walls_only: bool,
}

impl WallsPlan {
    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        let wrong = |settings, why: &str| Err(BadSetting::new(settings, why));
        if self.message_bytes < STAMP_BYTES as u32 {
            let why = format!(
                "a message must have at least {STAMP_BYTES} bytes, for its sequence number and its checksum"
            );
            return wrong(&["message_bytes"], &why);
        }
        if self.trials == 0 {
            return wrong(&["trials"], "there must be at least one trial");
        }
        for batch in &self.batch_bytes {
            let needed = BATCH_HEAD_BYTES as u32 + self.message_bytes;
            if *batch < needed + 64 || *batch > BATCH_BYTES_MAX {
                let why = format!(
                    "a batch of {} must hold a message of {} and have at most {}",
                    Size((*batch).into()),
                    Size(self.message_bytes.into()),
                    Size(BATCH_BYTES_MAX.into())
                );
                return wrong(&["batch_bytes"], &why);
            }
        }
        let largest = self.batch_bytes.iter().max().copied().unwrap_or(0);
        if self.total_bytes < u64::from(largest) {
            return wrong(&["total_bytes"], "this is less than one batch");
        }
        let is_shm = |path: &Path| path.carrier() == Carrier::Shm;
        if self.paths.iter().any(is_shm)
            && Shape::new(SHM_BATCH_BYTES, self.message_bytes).is_none()
        {
            let why = format!(
                "through shared memory a batch has at most {}: choose smaller messages, or paths over sockets",
                Size(SHM_BATCH_BYTES.into())
            );
            return wrong(&["message_bytes"], &why);
        }
        let is_read = self.paths.iter().any(|path| path.is_read());
        let retained = self.total_bytes * self.orders.len() as u64;
        if is_read && !self.walls_only && retained > self.region_bytes / 10 * 6 {
            let why = format!(
                "to be read, {} for each order must fit into 60 % of the region",
                Size(self.total_bytes)
            );
            return wrong(&["total_bytes", "region_bytes"], &why);
        }
        Ok(())
    }

    /// All that is measured, one after the other.
    pub fn cases(&self) -> Vec<Case> {
        let of = |path: Path| {
            let case = move |batch_bytes, message_bytes| Case {
                path,
                batch_bytes,
                message_bytes,
            };
            let all: Vec<Case> = match path.carrier() {
                Carrier::Sockets(_) => {
                    let sizes = self.batch_bytes.iter();
                    sizes.map(|size| case(*size, self.message_bytes)).collect()
                }
                Carrier::Shm if path.is_timed() => vec![case(SHM_BATCH_BYTES, self.message_bytes)],
                Carrier::Shm => {
                    let mut sizes = vec![self.message_bytes, SMALL_MESSAGE_BYTES];
                    sizes.dedup();
                    let of_size = |message_bytes| case(SHM_BATCH_BYTES, message_bytes);
                    sizes.into_iter().map(of_size).collect()
                }
            };
            all
        };
        // A neighbour is one of the log.
        let paths = self.paths.iter().copied();
        let paths =
            paths.filter(|path| !(self.walls_only && path.direction() == Direction::Beside));
        paths.flat_map(of).collect()
    }

    /// Round trips of a trial that is timed.
    pub fn round_trips(&self) -> u64 {
        (self.total_bytes / BYTES_PER_ROUND_TRIP).max(1)
    }

    /// The trial of the log with these parameters.
    pub fn ours(&self, case: Case, order: u32, topic: &str) -> BenchPlan {
        let messages = self.total_bytes / u64::from(case.message_bytes);
        BenchPlan {
            topic: topic.to_owned(),
            message_bytes: case.message_bytes,
            messages,
            total_bytes: messages * u64::from(case.message_bytes),
            order,
            acks: 1,
            replication_factor: 1,
            data: Vec::new(),
            same_device_is_fine: false,
            threads_per_broker: self.threads_per_broker,
            publishers: 1,
            batch_bytes: case.batch_bytes,
            brokers: self.brokers,
            data_brokers: self.data_brokers,
            network_threads: self.network_threads,
            receive: ReceivePath::default(),
            region_bytes: self.region_bytes,
            trials: self.trials,
            warmup: self.warmup,
            metering: Metering::On,
            transport: case.path.client_transport(),
            spin: Duration::ZERO,
        }
    }

    /// The trial of a wall over sockets beside it. `read_threads` is what a subscriber has.
    pub fn wall(&self, case: Case, transport: Transport, read_threads: u16) -> WallPlan {
        WallPlan {
            transport,
            receivers: self.data_brokers,
            connections_per_receiver: self.threads_per_broker as u16,
            read_connections_per_receiver: self.read_connections,
            read_threads: self.read_threads.unwrap_or(read_threads),
            batch_bytes: case.batch_bytes,
            message_bytes: case.message_bytes,
            total_bytes: self.total_bytes,
            ring_bytes: self.region_bytes,
        }
    }

    /// The trial of a wall in shared memory beside it.
    pub fn shm_wall(&self, case: Case) -> ShmPlan {
        ShmPlan {
            message_bytes: case.message_bytes,
            total_bytes: self.total_bytes,
        }
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        format!(
            "{} of {}-byte messages a trial, {} trials after {} warm-up(s); {} brokers ({} take data), {} connection(s) \
             each, one publishing thread, ack 1, region and rings of {}; GB are 10^9 bytes of message values",
            Size(self.total_bytes),
            self.message_bytes,
            self.trials,
            self.warmup,
            self.brokers,
            self.data_brokers,
            self.threads_per_broker,
            Size(self.region_bytes),
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::ValueEnum;

    use super::*;

    /// A plan that is valid.
    pub fn plan() -> WallsPlan {
        WallsPlan {
            paths: Path::ALL.to_vec(),
            orders: vec![0, 5],
            batch_bytes: vec![2 << 20, 16 << 10],
            message_bytes: 1024,
            total_bytes: 64 << 20,
            threads_per_broker: 1,
            read_connections: 1,
            read_threads: None,
            brokers: 4,
            data_brokers: 3,
            network_threads: 1,
            region_bytes: 1 << 30,
            trials: 6,
            warmup: 1,
            walls_only: false,
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        assert!(plan().validate().is_ok());
        let mut small = plan();
        small.message_bytes = 16;
        let mut none = plan();
        none.trials = 0;
        let mut narrow = plan();
        narrow.batch_bytes = vec![2 << 20, 1024];
        let mut short = plan();
        short.total_bytes = 1 << 20;
        let mut full = plan();
        full.region_bytes = 128 << 20;
        for (setting, plan) in [
            ("message_bytes", &small),
            ("trials", &none),
            ("batch_bytes", &narrow),
            ("total_bytes", &short),
            ("region_bytes", &full),
        ] {
            let error = plan.validate().expect_err(setting);
            assert!(error.settings.contains(&setting), "{error}");
        }
        full.walls_only = true;
        assert!(full.validate().is_ok(), "the walls keep nothing");
    }

    #[test]
    fn a_message_must_fit_into_what_is_handed_over_in_shared_memory() {
        let mut large = plan();
        large.message_bytes = 1 << 20;
        large.batch_bytes = vec![2 << 20];
        let error = large.validate().expect_err("too large");
        assert!(error.settings.contains(&"message_bytes"), "{error}");
        large.paths.retain(|path| path.carrier() != Carrier::Shm);
        assert!(large.validate().is_ok(), "sockets take it");
    }

    #[test]
    fn sizes_of_batches_are_for_sockets_and_small_messages_for_shared_memory() {
        let cases = plan().cases();
        let of = |wanted: Path| -> Vec<(u32, u32)> {
            let cases = cases.iter().filter(|case| case.path == wanted);
            cases
                .map(|case| (case.batch_bytes, case.message_bytes))
                .collect()
        };
        assert_eq!(of(Path::ReadTcp), [(2 << 20, 1024), (16 << 10, 1024)]);
        assert_eq!(of(Path::PublishShm), [(256 << 10, 1024), (256 << 10, 64)]);
        assert_eq!(of(Path::AckShm), [(256 << 10, 1024)]);
        let mut small = plan();
        small.message_bytes = 64;
        small.paths = vec![Path::ReadShm];
        assert_eq!(small.cases().len(), 1, "no size twice");
    }

    #[test]
    fn paths_have_one_name_everywhere() {
        for path in Path::ALL {
            let value = path.to_possible_value().expect("an option");
            assert_eq!(value.get_name(), path.name());
            let json = serde_json::to_value(path).expect("JSON");
            assert_eq!(json, path.name());
        }
    }
}
