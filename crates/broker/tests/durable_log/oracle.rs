//! What must be on the disks: the order as the sequencers gave it, and what was promised of it.

mod marks;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use embar_broker::journal::Found;
use embar_broker::topics::Topic;
use embar_disk::Simulated as Disk;
use embar_disk::format::Run;
use embar_fabric::Region;
use embar_fabric::geometry::topic_record_of;
use embar_memory::Simulated;
use embar_order::{Follower, Leadership, Term};
use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::disks::{Stored, batches_on};
use marks::Marks;

/// A batch of the order.
#[derive(Clone)]
pub struct Entry {
    pub base: u64,
    pub count: u32,
    pub producer: u64,
    pub epoch: u32,
    pub number: u64,
    /// The message in it.
    pub id: u64,
    /// Which of all sessions.
    pub session: usize,
    payload: Arc<Vec<u8>>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            base, number, id, ..
        } = self;
        write!(f, "message {id}, number {number} at {base}")
    }
}

impl Entry {
    fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    fn is(&self, stored: &Stored) -> bool {
        let header = &stored.header;
        let said = (
            header.base_offset(),
            header.producer(),
            header.epoch(),
            header.sequence(),
        );
        said == (self.base, self.producer, self.epoch, self.number)
            && stored.frame[BATCH_HEADER_BYTES..] == self.payload[..]
    }
}

/// A topic, in all its lives.
struct Chain {
    topic: Topic,
    entries: Vec<Entry>,
    /// Some broker's frontier said that it is durable up to here.
    promised: u64,
    /// A disk had it when the power went, or a frontier said so.
    is_known: bool,
    is_deleted: bool,
    follower: Option<(Term, Follower<Simulated>)>,
}

impl Chain {
    fn end(&self) -> u64 {
        self.entries.last().map_or(0, Entry::end)
    }

    /// A disk that the topic was always on has all that was promised, and nothing else than what was ordered.
    fn check_disk(&self, number: usize, found: &Found, theirs: &[Stored]) {
        let id = self.topic.id;
        if !found.topics.contains(&self.topic) {
            let is_promised = self.promised > 0 && !self.is_deleted;
            assert!(!is_promised, "topic {id} is gone from disk {number}");
            return;
        }
        let next = found.next_of(chain_of(id));
        assert!(
            self.is_deleted || next >= self.promised,
            "topic {id}: {} was promised, disk {number} has {next}",
            self.promised
        );
        let first = theirs.first().map_or(next, |it| it.header.base_offset());
        let ours = self
            .entries
            .iter()
            .filter(|it| it.base >= first && it.end() <= next);
        let ours: Vec<&Entry> = ours.collect();
        let end = ours.last().map_or(next, |it| it.end());
        let theirs = theirs.iter().filter(|it| it.header.base_offset() < next);
        let theirs: Vec<&Stored> = theirs.collect();
        assert_eq!(
            (end, ours.len()),
            (next, theirs.len()),
            "topic {id} on disk {number}"
        );
        let mut both = ours.iter().zip(theirs);
        let same = both.all(|(ours, theirs)| ours.is(theirs));
        assert!(same, "topic {id} has other batches on disk {number}");
    }

    /// A disk that took the place of another, or that another took the place of, has nothing else than what was ordered.
    fn check_moved(&self, number: usize, found: &Found, theirs: &[Stored]) {
        let id = self.topic.id;
        if !found.topics.iter().any(|topic| topic.id == id) {
            return;
        }
        let next = found.next_of(chain_of(id));
        for theirs in theirs.iter().filter(|it| it.header.base_offset() < next) {
            let ours = self
                .entries
                .iter()
                .find(|it| it.base == theirs.header.base_offset());
            assert!(
                ours.is_some_and(|ours| ours.is(theirs)),
                "topic {id} has another batch on disk {number}"
            );
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct Oracle {
    chains: BTreeMap<u32, Chain>,
    /// Of each session its topic, its producer, and its first epoch.
    sessions: Vec<(u32, u64, u32)>,
    /// The latest that was opened, by the same.
    open: HashMap<(u32, u64, u32), usize>,
    closed: BTreeSet<usize>,
    /// Session and message, by what a batch says of itself, and its payload.
    sent: HashMap<Vec<u8>, (usize, u64)>,
    /// By topic, messages whose acknowledgement could go out.
    acknowledged: BTreeMap<u32, BTreeSet<u64>>,
    last_id: u64,
}

impl Oracle {
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The name of a session that was opened.
    pub fn session(&mut self, whose: (u32, u64, u32), is_new: bool) -> usize {
        let known = self.open.get(&whose).filter(|_| !is_new);
        known.copied().unwrap_or_else(|| {
            self.sessions.push(whose);
            let session = self.sessions.len() - 1;
            self.open.insert(whose, session);
            session
        })
    }

    /// Its publisher wants it to end.
    pub fn closed(&mut self, session: usize) {
        self.closed.insert(session);
    }

    /// The sequencer does not know that this instance of a publisher has the session.
    pub fn given_up(&self, topic: u32, producer: u64, instance: u64) {
        let entries = self.chains[&topic].entries.iter();
        let mut its = entries.filter(|it| it.producer == producer && it.id > instance);
        let known = its.next();
        assert!(
            known.is_none(),
            "its session is gone, and {known:?} is there"
        );
    }

    pub fn sent(&mut self, session: usize, id: u64, frame: &[u8]) {
        self.sent.insert(key_of(frame), (session, id));
    }

    pub fn created(&mut self, topic: &Topic) {
        let chain = Chain {
            topic: topic.clone(),
            entries: Vec::new(),
            promised: 0,
            is_known: false,
            is_deleted: false,
            follower: None,
        };
        // One whose creation no disk had when the power went never was.
        let before = self.chains.insert(topic.id, chain);
        let was_known = before.is_some_and(|before| before.is_known);
        assert!(!was_known, "topic id {} was used before", topic.id);
    }

    /// A disk took the place of another.
    pub fn moved(&mut self, topic: &Topic) {
        if let Some(chain) = self.chains.get_mut(&topic.id) {
            chain.topic = topic.clone();
        }
    }

    /// Whether a disk has nothing of any topic that is not on those which took its place, which know that.
    pub fn can_lose(&self, number: u16, found: &[Found]) -> bool {
        let bit = 1 << number;
        let mut is_former = false;
        let can_lose = |chain: &Chain| {
            let topic = &chain.topic;
            let disks = (0..)
                .zip(found)
                .filter(|(disk, _)| topic.disks & 1 << disk != 0);
            let mut disks = disks.map(|(_, its)| its);
            topic.disks & bit == 0
                && disks.all(|its| {
                    let next = its.next_of(chain_of(topic.id));
                    its.topics.contains(topic) && next >= chain.promised
                })
        };
        let chains = self.chains.values();
        for chain in chains.filter(|it| it.topic.all_disks() & bit != 0) {
            if chain.is_deleted || !can_lose(chain) {
                return false;
            }
            is_former = true;
        }
        is_former
    }

    pub fn deleted(&mut self, topic: u32) {
        if let Some(chain) = self.chains.get_mut(&topic) {
            chain.is_deleted = true;
            self.acknowledged.remove(&topic);
        }
    }

    /// A broker that checked the term says that a topic is durable up to here.
    pub fn promised(&mut self, topic: u32, next: u64) {
        if let Some(chain) = self.chains.get_mut(&topic).filter(|it| !it.is_deleted) {
            assert!(next <= chain.end(), "a frontier beyond the order");
            let is_end = |it: &Entry| it.end() == next;
            assert!(
                next == 0 || chain.entries.iter().any(is_end),
                "a frontier within a batch"
            );
            chain.promised = chain.promised.max(next);
            chain.is_known |= next > 0;
        }
    }

    /// Messages of topics that are there whose acknowledgement went out.
    pub fn acknowledgements(&self) -> u64 {
        self.acknowledged.values().map(|ids| ids.len() as u64).sum()
    }

    /// An acknowledgement at level 2 goes out.
    pub fn acknowledged(&mut self, topic: u32, id: u64) {
        self.acknowledged.entry(topic).or_default().insert(id);
        let chain = &self.chains[&topic];
        let is_promised = |it: &Entry| it.id == id && it.end() <= chain.promised;
        assert!(
            chain.is_deleted || chain.entries.iter().any(is_promised),
            "{id} is not there"
        );
    }

    /// Takes in what is ordered.
    pub fn follow(&mut self, region: &Region<Simulated>) {
        let Some(term) = Leadership::observe(region).term else {
            return;
        };
        let Self { chains, sent, .. } = self;
        for chain in chains.values_mut().filter(|it| !it.is_deleted) {
            let (id, end) = (chain.topic.id, chain.end());
            let is_other = |(of, _): &(Term, _)| *of != term;
            if chain.follower.as_ref().is_none_or(is_other) {
                let follower = Follower::new(region, id, end);
                if let Some(start) = follower.start_of(term) {
                    assert!(start >= end, "a successor cut what counted");
                }
                chain.follower = Some((term, follower));
            }
            let (_, follower) = chain.follower.as_mut().expect("it is there");
            let mut records = Vec::new();
            follower.read(term, usize::MAX >> 1, &mut records);
            for record in records {
                assert_eq!(record.base, chain.end(), "positions are dense");
                let foreign = region.foreign(record.row.into(), record.payload_at, record.len);
                let mut frame = vec![0; record.len as usize];
                foreign.expect("memory of a broker").copy_to(0, &mut frame);
                let header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("a batch");
                let (session, message) = sent[&key_of(&frame)];
                assert_eq!(header.topic(), id);
                chain.entries.push(Entry {
                    base: record.base,
                    count: record.count,
                    producer: record.producer,
                    epoch: record.session_epoch,
                    number: record.sequence,
                    id: message,
                    session,
                    payload: Arc::new(frame[BATCH_HEADER_BYTES..].to_vec()),
                });
            }
        }
    }

    /// Nothing is there twice, and at order 5 each publisher's messages are in its order.
    fn check_order(&self) {
        for chain in self.chains.values() {
            let mut last = BTreeMap::new();
            let mut placed = BTreeSet::new();
            for entry in &chain.entries {
                let before = last.insert(entry.producer, entry.id);
                if chain.topic.order.level() == 5 {
                    assert!(before < Some(entry.id), "{} after {before:?}", entry.id);
                }
                let name = (entry.session, entry.epoch, entry.number);
                assert!(placed.insert(name), "{name:?} is there twice");
            }
        }
    }

    /// What was found on disks whose power went has all that was promised, and nothing else than what was ordered.
    pub fn check_disks(&self, disks: &[Disk], found: &[Found]) {
        for (number, (disk, found)) in disks.iter().zip(found).enumerate() {
            let stored = batches_on(disk, &found.recovered);
            let is_here = |chain: &&Chain| chain.topic.all_disks() & 1 << number != 0;
            for chain in self.chains.values().filter(is_here) {
                let theirs = stored.get(&chain.topic.id).map_or(&[][..], Vec::as_slice);
                match chain.topic.moves {
                    0 => chain.check_disk(number, found, theirs),
                    _ => chain.check_moved(number, found, theirs),
                }
            }
        }
        for chain in self.chains.values().filter(|chain| chain.topic.moves > 0) {
            let next = found
                .iter()
                .map(|its| its.next_of(chain_of(chain.topic.id)));
            let (next, promised) = (next.max(), chain.promised);
            assert!(
                chain.is_deleted || next >= Some(promised),
                "topic {}: {promised} was promised, and no disk has more than {next:?}",
                chain.topic.id
            );
        }
    }

    /// Memory is gone, and this is what came of it. `found` is what the disks had before.
    pub fn restored(&mut self, region: &Region<Simulated>, topics: &[Topic], found: &[Found]) {
        let is_on_any = |topic: &Topic| found.iter().any(|its| its.topics.contains(topic));
        let Self {
            chains,
            acknowledged,
            ..
        } = self;
        for topic in topics {
            assert!(
                chains.contains_key(&topic.id),
                "topic {} never was",
                topic.id
            );
        }
        for (id, chain) in chains.iter_mut() {
            let its = topics.iter().find(|topic| topic.id == *id);
            // A disk may have taken the place of another, and no disk says so yet.
            chain.topic = its
                .filter(|its| its.moves <= chain.topic.moves)
                .unwrap_or(&chain.topic)
                .clone();
            let is_there = topics.contains(&chain.topic);
            let root = region.goi_root(0, topic_record_of(*id)).found();
            let next = root.filter(|root| root.chain == *id && is_there);
            let next = next.map_or(0, |root| root.start);
            let was_deleted = std::mem::replace(&mut chain.is_deleted, !is_there);
            assert!(
                was_deleted || next >= chain.promised,
                "topic {id}: {} was promised, {next} is left",
                chain.promised
            );
            let followed = topics.iter().any(|it| it.record() == chain.topic.record());
            assert!(
                is_there || followed || !is_on_any(&chain.topic),
                "topic {id} is on a disk"
            );
            if is_there {
                let its = found.iter().map(|its| its.next_of(chain_of(*id)));
                assert_eq!(
                    Some(next),
                    its.max(),
                    "topic {id} is as long as the longest"
                );
                chain.entries.retain(|it| it.end() <= next);
                assert_eq!(chain.end(), next, "topic {id} is cut between two batches");
            }
            chain.is_known |= is_there;
            chain.promised = next;
            chain.follower = None;
            let is_left = |id: &u64| chain.entries.iter().any(|it| it.id == *id);
            let lost = acknowledged
                .get(id)
                .and_then(|ids| ids.iter().find(|id| !is_left(id)));
            assert_eq!(lost, None, "it was acknowledged, and is gone");
        }
        self.check_order();
        // Those of which nothing is left are forgotten.
        let there = self.chains.values().filter(|it| !it.is_deleted);
        let sessions = there.flat_map(|chain| &chain.entries).map(|it| it.session);
        self.open = sessions.map(|it| (self.sessions[it], it)).collect();
        let marks = Marks::of(region, &self.closed, &self.sessions);
        for chain in self.chains.values().filter(|it| !it.is_deleted) {
            marks.check(&chain.topic, &chain.entries);
        }
    }
}

fn chain_of(topic: u32) -> embar_disk::Chain {
    embar_disk::Chain {
        topic,
        row: Run::ORDERED,
    }
}

/// What a batch says of itself, and its payload.
fn key_of(frame: &[u8]) -> Vec<u8> {
    let header = BatchHeader::parse(frame, MAX_BATCH_BYTES).expect("a batch");
    let mut key = header.epoch().to_le_bytes().to_vec();
    key.extend(header.sequence().to_le_bytes());
    key.extend(header.topic().to_le_bytes());
    key.extend(&frame[BATCH_HEADER_BYTES..]);
    key
}
