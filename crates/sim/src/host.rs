//! The hosts and what outlives them: memory of all, and on each host the real log, shard and
//! sequencer over a private cache.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use embar_broker::log::{Log, Recovered, Watermarks};
use embar_broker::node::{HEAD, Node};
use embar_broker::shard::{Action, Shard};
use embar_broker::topics::{Topic, TopicTable};
use embar_fabric::{
    BrokerRow, BrokerState, Claim, Device, Faults, Layout, Outage, Power, Region, RowWriter,
    Simulated,
};
use embar_wire::control::CreateTopic;
use embar_wire::time::WallNs;

use crate::plan::Plan;
use crate::random::Random;
use crate::seat::Seat;

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
    pub blogs: Vec<Device>,
}

impl Devices {
    /// Devices full of garbage, with a fresh region on them.
    pub fn format(plan: &Plan, random: &mut Random) -> Self {
        let geometry = &plan.geometry;
        let control_bytes = Layout::new(geometry).control_bytes();
        let blog = |_| Device::new(geometry.blog_bytes, random.bits());
        let blogs: Vec<Device> = geometry.data_rows().map(blog).collect();
        let devices = Self {
            control: Device::new(control_bytes, random.bits()),
            blogs,
        };
        let control = Arc::new(devices.control.host(random.bits()));
        let host = |blog: &Device| Arc::new(blog.host(random.bits()));
        let blogs = devices.blogs.iter().map(host).collect();
        Region::format(control, blogs, geometry, NONCE, 1).expect("the plan's geometry is valid");
        devices
    }

    /// The region as it is on the devices, without a cache between.
    pub fn raw(&self) -> Region<Simulated> {
        let blogs = self.blogs.iter().map(|blog| Arc::new(blog.view()));
        Region::from_parts(Arc::new(self.control.view()), blogs.collect())
            .expect("the superblock was formatted")
    }

    /// The region as a fresh host sees it, and that host's memories.
    pub fn host(&self, seed: u64, power: &Power) -> (Region<Simulated>, Vec<Arc<Simulated>>) {
        let mut random = Random::new(seed);
        let files = std::iter::once(&self.control).chain(&self.blogs);
        let memory =
            |file: &Device| Arc::new(file.host_on(random.bits(), Faults::default(), power));
        let memories: Vec<Arc<Simulated>> = files.map(memory).collect();
        let region = Region::from_parts(Arc::clone(&memories[0]), memories[1..].to_vec())
            .expect("the superblock is never written again");
        (region, memories)
    }
}

/// The broker of a living host.
pub struct Broker {
    /// Its connections.
    pub shard: Shard<Simulated>,
    /// What its threads share.
    pub node: Arc<Node<Simulated>>,
    /// What it found when it started.
    pub recovered: Recovered,
    /// It has taken up its work, and listens.
    pub serves: bool,
    /// What its last turn decided and it has not done.
    pub undone: Vec<Action<Simulated>>,
    row: (RowWriter<Simulated, BrokerRow>, BrokerRow),
}

impl Broker {
    /// Recovers what the incarnation before left; it serves when [`Broker::take_up`] says so. The
    /// power may fail meanwhile: look at that before anything else.
    pub fn start(
        region: Region<Simulated>,
        claim: &Arc<Claim>,
        plan: &Plan,
        alive: fn(u16) -> bool,
        wall: WallNs,
    ) -> Self {
        let row = claim.row();
        let mut said = BrokerRow {
            incarnation: claim.incarnation(),
            ..BrokerRow::default()
        };
        said.set_address(address(row));
        said.set_broker_state(BrokerState::Starting);
        let mut writer = region.broker_row_writer(claim);
        writer.store(&said);
        let head_cells = (row == HEAD).then(|| region.cell_writer(claim));
        let topics = TopicTable::attach(region.cells(), head_cells);
        let mut recovered = Recovered::default();
        let log = region.geometry().takes_data(row).then(|| {
            let known: Vec<Topic> = topics.iter().cloned().collect();
            let marks = Watermarks::of(region.geometry().blog_bytes, &plan.config);
            let (log, found) = Log::open(&region, claim, marks, &known);
            recovered = found;
            log
        });
        let node = Arc::new(Node::new(
            plan.config.clone(),
            claim,
            region,
            Box::new(alive),
            topics,
            log,
            wall,
        ));
        Self {
            shard: Shard::new(Arc::clone(&node), 0).expect("rings can be made here"),
            node,
            recovered,
            serves: false,
            undone: Vec::new(),
            row: (writer, said),
        }
    }

    /// Takes up its work where the incarnation before left it. To be called until it is true.
    pub fn take_up(&mut self) -> bool {
        if self.node.takes_data() && !self.node.log().rejoin() {
            return false;
        }
        let (writer, said) = &mut self.row;
        said.set_broker_state(BrokerState::Ready);
        writer.store(said);
        self.serves = true;
        true
    }

    /// Creates the plan's topics; returns them.
    pub fn create_topics(&self, plan: &Plan, wall: WallNs) -> Vec<Topic> {
        let create = |topic: &crate::plan::TopicPlan| {
            let spec = CreateTopic {
                name: topic.name.clone(),
                order: topic.order.into(),
                retention_bytes: topic.retention_bytes,
                max_message_bytes: 0,
            };
            let created = self
                .node
                .topics()
                .create(&spec, plan.config.max_batch_bytes, wall);
            created.expect("the plan's topics fit")
        };
        plan.topics.iter().map(create).collect()
    }
}

/// A host that lives: what dies together.
pub struct Host {
    /// What ends it, in the middle of anything.
    pub power: Power,
    memories: Vec<Arc<Simulated>>,
    /// None while it is in the middle of a turn.
    pub broker: Option<Box<Broker>>,
    /// Of a candidate; none while it is in the middle of a turn.
    pub seat: Option<Box<Seat>>,
    /// Parts that are in the middle of a turn.
    pub busy: u32,
    /// It does nothing before.
    pub paused_until: u64,
    /// When its broker does something by itself.
    pub broker_at: u64,
    /// When its sequencer does.
    pub seat_at: u64,
    /// When the broker looks after its connections.
    pub next_tick: u64,
    /// What its broker said of its log.
    pub claimed: Vec<(u64, u64)>,
}

impl Host {
    /// A host whose parts are about to start.
    pub fn new(power: Power, memories: Vec<Arc<Simulated>>) -> Self {
        Self {
            power,
            memories,
            broker: None,
            seat: None,
            busy: 0,
            paused_until: 0,
            broker_at: 0,
            seat_at: 0,
            next_tick: 0,
            claimed: Vec::new(),
        }
    }

    /// Whether its power is on.
    pub fn lives(&self) -> bool {
        self.power.failed().is_none()
    }

    /// It dies now, unless it has already: what it cached settles before anything of it goes.
    pub fn end(self) -> Outage {
        if self.lives() {
            self.power.fail_after(0, Outage::Process);
        }
        self.memories
            .iter()
            .for_each(|memory| memory.settle_outage());
        self.power.failed().unwrap_or(Outage::Process)
    }
}
