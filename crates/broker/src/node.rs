//! What all network threads of one broker share: its log, its topic table, its row in the region, its view of the other
//! brokers and of the sequencer, and its limits of connections.

mod disks;
mod leaving;
mod spare_disks;

pub use leaving::{LeaveRefused, Retained};

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use embar_fabric::owner::Claim;
use embar_fabric::records::BrokerState;
use embar_fabric::region::Region;
use embar_frame::Now;
use embar_memory::canary::{Canary, injected};
use embar_memory::{Held, Memory};
use embar_meter::profile::Profile;
use embar_meter::snapshot::Snapshot;
use embar_order::{LeaderWatch, Leadership, Term};
use embar_transport::Peer as Origin;
use embar_wire::time::WallNs;

use crate::broker_row::BrokerRowPublisher;
use crate::config::BrokerConfig;
use crate::connection::DiskPieces;
use crate::connections::{Connections, Counted, Full};
use crate::disks::Disks;
use crate::inbox::Inbox;
use crate::log::Log;
use crate::peers::PeerId;
use crate::places::HEAD;
use crate::topics::TopicTable;
use leaving::leave_state;

/// This part of all connections may go by shared memory: 256 of 4096.
const SHM_PART: usize = 16;

/// Most looks at what was ordered in one refresh.
const POLLS_PER_REFRESH: u32 = 64;

/// Whether a live process holds a row.
pub type Alive = Box<dyn Fn(u16) -> bool + Send + Sync>;

/// Whether a row counts as that of a live process, after a look at its lock. A lock that cannot be looked
/// at, because no file descriptor is free, says nothing: a process that may live does not count as dead.
pub fn counts_as_alive<E>(looked: Result<bool, E>) -> bool {
    looked.unwrap_or(!injected(Canary::UnlookedLives))
}

/// One broker: its settings, its row, its log, and what its threads share of topics and connections. Each
/// part has its own lock; who takes several takes them in the order topics, log, row.
pub struct Node<M: Memory> {
    /// Settings.
    pub config: BrokerConfig,
    /// This broker's row; [`HEAD`] only sequences and administers.
    pub id: u16,
    /// Counts the lives of this row.
    pub incarnation: u32,
    /// The shared memory.
    pub region: Region<M>,
    /// Stage timers of all threads.
    pub profile: Arc<Profile>,
    /// The log's, where there are any.
    disks: Option<Arc<Disks>>,
    /// When it started.
    pub started: WallNs,
    alive: Alive,
    row: Mutex<BrokerRowPublisher<M>>,
    topics: Mutex<TopicTable<M>>,
    log: Option<Mutex<Log<M>>>,
    /// What the log holds for readers that nobody hears of any more.
    held: Option<Held<M>>,
    connections: Mutex<Connections>,
    /// Of the connections, those by the Unix socket.
    by_unix: AtomicUsize,
    by_shm: AtomicUsize,
    paused: AtomicUsize,
    /// What all subscribers together read from disks.
    pub(crate) disk_pieces: DiskPieces,
    /// By thread.
    inboxes: Vec<Inbox>,
    leave_state: AtomicU8,
    /// The watch over the one that sequences...
    watch: Mutex<LeaderWatch>,
    /// ...and its epoch, if it was gone at the last look.
    gone_epoch: AtomicU32,
}

impl<M: Memory> Node<M> {
    /// A node over a region that this broker has claimed. `log` is `None` at the head.
    pub fn new(
        config: BrokerConfig,
        claim: &Claim,
        region: Region<M>,
        alive: Alive,
        row: BrokerRowPublisher<M>,
        topics: TopicTable<M>,
        log: Option<Log<M>>,
    ) -> Self {
        let started = row.started();
        let profile = Profile::new(&crate::profile::SCHEMA);
        profile.set_enabled(config.metering);
        Self {
            id: claim.row(),
            incarnation: claim.incarnation(),
            region,
            profile,
            disks: None,
            started,
            alive,
            row: Mutex::new(row),
            topics: Mutex::new(topics),
            held: log.as_ref().map(Log::held),
            log: log.map(Mutex::new),
            connections: Mutex::new(Connections::new(config.max_connections)),
            by_unix: AtomicUsize::new(0),
            by_shm: AtomicUsize::new(0),
            paused: AtomicUsize::new(0),
            disk_pieces: DiskPieces::default(),
            watch: Mutex::new(LeaderWatch::new(nanos(config.sequencer_lease), 0)),
            gone_epoch: AtomicU32::new(0),
            inboxes: (0..config.network_threads)
                .map(|_| Inbox::default())
                .collect(),
            config,
            leave_state: AtomicU8::new(leave_state::STAYS),
        }
    }

    /// Times stages from now on, or does not.
    pub fn set_metering(&self, on: bool) {
        let profiles = [Some(&self.profile), self.disk_profile()];
        for profile in profiles.into_iter().flatten() {
            profile.set_enabled(on);
        }
    }

    /// What is timed, and of a process that has disks, what is timed of these.
    pub fn profiles(&self) -> Vec<Snapshot> {
        let profiles = [Some(&self.profile), self.disk_profile()];
        let profiles = profiles.into_iter().flatten();
        profiles.map(|profile| profile.snapshot()).collect()
    }

    /// Whether this is the head, which owns the topic table.
    pub fn is_head(&self) -> bool {
        self.id == HEAD
    }

    /// Whether this broker has a log.
    pub fn takes_data(&self) -> bool {
        self.log.is_some()
    }

    /// Network threads of this broker.
    pub fn threads(&self) -> u16 {
        self.config.network_threads
    }

    /// The log. A thread that panicked while it held it broke an invariant, so
    /// the others must not go on.
    ///
    /// # Panics
    /// At the head, which has none.
    pub fn log(&self) -> MutexGuard<'_, Log<M>> {
        let log = self
            .log
            .as_ref()
            .expect("only brokers that take data have a log");
        log.lock()
            .expect("no thread panics while it changes the log")
    }

    /// The topic table, as of its last refresh.
    pub fn topics(&self) -> MutexGuard<'_, TopicTable<M>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the head changed: topics that are gone are forgotten, and those whose disks changed wait for the new ones; and what other brokers
    /// evicted of those that are ordered.
    pub fn refresh_topics(&self) {
        let mut topics = self.topics();
        topics.refresh();
        let mut gone = topics.take_gone();
        let moved = topics.take_moved();
        if self.takes_data() {
            let mut log = self.log();
            log.refresh_moved();
            for topic in moved.iter().filter_map(|id| topics.by_id(*id)) {
                log.move_to_disks(topic);
            }
            gone.retain(|id| log.close_topic(*id));
            if !gone.is_empty() {
                // Their subscribers have to learn it.
                self.inboxes.iter().for_each(|inbox| inbox.notify(&gone));
            }
            // Without connections no thread looks, and the order must not get too far ahead.
            if log.follows_sequencer() {
                let mut polls = 1;
                while log.poll_order() && polls < POLLS_PER_REFRESH {
                    polls += 1;
                }
                log.refresh_windows();
            }
        }
    }

    /// Whether this broker is to end: see [`Log::is_overtaken`].
    pub fn is_overtaken(&self) -> bool {
        self.takes_data() && self.log().is_overtaken()
    }

    /// Publishes in this broker's row in which state it is.
    pub fn set_state(&self, state: BrokerState) {
        self.row().set_state(state);
    }

    /// Publishes again what memory has lost of this broker's row and of its topics' windows. To be called every so
    /// often: neither changes before something happens.
    pub fn restore(&self) {
        self.row().restore();
        if self.takes_data() {
            self.log().restore_windows();
        }
    }

    /// Frees memory that was lent to readers of whom nobody hears any more, and who are gone by now. To be called every so
    /// often: nobody tells.
    pub fn release_held(&self) {
        // Without the log's lock: the kernel takes its time where there are many locks.
        let Some(held) = &self.held else { return };
        let released = held.release();
        if released > 0 {
            tracing::info!(
                bytes = released,
                held = held.bytes(),
                "readers are gone that still had what this broker lent"
            );
        }
    }

    fn row(&self) -> MutexGuard<'_, BrokerRowPublisher<M>> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether the one that sequences lives, and goes on. To be called every so often: one that is
    /// stopped is found out after eight looks, or its lease if that is longer.
    pub fn watch_sequencer(&self, now: Now) {
        let term = Leadership::observe(&self.region).term;
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let is_gone = watch.should_take_over(&self.region, now.0, &|row| self.alive(row));
        let gone = term.filter(|_| is_gone).map_or(0, |term| term.epoch);
        // Relaxed: it is a word of its own.
        self.gone_epoch.store(gone, Ordering::Relaxed);
    }

    /// The row that gives ordered topics their order, unless its owner was gone at the last look.
    pub fn sequencer(&self) -> Option<u16> {
        let term = Leadership::observe(&self.region).term?;
        let gone = self.gone_epoch.load(Ordering::Relaxed);
        let mut candidates = self.region.geometry().candidates();
        let row = candidates.nth(term.area.into())?;
        (term.epoch != gone).then_some(row)
    }

    /// The membership fingerprint: it changes when a broker that takes data has come, gone or moved, or another
    /// candidate sequences. A row that was never claimed costs one load.
    pub fn membership(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for row in self.region.geometry().data_rows() {
            if self.region.incarnation(row) > 0
                && let Some(found) = self.region.broker_row(row).found()
            {
                (row, found.state, found.incarnation, found.address()).hash(&mut hasher);
            }
        }
        self.sequencer().hash(&mut hasher);
        hasher.finish()
    }

    /// The sequencer that this broker submits to, if it takes data and has met one.
    pub fn term(&self) -> Option<Term> {
        self.takes_data().then(|| self.log().term())?
    }

    /// Whether a live process holds a row.
    pub fn alive(&self, row: u16) -> bool {
        (self.alive)(row)
    }

    /// Where the region is; empty for one that lives in no directory.
    pub fn region_dir(&self) -> &Path {
        self.region.dir().unwrap_or(Path::new(""))
    }

    /// Where the brokers' socket files are, if a peer can be given such a path; else it is empty.
    pub fn socket_dir(&self) -> String {
        let dir = self.region.socket_dir();
        dir.and_then(|dir| dir.to_str().map(str::to_owned))
            .unwrap_or_default()
    }

    /// Counts a connection that is to be served.
    pub(crate) fn serve(&self, peer: PeerId) -> Result<(), Full> {
        self.held().serve(peer, || self.is_of_cluster(peer))
    }

    /// Counts a connection that gets the reason why it is refused. False if there are too many of these: then the
    /// caller closes it without a reason.
    pub(crate) fn refuse(&self, peer: PeerId) -> bool {
        self.held().refuse(peer)
    }

    /// Counts a connection from there, which is counted among those of its peer already.
    pub(crate) fn connection_opened(&self, origin: Origin) {
        // Relaxed, as everywhere: it is only counted.
        if let Some(count) = self.count_of(origin) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection out.
    pub(crate) fn connection_closed(&self, origin: Origin, counted: Counted) {
        self.held().leave(PeerId::of(origin.tcp()), counted);
        if let Some(count) = self.count_of(origin) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn count_of(&self, origin: Origin) -> Option<&AtomicUsize> {
        match origin {
            Origin::Tcp(_) | Origin::Quic(_) => None,
            Origin::Unix => Some(&self.by_unix),
            Origin::Shm => Some(&self.by_shm),
        }
    }

    /// Connections of all threads by the Unix socket, those that are ending included.
    pub fn unix_connections(&self) -> usize {
        self.by_unix.load(Ordering::Relaxed)
    }

    /// Whether there may be one more by shared memory. Each takes a ring of 1 MiB before it has said who it is.
    pub(crate) fn may_share_memory(&self) -> bool {
        let most = self.config.max_connections / SHM_PART;
        self.shm_connections() < most.max(1)
    }

    /// The same by shared memory.
    pub fn shm_connections(&self) -> usize {
        self.by_shm.load(Ordering::Relaxed)
    }

    /// Connections of all threads, those that are ending included.
    pub fn connections(&self) -> usize {
        self.held().count()
    }

    fn held(&self) -> MutexGuard<'_, Connections> {
        let held = self.connections.lock();
        held.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a broker of the cluster runs there.
    fn is_of_cluster(&self, peer: PeerId) -> bool {
        let mut rows = 0..self.region.geometry().brokers;
        rows.any(|row| {
            let found = self.region.broker_row(row).found();
            let address = found.and_then(|row| row.address());
            address.is_some() && PeerId::of(address) == peer && self.alive(row)
        })
    }

    /// Counts that a thread which reported `reported` publishers that wait now has `now` of them.
    pub fn paused_changed(&self, reported: &mut usize, now: usize) {
        let before = std::mem::replace(reported, now);
        if now > before {
            self.paused.fetch_add(now - before, Ordering::Relaxed);
        } else if now < before {
            self.paused.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Publishers of all threads that wait for room in the log.
    pub fn paused(&self) -> usize {
        self.paused.load(Ordering::Relaxed)
    }

    /// Adds topics that have grown or are gone to the inboxes of the other threads. True when there are other
    /// threads, which have to be woken.
    pub fn notify_others(&self, lane: u16, topics: &[u32]) -> bool {
        let others = self.inboxes.iter().zip(0..).filter(|it| it.1 != lane);
        others.map(|(inbox, _)| inbox.notify(topics)).count() > 0
    }

    /// Takes the topics in this thread's inbox: see [`Inbox::take`].
    #[must_use = "when it is false, the caller looks at all topics"]
    pub(crate) fn take_notified(&self, lane: u16, topics: &mut Vec<u32>) -> bool {
        self.inboxes[usize::from(lane)].take(topics)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
