//! A simulated host: one broker's real code (its log, and the shard that serves its connections) over a simulated
//! processor cache. The shared memory below all caches outlives every host. A broker that may also sequence has a
//! [`CandidateHost`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use embar_broker::BrokerConfig;
use embar_broker::broker_row::BrokerRowPublisher;
use embar_broker::clock::Timestamp;
use embar_broker::heartbeat::Heartbeat;
use embar_broker::log::{Log, Recovered, Rejoin, Watermarks};
use embar_broker::node::Node;
use embar_broker::places::HEAD;
use embar_broker::shard::{Action, Shard};
use embar_broker::topics::{Topic, TopicTable};
use embar_fabric::layout::TableId;
use embar_fabric::records::Record;
use embar_fabric::{BrokerRow, BrokerState, Claim, Geometry, LaneStart, Layout, Region, slot};
use embar_frame::Now;
use embar_memory::{Device, Faults, Outage, Power, Simulated};
use embar_wire::control::CreateTopic;
use embar_wire::time::WallNs;

use crate::candidate_host::CandidateHost;
use crate::network::Id;
use crate::plan::Plan;
use crate::random::Random;

const NONCE: u32 = 0x51ED_270B;

/// Where the broker of a row listens.
pub fn address(row: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9400 + row)
}

/// The row of an address.
pub fn row_at(address: SocketAddr) -> u16 {
    address.port() - 9400
}

/// What outlives every host.
#[derive(Debug)]
pub struct Devices {
    /// The control file.
    pub control: Device,
    /// The payload files, by row of those that take data.
    pub payload_files: Vec<Device>,
}

impl Devices {
    /// Devices full of garbage, with a fresh region on them.
    pub fn format(plan: &Plan, random: &mut Random) -> Self {
        let geometry = &plan.geometry;
        let payload_file = |_| Device::new(geometry.payload_bytes, random.bits());
        let payload_files: Vec<Device> = geometry.data_rows().map(payload_file).collect();
        let devices = Self {
            control: control_file(geometry),
            payload_files,
        };
        let control = Arc::new(devices.control.host(random.bits()));
        let host = |payload_file: &Device| Arc::new(payload_file.host(random.bits()));
        let payload_files = devices.payload_files.iter().map(host).collect();
        let region = Region::format(Arc::clone(&control), payload_files, geometry, NONCE, 1);
        region.expect("the plan's geometry is valid");
        if plan.lanes_begin_at > 0 {
            begin_lanes(&control, geometry, plan.lanes_begin_at);
        }
        devices
    }

    /// The region as it is on the devices, without a cache between.
    pub fn raw(&self) -> Region<Simulated> {
        let payload_files = self
            .payload_files
            .iter()
            .map(|payload_file| Arc::new(payload_file.view()));
        Region::from_parts(Arc::new(self.control.view()), payload_files.collect())
            .expect("the superblock was formatted")
    }

    /// The memories of a fresh host.
    pub fn host(&self, seed: u64, power: &Power) -> Memories {
        let mut random = Random::new(seed);
        let files = std::iter::once(&self.control).chain(&self.payload_files);
        let memory =
            |file: &Device| Arc::new(file.host_on(random.bits(), Faults::default(), power));
        Memories(files.map(memory).collect())
    }
}

/// Makes lanes look as if they were in use for long: their numbers, and the versions of the rows that say where
/// they begin, soon leave 32 bits.
fn begin_lanes(control: &Simulated, geometry: &Geometry, start: u64) {
    let layout = Layout::new(geometry);
    let table = layout.tables()[TableId::LaneStarts as usize];
    let begun = LaneStart {
        start,
        ..LaneStart::default()
    };
    for lane in 0..table.entries {
        let at = table.offset + lane * table.entry_bytes;
        for version in [u32::MAX - 2, u32::MAX - 1] {
            slot::rewrite(control, at, NONCE, version, &begun.to_body());
        }
    }
}

/// A new control file. Where it says which candidate leads, and for which epoch lanes are begun, it matters most
/// what others do between two accesses.
pub fn control_file(geometry: &Geometry) -> Device {
    let layout = Layout::new(geometry);
    let mut control = Device::blank(layout.control_bytes());
    let tables = layout.tables().iter();
    let decisive = tables.filter(|table| {
        let id = table.id;
        matches!(
            id,
            TableId::Sequencers | TableId::LaneStarts | TableId::LaneGrants
        )
    });
    control.watch(decisive.map(|table| table.offset..table.offset + table.bytes()));
    control
}

/// All files as one host sees them.
#[derive(Clone)]
pub struct Memories(Vec<Arc<Simulated>>);

impl Memories {
    /// The region in them.
    pub fn region(&self) -> Region<Simulated> {
        Region::from_parts(Arc::clone(&self.0[0]), self.0[1..].to_vec())
            .expect("the superblock is never written again")
    }

    /// Those of the next process on the same host.
    pub fn next_process(&self, seed: u64, power: &Power) -> Self {
        let mut random = Random::new(seed);
        let memories = self.0.iter();
        let next = memories.map(|memory| Arc::new(memory.next_process(random.bits(), power)));
        Self(next.collect())
    }

    /// An outage that struck acts on all of them.
    pub fn settle_outage(&self) {
        self.0.iter().for_each(|memory| memory.settle_outage());
    }
}

/// One of a broker's threads.
pub struct Thread {
    /// Its connections.
    pub shard: Shard<Simulated>,
    /// When it looks after them.
    pub next_tick: u64,
    /// It was woken.
    pub is_due: bool,
}

/// The broker of a living host.
pub struct Broker {
    /// As many as there are lanes.
    pub threads: Vec<Thread>,
    /// What its threads share.
    pub node: Arc<Node<Simulated>>,
    /// What it found when it started.
    pub recovered: Recovered,
    /// It has taken up its work, and listens.
    pub serves: bool,
    /// A head that is to delete this topic, and to create one of that name in its place.
    pub asked_to_replace: Option<(Topic, String)>,
    /// It is to be asked to leave; whether by force.
    pub asked_to_leave: Option<bool>,
    /// What keeps it in its cluster...
    pub heartbeat: Heartbeat<Simulated>,
    /// ...and when it beats next.
    pub next_beat: Now,
    /// It was overtaken, and ends.
    pub ends: bool,
    /// What its last turn decided and it has not done.
    pub undone: Vec<Action<Simulated>>,
}

impl Broker {
    /// Recovers what the incarnation before left. The broker may serve when [`Broker::take_up`] says so. The power
    /// may fail meanwhile: the caller checks that before anything else.
    pub fn start(
        region: Region<Simulated>,
        claim: &Arc<Claim>,
        plan: &Plan,
        alive: impl Fn(u16) -> bool + Send + Sync + 'static,
        at: Timestamp,
    ) -> Self {
        let row = claim.row();
        let mut started = BrokerRow {
            started: at.wall.0,
            ..BrokerRow::default()
        };
        started.set_address(address(row));
        let publisher = BrokerRowPublisher::start(&region, claim, started);
        let mut heartbeat = Heartbeat::new(&region, claim, started.pid);
        heartbeat.begin(at);
        let head_records = (row == HEAD).then(|| region.topic_record_writer(claim));
        let topics = TopicTable::attach(&region, head_records);
        let mut recovered = Recovered::default();
        let log = region.geometry().takes_data(row).then(|| {
            let known: Vec<Topic> = topics.iter().cloned().collect();
            let marks = Watermarks::of(region.geometry().payload_bytes, &plan.config);
            let log = Log::open(&region, claim, marks, &known);
            recovered = log.recovered();
            log
        });
        let config = BrokerConfig {
            network_threads: region.geometry().lanes,
            ..plan.config.clone()
        };
        let node = Arc::new(Node::new(
            config,
            claim,
            region,
            Box::new(alive),
            publisher,
            topics,
            log,
        ));
        let thread = |lane| Thread {
            shard: Shard::new(Arc::clone(&node), lane).expect("rings can be made here"),
            next_tick: 0,
            is_due: true,
        };
        Self {
            threads: (0..node.region.geometry().lanes).map(thread).collect(),
            node,
            recovered,
            serves: false,
            asked_to_replace: None,
            asked_to_leave: None,
            heartbeat,
            next_beat: at.now,
            ends: false,
            undone: Vec::new(),
        }
    }

    /// Takes up its work where the incarnation before left it. To be called until it is true.
    pub fn take_up(&mut self) -> bool {
        !self.node.takes_data() || self.node.log().rejoin() == Rejoin::Done
    }

    /// Listens from now on, and shows that in its row.
    pub fn serve(&mut self) {
        self.node.set_state(BrokerState::Ready);
        self.serves = true;
    }

    /// The thread that has a connection.
    pub fn thread_of(&self, connection: Id) -> usize {
        connection as usize % self.threads.len()
    }

    /// All threads but one have something to look at.
    pub fn wake_others(&mut self, than: usize) {
        let threads = self.threads.iter_mut().enumerate();
        let others = threads.filter(|(other, _)| *other != than);
        others.for_each(|(_, thread)| thread.is_due = true);
    }

    /// Whether it has no connection, and nothing of it waits for the sequencer.
    pub fn is_idle(&self) -> bool {
        let mut threads = self.threads.iter();
        threads.all(|thread| thread.shard.is_empty() && !thread.shard.waits_for_order())
    }

    /// What it waits for, to explain a run that does not end.
    pub fn describe(&self) -> String {
        let waits = self.threads.iter().map(|it| it.shard.waits_for_order());
        format!(
            "broker {}: {} connections, threads that wait for the order: {:?}",
            self.node.id,
            self.connections(),
            waits.collect::<Vec<_>>()
        )
    }

    /// Whether it has no connection.
    pub fn is_alone(&self) -> bool {
        self.threads.iter().all(|thread| thread.shard.is_empty())
    }

    /// Connections of all threads.
    pub fn connections(&self) -> usize {
        self.threads.iter().map(|thread| thread.shard.len()).sum()
    }

    /// Creates the plan's topics; returns them.
    pub fn create_topics(&self, plan: &Plan, wall: WallNs) -> Vec<Topic> {
        let create = |topic: &crate::plan::TopicPlan| {
            let spec = CreateTopic {
                name: topic.name.clone(),
                order: topic.order.into(),
                retention_bytes: topic.retention_bytes,
                retention_ms: 0,
                max_message_bytes: 0,
                replication_factor: 1,
            };
            let created =
                self.node
                    .topics()
                    .create(&spec, plan.config.max_batch_bytes, wall, |_| 0);
            created.expect("the plan's topics fit")
        };
        plan.topics.iter().map(create).collect()
    }
}

/// A host that lives: what dies together.
pub struct Host {
    /// What ends it, in the middle of anything.
    pub power: Power,
    /// Which of the row's two hosts it is.
    pub machine: usize,
    memories: Memories,
    /// None while it is in the middle of a turn.
    pub broker: Option<Box<Broker>>,
    /// Of a candidate; none while it is in the middle of a turn.
    pub candidate: Option<Box<CandidateHost>>,
    /// Parts that are in the middle of a turn.
    pub busy: u32,
    /// It does nothing before.
    pub paused_until: u64,
    /// When its broker does something by itself.
    pub broker_at: u64,
    /// When its sequencer does.
    pub candidate_at: u64,
    /// No wake-up reaches its candidate before.
    pub candidate_wakes_after: u64,
    /// Its broker will find that it lacks something when it has joined.
    pub fails_to_serve: bool,
    /// What its broker said of its log.
    pub claimed: Vec<(u32, u64, u64)>,
    /// Its log was full.
    pub log_is_full: bool,
}

impl Host {
    /// A host whose parts are about to start.
    pub fn new(power: Power, machine: usize, memories: Memories) -> Self {
        Self {
            power,
            machine,
            memories,
            broker: None,
            candidate: None,
            busy: 0,
            paused_until: 0,
            broker_at: 0,
            candidate_at: 0,
            candidate_wakes_after: 0,
            fails_to_serve: false,
            claimed: Vec::new(),
            log_is_full: false,
        }
    }

    /// Whether its power is on.
    pub fn lives(&self) -> bool {
        self.power.failed().is_none()
    }

    /// It dies now, unless it has already: what it cached settles before anything of it goes. Gives
    /// what its caches still hold to the next process there.
    pub fn end(self) -> (Outage, Memories) {
        if self.lives() {
            self.power.fail_after(0, Outage::Process);
        }
        self.memories.settle_outage();
        let outage = self.power.failed().unwrap_or(Outage::Process);
        (outage, self.memories)
    }
}
