//! A running broker: a region joined or created, a listener, network threads, and for the head and
//! the standbys a thread that sequences or stands by to.

mod bells;
mod join;
mod membership;
mod place;
mod role;
mod sequencer;
mod setup;
mod thread;
mod threads;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use embar_fabric::memory::Mapped;
use embar_fabric::owner::Claim;
use embar_fabric::records::BrokerState;
use embar_meter::snapshot::Snapshot;
use embar_transport::socket;

use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::error::StartError;
use crate::log::{Recovered, Use};
use crate::node::{Node, Stays};
use crate::shard::Shard;
use bells::Bed;
use membership::Membership;
pub use role::{Entry, RegionSpec, Role};
use sequencer::Sequencing;
use setup::Joined;
use thread::Plan;
use threads::Threads;

/// What a start is busy with; it can take seconds for large regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Asking the kernel for memory.
    Reserving {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Touching every page, so that no batch has to wait for one.
    Prefault {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Checking what a dead owner of this row left, and waiting for the sequencer to know of it; told every second.
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
    threads: Arc<Threads>,
    membership: Option<Membership>,
    /// Of a candidate; ends after the network threads, which it orders for.
    _sequencing: Option<Sequencing>,
}

/// What the threads of a broker are told, and what they tell when they end untold.
#[derive(Default)]
struct StopWord {
    word: AtomicU8,
    failed: AtomicBool,
    overtaken: AtomicBool,
}

/// Values of the stop word, each for more than the one before.
mod stop {
    pub const RUN: u8 = 0;
    pub const DRAIN: u8 = 1;
    pub const CUT: u8 = 2;
}

impl StopWord {
    fn get(&self) -> u8 {
        // Pairs with the store in `say`; the word itself is all that is passed.
        self.word.load(Ordering::Acquire)
    }

    /// What was said stays said: a thread that is cut never drains again.
    fn say(&self, word: u8) {
        self.word.fetch_max(word, Ordering::Release);
    }

    /// For the life of a thread.
    fn watch(self: &Arc<Self>) -> Watch {
        Watch(Arc::clone(self))
    }
}

/// Notices a thread that ends, by a panic or otherwise, though nobody told it to.
struct Watch(Arc<StopWord>);

impl Watch {
    /// The broker cannot go on, whatever its threads were told.
    fn fail(&self) {
        // Partner: the load in `has_failed`, behind which it is known why.
        self.0.failed.store(true, Ordering::Release);
    }

    /// The same, for a reason that is nobody's failure.
    fn overtaken(&self) {
        self.0.overtaken.store(true, Ordering::Relaxed);
        self.fail();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let is_expected = self.0.get() != stop::RUN || self.0.overtaken.load(Ordering::Relaxed);
        if !is_expected || std::thread::panicking() {
            tracing::error!("a thread of this broker died: the broker cannot go on");
            self.fail();
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
        let stop = Arc::new(StopWord::default());
        let Joined {
            node,
            claim,
            recovered,
            heartbeat,
            sequencing,
        } = setup::join(role, config, address, clock, &stop, progress)?;
        let mut listener = Some(listener);
        let mut started = Vec::new();
        for number in 0..threads {
            let bed = node
                .takes_data()
                .then(|| Bed::make(&node.region, node.id, number))
                .transpose()?;
            let plan = Plan {
                number: number.into(),
                shard: Shard::new(Arc::clone(&node), number)?,
                bed,
                node: Arc::clone(&node),
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
        let (wakers, running) = thread::introduce(started);
        let mut server = Self {
            node,
            _claim: claim,
            address,
            recovered,
            threads: Arc::new(Threads::new(Arc::clone(&stop), wakers, running)),
            stop,
            membership: None,
            _sequencing: sequencing,
        };
        server.node.say(BrokerState::Ready);
        let (node, watch) = (Arc::clone(&server.node), server.stop.watch());
        // From here on an error drops the server, which stops its threads.
        let running = Arc::clone(&server.threads);
        server.membership = Some(Membership::keep(heartbeat, node, running, watch, clock)?);
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

    /// What becomes of the memory of its log; nothing at the head.
    pub fn log_use(&self) -> Use {
        let node = &self.node;
        if node.takes_data() {
            node.log().use_of()
        } else {
            Use::default()
        }
    }

    /// Whether one of its threads died, or it was overtaken. What it holds cannot be served any more:
    /// end the process, and let another one take its row over.
    pub fn has_failed(&self) -> bool {
        self.stop.failed.load(Ordering::Acquire)
    }

    /// Whether it failed because it stood still for so long that others went on without it. Nothing is wrong with it then.
    pub fn is_overtaken(&self) -> bool {
        self.has_failed() && self.stop.overtaken.load(Ordering::Relaxed)
    }

    /// Begins to leave the cluster for good: takes nothing new, lets its peers go elsewhere, settles
    /// what was submitted, and says so in its row. [`Server::has_left`] tells when it did; then it is
    /// to be dropped. What it has of orders 2 and 5 others can read.
    ///
    /// # Errors
    /// What would be missing: what it has of orders 0 and 1, which others cannot read, or any broker
    /// that takes data. Not when it is forced.
    ///
    /// # Panics
    /// At a broker that takes no data.
    pub fn leave(&self, force: bool) -> Result<(), Stays> {
        self.node.refresh_topics();
        self.node.leave(force)
    }

    /// Whether it has left its cluster for good, because it was asked to: by [`Server::leave`], or by
    /// an administrator. It does nothing any more.
    pub fn has_left(&self) -> bool {
        self.node.has_left()
    }

    /// Tells peers to go elsewhere, waits for them at most `grace`, and stops.
    pub fn shutdown(mut self, grace: Duration) -> Shutdown {
        self.node.say(BrokerState::Draining);
        let drained = self.threads.drain(grace);
        if let Some(mut membership) = self.membership.take() {
            membership.stop();
            self.node.say(BrokerState::Gone);
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
}

impl Drop for Server {
    fn drop(&mut self) {
        self.threads.cut();
        // It may be about to cut them itself, as this broker leaves: then it waits for them, and we
        // for it, before the row is given up.
        drop(self.membership.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_dies_while_others_drain_is_noticed() {
        let word = Arc::new(StopWord::default());
        let has_failed = || word.failed.load(Ordering::Acquire);
        word.say(stop::DRAIN);
        drop(word.watch());
        assert!(!has_failed(), "it ended as it was told to");
        let watch = word.watch();
        let died = std::thread::spawn(move || {
            let _watch = watch;
            panic!("on purpose");
        });
        assert!(died.join().is_err() && has_failed());
    }

    #[test]
    fn a_broker_that_cannot_go_on_while_it_drains_has_failed() {
        let word = Arc::new(StopWord::default());
        word.say(stop::DRAIN);
        word.watch().overtaken();
        assert!(word.failed.load(Ordering::Acquire) && word.overtaken.load(Ordering::Relaxed));
    }

    #[test]
    fn who_is_cut_is_not_told_to_drain_again() {
        let word = StopWord::default();
        word.say(stop::CUT);
        word.say(stop::DRAIN);
        assert_eq!(word.get(), stop::CUT);
    }
}
