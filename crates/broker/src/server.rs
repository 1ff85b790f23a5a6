//! A running broker: a region joined or created, a listener, network threads.

mod join;
mod membership;
mod setup;
mod thread;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_fabric::memory::{Coherence, Mapped};
use embar_fabric::owner::Claim;
use embar_fabric::records::BrokerState;
use embar_meter::snapshot::Snapshot;
use embar_transport::{Waker, socket};

use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::error::StartError;
use crate::log::{Lane, Recovered};
use crate::node::Node;
use crate::shard::Shard;
use membership::Membership;
use setup::Joined;
use thread::Plan;

/// Which broker of a cluster to be.
#[derive(Clone, Debug)]
pub enum Role {
    /// The one that creates the region and owns the topics. It takes no data.
    Head {
        /// Directory of the region; made if it is not there.
        dir: PathBuf,
        /// The region to create, or what a stale one must match.
        region: RegionSpec,
    },
    /// One that takes data.
    Follower {
        /// Address of the head.
        head: SocketAddr,
        /// The row to take; `None` takes one whose owner is dead, or a free one.
        id: Option<u16>,
        /// How processes see each other's stores: as at the head.
        coherence: Coherence,
    },
}

/// The region that a head wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Bytes of shared memory in all; at least 32 MiB for each data broker.
    pub bytes: u64,
    /// Brokers that take data.
    pub data_brokers: u16,
    /// Throw a stale region away instead of taking it over with its data.
    pub fresh: bool,
    /// How processes see each other's stores.
    pub coherence: Coherence,
}

/// What a start is busy with; it can take seconds for large regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Asking the kernel for this much memory.
    Reserving {
        /// Bytes.
        bytes: u64,
    },
    /// Touching every page, so that no batch has to wait for one.
    Prefault {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Checking what a dead owner of this row left.
    Recovering,
    /// Serving.
    Ready,
}

/// How a shutdown ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Every peer left by itself.
    Drained,
    /// Some had to be cut when the grace was over.
    Cut,
}

/// A broker whose threads run until [`Server::shutdown`]; dropping it cuts them.
pub struct Server {
    node: Arc<Node<Mapped>>,
    /// Held as long as the broker lives: a row without a holder may be taken over.
    _claim: Arc<Claim>,
    address: SocketAddr,
    recovered: Recovered,
    stop: Arc<StopWord>,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<()>>,
    membership: Option<Membership>,
}

/// What the threads of a broker are told, and what they tell when they end untold.
#[derive(Default)]
struct StopWord {
    word: AtomicU8,
    failed: AtomicBool,
}

/// Values of the stop word.
mod stop {
    pub const RUN: u8 = 0;
    pub const DRAIN: u8 = 1;
    pub const CUT: u8 = 2;
}

impl StopWord {
    fn get(&self) -> u8 {
        // Pairs with the store in `Server::say`; the word itself is all that is passed.
        self.word.load(Ordering::Acquire)
    }

    /// For the life of a thread.
    fn watch(self: &Arc<Self>) -> Watch {
        Watch(Arc::clone(self))
    }
}

/// Notices a thread that ends, by a panic or otherwise, though nobody told it to.
struct Watch(Arc<StopWord>);

impl Drop for Watch {
    fn drop(&mut self) {
        if self.0.get() == stop::RUN {
            tracing::error!("a thread of this broker died: the broker cannot go on");
            self.0.failed.store(true, Ordering::Release);
        }
    }
}

impl Server {
    /// Starts a broker; it serves when this returns.
    ///
    /// # Errors
    /// [`StartError`] says what is in the way and what to do about it.
    pub fn start(
        role: Role,
        config: BrokerConfig,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self, StartError> {
        config.validate()?;
        let options = setup::socket_options(&config);
        // Before the slow part: a port in use should be told at once.
        let listener = socket::listen_tcp(config.listen, &options)?;
        let address = listener.local_addr()?;
        let clock = Clock::new();
        let threads = config.network_threads;
        let Joined {
            node,
            claim,
            recovered,
            mut announcement,
        } = setup::join(role, config, address, clock, progress)?;
        let stop = Arc::new(StopWord::default());
        let mut listener = Some(listener);
        let mut started = Vec::new();
        for number in 0..threads {
            let lane = node.takes_data().then(|| Lane {
                number: number.into(),
                writer: node.region.lane_writer(&claim, number),
                connection: 0,
            });
            let plan = Plan {
                number: number.into(),
                shard: Shard::new(Arc::clone(&node), lane)?,
                listener: listener.take(),
                options: options.clone(),
                stop: Arc::clone(&stop),
                clock,
            };
            started.push(thread::start(
                plan,
                format!("embar-net-{}-{number}", node.id),
            )?);
        }
        let (wakers, threads_running) = thread::introduce(started);
        let mut server = Self {
            node,
            _claim: claim,
            address,
            recovered,
            stop,
            wakers,
            threads: threads_running,
            membership: None,
        };
        announcement.announce(BrokerState::Ready, address, threads, clock.at());
        let (node, watch) = (Arc::clone(&server.node), server.stop.watch());
        // From here on an error drops the server, which stops its threads.
        server.membership = Some(announcement.keep(node, watch, clock)?);
        progress(Progress::Ready);
        let (id, incarnation) = (server.id(), server.node.incarnation);
        tracing::info!(id, %address, incarnation, "ready");
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

    /// What it took over from a dead owner of its row.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The stage profile of all its threads since the start.
    pub fn snapshot(&self) -> Snapshot {
        self.node.profile.snapshot()
    }

    /// Whether one of its threads died. What it holds cannot be served any more:
    /// end the process, and let another one take its row over.
    pub fn has_failed(&self) -> bool {
        self.stop.failed.load(Ordering::Acquire)
    }

    /// Tells peers to go elsewhere, waits for them at most `grace`, and stops.
    pub fn shutdown(mut self, grace: Duration) -> Shutdown {
        if let Some(membership) = &mut self.membership {
            membership.set_state(BrokerState::Draining);
        }
        self.say(stop::DRAIN);
        let drained = self.wait_until(Instant::now() + grace);
        self.say(stop::CUT);
        self.join();
        if let Some(membership) = self.membership.take() {
            membership.leave();
        }
        let profile = self.node.profile.snapshot();
        if profile.total_ns() > 0 {
            tracing::info!("at shutdown\n{profile}");
        }
        if drained {
            Shutdown::Drained
        } else {
            Shutdown::Cut
        }
    }

    fn say(&self, word: u8) {
        self.stop.word.store(word, Ordering::Release);
        self.wakers.iter().for_each(Waker::wake);
    }

    /// Whether every thread ended by itself before `end`.
    fn wait_until(&self, end: Instant) -> bool {
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn join(&mut self) {
        // A thread that panicked has said so on stderr.
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.say(stop::CUT);
            self.join();
        }
    }
}
