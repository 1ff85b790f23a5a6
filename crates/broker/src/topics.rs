//! The topic table: one topic record of the region for each topic. Only the head stores them.
//!
//! Invariants
//! - A topic's id is never given to another topic: it counts up with every
//!   creation and its low bits name the topic record.
//! - Every broker reads the table from the region, so a topic exists for all
//!   of them as soon as the head has stored its topic record.

mod encoded;
mod error;

pub use encoded::TOPIC_LAYOUT;
pub use error::TopicError;

use std::collections::{BTreeSet, HashMap};

use embar_fabric::Seen;
use embar_fabric::geometry::{DISKS_MAX, TOPICS_MAX, topic_record_of};
use embar_fabric::news::{News, NewsReader};
use embar_fabric::region::Region;
use embar_fabric::topic_record::{TopicRecordReader, TopicRecordWriter};
use embar_memory::Memory;
use embar_wire::control::{self, CreateTopic};
use embar_wire::limits::{DEFAULT_MAX_MESSAGE_BYTES, MAX_REPLICATION_FACTOR};
use embar_wire::time::WallNs;
use embar_wire::topic::{Order, check_topic_name};

/// Bits of a topic id that name its topic record; the others count creations.
const TOPIC_RECORD_BITS: u32 = TOPICS_MAX.ilog2();

const _: () = assert!(MAX_REPLICATION_FACTOR as u16 == 1 + DISKS_MAX);
const _: () = assert!(DISKS_MAX as u32 <= u8::BITS);

/// What the head stored about a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Never reused; see the module's invariants.
    pub id: u32,
    /// `[A-Za-z0-9._-]`, at most 249 bytes.
    pub name: String,
    /// What subscribers are promised.
    pub order: Order,
    /// Bytes kept on each broker; 0 = as much as the log has room for.
    pub retention_bytes: u64,
    /// Milliseconds for which the disks keep a batch, at least; 0 = for as long as there is room.
    pub retention_ms: u64,
    /// Largest message, in bytes: key, headers and value.
    pub max_message_bytes: u32,
    /// When it was created.
    pub created: WallNs,
    /// The disks that its batches are written to: bit `n` stands for disk `n`. 0 = it is in memory alone.
    pub disks: u8,
    /// The disks that others took the place of. They keep what they have of it, and get nothing more.
    pub former_disks: u8,
    /// How many times a disk took the place of another: of two records of a topic the one with more holds.
    pub moves: u32,
}

impl Topic {
    /// The number of its topic record, which is also that of its window on each broker.
    pub fn record(&self) -> u16 {
        topic_record_of(self.id)
    }

    /// Whether the sequencer gives its batches their places.
    pub fn is_ordered(&self) -> bool {
        self.order.is_total()
    }

    /// Whether it is on disks, so that it outlives the region.
    pub fn is_durable(&self) -> bool {
        self.disks != 0
    }

    /// The disks that may have batches of it.
    pub fn all_disks(&self) -> u8 {
        self.disks | self.former_disks
    }

    /// In how many places its batches are: in memory, and on each of its disks.
    pub fn replication_factor(&self) -> u8 {
        1 + self.disks.count_ones() as u8
    }

    /// How the wire tells of it.
    pub fn to_wire(&self) -> control::Topic {
        control::Topic {
            id: self.id,
            name: self.name.clone(),
            order: self.order,
            retention_bytes: self.retention_bytes,
            retention_ms: self.retention_ms,
            max_message_bytes: self.max_message_bytes,
            created: self.created,
            replication_factor: self.replication_factor(),
        }
    }
}

/// A broker's view of the table, refreshed from the region on demand.
pub struct TopicTable<M: Memory> {
    records: TopicRecordReader<M>,
    news: NewsReader<M>,
    /// Topic records to load: those that the head announced, and those that it was storing at the last look.
    due: Vec<u32>,
    /// At the head only.
    writer: Option<TopicRecordWriter<M>>,
    /// Version of each topic record as of its last load; 0 = none.
    versions: Vec<u32>,
    by_record: Vec<Option<Topic>>,
    by_name: HashMap<String, u16>,
    /// Topic records without a topic.
    free: BTreeSet<u16>,
    /// Topics that went since [`TopicTable::take_gone`].
    gone: Vec<u32>,
    /// Topics that have other disks since [`TopicTable::take_moved`].
    moved: Vec<u32>,
    /// Topic records that cannot be read.
    damaged: BTreeSet<u16>,
    /// Disks of the region, numbered from 0.
    disks: u16,
}

impl<M: Memory> TopicTable<M> {
    /// Reads the whole table. The head brings the writer of its topic records.
    pub fn attach(region: &Region<M>, writer: Option<TopicRecordWriter<M>>) -> Self {
        let records = region.topic_records();
        let capacity = usize::from(records.count());
        let mut table = Self {
            news: region.news(News::TopicRecords),
            due: Vec::new(),
            writer,
            versions: vec![0; capacity],
            by_record: vec![None; capacity],
            by_name: HashMap::new(),
            free: (0..records.count()).collect(),
            gone: Vec::new(),
            moved: Vec::new(),
            damaged: BTreeSet::new(),
            disks: region.geometry().disks,
            records,
        };
        table.refresh();
        table.lose_blank(region);
        table
    }

    /// Finds topic records that read as never written, and of whose topics brokers have windows. A broker stores a
    /// window after it has seen the topic's record. So the record is lost, and another topic in its place would get
    /// the lost one's id.
    fn lose_blank(&mut self, region: &Region<M>) {
        let blank = |record: &u16| self.versions[usize::from(*record)] == 0;
        for record in (0..self.records.count())
            .filter(blank)
            .collect::<Vec<u16>>()
        {
            let mut rows = region.geometry().data_rows();
            let was_used = rows.any(|row| region.window(row, record) != Seen::Nothing);
            // Only now: it may have been stored meanwhile.
            if was_used && self.records.version(record) == Some(0) {
                self.lose(record);
            }
        }
    }

    /// Takes in what the head changed since the last call: it loads the topic records that the head announced,
    /// and at all of them only when that cannot be known.
    pub fn refresh(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        if !self.news.take(&mut due) {
            due.clear();
            due.extend(0..u32::from(self.records.count()));
        }
        // The next refresh loads a topic record that the head stores at the moment.
        due.retain(|record| !self.look(*record));
        self.due = due;
    }

    /// Loads one topic record. False if the caller has to try again.
    fn look(&mut self, record: u32) -> bool {
        // Its number comes from shared memory.
        let Some(known) = self.versions.get(record as usize) else {
            return true;
        };
        let number = record as u16;
        if self.records.version(number) == Some(*known) {
            return true;
        }
        let (version, bytes) = match self.records.load(number) {
            Seen::Found(found) => found,
            // It is being written.
            Seen::Nothing => return false,
            Seen::Damaged => {
                self.lose(number);
                return true;
            }
        };
        self.versions[usize::from(number)] = version;
        let is_possible = |topic: &Topic| {
            topic.record() == number && u32::from(topic.all_disks()) >> self.disks == 0
        };
        let topic = Topic::decode(&bytes).filter(is_possible);
        if topic.is_none() && !bytes.is_empty() {
            self.lose(number);
        } else {
            self.replace(number, topic);
        }
        true
    }

    /// Both copies of a topic record are damaged. If this process knows its topic, it keeps it for as long as it
    /// lives. The head gives the topic record to no other topic.
    fn lose(&mut self, record: u16) {
        self.free.remove(&record);
        if self.damaged.insert(record) {
            let known = self.by_record[usize::from(record)].as_ref();
            tracing::error!(
                topic_record = record,
                topic = known.map(|topic| topic.name.as_str()),
                "the record of a topic is damaged: the topic cannot be served after a restart; start with a fresh region to be rid of it"
            );
        }
    }

    /// How many topics there are of which nobody can tell what they are.
    pub fn damaged(&self) -> usize {
        let unknown = |record: &&u16| self.by_record[usize::from(**record)].is_none();
        self.damaged.iter().filter(unknown).count()
    }

    /// Why a topic is not there.
    pub fn missing(&self, name: &str) -> TopicError {
        let name = name.to_owned();
        match self.damaged() {
            0 => TopicError::Unknown { name },
            damaged => TopicError::Damaged { name, damaged },
        }
    }

    /// Takes in what a topic record says.
    fn replace(&mut self, record: u16, topic: Option<Topic>) {
        self.damaged.remove(&record);
        let place = &mut self.by_record[usize::from(record)];
        if let Some(old) = place.take() {
            // Another topic record, loaded since, may have the name by now.
            if self.by_name.get(&old.name) == Some(&record) {
                self.by_name.remove(&old.name);
            }
            match &topic {
                Some(topic) if topic.id == old.id && topic.moves == old.moves => {}
                Some(topic) if topic.id == old.id => self.moved.push(old.id),
                _ => self.gone.push(old.id),
            }
        }
        match &topic {
            Some(topic) => {
                self.by_name.insert(topic.name.clone(), record);
                self.free.remove(&record);
            }
            None => drop(self.free.insert(record)),
        }
        *place = topic;
    }

    /// The topics that went since the last call.
    pub fn take_gone(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.gone)
    }

    /// The topics that have other disks since the last call.
    pub fn take_moved(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.moved)
    }

    /// Head only: stores a topic record where every broker sees it.
    fn store(&mut self, record: u16, topic: Option<Topic>) {
        let bytes = topic.as_ref().map_or_else(Vec::new, Topic::encode);
        let writer = self.writer.as_mut().expect("only the head changes topics");
        let version = writer
            .store(record, &bytes)
            .expect("a topic with the longest name fits its topic record");
        self.versions[usize::from(record)] = version;
        self.replace(record, topic);
    }

    /// Looks a topic up as the table was at the last [`refresh`](Self::refresh).
    pub fn by_name(&self, name: &str) -> Option<&Topic> {
        let record = *self.by_name.get(name)?;
        self.by_record[usize::from(record)].as_ref()
    }

    /// The topic with exactly this id, if it was not deleted.
    pub fn by_id(&self, id: u32) -> Option<&Topic> {
        let topic = self
            .by_record
            .get(usize::from(topic_record_of(id)))?
            .as_ref()?;
        (topic.id == id).then_some(topic)
    }

    /// All topics, in the order of their topic records.
    pub fn iter(&self) -> impl Iterator<Item = &Topic> {
        self.by_record.iter().flatten()
    }

    /// The topics from this topic record on, in their order.
    pub fn from_record(&self, record: u32) -> impl Iterator<Item = &Topic> {
        self.by_record.iter().skip(record as usize).flatten()
    }

    /// Head only: makes a topic. `max_batch_bytes` bounds its largest message. Disks of a higher rank get it only where too few
    /// have a lower one.
    pub fn create(
        &mut self,
        spec: &CreateTopic,
        largest_message: u32,
        wall: WallNs,
        rank: impl Fn(u16) -> u8,
    ) -> Result<Topic, TopicError> {
        let name = spec.name.clone();
        check_topic_name(&name).map_err(|why| TopicError::InvalidName { why })?;
        let order = Order::try_from(spec.order)
            .map_err(|_| TopicError::UnsupportedOrder { order: spec.order })?;
        if spec.max_message_bytes > largest_message {
            let asked = spec.max_message_bytes;
            return Err(TopicError::MessageLimit {
                asked,
                largest: largest_message,
            });
        }
        self.check_replication_factor(spec.replication_factor)?;
        if spec.retention_ms > 0 && disks_of(spec.replication_factor) == 0 {
            return Err(TopicError::AgeWithoutDisk);
        }
        self.refresh();
        if self.by_name.contains_key(&name) {
            return Err(TopicError::Exists { name });
        }
        let mut ids = self.free.iter().filter_map(|record| {
            let version = self.versions[usize::from(*record)];
            Some((*record, next_id(version, *record)?))
        });
        let (record, id) = ids.next().ok_or(TopicError::TableFull {
            limit: self.by_record.len(),
        })?;
        let max_message_bytes = match spec.max_message_bytes {
            0 => DEFAULT_MAX_MESSAGE_BYTES.min(largest_message),
            asked => asked,
        };
        let topic = Topic {
            id,
            name,
            order,
            retention_bytes: spec.retention_bytes,
            retention_ms: spec.retention_ms,
            max_message_bytes,
            created: wall,
            disks: self.choose_disks(spec.replication_factor, rank),
            former_disks: 0,
            moves: 0,
        };
        self.store(record, Some(topic.clone()));
        Ok(topic)
    }

    fn check_replication_factor(&self, factor: u8) -> Result<(), TopicError> {
        if factor > MAX_REPLICATION_FACTOR {
            return Err(TopicError::UnsupportedReplicationFactor { factor });
        }
        let disks = self.disks as u8;
        match disks_of(factor) > disks {
            true => Err(TopicError::TooFewDisks { factor, disks }),
            false => Ok(()),
        }
    }

    /// The disks of a new topic of this replication factor: those of the lowest rank, of these with the fewest topics, lowest number
    /// first.
    fn choose_disks(&self, factor: u8, rank: impl Fn(u16) -> u8) -> u8 {
        let mut disks: Vec<u16> = (0..self.disks).collect();
        disks.sort_by_cached_key(|disk| (rank(*disk), self.topics_on(*disk)));
        let chosen = disks.into_iter().take(disks_of(factor).into());
        chosen.fold(0, |set, disk| set | 1 << disk)
    }

    /// How many topics a disk has.
    fn topics_on(&self, disk: u16) -> usize {
        let topics = self.iter();
        topics.filter(|topic| topic.disks & 1 << disk != 0).count()
    }

    /// Head only: gives topics of a disk that takes nothing any more another disk, one that `is_spare` and never had them: that
    /// with the fewest topics. Returns each topic with its new disk; those for which there is none stay.
    pub fn replace_disk(
        &mut self,
        failed: u16,
        is_spare: impl Fn(u16) -> bool,
    ) -> Vec<(Topic, u16)> {
        self.refresh();
        let mut replaced = Vec::new();
        let on_it = self.iter().filter(|topic| topic.disks & 1 << failed != 0);
        for mut topic in on_it.cloned().collect::<Vec<_>>() {
            let spares = (0..self.disks).filter(|disk| topic.all_disks() & 1 << disk == 0);
            let spares = spares.filter(|disk| is_spare(*disk));
            let Some(spare) = spares.min_by_key(|disk| self.topics_on(*disk)) else {
                continue;
            };
            topic.disks ^= 1 << failed | 1 << spare;
            topic.former_disks |= 1 << failed;
            topic.moves += 1;
            self.store(topic.record(), Some(topic.clone()));
            replaced.push((topic, spare));
        }
        replaced
    }

    /// Head only: takes a topic out of the table.
    pub fn delete(&mut self, name: &str) -> Result<Topic, TopicError> {
        self.refresh();
        let topic = self.by_name(name).cloned();
        let topic = topic.ok_or_else(|| self.missing(name))?;
        self.store(topic.record(), None);
        Ok(topic)
    }
}

/// How many disks a replication factor asks for. 0 is the wire's way to say nothing, which means 1.
fn disks_of(factor: u8) -> u8 {
    factor.saturating_sub(1)
}

/// The id of a topic created in a topic record of this version. `None` when the topic record has had as many topics
/// as there are ids. Each store raises the version by two, so (half of it, topic record) is new every time.
fn next_id(version: u32, record: u16) -> Option<u32> {
    let creation = version.div_ceil(2).checked_add(1)?;
    let id = creation.checked_mul(1 << TOPIC_RECORD_BITS)?;
    Some(id | u32::from(record))
}

/// A version of topic records from which on no new topic gets this id or a lower one.
pub(crate) fn version_above(id: u32) -> u32 {
    let creation = id >> TOPIC_RECORD_BITS;
    creation.saturating_mul(2)
}

#[cfg(test)]
mod tests;
