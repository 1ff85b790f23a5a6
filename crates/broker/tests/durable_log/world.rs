//! A cluster with disks, step by step, from a seed: all that happens is drawn from it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use embar_broker::journal::{self, Found, level};
use embar_broker::topics::{Topic, TopicTable};
use embar_disk::Simulated as Disk;
use embar_disk::recover::Segment;
use embar_frame::Now;
use embar_memory::{Outage, Simulated};
use embar_wire::control::CreateTopic;
use embar_wire::time::WallNs;
use fastrand::Rng;

use super::broker::Broker;
use super::candidate::{Candidate, SEGMENT_BYTES, Write};
use super::disks::{check_damage, check_levelled, check_rows, check_verified, disk_id};
use super::memory::{CANDIDATES, DATA_ROWS, DISKS, Files};
use super::oracle::Oracle;
use super::publisher::Publisher;

/// Pages of each area's order.
const GOI_PAGES: u32 = 24;
/// Publishers of each topic.
const PRODUCERS: u64 = 2;
/// Orders, and on how many disks, of the topics that there are.
const TOPICS: [(u32, u8); 3] = [(5, 1), (2, 1), (5, 2)];

/// See the module.
pub struct World {
    pub random: Rng,
    files: Files,
    disks: Vec<Disk>,
    candidates: Vec<Candidate>,
    /// Which of them was told to sequence last.
    active: usize,
    brokers: Vec<Broker>,
    publishers: Vec<Publisher>,
    /// By disk, commits of writers that are gone.
    orphans: Vec<Vec<Write>>,
    oracle: Oracle,
    topics: TopicTable<Simulated>,
    now: Now,
    cuts: u32,
    created: u32,
    /// What it went through.
    figures: BTreeMap<&'static str, u64>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let random = Rng::with_seed(seed);
        let files = Files::new(9, GOI_PAGES);
        let candidates: Vec<Candidate> = CANDIDATES
            .iter()
            .map(|row| Candidate::new(&files, *row))
            .collect();
        let mut world = Self {
            random,
            topics: table(&candidates[0]),
            brokers: DATA_ROWS.map(|row| Broker::new(&files, row)).into(),
            files,
            disks: (0..DISKS).map(|_| Disk::new()).collect(),
            candidates,
            active: 0,
            publishers: Vec::new(),
            orphans: (0..DISKS).map(|_| Vec::new()).collect(),
            oracle: Oracle::default(),
            now: Now(1),
            cuts: 0,
            created: 0,
            figures: BTreeMap::new(),
        };
        for (order, disks) in TOPICS {
            world.create(order, disks);
        }
        world.take_over(0);
        world
    }

    /// So many steps, and whether all came right in the end. Returns what it went through.
    pub fn run(mut self, steps: usize) -> BTreeMap<&'static str, u64> {
        for _ in 0..steps {
            self.step();
        }
        self.settle();
        self.cut();
        self.settle();
        let acknowledged = self.oracle.acknowledgements();
        self.figures
            .insert("a message was acknowledged", acknowledged);
        self.figures
    }

    fn count(&mut self, what: &'static str) {
        *self.figures.entry(what).or_default() += 1;
    }

    fn step(&mut self) {
        match self.random.u32(..1000) {
            0..250 => self.publisher_steps(),
            250..400 => self.sequence(),
            400..600 => self.poll_some(),
            600..920 => self.write_some(),
            920..940 => self.pass_orphans(),
            940..945 => self.take_over_somewhere(),
            945..948 => self.restart_broker(),
            948..952 => self.change_topics(),
            952..965 => self.change_publisher(),
            965..975 => self.look_at_disks(),
            975..977 => self.cut(),
            977..980 => self.kill_candidate(),
            980..984 => self.break_disk(),
            _ => self.replace_disks(),
        }
    }

    fn publisher_steps(&mut self) {
        let Some(me) = self.random.choice(0..self.publishers.len()) else {
            return;
        };
        let publisher = &mut self.publishers[me];
        publisher.publish(&mut self.oracle, &mut self.random);
        let mut brokers = self.brokers.iter_mut();
        if let Some(broker) = brokers.find(|it| it.row == publisher.row) {
            publisher.step(me, broker, &mut self.oracle, &mut self.random);
        }
    }

    fn sequence(&mut self) {
        self.now = self
            .now
            .after(Duration::from_micros(self.random.u64(..20_000)));
        let active = self.active;
        self.candidates[active].turn(self.now);
        self.settle_candidate();
        // One that does not know yet that it is deposed goes on.
        let other = self.random.usize(..self.candidates.len());
        if self.random.u8(..10) == 0 && other != active {
            self.candidates[other].turn(self.now);
        }
        self.oracle.follow(&self.files.view);
    }

    fn poll_some(&mut self) {
        let place = self.random.usize(..self.brokers.len());
        self.poll(place);
    }

    fn poll(&mut self, place: usize) {
        let broker = &mut self.brokers[place];
        for (asked, answer) in broker.poll() {
            let publisher = &mut self.publishers[asked.publisher];
            if publisher.connection != asked.connection {
                continue;
            }
            let oracle = &mut self.oracle;
            match asked.number {
                None => publisher.session_answered(answer, oracle),
                Some(number) => publisher.batch_answered(number, answer, broker, oracle),
            }
        }
        if !broker.is_joined {
            return;
        }
        for topic in broker.topics() {
            self.oracle.promised(topic.id, broker.log.durable(topic.id));
            let stats = broker.log.topic_stats(topic.id).expect("it is open");
            if stats.first > 0 {
                *self.figures.entry("memory evicted something").or_default() += 1;
            }
        }
        let row = broker.row;
        let publishers = self.publishers.iter_mut();
        for publisher in publishers.filter(|it| it.row == row && !it.is_over()) {
            match broker.topic(publisher.topic) {
                Some(_) => publisher.acknowledge(broker, &mut self.oracle),
                None => publisher.end(),
            }
        }
    }

    fn write_some(&mut self) {
        // Mostly the one that counts.
        let place = match self.random.u8(..8) {
            0 => self.random.usize(..self.candidates.len()),
            _ => self.active,
        };
        let disk = self.random.u16(..DISKS);
        self.write(place, disk);
    }

    fn write(&mut self, place: usize, disk: u16) {
        let mut others: Vec<&mut Write> = self.orphans[usize::from(disk)].iter_mut().collect();
        let mut one = None;
        for (other, candidate) in self.candidates.iter_mut().enumerate() {
            if other == place {
                one = Some(candidate);
            } else if let Some(writer) = candidate.writers.get_mut(usize::from(disk)) {
                others.extend(&mut writer.writes);
            }
        }
        let one = one.expect("there is such a candidate");
        one.write(disk, &self.disks, others, &mut self.random);
        if one.takes_given_back() > 0 {
            *self
                .figures
                .entry("a topic's space was given back")
                .or_default() += 1;
        }
        self.settle_candidate();
    }

    fn pass_orphans(&mut self) {
        for writes in &mut self.orphans {
            let Some(place) = self.random.choice(0..writes.len()) else {
                continue;
            };
            if self.random.bool() {
                writes[place].step();
            } else if writes[place].end() {
                writes.remove(place);
            }
        }
    }

    fn take_over_somewhere(&mut self) {
        let next = self.random.usize(..self.candidates.len());
        self.take_over(next);
    }

    fn take_over(&mut self, next: usize) {
        self.leave_writes(next);
        self.candidates[next].take_over(self.now);
        self.count("another term began");
        self.active = next;
        self.oracle.follow(&self.files.view);
    }

    /// What a candidate's threads have in their hands goes on, and nobody waits for it.
    fn leave_writes(&mut self, place: usize) {
        for (disk, writer) in self.candidates[place].writers.iter_mut().enumerate() {
            self.orphans[disk].append(&mut writer.writes);
        }
    }

    /// The one that counts dies, perhaps in the middle of what it does next.
    fn kill_candidate(&mut self) {
        let candidate = &mut self.candidates[self.active];
        match self.random.bool() {
            true => candidate.fail_in_sync(&mut self.random),
            false => candidate.fail_after(self.random.u64(..60)),
        }
        for _ in 0..20 {
            if self.candidates[self.active].has_failed() {
                return;
            }
            match self.random.bool() {
                true => self.sequence(),
                false => self.write_some(),
            }
        }
        self.candidates[self.active].fail_after(0);
        self.settle_candidate();
    }

    /// A dead candidate is followed by another one.
    fn settle_candidate(&mut self) {
        let dead = self.candidates.iter().position(Candidate::has_failed);
        let Some(dead) = dead else {
            return;
        };
        self.candidates[dead].end(Outage::Process);
        check_rows(&self.files.view, &self.disks);
        self.count("a candidate died");
        self.leave_writes(dead);
        // What was not begun is gone with its process.
        for writes in &mut self.orphans {
            writes.retain(Write::is_begun);
        }
        let row = self.candidates[dead].row;
        self.candidates[dead] = Candidate::new(&self.files, row);
        if dead == 0 {
            self.topics = table(&self.candidates[0]);
        }
        if dead == self.active {
            let next = self.random.usize(..self.candidates.len());
            self.take_over(next);
        }
    }

    fn restart_broker(&mut self) {
        let place = self.random.usize(..self.brokers.len());
        let outage = match self.random.bool() {
            true => Outage::Process,
            false => Outage::Host,
        };
        self.brokers[place].end(outage);
        self.count("a broker died");
        let row = self.brokers[place].row;
        self.brokers[place] = Broker::new(&self.files, row);
        for publisher in self.publishers.iter_mut().filter(|it| it.row == row) {
            let row = DATA_ROWS[self.random.usize(..DATA_ROWS.len())];
            publisher.disconnect(row, &mut self.oracle);
        }
    }

    fn create(&mut self, order: u32, disks: u8) {
        self.created += 1;
        let spec = CreateTopic {
            name: format!("t{}", self.created),
            order,
            // What exceeds it goes from memory once the disks have it, and from these with whole segments.
            retention_bytes: self.random.choice([0, 1, 16 << 10]).expect("one"),
            retention_ms: 0,
            max_message_bytes: 0,
            replication_factor: 1 + disks,
        };
        let Ok(topic) = self.topics.create(&spec, 1 << 16, WallNs(1), |_| 0) else {
            return;
        };
        self.oracle.created(&topic);
        self.begin_publishers(&topic);
    }

    fn begin_publishers(&mut self, topic: &Topic) {
        for producer in 1..=PRODUCERS {
            let row = DATA_ROWS[self.random.usize(..DATA_ROWS.len())];
            let instance = self.oracle.next_id();
            self.publishers
                .push(Publisher::new(topic.id, producer, instance, row));
        }
    }

    fn change_topics(&mut self) {
        self.topics.refresh();
        let all: Vec<Topic> = self.topics.iter().cloned().collect();
        if let Some(topic) = self.random.choice(&all) {
            let deleted = self.topics.delete(&topic.name);
            deleted.expect("it is there");
            self.oracle.deleted(topic.id);
            self.count("a topic was deleted");
            let publishers = self.publishers.iter_mut();
            publishers
                .filter(|it| it.topic == topic.id)
                .for_each(Publisher::end);
        }
        while self.topics.iter().count() < TOPICS.len() {
            let (order, disks) = TOPICS[self.random.usize(..TOPICS.len())];
            self.create(order, disks);
        }
    }

    fn change_publisher(&mut self) {
        let Some(place) = self.random.choice(0..self.publishers.len()) else {
            return;
        };
        let instance = self.oracle.next_id();
        let publisher = &mut self.publishers[place];
        if publisher.is_over() {
            let (topic, producer, row) = (publisher.topic, publisher.producer, publisher.row);
            let is_there = self.topics.by_id(topic).is_some();
            let others = self.publishers.iter();
            let mut others = others.filter(|it| !it.is_over() && it.producer == producer);
            if is_there && !others.any(|it| it.topic == topic) {
                let next = Publisher::new(topic, producer, instance, row);
                self.publishers.push(next);
            }
            return;
        }
        match self.random.u8(..4) {
            0 => publisher.renew(),
            1 => publisher.restart(instance),
            2 => publisher.is_closing = true,
            _ => {
                let row = DATA_ROWS[self.random.usize(..DATA_ROWS.len())];
                publisher.disconnect(row, &mut self.oracle);
            }
        }
    }

    fn break_disk(&mut self) {
        let disk = self.random.usize(..self.disks.len());
        let active = self.active;
        self.count("a disk failed");
        match self.random.bool() {
            true => {
                let operations = self.random.u64(..4);
                self.disks[disk].fail_after(operations, std::io::ErrorKind::StorageFull);
            }
            false => {
                if let Some(writer) = self.candidates[active].writers.get_mut(disk) {
                    writer.fail_write(&mut self.random);
                }
            }
        }
    }

    /// The head gives topics of disks that have failed others. Now and then the power goes soon afterwards.
    fn replace_disks(&mut self) {
        let candidate = &self.candidates[self.active];
        let mut moved = 0;
        for failed in (0..DISKS).filter(|disk| candidate.takes(*disk) == Some(false)) {
            let is_spare = |disk: u16| candidate.takes(disk) == Some(true);
            for (topic, _) in self.topics.replace_disk(failed, is_spare) {
                self.oracle.moved(&topic);
                moved += 1;
            }
        }
        *self
            .figures
            .entry("a disk took the place of another")
            .or_default() += moved;
        if moved > 0 && self.random.bool() {
            for _ in 0..self.random.u32(..200) {
                match self.random.u8(..4) {
                    0 => self.publisher_steps(),
                    1 => self.sequence(),
                    _ => self.write_some(),
                }
            }
            self.cut();
        }
    }

    /// Disks that others took the place of are lost, where these have all that was promised.
    fn lose_former_disks(&mut self) {
        let found = read(&self.disks);
        for number in 0..DISKS {
            if self.random.u8(..4) > 0 && self.oracle.can_lose(number, &found) {
                self.disks[usize::from(number)] = Disk::new();
                self.count("a disk that others took the place of was lost");
            }
        }
    }

    /// What is there if the power goes now.
    fn look_at_disks(&mut self) {
        let disks = self.cut_disks();
        let found = read(&disks);
        self.oracle.check_disks(&disks, &found);
        check_rows(&self.files.view, &disks);
        let number = self.random.u16(..DISKS);
        let place = usize::from(number);
        check_verified(&disks[place], number);
        if check_damage(&disks[place], number, &found[place], &mut self.random) {
            self.count("a commit was damaged");
        }
    }

    fn cut_disks(&mut self) -> Vec<Disk> {
        let random = &mut self.random;
        let disks = self.disks.iter();
        disks
            .map(|disk| disk.cut_power(&mut |below| random.u64(..below)))
            .collect()
    }

    /// The power goes, and comes back.
    fn cut(&mut self) {
        self.cuts += 1;
        self.count("the power was cut");
        self.disks = self.cut_disks();
        self.orphans.iter_mut().for_each(Vec::clear);
        self.lose_former_disks();
        self.files = Files::new(9 + self.cuts, GOI_PAGES);
        let head = Candidate::new(&self.files, CANDIDATES[0]);
        let found = read(&self.disks);
        self.oracle.check_disks(&self.disks, &found);
        for segments in found.iter().map(|its| &its.recovered.segments) {
            let follows = |pair: &&[Segment]| pair[0].header.epoch == pair[1].header.epoch;
            let full = segments.windows(2).filter(follows).count();
            *self.figures.entry("a segment was full").or_default() += full as u64;
        }
        let levelled = self.level(head.head().0.region.nonce());
        self.oracle.check_disks(&self.disks, &levelled);
        check_levelled(&found, &levelled);
        (0..)
            .zip(&self.disks)
            .for_each(|(number, disk)| check_verified(disk, number));
        head.restore(&levelled);
        let others = CANDIDATES[1..].iter();
        let others = others.map(|row| Candidate::new(&self.files, *row));
        self.candidates = std::iter::once(head).chain(others).collect();
        self.topics = table(&self.candidates[0]);
        let topics: Vec<Topic> = self.topics.iter().cloned().collect();
        self.oracle.restored(&self.files.view, &topics, &found);
        self.brokers = DATA_ROWS.map(|row| Broker::new(&self.files, row)).into();
        for publisher in &mut self.publishers {
            match topics.iter().any(|topic| topic.id == publisher.topic) {
                true => publisher.disconnect(publisher.row, &mut self.oracle),
                false => publisher.end(),
            }
        }
        let next = self.random.usize(..self.candidates.len());
        self.take_over(next);
    }

    /// All disks have the same of each topic afterwards; now and then the power goes before.
    fn level(&mut self, region: u32) -> Vec<Found> {
        loop {
            let found = read(&self.disks);
            let fails = self.random.u8(..4) == 0;
            if fails {
                let disk = self.random.usize(..self.disks.len());
                let operations = self.random.u64(..12);
                self.disks[disk].fail_after(operations, ErrorKind::Other);
            }
            let all = numbered(&self.disks, found);
            let random = &mut self.random;
            let mut nonce = || random.u64(1..);
            match level(&all, (SEGMENT_BYTES, region), &mut nonce, &mut |_| {}) {
                Ok(true) => self.count("a disk got what it lacked"),
                Ok(false) => {}
                Err(error) => {
                    assert!(fails, "{error}");
                    self.count("the power was cut while a disk got what it lacked");
                    self.disks = self.cut_disks();
                    continue;
                }
            }
            self.disks = self.cut_disks();
            let all = numbered(&self.disks, read(&self.disks));
            let mut none = || panic!("a segment is made");
            let again = level(&all, (SEGMENT_BYTES, region), &mut none, &mut |_| {});
            assert!(matches!(again, Ok(false)), "nothing is missing any more");
            return read(&self.disks);
        }
    }

    /// Nothing bad happens for a while: then all is acknowledged.
    fn settle(&mut self) {
        for disk in &self.disks {
            disk.fail_after(u64::MAX, std::io::ErrorKind::Other);
        }
        let next = self.random.usize(..self.candidates.len());
        self.take_over(next);
        for round in 0..3000 {
            for me in 0..self.publishers.len() {
                let publisher = &mut self.publishers[me];
                let mut brokers = self.brokers.iter_mut();
                if let Some(broker) = brokers.find(|it| it.row == publisher.row) {
                    publisher.step(me, broker, &mut self.oracle, &mut self.random);
                }
            }
            self.sequence();
            (0..self.brokers.len()).for_each(|place| self.poll(place));
            (0..DISKS).for_each(|disk| self.write(self.active, disk));
            if round > 20 && self.publishers.iter().all(Publisher::is_idle) {
                return;
            }
        }
        let stuck = self.publishers.iter().find(|it| !it.is_idle());
        panic!(
            "{:?} is never acknowledged",
            stuck.map(|it| (it.topic, it.producer))
        );
    }
}

pub fn table(head: &Candidate) -> TopicTable<Simulated> {
    let (mapping, claim) = head.head();
    let records = mapping.region.topic_record_writer(claim);
    TopicTable::attach(&mapping.region, Some(records))
}

fn numbered(disks: &[Disk], found: Vec<Found>) -> Vec<journal::Disk<'_, Disk>> {
    let all = (0..).zip(disks).zip(found);
    let all = all.map(|((number, storage), found)| journal::Disk {
        number,
        storage,
        found,
    });
    all.collect()
}

fn read(disks: &[Disk]) -> Vec<Found> {
    let numbered = (0..).zip(disks);
    numbered
        .map(|(number, disk)| Found::read(disk, &disk_id(number)).expect("nothing is damaged"))
        .collect()
}
