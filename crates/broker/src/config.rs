//! Settings of one broker, their defaults, and which values are refused. `tests/settings.rs` shows what each setting
//! does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use embar_disk::format::DISKS_MAX;
use embar_order::{Limits, LimitsError};
use embar_wire::limits::{MAX_BATCH_BYTES, MIN_BATCH_BYTES};

use crate::receive_path::ReceivePath;

/// How one broker listens, what it admits and when it gives up on a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// Where to listen. Port 0 takes any free port.
    pub listen: SocketAddr,
    /// Allow an address that other machines can reach. There is no
    /// authentication, so the default is loopback only.
    pub insecure_listen: bool,
    /// Listen on a Unix socket beside it: `sockets/<id>` in the region's directory, which only the user of this
    /// process and root may open. Clients on this machine find it by themselves, and prefer it. Without a
    /// directory, or where its path is too long for a socket (107 bytes), there is none; the log says so.
    pub unix_socket: bool,
    /// Listen beside that for connections by shared memory: `sockets/<id>.shm`. Only brokers that take data do, with a
    /// Unix socket, and with [`ReceivePath::Direct`] or [`ReceivePath::Staging`]. One of 16 of `max_connections` may go
    /// that way, as each takes 1 MiB. Others come by the Unix socket.
    pub shared_memory: bool,
    /// Threads that receive and send; each has its own lane. At most 8.
    pub network_threads: u16,
    /// Largest batch, and so the largest message, in bytes with its header.
    pub max_batch_bytes: u32,
    /// The broker admits no batch while those in flight, in the log and in staging memory, hold more than
    /// this: percent of the log's size.
    pub high_watermark_percent: u8,
    /// Percent below which the broker admits batches again.
    pub low_watermark_percent: u8,
    /// How long a publisher may wait above the high watermark, or for free space, before the broker refuses it
    /// with `Backpressure`.
    pub backpressure_timeout: Duration,
    /// How long one frame may take from its first to its last byte.
    pub frame_timeout: Duration,
    /// How long a new connection may take to say hello.
    pub hello_timeout: Duration,
    /// How long a peer may be silent before the broker takes it for dead; zero: for ever. A peer that lives is
    /// never silent for so long: both ends send heartbeats. Every peer has at least a second. Also how long an
    /// answer may wait for a peer that does not read.
    pub idle_timeout: Duration,
    /// The broker sends a heartbeat after it has sent nothing for this long; zero: never.
    pub keep_alive: Duration,
    /// Connections at once. The broker refuses one more, and says why. No host but this machine gets more than
    /// half of what the others leave, and the last few are for the machines of the cluster. Many clients behind
    /// one address (a router, containers on one machine) count as one host: allow twice as many connections as
    /// they make.
    pub max_connections: usize,
    /// `SO_RCVBUF` for publishers in bytes; `None` leaves the kernel's autotuning on.
    pub recv_buffer_bytes: Option<u32>,
    /// `SO_SNDBUF` for subscribers in bytes; `None` leaves the kernel's autotuning on. To clients on this machine it is
    /// then 1 MiB by Unix sockets, and 512 KiB by TCP.
    pub send_buffer_bytes: Option<u32>,
    /// How the threads receive payloads. A way that this machine does not allow gives way to
    /// [`ReceivePath::Direct`], and the broker logs why.
    pub receive: ReceivePath,
    /// How long a network thread looks for what comes before it sleeps; with [`ReceivePath::Direct`] and
    /// [`ReceivePath::Staging`]. Zero, the default: it sleeps at once. What comes within this time costs no wake-up, at the
    /// price of a busy core.
    pub spin: Duration,
    /// Touch all of the broker's memory before it serves. Otherwise it serves at once, and the first batch in each 4 KiB waits for a page
    /// fault: the first pass over a log is then many times slower.
    pub prefault: bool,
    /// Time the stages of the publish pipeline.
    pub metering: bool,
    /// How often the profile goes to the log while there is traffic.
    pub profile_interval: Duration,
    /// Directories that are the disks of the log, in any order; at most [`DISKS_MAX`]. Without any the log is in memory alone.
    /// All processes of a cluster have the same: who sequences writes them, and data brokers read them. The head makes those
    /// that are not there.
    pub data: Vec<PathBuf>,
    /// Take directories on one device, although what fails together protects from nothing. For tests.
    pub same_device_is_fine: bool,
    /// Most bytes of each disk that the log takes, beside the segment that it writes: the oldest segments go, whatever their topics are
    /// to retain. Without it, as much as topics are to retain.
    pub disk_size: Option<u64>,
    /// Bytes that are read of each disk in a second to find damage in segments that are over; 0: none.
    pub scrub_rate: u64,
    /// How long the disks keep a batch at most, beside the segment that is written: older segments go, whatever their topics are to retain.
    /// Without it, as long as topics are to retain.
    pub disk_age: Option<Duration>,
    /// How long the active sequencer may stand still before a standby takes over. A standby replaces a dead one at
    /// once.
    pub sequencer_lease: Duration,
    /// How long the batches of a session wait for a missing one before the session's epoch ends.
    pub gap_lease: Duration,
    /// Batches that a session may be ahead of its first missing one.
    pub session_window: u32,
    /// Batches that may wait for a missing one, of all sessions together.
    pub held_batches: u32,
    /// How long a session without a connection must have been silent before a new one may have its
    /// place, when there is no other. Longer than brokers take to say that a session has a connection.
    pub session_idle: Duration,
}

/// Network threads of one broker, at most.
pub const MAX_NETWORK_THREADS: u16 = 8;
/// Shorter leases would take a busy machine for a dead sequencer.
const MIN_SEQUENCER_LEASE: Duration = Duration::from_millis(100);
/// Largest batch that a broker takes by default: four default batches.
const DEFAULT_MAX_BATCH_BYTES: u32 = 8 << 20;

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            insecure_listen: false,
            unix_socket: true,
            shared_memory: true,
            network_threads: 1,
            max_batch_bytes: DEFAULT_MAX_BATCH_BYTES,
            high_watermark_percent: 75,
            low_watermark_percent: 50,
            backpressure_timeout: Duration::from_secs(2),
            frame_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(5),
            max_connections: 4096,
            recv_buffer_bytes: None,
            send_buffer_bytes: None,
            receive: ReceivePath::default(),
            spin: Duration::ZERO,
            prefault: true,
            metering: true,
            profile_interval: Duration::from_secs(10),
            data: Vec::new(),
            same_device_is_fine: false,
            disk_size: None,
            scrub_rate: 16 << 20,
            disk_age: None,
            sequencer_lease: Duration::from_secs(1),
            gap_lease: Duration::from_secs(10),
            session_window: 256,
            held_batches: 1 << 16,
            session_idle: Duration::from_secs(1),
        }
    }
}

impl BrokerConfig {
    /// What bounds the sequencer. Of sessions and topics the region says how many there may be.
    pub fn order_limits(&self) -> Limits {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Limits {
            held: self.held_batches,
            window: self.session_window,
            gap_lease_ns: ns(self.gap_lease),
            session_idle_ns: ns(self.session_idle),
            ..Limits::default()
        }
    }

    /// Disks of the log.
    pub fn disks(&self) -> u16 {
        self.data.len() as u16
    }

    /// Refuses settings that contradict each other or would be unsafe.
    ///
    /// # Errors
    /// [`ConfigError`] names the first one.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.listen.ip().is_loopback() && !self.insecure_listen {
            return Err(ConfigError::Exposed {
                listen: self.listen,
            });
        }
        if self.network_threads == 0 || self.network_threads > MAX_NETWORK_THREADS {
            return Err(ConfigError::NetworkThreads {
                threads: self.network_threads,
            });
        }
        if !(MIN_BATCH_BYTES..=MAX_BATCH_BYTES).contains(&self.max_batch_bytes) {
            return Err(ConfigError::MaxBatch {
                bytes: self.max_batch_bytes,
            });
        }
        if self.low_watermark_percent >= self.high_watermark_percent
            || self.high_watermark_percent > 100
        {
            return Err(ConfigError::Watermarks {
                low_percent: self.low_watermark_percent,
                high_percent: self.high_watermark_percent,
            });
        }
        if self.sequencer_lease < MIN_SEQUENCER_LEASE {
            return Err(ConfigError::SequencerLease {
                lease: self.sequencer_lease,
            });
        }
        self.order_limits().check()?;
        if self.max_connections == 0 {
            return Err(ConfigError::NoConnections);
        }
        if self.data.len() > DISKS_MAX.into() {
            return Err(ConfigError::Disks {
                given: self.data.len(),
            });
        }
        Ok(())
    }
}

/// Which setting of a broker cannot be used, and what to choose instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Anybody in the network could publish, read and administer.
    #[error(
        "{listen} can be reached from other machines and there is no authentication: \
         listen on 127.0.0.1, or pass --insecure-listen if the network is trusted"
    )]
    Exposed {
        /// The address that was asked for.
        listen: SocketAddr,
    },
    /// Each thread has a lane of its own, and a row has [`MAX_NETWORK_THREADS`] lanes.
    #[error("network threads must be 1 to {MAX_NETWORK_THREADS}, not {threads}")]
    NetworkThreads {
        /// How many were asked for.
        threads: u16,
    },
    /// No batch frame has this size.
    #[error("the largest batch must be {MIN_BATCH_BYTES} to {MAX_BATCH_BYTES} bytes, not {bytes}")]
    MaxBatch {
        /// The size that was asked for.
        bytes: u32,
    },
    /// The broker could never admit batches again.
    #[error("watermarks must satisfy low < high <= 100, not {low_percent} and {high_percent}")]
    Watermarks {
        /// The low one, in percent.
        low_percent: u8,
        /// The high one, in percent.
        high_percent: u8,
    },
    /// A busy machine would be taken for a dead sequencer.
    #[error("the sequencer's lease must be at least {MIN_SEQUENCER_LEASE:?}, not {lease:?}")]
    SequencerLease {
        /// The lease that was asked for.
        lease: Duration,
    },
    /// The sequencer cannot work with these limits.
    #[error(transparent)]
    Order(#[from] LimitsError),
    /// Nobody could connect.
    #[error("at least one connection must be allowed")]
    NoConnections,
    /// A log has fewer disks.
    #[error("the log can be on {DISKS_MAX} disks at most, not on {given}: give fewer directories")]
    Disks {
        /// How many directories were given.
        given: usize,
    },
}
