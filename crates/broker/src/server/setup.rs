//! From a role to a broker that is ready to serve: region, row, sequencer, log.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use embar_fabric::owner::Claim;
use embar_fabric::records::BrokerRow;
use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_transport::Listener;
use embar_transport::socket::{LOOPBACK_SEND_BUFFER_BYTES, SocketOptions, UNIX_SEND_BUFFER_BYTES};

use super::alive::is_alive;
use super::disk_writer::DiskLimits;
use super::local_sockets::LocalSockets;
use super::progress::Progress;
use super::region::{Place, join_region, open_as_head};
use super::restore;
use super::role::Role;
use super::sequencer_thread::{self, SequencerThread};
use super::start_error::StartError;
use super::stop::StopSignal;
use crate::broker_row::BrokerRowPublisher;
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::disks::Disks;
use crate::heartbeat::Heartbeat;
use crate::journal::Limits;
use crate::log::{Log, Recovered, Rejoin, Watermarks};
use crate::node::Node;
use crate::places::HEAD;
use crate::topics::TopicTable;

/// How long a broker that takes data waits for a sequencer that does not answer.
const SEQUENCER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How often a broker that recovers reports that it goes on.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// A broker that has everything but its network threads.
pub(super) struct Joined {
    pub node: Arc<Node<Mapped>>,
    pub claim: Arc<Claim>,
    /// For clients on this machine.
    pub local_listeners: Vec<Listener>,
    pub recovered: Recovered,
    /// Has beaten once.
    pub heartbeat: Heartbeat<Mapped>,
    /// Of a candidate.
    pub sequencer: Option<SequencerThread>,
    pub disks: Arc<Disks>,
}

pub(super) fn socket_options(config: &BrokerConfig) -> SocketOptions {
    SocketOptions {
        recv_buffer_bytes: config.recv_buffer_bytes.map(|b| b as usize),
        send_buffer_bytes: config.send_buffer_bytes.map(|b| b as usize),
        unix_send_buffer_bytes: Some(UNIX_SEND_BUFFER_BYTES),
        loopback_send_buffer_bytes: Some(LOOPBACK_SEND_BUFFER_BYTES),
        ..SocketOptions::default()
    }
}

/// Takes the region and the row that go with the role, and recovers what is there.
pub(super) fn join(
    role: Role,
    config: BrokerConfig,
    address: SocketAddr,
    clock: Clock,
    stop: &Arc<StopSignal>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Joined, StartError> {
    let coherence = role.coherence();
    let place = match role {
        Role::Head { dir, region } => open_as_head(&dir, region, config.disks(), progress)?,
        Role::Follower { entry, coherence } => join_region(entry, true, coherence, &config)?,
        Role::Standby { entry, coherence } => join_region(entry, false, coherence, &config)?,
    };
    // Before the slow part, and before anybody hears of this process: what is wrong with a directory is said at once.
    let opened = open_disks(&config, &place).and_then(|mut disks| {
        restore::restore(&place.region, &place.claim, &disks, progress)?;
        disks.keep();
        Ok(Arc::new(disks))
    });
    let disks = match opened {
        Ok(disks) => disks,
        Err(error) => {
            place.give_up();
            return Err(error);
        }
    };
    let (region, claim) = (place.region, Arc::new(place.claim));
    let local = LocalSockets::open(&region, &claim, &config, &socket_options(&config));
    let mut described = describe(&config, address, clock);
    described.socket_machine = local.machine.map_or(0, NonZeroU64::get);
    let (row, heartbeat) = announce(&region, &claim, described, clock);
    if config.prefault {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        region.prefault(claim.row(), threads, &|done, total| {
            progress(Progress::Prefault { done, total })
        })?;
    }
    // Before the log: a head that is alone is its own log's sequencer.
    let sequencer = match region.geometry().area_of(claim.row()) {
        Some(_) => {
            let limits = DiskLimits {
                kept: Limits::of(config.disk_size, config.disk_age),
                scrub_rate: config.scrub_rate,
            };
            let writers =
                restore::start_writers(&region, &claim, &disks, (coherence, limits), clock)?;
            let started = sequencer_thread::start(&region, &claim, &config, stop, clock, writers);
            Some(started?)
        }
        None => None,
    };
    let topic_writer = (claim.row() == HEAD).then(|| region.topic_record_writer(&claim));
    let topics = TopicTable::attach(&region, topic_writer);
    let log = match region.geometry().takes_data(claim.row()) {
        true => Some(open_log(&region, &claim, &config, &topics, progress)?),
        false => None,
    };
    let recovered = log.as_ref().map_or_else(Recovered::default, Log::recovered);
    if recovered.damaged > 0 {
        tracing::error!(
            damaged = recovered.damaged,
            "batches were damaged and are lost"
        );
    }
    let locks = region.clone();
    let alive = Box::new(move |row| is_alive(&locks, row));
    let mut node = Node::new(config, &claim, region, alive, row, topics, log);
    if disks.iter().next().is_some() {
        node = node.with_disks(&disks);
    }
    Ok(Joined {
        node: Arc::new(node),
        claim,
        local_listeners: local.listeners,
        recovered,
        heartbeat,
        sequencer,
        disks,
    })
}

/// Opens the disks that the region has places for.
fn open_disks(config: &BrokerConfig, place: &Place) -> Result<Disks, StartError> {
    let (made_for, given) = (place.region.geometry().disks, config.disks());
    if given != made_for {
        return Err(StartError::OtherDisks { made_for, given });
    }
    Ok(Disks::open(config, &place.region, place.claim.row())?)
}

/// What this process says of itself in its row.
fn describe(config: &BrokerConfig, address: SocketAddr, clock: Clock) -> BrokerRow {
    let mut row = BrokerRow {
        pid: std::process::id(),
        lanes: config.network_threads,
        started: clock.read().wall.0,
        ..BrokerRow::default()
    };
    row.set_address(address);
    row
}

/// Publishes that the owner of the claim starts, and beats once.
fn announce(
    region: &Region<Mapped>,
    claim: &Claim,
    row: BrokerRow,
    clock: Clock,
) -> (BrokerRowPublisher<Mapped>, Heartbeat<Mapped>) {
    let publisher = BrokerRowPublisher::start(region, claim, row);
    let mut heartbeat = Heartbeat::new(region, claim, row.pid);
    heartbeat.begin(clock.read());
    (publisher, heartbeat)
}

/// Opens the log of the claimed row, and waits until the sequencer has taken in what an owner before left.
fn open_log(
    region: &Region<Mapped>,
    claim: &Arc<Claim>,
    config: &BrokerConfig,
    topics: &TopicTable<Mapped>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Log<Mapped>, StartError> {
    let known: Vec<_> = topics.iter().cloned().collect();
    let marks = Watermarks::of(region.geometry().payload_bytes, config);
    report_while(progress, || {
        let mut log = Log::open(region, claim, marks, &known);
        await_sequencer(&mut log).map(|()| log)
    })?
}

/// Recovers, and reports every second that it goes on. Recovery is a pass over this broker's memory and then a
/// wait that ends by itself, so as long as the process runs, it gets on with it.
fn report_while<T>(
    progress: &(dyn Fn(Progress) + Sync),
    recover: impl FnOnce() -> T,
) -> io::Result<T> {
    let (over, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("embar-recovers".into())
            .spawn_scoped(scope, move || {
                loop {
                    progress(Progress::Recovering);
                    if ended.recv_timeout(REPORT_EVERY) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })?;
        // Dropped also by a panic, or the scope would wait for the reporting thread for ever.
        let _over = over;
        Ok(recover())
    })
}

/// Waits until the sequencer has taken in what this row's owner before left. Before that the order of those
/// batches is not known.
fn await_sequencer(log: &mut Log<Mapped>) -> Result<(), StartError> {
    let mut waits_since = Instant::now();
    loop {
        match log.rejoin() {
            Rejoin::Done => return Ok(()),
            Rejoin::Progressed => waits_since = Instant::now(),
            Rejoin::Waiting if waits_since.elapsed() >= SEQUENCER_TIMEOUT => {
                let waited = SEQUENCER_TIMEOUT;
                return Err(StartError::NoSequencer { waited });
            }
            Rejoin::Waiting => std::thread::sleep(LOOK_EVERY),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_long_recovery_reports_that_it_goes_on() {
        let reports = AtomicU32::new(0);
        let report = |step| {
            assert_eq!(step, Progress::Recovering);
            reports.fetch_add(1, Ordering::Relaxed);
        };
        let recover = || {
            while reports.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            7
        };
        assert_eq!(report_while(&report, recover).expect("a thread"), 7);
    }
}
