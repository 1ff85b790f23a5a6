//! What a disk has for the log: read back when a candidate takes the disk over, and when all memory was lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use embar_disk::recover::{RecoverError, Recovered, Sight, recover};
use embar_disk::{Chain, Journal, Storage};
use embar_fabric::SharedNews;
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use super::facts::{
    ABOUT_ARRIVING, ABOUT_SESSION, ABOUT_TOPIC, ABOUT_TOPIC_IDS, decode_session, decode_topic_ids,
};
use super::kept::Kept;
use super::sessions::{KnownSession, Sessions};
use super::writer::{Limits, Start};
use crate::topics::Topic;

/// How often a disk is read whose end moves: a writer that does not know yet that it is deposed may have commits on their way.
const LOOKS: u32 = 4;

/// The topics that hold, by their ids. One that another followed in its record was deleted, although its disk does not say so yet;
/// and of two records of a topic the one holds by which a disk took the place of another since.
pub(super) fn holding<'a>(all: impl IntoIterator<Item = &'a Found>) -> BTreeMap<u32, &'a Topic> {
    let mut newest: BTreeMap<u16, &Topic> = BTreeMap::new();
    for topic in all.into_iter().flat_map(|its| &its.topics) {
        let known = newest.entry(topic.record()).or_insert(topic);
        if (topic.id, topic.moves) > (known.id, known.moves) {
            *known = topic;
        }
    }
    newest
        .into_values()
        .map(|topic| (topic.id, topic))
        .collect()
}

/// What a disk has.
#[derive(Debug)]
pub struct Found {
    /// Its journal.
    pub recovered: Recovered,
    /// Its topics.
    pub topics: Vec<Topic>,
    /// Ids of topics that it was getting from another disk, when that was cut short.
    pub arriving: BTreeSet<u32>,
    /// The sessions of publishers, as they are at the end of the journal.
    pub sessions: Sessions,
    /// The highest id that a topic of it ever had; 0 if none.
    pub highest_id: u32,
    disk: [u8; 16],
}

impl Found {
    /// What a disk has on which nothing was written yet.
    #[must_use]
    pub fn nothing(disk: [u8; 16]) -> Self {
        Self {
            recovered: Recovered::default(),
            topics: Vec::new(),
            arriving: BTreeSet::new(),
            sessions: Sessions::default(),
            highest_id: 0,
            disk,
        }
    }

    /// Reads the journal of `disk`. On return all that it has stays when the power goes.
    ///
    /// # Errors
    /// [`RecoverError`]
    pub fn read<S: Storage>(storage: &S, disk: &[u8; 16]) -> Result<Self, RecoverError> {
        let mut looks = 0;
        let found = loop {
            looks += 1;
            match Self::look(storage, disk) {
                Err(RecoverError::Damaged { .. }) if looks < LOOKS => {}
                // Files that nobody needs may be removed beside this.
                Err(RecoverError::Io { error, .. })
                    if looks < LOOKS && error.kind() == io::ErrorKind::NotFound => {}
                found => break found?,
            }
        };
        if injected(Canary::FoundSync) {
            return Ok(found);
        }
        // Only now: what was read may have been on its way to the disk.
        let synced = storage.sync_all();
        synced.map_err(|error| RecoverError::Io {
            name: "the directory".into(),
            error,
        })?;
        Ok(found)
    }

    fn look<S: Storage>(storage: &S, disk: &[u8; 16]) -> Result<Self, RecoverError> {
        let mut sessions = Sessions::default();
        let mut recovered = recover(storage, disk, &mut |sight| match sight {
            Sight::Batch(_, header) => {
                let (topic, producer) = (header.topic(), header.producer());
                sessions.place(topic, producer, header.epoch(), header.sequence());
            }
            Sight::Fact(ABOUT_SESSION, key, bytes) => {
                let Ok(place) = u32::try_from(key) else {
                    return;
                };
                match decode_session(bytes) {
                    Some((row, owner)) => {
                        sessions.put(place, KnownSession { row, owner });
                    }
                    None => drop(sessions.remove(place)),
                }
            }
            Sight::Fact(..) => {}
        })?;
        let facts = &recovered.facts;
        let about = |about: u16| facts.range((about, 0)..=(about, u64::MAX));
        let topics: Vec<Topic> = about(ABOUT_TOPIC)
            .filter_map(|(_, bytes)| Topic::decode(bytes))
            .collect();
        let arriving = about(ABOUT_ARRIVING).filter(|(_, bytes)| !bytes.is_empty());
        let arriving: BTreeSet<u32> = arriving
            .filter_map(|((_, id), _)| u32::try_from(*id).ok())
            .collect();
        let is_here = |id: u32| topics.iter().any(|it| it.id == id) || arriving.contains(&id);
        // A topic that was forgotten may come again from another disk, and then as a whole.
        let chains = &mut recovered.position.chains;
        chains.retain(|chain, _| is_here(chain.topic));
        let ids = facts.get(&(ABOUT_TOPIC_IDS, 0));
        let ids = ids.and_then(|bytes| decode_topic_ids(bytes));
        // Of a segment that does not say all facts again, the ones before hold; of one that does, only its own.
        sessions.retain(|place, known| {
            facts.contains_key(&(ABOUT_SESSION, place.into())) && is_here(known.row.chain)
        });
        Ok(Self {
            highest_id: ids
                .into_iter()
                .chain(topics.iter().map(|it| it.id))
                .max()
                .unwrap_or(0),
            recovered,
            topics,
            arriving,
            sessions,
            disk: *disk,
        })
    }

    /// Whether it has a topic, perhaps not all of it.
    pub(super) fn has(&self, topic: u32) -> bool {
        self.topics.iter().any(|it| it.id == topic)
    }

    /// The disk's identity.
    pub(super) fn disk(&self) -> [u8; 16] {
        self.disk
    }

    /// Position after the last message of a chain that the disk has.
    #[must_use]
    pub fn next_of(&self, chain: Chain) -> u64 {
        let chains = &self.recovered.position.chains;
        chains.get(&chain).copied().unwrap_or(0)
    }

    /// The first position that the disk has of each chain; where it has none, the one that comes next.
    #[must_use]
    pub fn firsts(&self) -> BTreeMap<Chain, u64> {
        let mut firsts = self.recovered.position.chains.clone();
        for segment in &self.recovered.segments {
            for (chain, part) in &segment.chains {
                firsts
                    .entry(*chain)
                    .and_modify(|first| *first = part.first.min(*first));
            }
        }
        firsts
    }

    /// What a writer of the term `epoch` of a region goes on from. Its segments have `segment_bytes`, and all that are over at most
    /// as `limits` says together.
    pub fn start<M: Memory>(
        self,
        (epoch, region): (u32, u32),
        (segment_bytes, limits): (u64, Limits),
        news: SharedNews<M>,
    ) -> Start<M> {
        let firsts = self.firsts();
        let Self {
            recovered,
            sessions,
            highest_id,
            disk,
            ..
        } = self;
        let (half, _) = disk.split_first_chunk().expect("16 bytes");
        Start {
            journal: Journal::new(disk, (epoch, region), segment_bytes, recovered.position),
            firsts,
            kept: Kept::found(&recovered.segments),
            dead: recovered.dead,
            limits,
            unindexed: recovered.unindexed,
            sessions,
            highest_id,
            disk: u64::from_le_bytes(*half),
            news,
        }
    }
}
