//! From a role to a broker that is ready to serve: region, row, sequencer, log.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use embar_fabric::memory::Mapped;
use embar_fabric::owner::Claim;
use embar_fabric::records::BrokerRow;
use embar_transport::socket::SocketOptions;

use super::place::{follow, lead};
use super::sequencer::{self, Sequencing, is_alive};
use super::{Progress, Role, StopWord};
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::error::StartError;
use crate::heartbeat::Heartbeat;
use crate::log::{Log, Recovered, Rejoin, Watermarks};
use crate::node::{HEAD, Node};
use crate::presence::Presence;
use crate::topics::TopicTable;

/// How long a broker that takes data waits for a sequencer that has nothing to tell.
const SEQUENCED_WITHIN: Duration = Duration::from_secs(60);
/// How often it looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How often one that recovers says so.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// A broker that has everything but a listener.
pub(super) struct Joined {
    pub node: Arc<Node<Mapped>>,
    pub claim: Arc<Claim>,
    pub recovered: Recovered,
    /// Has beaten once.
    pub heartbeat: Heartbeat<Mapped>,
    /// Of a candidate.
    pub sequencing: Option<Sequencing>,
}

pub(super) fn socket_options(config: &BrokerConfig) -> SocketOptions {
    SocketOptions {
        recv_buffer_bytes: config.recv_buffer_bytes.map(|b| b as usize),
        send_buffer_bytes: config.send_buffer_bytes.map(|b| b as usize),
        ..SocketOptions::default()
    }
}

pub(super) fn join(
    role: Role,
    config: BrokerConfig,
    address: SocketAddr,
    clock: Clock,
    stop: &Arc<StopWord>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Joined, StartError> {
    let (region, claim) = match role {
        Role::Head { dir, region } => lead(&dir, region, progress)?,
        Role::Follower { entry, coherence } => follow(entry, true, coherence, &config)?,
        Role::Standby { entry, coherence } => follow(entry, false, coherence, &config)?,
    };
    let claim = Arc::new(claim);
    let row = claim.row();
    let mut said = BrokerRow {
        pid: std::process::id(),
        lanes: config.network_threads,
        started: clock.at().wall.0,
        ..BrokerRow::default()
    };
    said.set_address(address);
    let presence = Presence::begin(&region, &claim, said);
    let mut heartbeat = Heartbeat::new(&region, &claim, said.pid);
    heartbeat.begin(clock.at());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    region.prefault(row, threads, &|done, total| {
        progress(Progress::Prefault { done, total })
    })?;
    // Before the log: a head that is alone is its own log's sequencer.
    let sequencing = match region.geometry().area_of(row) {
        Some(_) => Some(sequencer::start(&region, &claim, &config, stop, clock)?),
        None => None,
    };
    let head_cells = (row == HEAD).then(|| region.cell_writer(&claim));
    let topics = TopicTable::attach(&region, head_cells);
    let (log, recovered) = if region.geometry().takes_data(row) {
        let known: Vec<_> = topics.iter().cloned().collect();
        let marks = Watermarks::of(region.geometry().blog_bytes, &config);
        let log = tell_while(progress, || {
            let mut log = Log::open(&region, &claim, marks, &known);
            await_sequencer(&mut log).map(|()| log)
        })??;
        let recovered = log.recovered();
        (Some(log), recovered)
    } else {
        (None, Recovered::default())
    };
    if recovered.damaged > 0 {
        tracing::error!(
            damaged = recovered.damaged,
            "batches were damaged and are lost"
        );
    }
    let locks = region.clone();
    let alive = Box::new(move |row| is_alive(&locks, row));
    let node = Node::new(config, &claim, region, alive, presence, topics, log);
    Ok(Joined {
        node: Arc::new(node),
        claim,
        recovered,
        heartbeat,
        sequencing,
    })
}

/// Recovers, and says every second that it goes on: it is a pass over this broker's memory and then a wait that
/// ends by itself, so a process that runs gets on with it.
fn tell_while<T>(
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
                    if ended.recv_timeout(TELL_EVERY) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })?;
        // Also when it panics, or the thread that tells would be waited for.
        let _over = over;
        Ok(recover())
    })
}

/// Until it has taken what this row's owner before left, its order is not known.
fn await_sequencer(log: &mut Log<Mapped>) -> Result<(), StartError> {
    let mut waits_since = Instant::now();
    loop {
        match log.rejoin() {
            Rejoin::Done => return Ok(()),
            Rejoin::GoesOn => waits_since = Instant::now(),
            Rejoin::Waits if waits_since.elapsed() >= SEQUENCED_WITHIN => {
                let waited = SEQUENCED_WITHIN;
                return Err(StartError::NoSequencer { waited });
            }
            Rejoin::Waits => std::thread::sleep(LOOK_EVERY),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_recovery_that_takes_long_says_that_it_goes_on() {
        let told = AtomicU32::new(0);
        let tell = |step| {
            assert_eq!(step, Progress::Recovering);
            told.fetch_add(1, Ordering::Relaxed);
        };
        let recover = || {
            while told.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            7
        };
        assert_eq!(tell_while(&tell, recover).expect("a thread"), 7);
    }
}
