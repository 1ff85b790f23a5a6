//! A log on simulated memory, driven by hand.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::sync::Arc;

use embar_broker::log::{Claimed, Lane, Log, Watermarks};
use embar_broker::topics::{Topic, TopicTable};
use embar_fabric::{Claim, Outage, Power, Region, Simulated};
use embar_sim::books::Books;
use embar_sim::host::{Devices, ROW};
use embar_wire::batch::{BatchFlags, BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::CreateTopic;
use embar_wire::limits::MAX_BATCH_BYTES;
use embar_wire::time::WallNs;

/// A log without connections.
pub struct Life {
    pub log: Log<Simulated>,
    lane: Lane<Simulated>,
    topics: TopicTable<Simulated>,
    memories: [Arc<Simulated>; 2],
    pub power: Power,
}

impl Life {
    pub fn begin(devices: &Devices, seed: u64) -> Self {
        let power = Power::default();
        let host = |device: &embar_fabric::Device| {
            Arc::new(device.host_on(seed, embar_fabric::Faults::default(), &power))
        };
        let memories = [host(&devices.control), host(&devices.blog)];
        let [control, blog] = memories.clone();
        let region = Region::from_parts(control, vec![blog]).expect("formatted");
        let claim: Arc<Claim> = Arc::new(region.claim_unlocked(ROW));
        let topics = TopicTable::attach(region.cells(), Some(region.cell_writer(&claim)));
        let known: Vec<Topic> = topics.iter().cloned().collect();
        let marks = Watermarks {
            high_bytes: 1 << 20,
            low_bytes: 1 << 19,
        };
        let (log, recovered) = Log::open(&region, &claim, 1, marks, &known);
        assert_eq!(recovered.damaged, 0);
        let lane = Lane {
            number: 0,
            writer: region.lane_writer(&claim, 0),
            connection: 0,
        };
        Self {
            log,
            lane,
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
            .create(&spec, 4096, WallNs(1))
            .expect("the first topic");
        self.log.open_topic(&topic);
        topic
    }

    pub fn append(&mut self, topic: &Topic, sequence: u64, books: &mut Books) {
        let mut builder = BatchBuilder::new(Vec::new(), 512);
        let pushed = builder.try_push(None, &[], &[sequence as u8; 100]);
        pushed.expect("it fits");
        let frame = builder.seal(SealFields {
            producer: 7,
            sequence,
            topic: topic.id,
            epoch: 0,
            append_time: WallNs(0),
            flags: BatchFlags::NONE,
        });
        books.seal(&frame, false);
        let header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("just sealed");
        let admitted = self.log.admit(topic.id, header.frame_len()).ok();
        let mut claimed: Claimed<Simulated> = admitted.expect("there is room");
        claimed.reservation.write(64, &frame[64..]);
        let meter = embar_meter::Profile::new(&embar_broker::profile::SCHEMA).recorder();
        let appended = self
            .log
            .append(claimed, header, &mut self.lane, WallNs(2), &meter);
        assert!(appended.is_some());
    }

    pub fn end(self, outage: Outage) {
        if self.power.failed().is_none() {
            self.power.fail_after(0, outage);
        }
        self.memories
            .iter()
            .for_each(|memory| memory.settle_outage());
    }
}
