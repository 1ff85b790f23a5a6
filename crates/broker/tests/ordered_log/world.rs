//! Logs of two brokers and a sequencer on simulated memory, each step by hand.

use std::ops::Range;
use std::sync::Arc;

use embar_broker::BrokerConfig;
use embar_broker::broker_row::BrokerRowPublisher;
use embar_broker::log::is_intact;
use embar_broker::log::{
    AdmitError, Admitted, Answer, Answered, BatchSpace, Log, Read, Rejoin, Sender, Submitter,
    Wanted, Watermarks,
};
use embar_broker::node::Node;
use embar_broker::peers::PeerId;
use embar_broker::topics::{Topic, TopicTable};
use embar_fabric::geometry::topic_record_of;
use embar_fabric::records::{Record, Window};
use embar_fabric::slot;
use embar_fabric::{BrokerRow, Claim, Geometry, GoiRecord, Layout, Region, Secret};
use embar_memory::{Device, Faults, Memory, Outage, Power, Simulated};
use embar_meter::profile::Recorder;
use embar_order::{Limits, Operation, Request, Sequencer};
use embar_transport::{Body, Pieces, SendBuf};
use embar_wire::batch::{BatchFlags, BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::CreateTopic;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;
use embar_wire::topic::Order;

const NONCE: u32 = 9;
const MARKS: Watermarks = Watermarks {
    high_bytes: 1 << 19,
    low_bytes: 1 << 18,
};

/// A topic of each kind, in topic records of their own.
pub const KEPT: u32 = 1;
pub const LOOSE: u32 = 2;
pub const STRICT: u32 = 3;

/// A process that has opened its log.
type Opened = (Region<Simulated>, Arc<Claim>, Log<Simulated>);

/// All that outlives processes.
pub struct World {
    layout: Layout,
    control: Device,
    payload_files: Vec<Device>,
    /// Processes begun so far.
    lives: std::cell::Cell<u64>,
}

pub fn topics() -> Vec<Topic> {
    [
        (KEPT, Order::None),
        (LOOSE, Order::Total),
        (STRICT, Order::TotalPerPublisher),
    ]
    .map(|(id, order)| Topic {
        id,
        name: format!("order-{order}"),
        order,
        retention_bytes: 0,
        retention_ms: 0,
        max_message_bytes: 1 << 20,
        created: WallNs(0),
        disks: 0,
        former_disks: 0,
        moves: 0,
    })
    .into()
}

/// What reads as damaged.
const GARBAGE: u64 = 0xC3C3_C3C3_C3C3_C3C3;

/// What is there is there no more.
fn overwrite(device: &Device, range: Range<u64>, word: u64) {
    let vandal = device.host(4);
    let words = range.clone().step_by(8);
    words.for_each(|at| vandal.store(at, word));
    vandal.write_back(range.start, range.end - range.start);
    vandal.fence();
}

impl World {
    /// Rows: the head, and two brokers with a megabyte each.
    pub fn new() -> Self {
        Self::with_disks(0)
    }

    /// As [`World::new`], with so many disks.
    pub fn with_disks(disks: u16) -> Self {
        let geometry = Geometry {
            brokers: 3,
            topics: 4,
            lanes: 1,
            lane_slots: 256,
            index_pages: 16,
            payload_bytes: 1 << 20,
            goi_pages: 64,
            sessions: 16,
            disks,
            ..Geometry::default()
        };
        Self::shaped(&geometry)
    }

    /// Of any shape.
    pub fn shaped(geometry: &Geometry) -> Self {
        let layout = Layout::new(geometry);
        let control = Device::blank(layout.control_bytes());
        let payload_files: Vec<Device> = (2..)
            .take(geometry.data_rows().count())
            .map(|seed| Device::new(geometry.payload_bytes, seed))
            .collect();
        let host = |device: &Device| Arc::new(device.host(5));
        let formatted = Region::format(
            host(&control),
            payload_files.iter().map(host).collect(),
            geometry,
            NONCE,
            1,
        );
        drop(formatted.expect("a good geometry"));
        Self {
            layout,
            control,
            payload_files,
            lives: 0.into(),
        }
    }

    /// The region as one more process sees it.
    pub fn host(&self) -> Region<Simulated> {
        self.region(&Power::default()).0
    }

    /// The region as one more process sees it, and that process's memories.
    fn region(&self, power: &Power) -> (Region<Simulated>, Vec<Arc<Simulated>>) {
        let life = self.lives.replace(self.lives.get() + 1);
        let host = |device: &Device| {
            let host = device.host_on(100 + life, Faults::default(), power);
            Arc::new(host)
        };
        let (control, payload_files) = (host(&self.control), self.payload_files.iter().map(host));
        let payload_files: Vec<_> = payload_files.collect();
        let memories = payload_files
            .iter()
            .cloned()
            .chain([Arc::clone(&control)])
            .collect();
        let region = Region::from_parts(control, payload_files);
        (region.expect("it was formatted"), memories)
    }

    /// Damages the record of the order that gives this position to this number of a session, as
    /// `damage` does it.
    pub fn damage(&self, position: u64, of: &Session, number: u64, damage: fn(&mut GoiRecord)) {
        let control = self.control.view();
        let mut line = [0; 64];
        let found = (0..control.len()).step_by(line.len()).find(|at| {
            control.read(*at, &mut line);
            let body = line.first_chunk().expect("a line is longer");
            let record = GoiRecord::from_body(body);
            let named = (
                record.base,
                record.producer,
                record.sequence,
                record.session_epoch,
            );
            named == (position, of.producer, number, of.epoch)
        });
        let (body, _) = line.split_first_chunk_mut().expect("a line is longer");
        let mut record = GoiRecord::from_body(body);
        damage(&mut record);
        *body = record.to_body();
        let (at, vandal) = (found.expect("it was ordered"), self.control.host(4));
        // It passes for a record, or nobody would look at what it says.
        let lap = control.load(at + 56) as u32;
        slot::publish(&vandal, at, body, NONCE, lap);
    }

    /// Both copies of the window that a broker keeps of a topic.
    pub fn lose_window(&self, row: u16, topic: u32) {
        self.fill("windows", self.window_at(row, topic), GARBAGE);
    }

    /// They read as if they had never been written.
    pub fn blank_window(&self, row: u16, topic: u32) {
        self.fill("windows", self.window_at(row, topic), 0);
    }

    fn window_at(&self, row: u16, topic: u32) -> Range<u64> {
        let records = u64::from(self.layout.geometry().topics);
        let window = u64::from(row) * records + u64::from(topic_record_of(topic));
        128 * window..128 * (window + 1)
    }

    /// All of a broker's index.
    pub fn lose_index(&self, row: u16) {
        let pages = self.layout.geometry().index_pages;
        (0..pages).for_each(|page| self.lose_index_page(row, page, 0..64));
    }

    /// These lines of a page of a broker's index: the first one is its header.
    pub fn lose_index_page(&self, row: u16, page: u32, lines: Range<u64>) {
        let pages = self.layout.geometry().index_pages;
        let at = 4096 * (u64::from(row - 1) * u64::from(pages) + u64::from(page));
        self.fill(
            "index pages",
            at + 64 * lines.start..at + 64 * lines.end,
            GARBAGE,
        );
    }

    /// The middle of the first batch in a broker's memory.
    pub fn lose_payload(&self, row: u16) {
        overwrite(&self.payload_files[usize::from(row) - 1], 64..128, GARBAGE);
    }

    fn fill(&self, table: &str, range: Range<u64>, word: u64) {
        let mut tables = self.layout.tables().iter();
        let found = tables.find(|it| it.id.name() == table);
        let at = found.expect("there is such a table").offset;
        overwrite(&self.control, at + range.start..at + range.end, word);
    }

    /// What a broker says that it keeps of a topic, if that can be read.
    pub fn window(&self, row: u16, topic: u32) -> Option<Window> {
        let (region, _) = self.region(&Power::default());
        region.window(row, topic_record_of(topic)).found()
    }

    /// The next incarnation of a broker opens its log, and dies after so many accesses to memory. True
    /// if that was before it was done.
    pub fn open_and_die(&self, row: u16, accesses: u64, outage: Outage) -> bool {
        let power = Power::default();
        let (region, memories) = self.region(&power);
        let claim: Arc<Claim> = Arc::new(region.claim_unlocked(row));
        power.fail_after(accesses, outage);
        let log = Log::open(&region, &claim, MARKS, &topics());
        let died = power.failed().is_some();
        power.fail_after(0, outage);
        memories.iter().for_each(|memory| memory.settle_outage());
        drop(log);
        died
    }

    /// The next sequencer. The brokers that live submit to it after their next polls.
    pub fn sequencer(&self) -> Sequencer<Simulated> {
        let (region, _) = self.region(&Power::default());
        let claim = Arc::new(region.claim_unlocked(0));
        let files = region.clone();
        let intact = Box::new(move |row, record: &_| is_intact(&files, row, record));
        Sequencer::take_over(&region, &claim, &Limits::default(), &|_| true, intact)
            .expect("what was left is sound")
    }

    /// A topic that is in the cluster's table, as the head makes it.
    pub fn create_topic(&self, name: &str, order: u32) -> Topic {
        self.create_topic_on_disks(name, order, 0)
    }

    /// As [`World::create_topic`], on so many disks.
    pub fn create_topic_on_disks(&self, name: &str, order: u32, disks: u8) -> Topic {
        let (region, _) = self.region(&Power::default());
        let records = region.topic_record_writer(&region.claim_unlocked(0));
        let mut table = TopicTable::attach(&region, Some(records));
        let spec = CreateTopic {
            name: name.into(),
            order,
            retention_bytes: 0,
            retention_ms: 0,
            max_message_bytes: 0,
            replication_factor: 1 + disks,
        };
        let created = table.create(&spec, 1 << 16, WallNs(1), |_| 0);
        created.expect("there is room")
    }

    /// A topic is gone from the cluster's table.
    pub fn delete_topic(&self, name: &str) {
        let region = self.host();
        let records = region.topic_record_writer(&region.claim_unlocked(0));
        let deleted = TopicTable::attach(&region, Some(records)).delete(name);
        deleted.expect("it was there");
    }

    /// A broker with all that its threads share, in which the topic is open.
    pub fn node(
        &self,
        row: u16,
        topic: &Topic,
        config: BrokerConfig,
        sequencer: &mut Sequencer<Simulated>,
    ) -> Arc<Node<Simulated>> {
        let (region, claim, mut log) = self.log(row, &Power::default(), sequencer).0;
        log.open_topic(topic);
        let row = BrokerRowPublisher::start(&region, &claim, BrokerRow::default());
        let table = TopicTable::attach(&region, None);
        Arc::new(Node::new(
            config,
            &claim,
            region,
            Box::new(|_| true),
            row,
            table,
            Some(log),
        ))
    }

    /// The next incarnation of a broker, which asks `sequencer` in.
    pub fn broker(&self, row: u16, sequencer: &mut Sequencer<Simulated>) -> Broker {
        let power = Power::default();
        let ((_, _, log), memories) = self.log(row, &power, sequencer);
        Broker {
            log,
            meter: embar_meter::Profile::new(&embar_broker::profile::SCHEMA).recorder(),
            submitted: 0,
            now: WallNs(self.lives.get() << 32),
            power,
            memories,
        }
    }

    /// The log of the next incarnation of a broker, and the memories that it lies in.
    fn log(
        &self,
        row: u16,
        power: &Power,
        sequencer: &mut Sequencer<Simulated>,
    ) -> (Opened, Vec<Arc<Simulated>>) {
        let (region, memories) = self.region(power);
        let claim: Arc<Claim> = Arc::new(region.claim_unlocked(row));
        let all = [
            topics(),
            TopicTable::attach(&region, None).iter().cloned().collect(),
        ]
        .concat();
        let mut log = Log::open(&region, &claim, MARKS, &all);
        let mut looks = 0;
        while log.rejoin() != Rejoin::Done {
            sequencer.step(0, &|_| true);
            sequencer.beat(&|_| true);
            looks += 1;
            assert!(looks < 1000, "it is never admitted");
        }
        ((region, claim, log), memories)
    }
}

/// It may claim room for whatever it announces.
const TRUSTED: Sender = Sender {
    lane: 0,
    connection: 0,
    peer: PeerId::Here,
    credit_bytes: u64::MAX,
};

/// A publisher's session, as it is known to be.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    pub topic: u32,
    pub producer: u64,
    pub slot: u32,
    pub epoch: u32,
}

/// A batch of one message that is `bytes` long.
pub fn sealed(session: &Session, sequence: u64, bytes: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new(), (bytes + 256).next_multiple_of(64));
    let mut value = vec![sequence as u8; bytes];
    value[..8].copy_from_slice(&sequence.to_le_bytes());
    builder.try_push(None, &[], &value).expect("it fits");
    builder
        .seal(SealFields {
            producer: session.producer,
            sequence,
            topic: session.topic,
            epoch: session.epoch,
            append_time: WallNs(1),
            flags: BatchFlags::default(),
        })
        .into()
}

/// A process that takes data.
pub struct Broker {
    pub log: Log<Simulated>,
    meter: Recorder,
    submitted: u64,
    /// What its clock says.
    pub now: WallNs,
    pub power: Power,
    memories: Vec<Arc<Simulated>>,
}

impl Broker {
    /// It dies, now at the latest; true if it was dead before.
    pub fn end(self, outage: Outage) -> bool {
        let was_dead = self.power.failed().is_some();
        if !was_dead {
            self.power.fail_after(0, outage);
        }
        self.memories
            .iter()
            .for_each(|memory| memory.settle_outage());
        was_dead
    }

    /// Later than before.
    fn now(&mut self) -> WallNs {
        self.now.0 += 1;
        self.now
    }

    fn ticket(&mut self) -> Submitter {
        self.submitted += 1;
        Submitter {
            lane: 0,
            connection: 1,
            batch: Some(self.submitted),
        }
    }

    /// Opens a session of the instance that has the producer's number.
    pub fn open(
        &mut self,
        topic: u32,
        producer: u64,
        sequencer: &mut Sequencer<Simulated>,
    ) -> Session {
        let ticket = self.ticket();
        let request = Request {
            producer,
            instance: producer,
            secret: Secret([7; 16]),
            peer: 0,
            operation: Operation::Open { takes_over: 0 },
        };
        let asked = self.log.submit_session(topic, &request, ticket);
        asked.expect("there is room in the lane");
        sequencer.step(0, &|_| true);
        match self.answers()[..] {
            [(_, Answer::Opened { session, epoch, .. })] => Session {
                topic,
                producer,
                slot: session,
                epoch,
            },
            ref other => panic!("{other:?}"),
        }
    }

    /// Where a batch lies now; evicts as much as it takes.
    pub fn submit(&mut self, session: &Session, sequence: u64, bytes: usize) -> Submitter {
        let ticket = self.ticket();
        let (claimed, header) = self.received(session, sequence, bytes);
        let now = self.now();
        let taken = self
            .log
            .submit(claimed, header, session.slot, ticket, now, &self.meter);
        assert!(taken, "the topic is there");
        ticket
    }

    /// Order 0: its offset.
    pub fn append(&mut self, sequence: u64, bytes: usize) -> u64 {
        self.append_to(KEPT, sequence, bytes)
    }

    /// As [`Broker::append`], of any topic of order 0 or 1.
    pub fn append_to(&mut self, topic: u32, sequence: u64, bytes: usize) -> u64 {
        let session = Session {
            topic,
            producer: 1,
            slot: 0,
            epoch: 0,
        };
        let (claimed, header) = self.received(&session, sequence, bytes);
        let now = self.now();
        let appended = self.log.append(claimed, header, now, &self.meter);
        appended.expect("the topic is there")
    }

    fn received(
        &mut self,
        of: &Session,
        sequence: u64,
        bytes: usize,
    ) -> (BatchSpace<Simulated>, BatchHeader) {
        let frame = sealed(of, sequence, bytes);
        let header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("just sealed");
        let mut claimed = match self.log.admit(of.topic, header.frame_len(), 0, &TRUSTED) {
            Ok(Admitted::InLog(claimed)) => claimed,
            Ok(Admitted::Staged(bytes)) => panic!("{bytes} bytes beside the log"),
            Err(none) => panic!("no room: {none:?}"),
        };
        claimed
            .reservation
            .write(BATCH_HEADER_BYTES, &frame[BATCH_HEADER_BYTES..]);
        (claimed, header)
    }

    /// Whether a small batch is to wait.
    pub fn is_congested(&mut self, topic: u32) -> bool {
        match self.refused(topic) {
            None => false,
            Some(AdmitError::Congested) => true,
            Some(other) => panic!("{other:?}"),
        }
    }

    /// Why a small batch is not admitted.
    pub fn refused(&mut self, topic: u32) -> Option<AdmitError> {
        match self.log.admit(topic, 256, 0, &TRUSTED) {
            Ok(Admitted::InLog(claimed)) => {
                self.log.abandon(claimed);
                None
            }
            Ok(Admitted::Staged(bytes)) => panic!("{bytes} bytes beside the log"),
            Err(why) => Some(why),
        }
    }

    /// Takes in all news; what was answered since the last call.
    pub fn answers(&mut self) -> Vec<(Submitter, Answer)> {
        let mut polls = 0;
        while self.log.poll_order() {
            polls += 1;
            assert!(polls < 1000, "there is always more");
        }
        let settled = std::iter::from_fn(|| self.log.take_answered(0));
        settled
            .map(|Answered { submitter, answer }| (submitter, answer))
            .collect()
    }

    /// Positions and numbers of all batches of an ordered topic that can be read.
    pub fn read(&self, topic: u32) -> Vec<(u64, u64)> {
        let kept = self.log.topic_stats(topic).expect("it is open");
        let (mut next, mut all) = (kept.first, Vec::new());
        while next < kept.next {
            // One at a time.
            let read = self.log.read(&Wanted::latest(topic, next), 1, &mut 0, || {
                Box::new(Pieces::new())
            });
            let (bytes, behind) = match read {
                Read::Pieces {
                    pieces,
                    next: behind,
                    ..
                } => (bytes_of(pieces), behind),
                Read::Batches { span, next: behind } => (span.with_bytes(<[u8]>::to_vec), behind),
                _ => panic!("position {next} of {kept:?} cannot be read"),
            };
            let header = BatchHeader::parse(&bytes, MAX_BATCH_BYTES).expect("a header");
            header
                .check_payload(&bytes[BATCH_HEADER_BYTES..])
                .expect("the bytes that were published");
            assert_eq!(header.base_offset(), next);
            all.push((next, header.sequence()));
            next = behind;
        }
        all
    }
}

fn bytes_of(pieces: Box<Pieces<Simulated>>) -> Vec<u8> {
    SendBuf::new(Vec::new(), Body::Pieces(pieces)).with_unsent(|_, body| body.to_vec())
}
