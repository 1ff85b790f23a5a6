//! A head and data brokers inside this process, for tests and for embedding.

mod private;
mod remove_error;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use embar_fabric::geometry::ROWS_MAX;
use embar_fabric::region::Region;
use embar_memory::Coherence;

use crate::config::BrokerConfig;
use crate::server::{Entry, RegionSpec, Role, Server, Shutdown, StartError};
pub use remove_error::RemoveError;

/// How long brokers wait for their peers when the cluster shuts down.
const GRACE: Duration = Duration::from_secs(2);
/// How long a broker may take to leave: its peers have a grace of some seconds.
const LEAVES_WITHIN: Duration = Duration::from_secs(15);
/// How often a broker that leaves is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What to start. Made by [`Cluster::builder`].
#[derive(Clone, Debug)]
pub struct ClusterBuilder {
    brokers: u16,
    spares: u16,
    standbys: u16,
    topics: Option<u16>,
    region_bytes: u64,
    region_dir: Option<PathBuf>,
    coherence: Coherence,
    sessions: Option<u32>,
    config: BrokerConfig,
}

/// A running cluster. Dropping it cuts every connection and, unless it was
/// given a directory, removes its region.
///
/// ```
/// let cluster = embar_broker::Cluster::builder().region_bytes(64 << 20).brokers(2).start()?;
/// println!("publish to and read from {}", cluster.bootstrap());
/// cluster.shutdown();
/// # Ok::<(), embar_broker::StartError>(())
/// ```
pub struct Cluster {
    /// By id: the head, those that take data, the spares, the standbys; `None` for a broker that was
    /// stopped, and for a spare that nobody was added in.
    brokers: Vec<Option<Server>>,
    builder: ClusterBuilder,
    bootstrap: SocketAddr,
    dir: PathBuf,
}

impl ClusterBuilder {
    /// The head and the brokers that take data. Default 4: a head and 3 others.
    pub fn brokers(mut self, brokers: u16) -> Self {
        self.brokers = brokers;
        self
    }

    /// Brokers that may be added later with [`Cluster::add_broker`]; their ids come after those of the
    /// others that take data. Default 0.
    pub fn spares(mut self, spares: u16) -> Self {
        self.spares = spares;
        self
    }

    /// Brokers beside these that take no data, and sequence when the head cannot; their ids come
    /// last. Default 0: while the head is gone, topics of order 2 and 5 stand still.
    pub fn standbys(mut self, standbys: u16) -> Self {
        self.standbys = standbys;
        self
    }

    /// Shared memory in all, in bytes; at least about 32 MiB for each broker
    /// that takes data. The payload of one that is added later comes on top. Default 256 MiB.
    pub fn region_bytes(mut self, bytes: u64) -> Self {
        self.region_bytes = bytes;
        self
    }

    /// Topics that there may be at the same time, at most 16,384. Default: one for each MiB of the
    /// region, and at least 256.
    pub fn topics(mut self, topics: u16) -> Self {
        self.topics = Some(topics);
        self
    }

    /// Keeps the region in this directory, and leaves it there. Default: a
    /// directory of its own in `/dev/shm`, removed at the end; if the process is killed, by the next
    /// cluster of the same user.
    pub fn region_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.region_dir = Some(dir.into());
        self
    }

    /// How stores reach other hosts. Default: cache-coherent memory.
    pub fn coherence(mut self, coherence: Coherence) -> Self {
        self.coherence = coherence;
        self
    }

    /// Publishers of topics of order 2 and 5 that the cluster knows at a time, if that is less than the
    /// default: what a sixteenth of the memory has room for, and at most 100,000.
    pub fn sessions(mut self, sessions: u32) -> Self {
        self.sessions = Some(sessions);
        self
    }

    /// Settings of every broker. Port 0 gives each one a free port; with
    /// another port the head takes it, and broker `n` the `n`-th after it.
    pub fn config(mut self, config: BrokerConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts the head, then the others.
    ///
    /// # Errors
    /// [`StartError`] of the first one that failed; those before it are stopped.
    pub fn start(self) -> Result<Cluster, StartError> {
        if self.brokers < 2 {
            let brokers = self.brokers;
            return Err(StartError::TooFewBrokers { brokers });
        }
        let dir = self.region_dir.clone().unwrap_or_else(private::dir);
        let rows = u32::from(self.brokers) + u32::from(self.spares) + u32::from(self.standbys);
        if rows > ROWS_MAX.into() {
            return Err(StartError::TooManyBrokers { rows });
        }
        let mut cluster = Cluster {
            brokers: Vec::new(),
            bootstrap: self.config.listen,
            builder: self,
            dir,
        };
        let head = cluster.start_broker(0)?;
        cluster.bootstrap = head.address();
        cluster.brokers.push(Some(head));
        for id in 1..cluster.builder.rows() {
            let is_spare = cluster.builder.spare_range().contains(&id);
            let broker = (!is_spare).then(|| cluster.start_broker(id)).transpose()?;
            cluster.brokers.push(broker);
        }
        Ok(cluster)
    }

    /// Those that take data, the spares included.
    fn data_range(&self) -> Range<u16> {
        1..self.brokers + self.spares
    }

    fn spare_range(&self) -> Range<u16> {
        self.brokers..self.brokers + self.spares
    }

    fn rows(&self) -> u16 {
        self.brokers + self.spares + self.standbys
    }
}

impl Cluster {
    /// A cluster of 4 brokers with 256 MiB, unless told otherwise.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder {
            brokers: 4,
            spares: 0,
            standbys: 0,
            topics: None,
            region_bytes: 256 << 20,
            region_dir: None,
            coherence: Coherence::Coherent,
            sessions: None,
            config: BrokerConfig::default(),
        }
    }

    /// The address to give to clients.
    pub fn bootstrap(&self) -> SocketAddr {
        self.bootstrap
    }

    /// A broker, unless it was stopped. The head is 0.
    pub fn broker(&self, id: u16) -> Option<&Server> {
        self.brokers.get(usize::from(id))?.as_ref()
    }

    /// Stops one broker as a crash would: connections are cut, nothing is drained.
    pub fn crash_broker(&mut self, id: u16) {
        if let Some(broker) = self.brokers.get_mut(usize::from(id)) {
            drop(broker.take());
        }
    }

    /// Stops one broker in good order.
    pub fn stop_broker(&mut self, id: u16) -> Option<Shutdown> {
        let broker = self.brokers.get_mut(usize::from(id))?.take()?;
        Some(broker.shutdown(GRACE))
    }

    /// Starts a broker that was stopped or crashed; it takes over what its row holds. The head may be
    /// gone, but somebody must sequence for a broker that takes data: it or a standby.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn restart_broker(&mut self, id: u16) -> Result<(), StartError> {
        let broker = self.start_broker(id)?;
        self.brokers[usize::from(id)] = Some(broker);
        Ok(())
    }

    /// Starts one broker more that takes data, in a place that is free: that of one that was removed
    /// or stopped, whose data it takes over, or a spare. Returns its id. Clients that are connected
    /// hear of it.
    ///
    /// # Errors
    /// As for [`Server::start`]; [`StartError::Join`] when all places are taken.
    pub fn add_broker(&mut self) -> Result<u16, StartError> {
        let data = self.builder.data_range();
        let is_free = |id: &u16| self.broker(*id).is_none_or(Server::has_left);
        let free = data.into_iter().find(is_free);
        if let Some(id) = free {
            // An administrator may have let it leave.
            self.crash_broker(id);
        }
        // Without a place the head says best why not.
        let mut config = self.config_of(free.unwrap_or_default());
        if free.is_none() {
            config.listen.set_port(0);
        }
        let entry = Entry::Head {
            address: self.bootstrap,
            id: free,
        };
        let coherence = self.builder.coherence;
        let broker = Server::start(Role::Follower { entry, coherence }, config, &|_| ())?;
        let id = broker.id();
        self.brokers[usize::from(id)] = Some(broker);
        Ok(id)
    }

    /// Lets one broker that takes data leave for good, and returns when it has left: it takes nothing
    /// new, its peers go elsewhere, what was submitted is settled. Others can read what it has of
    /// orders 2 and 5. With `force` it leaves also when it is the last one, or has something of orders
    /// 0 and 1, which can then be read only when a broker has taken its place again.
    ///
    /// # Errors
    /// [`RemoveError`]; it stays then.
    pub fn remove_broker(&mut self, id: u16, force: bool) -> Result<(), RemoveError> {
        let broker = self
            .broker(id)
            .filter(|_| self.builder.data_range().contains(&id));
        let broker = broker.ok_or(RemoveError::NotThere { id })?;
        broker
            .leave(force)
            .map_err(|why| RemoveError::refused(id, why))?;
        let deadline = Instant::now() + LEAVES_WITHIN;
        while !broker.has_left() {
            if Instant::now() >= deadline {
                let waited = LEAVES_WITHIN;
                return Err(RemoveError::Slow { id, waited });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.crash_broker(id);
        Ok(())
    }

    fn config_of(&self, id: u16) -> BrokerConfig {
        let mut config = self.builder.config.clone();
        let port = config.listen.port();
        if id == 0 {
            // Once it has started, everybody knows it by the port that it was given.
            config.listen = self.bootstrap;
        } else if port != 0 {
            config.listen.set_port(port + id);
        }
        config
    }

    fn start_broker(&self, id: u16) -> Result<Server, StartError> {
        let coherence = self.builder.coherence;
        let entry = Entry::Region {
            dir: self.dir.clone(),
            id,
        };
        let role = if id == 0 {
            Role::Head {
                dir: self.dir.clone(),
                region: RegionSpec {
                    bytes: self.builder.region_bytes,
                    data_brokers: self.builder.brokers - 1,
                    standbys: self.builder.standbys,
                    spares: self.builder.spares,
                    topics: self.builder.topics,
                    fresh: false,
                    sessions: self.builder.sessions,
                    coherence,
                },
            }
        } else if self.builder.data_range().contains(&id) {
            Role::Follower { entry, coherence }
        } else {
            Role::Standby { entry, coherence }
        };
        Server::start(role, self.config_of(id), &|_| ())
    }

    /// Stops every broker in good order: those that take data, then those that may sequence for
    /// them, the head last.
    pub fn shutdown(mut self) {
        let data = self.builder.data_range();
        let standbys = data.end..self.builder.rows();
        for id in data.chain(standbys).chain([0]) {
            self.stop_broker(id);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The standbys before the head, as there is nothing to take over any more.
        while self.brokers.pop().is_some() {}
        if self.builder.region_dir.is_none()
            && let Err(error) = Region::remove(&self.dir)
        {
            tracing::warn!(dir = %self.dir.display(), "cannot remove the region: {error}");
        }
    }
}
