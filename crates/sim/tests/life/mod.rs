//! A log on simulated memory, driven by hand.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::sync::Arc;

use embar_broker::log::{BatchSpace, Log, Watermarks};
use embar_broker::topics::{Topic, TopicTable};
use embar_fabric::{Claim, Geometry};
use embar_memory::{Outage, Power, Simulated};
use embar_sim::host::{Devices, Memories};
use embar_sim::oracle::{Oracle, name_bytes};
use embar_sim::plan::Plan;
use embar_sim::random::Random;
use embar_wire::batch::{BatchFlags, BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::CreateTopic;
use embar_wire::limits::MAX_BATCH_BYTES;
use embar_wire::time::WallNs;

/// The row of the broker, which is its own head.
pub const ROW: u16 = 0;
/// Who publishes.
const MAKER: u64 = 7;

/// A plan with one broker.
pub fn alone(random: &mut Random) -> Plan {
    let plan = Plan::new(random);
    Plan {
        geometry: Geometry {
            brokers: 1,
            standbys: 0,
            spares: 0,
            ..plan.geometry
        },
        ..plan
    }
}

/// A log without connections.
pub struct Life {
    pub log: Log<Simulated>,
    topics: TopicTable<Simulated>,
    memories: Memories,
    pub power: Power,
}

impl Life {
    pub fn begin(devices: &Devices, seed: u64) -> Self {
        let power = Power::default();
        let memories = devices.host(seed, &power);
        let region = memories.region();
        let claim: Arc<Claim> = Arc::new(region.claim_unlocked(ROW));
        let topics = TopicTable::attach(&region, Some(region.topic_record_writer(&claim)));
        let known: Vec<Topic> = topics.iter().cloned().collect();
        let marks = Watermarks {
            high_bytes: 1 << 20,
            low_bytes: 1 << 19,
        };
        let log = Log::open(&region, &claim, marks, &known);
        assert_eq!(log.recovered().damaged, 0);
        Self {
            log,
            topics,
            memories,
            power,
        }
    }

    pub fn create_topic(&mut self) -> Topic {
        let spec = CreateTopic {
            name: "topic".into(),
            ..CreateTopic::default()
        };
        let topic = self
            .topics
            .create(&spec, 4096, WallNs(1), |_| 0)
            .expect("the first topic");
        self.log.open_topic(&topic);
        topic
    }

    pub fn append(&mut self, topic: &Topic, number: u64, oracle: &mut Oracle) {
        let mut builder = BatchBuilder::new(Vec::new(), 512);
        let mut value = [number as u8; 100];
        value[..16].copy_from_slice(&name_bytes((MAKER, number)));
        let pushed = builder.try_push(None, &[], &value);
        pushed.expect("it fits");
        let frame = builder.seal(SealFields {
            producer: MAKER,
            sequence: number,
            topic: topic.id,
            epoch: 0,
            append_time: WallNs(0),
            flags: BatchFlags::NONE,
        });
        oracle.seal((MAKER, number), &frame, false);
        let header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("just sealed");
        let admitted = self.log.reserve(topic.id, header.frame_len()).ok();
        let mut claimed: BatchSpace<Simulated> = admitted.expect("there is room");
        claimed.reservation.write(64, &frame[64..]);
        let meter = embar_meter::Profile::new(&embar_broker::profile::SCHEMA).recorder();
        let appended = self.log.append(claimed, header, WallNs(2), &meter);
        assert!(appended.is_some());
    }

    pub fn end(self, outage: Outage) {
        if self.power.failed().is_none() {
            self.power.fail_after(0, outage);
        }
        self.memories.settle_outage();
    }
}
