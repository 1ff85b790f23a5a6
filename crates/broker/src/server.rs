//! A running broker: a region joined or created, a listener, network threads, and for the head and
//! the standbys a thread that sequences or stands by to.

mod alive;
mod appended;
mod counted;
mod disk_writer;
mod heartbeat_thread;
mod history_thread;
mod join;
mod local_sockets;
mod network_thread;
mod network_threads;
mod progress;
mod receive_path;
mod region;
mod restore;
mod role;
mod sequencer_thread;
mod setup;
mod start_error;
mod stop;
mod turns;
mod wakeups;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use embar_fabric::owner::Claim;
use embar_fabric::records::BrokerState;
use embar_memory::Mapped;
use embar_meter::snapshot::Snapshot;
use embar_transport::socket;

use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::disks::Disks;
use crate::log::{LogUsage, Recovered};
use crate::node::{LeaveRefused, Node};
use crate::receive_path::ReceivePath;
use heartbeat_thread::HeartbeatThread;
use history_thread::HistoryThread;
use network_thread::ThreadSpec;
use network_threads::NetworkThreads;
pub use progress::Progress;
pub use role::{Entry, RegionSpec, Role};
use sequencer_thread::SequencerThread;
use setup::Joined;
pub use start_error::StartError;
use stop::StopSignal;

/// How a shutdown ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Every peer left by itself.
    Drained,
    /// Some had to be cut when the grace was over.
    Cut,
}

/// A broker whose threads run until [`Server::shutdown`]; dropping it cuts its peers.
pub struct Server {
    node: Arc<Node<Mapped>>,
    /// Held as long as the broker lives: a row without a holder may be taken over.
    _claim: Arc<Claim>,
    address: SocketAddr,
    recovered: Recovered,
    stop: Arc<StopSignal>,
    threads: Arc<NetworkThreads>,
    heartbeat: Option<HeartbeatThread>,
    /// Of a candidate. It ends after the network threads, for which it sequences.
    _sequencer: Option<SequencerThread>,
    /// Held as long as the broker lives: a directory that nobody holds may be another cluster's.
    _disks: Arc<Disks>,
    /// Of a broker that takes data, and has disks.
    _history: Option<HistoryThread>,
}

impl Server {
    /// Starts a broker; it serves when this returns.
    ///
    /// # Errors
    /// [`StartError`] says what is in the way and what to do about it.
    pub fn start(
        role: Role,
        mut config: BrokerConfig,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self, StartError> {
        config.validate()?;
        config.receive = receive_path::usable(config.receive, receive_path::probe_uring);
        let options = setup::socket_options(&config);
        // Before the slow part: a port in use should be reported at once.
        let listener = socket::listen_tcp(config.listen, &options)?;
        let address = listener.local_addr()?;
        let clock = Clock::new();
        let stop = Arc::new(StopSignal::default());
        let Joined {
            node,
            claim,
            local_listeners,
            recovered,
            heartbeat,
            sequencer,
            disks,
        } = setup::join(role, config, address, clock, &stop, progress)?;
        let history = match node.takes_data() && node.region.geometry().disks > 0 {
            true => Some(HistoryThread::start(&node.region, node.id, &disks)?),
            false => None,
        };
        // The first thread accepts for all.
        let mut listeners = vec![listener.into()];
        listeners.extend(local_listeners);
        let specs = (0..node.threads()).map(|number| ThreadSpec {
            number,
            node: Arc::clone(&node),
            turns: sequencer.as_ref().map(SequencerThread::turns),
            history: history.as_ref().map(HistoryThread::requests),
            listeners: std::mem::take(&mut listeners),
            options: options.clone(),
            stop: Arc::clone(&stop),
            clock,
        });
        let threads = NetworkThreads::start(specs, &stop)?;
        let mut server = Self {
            node,
            _claim: claim,
            address,
            recovered,
            threads: Arc::new(threads),
            stop,
            heartbeat: None,
            _sequencer: sequencer,
            _disks: disks,
            _history: history,
        };
        server.node.set_state(BrokerState::Ready);
        // From here on an error drops the server, which stops its threads.
        server.heartbeat = Some(HeartbeatThread::start(
            heartbeat,
            Arc::clone(&server.node),
            Arc::clone(&server.threads),
            server.stop.guard(),
            clock,
        )?);
        progress(Progress::Ready);
        let (id, incarnation) = (server.id(), server.node.incarnation);
        let receive = server.receive_path();
        tracing::info!(id, %address, incarnation, %receive, "ready");
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its row; 0 is the head.
    pub fn id(&self) -> u16 {
        self.node.id
    }

    /// How it receives payloads: as configured, if this machine allows that.
    pub fn receive_path(&self) -> ReceivePath {
        self.node.config.receive
    }

    /// What it took over from a dead owner of its row.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The stage profile of all its threads since the start.
    pub fn snapshot(&self) -> Snapshot {
        self.node.profile.snapshot()
    }

    /// How the memory of its log is used; nothing at a broker that takes no data.
    pub fn log_usage(&self) -> LogUsage {
        let node = &self.node;
        if node.takes_data() {
            node.log().usage()
        } else {
            LogUsage::default()
        }
    }

    /// Whether one of its threads died, or it was overtaken. It cannot serve what it holds any more: end the
    /// process, and let another one take its row over.
    pub fn has_failed(&self) -> bool {
        self.stop.has_failed()
    }

    /// Whether it failed because it stood still for so long that the others went on without it. Nothing is
    /// wrong with it then.
    pub fn is_overtaken(&self) -> bool {
        self.has_failed() && self.stop.is_overtaken()
    }

    /// Begins to leave the cluster for good: it takes nothing new, asks its peers to go to other brokers,
    /// waits for the answers to what it submitted, and publishes in its row that it left. Drop it when
    /// [`Server::has_left`]. Other brokers can read what it has of orders 2 and 5.
    ///
    /// # Errors
    /// What would be missing: what it has of orders 0 and 1, which others cannot read, or any broker
    /// that takes data. Not when it is forced.
    ///
    /// # Panics
    /// At a broker that takes no data.
    pub fn leave(&self, force: bool) -> Result<(), LeaveRefused> {
        self.node.refresh_topics();
        self.node.leave(force)
    }

    /// Whether it has left its cluster for good, because [`Server::leave`] or an administrator asked it to. It
    /// does nothing any more.
    pub fn has_left(&self) -> bool {
        self.node.has_left()
    }

    /// Asks peers to go to other brokers, waits for them at most `grace`, and stops.
    pub fn shutdown(mut self, grace: Duration) -> Shutdown {
        self.node.set_state(BrokerState::Draining);
        let drained = self.threads.drain(grace);
        if let Some(mut heartbeat) = self.heartbeat.take() {
            heartbeat.stop();
            self.node.set_state(BrokerState::Gone);
        }
        let profiles = self.node.profiles();
        for profile in profiles.iter().filter(|it| it.total_ns() > 0) {
            tracing::info!("at shutdown\n{profile}");
        }
        if drained {
            Shutdown::Drained
        } else {
            Shutdown::Cut
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.threads.cut();
        // The heartbeat's thread may be about to cut them itself, as this broker leaves. It waits for them
        // then, and we wait for it, before the row is given up.
        drop(self.heartbeat.take());
    }
}
