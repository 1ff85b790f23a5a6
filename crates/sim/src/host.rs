//! The broker and its host: memory that outlives both, and the real log and shard on it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use embar_broker::config::BrokerConfig;
use embar_broker::log::canary::Canary;
use embar_broker::log::{Lane, Log, Recovered, Watermarks};
use embar_broker::node::Node;
use embar_broker::shard::Shard;
use embar_broker::topics::{Topic, TopicTable};
use embar_fabric::{
    BrokerRow, BrokerState, Device, Faults, Layout, Outage, Power, Region, Simulated,
};
use embar_wire::control::CreateTopic;
use embar_wire::time::WallNs;

use crate::plan::Plan;
use crate::random::Random;

/// The broker's row: the only one, so that it is its own head.
pub const ROW: u16 = 0;
/// Where the broker listens.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9400);

const NONCE: u32 = 0x51ED_270B;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// In the broker.
    pub canary: Canary,
    /// In its host's memory.
    pub memory: Faults,
}

/// What outlives every host.
#[derive(Debug)]
pub struct Devices {
    /// The control file.
    pub control: Device,
    /// The payload file.
    pub blog: Device,
}

/// A living broker.
pub struct Broker {
    /// Its connections.
    pub shard: Shard<Simulated>,
    /// What its threads share.
    pub node: Arc<Node<Simulated>>,
    /// What ends it, in the middle of anything.
    pub power: Power,
    /// What it found when it started.
    pub recovered: Recovered,
    memories: [Arc<Simulated>; 2],
}

impl Devices {
    /// Devices full of garbage, with a fresh region on them.
    pub fn format(plan: &Plan, random: &mut Random) -> Self {
        let geometry = &plan.geometry;
        let control_bytes = Layout::new(geometry).control_bytes();
        let devices = Self {
            control: Device::new(control_bytes, random.bits()),
            blog: Device::new(geometry.blog_bytes, random.bits()),
        };
        let control = Arc::new(devices.control.host(random.bits()));
        let blog = Arc::new(devices.blog.host(random.bits()));
        Region::format(control, vec![blog], geometry, NONCE, 1)
            .expect("the plan's geometry is valid");
        devices
    }

    /// The region as it is on the devices, without a cache between.
    pub fn raw(&self) -> Region<Simulated> {
        let parts = (
            Arc::new(self.control.view()),
            vec![Arc::new(self.blog.view())],
        );
        Region::from_parts(parts.0, parts.1).expect("the superblock was formatted")
    }
}

impl Broker {
    /// Claims the row and recovers what the incarnation before left. The power may fail meanwhile:
    /// look at [`Broker::power`] before anything else.
    pub fn start(
        devices: &Devices,
        config: &BrokerConfig,
        sabotage: Sabotage,
        power: Power,
        random: &mut Random,
        wall: WallNs,
    ) -> Self {
        let host = |device: &Device, random: &mut Random| {
            Arc::new(device.host_on(random.bits(), sabotage.memory, &power))
        };
        let memories = [host(&devices.control, random), host(&devices.blog, random)];
        let [control, blog] = memories.clone();
        let region =
            Region::from_parts(control, vec![blog]).expect("the superblock is never written again");
        let claim = Arc::new(region.claim_unlocked(ROW));
        let topics = TopicTable::attach(region.cells(), Some(region.cell_writer(&claim)));
        let known: Vec<Topic> = topics.iter().cloned().collect();
        let marks = Watermarks::of(region.geometry().blog_bytes, config);
        let (mut log, recovered) = Log::open(&region, &claim, 1, marks, &known);
        log.sing(sabotage.canary);
        let mut row = BrokerRow {
            incarnation: claim.incarnation(),
            ..BrokerRow::default()
        };
        row.set_address(ADDRESS);
        row.set_broker_state(BrokerState::Ready);
        region.broker_row_writer(&claim).store(&row);
        let lane = Lane {
            number: 0,
            writer: region.lane_writer(&claim, 0),
            connection: 0,
        };
        let alive = Box::new(|row| row == ROW);
        let node = Node::new(
            config.clone(),
            &claim,
            region,
            alive,
            topics,
            Some(log),
            wall,
        );
        let node = Arc::new(node);
        Self {
            shard: Shard::new(Arc::clone(&node), Some(lane)).expect("rings can be made here"),
            node,
            power,
            recovered,
            memories,
        }
    }

    /// Creates the plan's topics; returns them.
    pub fn create_topics(&self, plan: &Plan, sabotage: Sabotage, wall: WallNs) -> Vec<Topic> {
        let create = |topic: &crate::plan::TopicPlan| {
            let spec = CreateTopic {
                name: topic.name.clone(),
                order: 0,
                retention_bytes: topic.retention_bytes,
                max_message_bytes: 0,
            };
            let created = self
                .node
                .topics()
                .create(&spec, plan.config.max_batch_bytes, wall);
            let created = created.expect("the plan's topics fit");
            self.node.log().open_topic(&created);
            created
        };
        let topics = plan.topics.iter().map(create).collect();
        self.node.log().sing(sabotage.canary);
        topics
    }

    /// It dies now, unless it has already.
    pub fn die(self, outage: Outage) {
        if self.power.failed().is_none() {
            self.power.fail_after(0, outage);
        }
        self.memories
            .iter()
            .for_each(|memory| memory.settle_outage());
    }
}
