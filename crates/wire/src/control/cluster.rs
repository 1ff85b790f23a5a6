//! Messages about brokers: who is there, how they are, who joins.

use super::error::ControlError;
use super::field::{Body, Field, Nested, choice, message};
use crate::proto::{BrokerView, DiskStatusView};
use crate::topic::Order;

choice! {
    /// How far a broker is in its life.
    BrokerState as BrokerState {
        /// It prepares its memory.
        Starting = 1,
        /// It serves.
        Ready = 2,
        /// It takes nothing new and closes soon.
        Draining = 3,
        /// It is no more, and may come back.
        Gone = 4,
        /// It was removed from the cluster: its peers do not wait for it.
        Left = 5,
    }
}

choice! {
    /// What a broker is to the cluster.
    BrokerRole as BrokerRole {
        /// It created the region and answers questions about the cluster.
        Head = 1,
        /// It joined.
        Member = 2,
    }
}

/// One broker of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerInfo {
    /// Its row.
    pub id: u32,
    /// Its state.
    pub state: BrokerState,
    /// Where it listens, as `ip:port`.
    pub address: String,
    /// Its incarnation.
    pub incarnation: u32,
    /// Its role.
    pub role: BrokerRole,
    /// Whether publishers and subscribers may connect to it.
    pub takes_data: bool,
    /// The machine on which it listens on a socket file, too, which is the one with its number in
    /// [`ClusterMetadata::socket_dir`]; 0 if it does not.
    pub socket_machine: u64,
}

impl Body for BrokerInfo {
    type View<'a> = BrokerView<'a>;

    fn to_view(&self) -> BrokerView<'_> {
        BrokerView {
            id: self.id,
            state: self.state.to_wire(),
            address: &self.address,
            incarnation: self.incarnation,
            role: self.role.to_wire(),
            takes_data: self.takes_data,
            socket_machine: self.socket_machine,
        }
    }

    fn from_view(view: BrokerView<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            id: view.id,
            state: BrokerState::from_wire(view.state, "state")?,
            address: view.address.to_owned(),
            incarnation: view.incarnation,
            role: BrokerRole::from_wire(view.role, "role")?,
            takes_data: view.takes_data,
            socket_machine: view.socket_machine,
        })
    }
}

impl Nested for BrokerInfo {}

message! {
    /// Asks who is in the cluster.
    Metadata as MetadataView {
        /// A topic whose order is asked for, too.
        topic: Option<String>,
    }
}

message! {
    /// Answer to [`Metadata`]; also sent unasked to publishers and subscribers when brokers come and go.
    ClusterMetadata as ClusterMetadataView {
        /// Row of the head.
        head: u32,
        /// All brokers, the head included.
        brokers: Vec<BrokerInfo>,
        /// Order of the topic that was asked for; `None` if none was, or this broker knows no such
        /// topic.
        topic_order: Option<Order>,
        /// Row of the broker that sequences the topics with a total order; `None` while none does.
        sequencer: Option<u32>,
        /// Nonce of the cluster's region; 0 if it is not said.
        region: u64,
        /// Directory of the brokers' socket files, each named by its broker's row; empty if there are none.
        socket_dir: String,
    }
}

choice! {
    /// What a disk of the log does.
    DiskState as DiskState {
        /// Its writer finds out what counts, or nobody writes it.
        Opens = 1,
        /// It takes what comes.
        Writes = 2,
        /// It failed, and takes nothing more before the cluster is started again.
        Failed = 3,
        /// It is full, and takes no batches until there is room.
        Full = 4,
    }
}

/// One disk of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStatus {
    /// Its number, from 0.
    pub number: u32,
    /// What it does, as the one that sequences says.
    pub state: DiskState,
    /// Its directory.
    pub directory: String,
    /// Bytes that its file system has room for.
    pub free_bytes: u64,
}

impl Body for DiskStatus {
    type View<'a> = DiskStatusView<'a>;

    fn to_view(&self) -> DiskStatusView<'_> {
        DiskStatusView {
            number: self.number,
            state: self.state.to_wire(),
            directory: &self.directory,
            free_bytes: self.free_bytes,
        }
    }

    fn from_view(view: DiskStatusView<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            number: view.number,
            state: DiskState::from_wire(view.state, "state")?,
            directory: view.directory.to_owned(),
            free_bytes: view.free_bytes,
        })
    }
}

impl Nested for DiskStatus {}

message! {
    /// Counters of one broker, since it started unless said otherwise.
    BrokerStatus as BrokerStatusView {
        /// Its row.
        broker: u32,
        /// Nanoseconds since it started.
        uptime_ns: u64,
        /// Connections open now.
        connections: u64,
        /// Bytes of its payload log.
        payload_total_bytes: u64,
        /// Bytes of it that are free now.
        payload_free_bytes: u64,
        /// Batches accepted.
        batches: u64,
        /// Messages accepted.
        messages: u64,
        /// Bytes received from sockets.
        bytes_in: u64,
        /// Bytes sent to sockets.
        bytes_out: u64,
        /// Batches refused.
        refused_batches: u64,
        /// Connections that it does not read now, for want of room.
        backpressured_connections: u64,
        /// Processor time of the process, in nanoseconds.
        cpu_ns: u64,
        /// Page faults served without I/O.
        minor_faults: u64,
        /// Most memory the process had resident, in bytes.
        peak_memory_bytes: u64,
        /// Nanoseconds since its last heartbeat.
        heartbeat_age_ns: u64,
        /// Places of shared memory where it found one wrong bit, and put it right: 1024 are counted at most,
        /// of these and the damaged ones together.
        repaired_records: u64,
        /// Places of shared memory where it found more than that, and which it does not use.
        damaged_records: u64,
        /// Connections open now that came by its Unix socket.
        unix_connections: u64,
        /// Connections by its socket files that it refused, because another user's process made them.
        refused_users: u64,
        /// Connections open now that go through shared memory.
        shm_connections: u64,
        /// Bytes of its payload log in blocks of which readers have something where it lies; an eighth of all at most.
        lent_bytes: u64,
        /// Those of them that it keeps for readers of which it hears no more.
        held_bytes: u64,
        /// Batches in its lanes that wait for their place in an order.
        lane_batches: u64,
        /// Of these, batches that wait for an earlier one of their publisher.
        held_batches: u64,
        /// Batches that all its lanes hold at most.
        lane_capacity: u64,
        /// The disks of the log, as this broker sees them.
        disks: Vec<DiskStatus>,
    }
}

impl Nested for BrokerStatus {}

message! {
    /// Answer to Status.
    StatusReply as StatusReplyView {
        /// One entry per broker that was asked.
        brokers: Vec<BrokerStatus>,
    }
}

/// Name of the disks' snapshot in a [`ProfileReply`].
pub const DISK_PROFILE: &str = "disks";

message! {
    /// Answer to Profile.
    ProfileReply as ProfileReplyView {
        /// The snapshot, as JSON; that of the disks is a part of it, at a process that has any.
        json: Vec<u8>,
    }
}

message! {
    /// Switches metering on or off; answered by Done.
    SetMetering as SetMeteringView {
        /// Whether stages are timed.
        on: bool,
    }
}

message! {
    /// Asks a broker to leave the cluster for good; answered by Done as soon as it takes nothing new.
    RemoveBroker as RemoveBrokerView {
        /// Row of the broker that is asked.
        broker: u32,
        /// Also when it has what no other broker has.
        force: bool,
    }
}

message! {
    /// A broker asks the head for its row.
    Join as JoinView {
        /// Its process id.
        pid: u32,
        /// Where it listens, as `ip:port`.
        address: String,
        /// Whether it will take data.
        takes_data: bool,
    }
}

message! {
    /// Answer to [`Join`].
    Joined as JoinedView {
        /// The row it may claim.
        broker_id: u32,
        /// Directory of the region.
        region_dir: String,
        /// The region's nonce, to be compared after opening it.
        nonce: u64,
    }
}
