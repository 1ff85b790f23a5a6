//! Puts what the disks have into a region that is new: as if a candidate before had left it there. Then the head takes over
//! from that candidate as it always does.
//!
//! Last comes the row that says that there was one. A head that dies before leaves a region that nobody has sequenced in,
//! and the next head begins again.

use std::collections::BTreeMap;

use embar_disk::Chain;
use embar_fabric::geometry::topic_record_of;
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_fabric::{GoiRoot, SequencerRow, SequencerState, SessionTable, Window};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};
use embar_order::Leadership;
use thiserror::Error;

use super::found::{Found, holding};
use super::sessions::KnownSession;
use super::writer::chain_of;
use crate::places::HEAD;
use crate::topics::{self, Topic};

/// Why a region has no place for what the disks have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SeedError {
    /// It has too few topic records.
    #[error("the disks have a topic in record {record}, and the region has room for {topics} topics: start with --topics {}", record + 1)]
    Topics {
        /// The topic's record.
        record: u16,
        /// How many the region has.
        topics: u16,
    },
    /// It has too few places for sessions.
    #[error(
        "the disks have more than {sessions} publishers' sessions, and the region has room for no more: start with a larger region"
    )]
    Sessions {
        /// How many the region has room for.
        sessions: u32,
    },
    /// A broker that stored messages of an order of its own has no place.
    #[error("the disks have messages of topic {topic} that broker {broker} stored, and nobody could read them: start with {}", brokers_for(*broker))]
    Brokers {
        /// The topic.
        topic: String,
        /// The broker.
        broker: u16,
    },
    /// Epochs are used up.
    #[error("no epoch is left above {0}, which a disk has")]
    Epochs(u32),
}

/// The option with which a cluster has this broker.
fn brokers_for(broker: u16) -> String {
    match broker {
        // It takes data only when it is alone.
        HEAD => "--brokers 1".into(),
        _ => format!("at least --brokers {}", broker + 1),
    }
}

/// What came of [`seed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeded {
    /// Topics that are there again.
    pub topics: usize,
    /// Sessions of publishers.
    pub sessions: usize,
    /// A broker that has a place to join, and that stored messages which nobody can read before that.
    pub absent: Option<u16>,
}

/// Whether nobody has sequenced in a region yet, so that it is to be seeded.
pub fn is_new<M: Memory>(region: &Region<M>) -> bool {
    Leadership::observe(region).highest == 0
}

/// Puts what was found into a region in which nobody has sequenced yet. The claim is the head's.
///
/// # Errors
/// [`SeedError`]; then the region is to be made anew, with more room.
pub fn seed<M: Memory>(
    region: &Region<M>,
    claim: &Claim,
    found: &[Found],
) -> Result<Seeded, SeedError> {
    let highest = found.iter().map(|it| it.recovered.epoch).max().unwrap_or(0);
    if highest == 0 {
        return Ok(Seeded::default());
    }
    let geometry = region.geometry();
    let areas = u32::from(geometry.areas());
    // One of the head's.
    let epoch = (highest / areas + 1).checked_mul(areas);
    let epoch = match injected(Canary::RestoredEpoch) {
        true => areas,
        false => epoch.ok_or(SeedError::Epochs(highest))?,
    };
    let chains = longest(found);
    let beyond = chains
        .values()
        .find(|(topic, _)| topic.record() >= geometry.topics);
    if let Some((topic, _)) = beyond {
        return Err(SeedError::Topics {
            record: topic.record(),
            topics: geometry.topics,
        });
    }
    let locals = local_chains(found, &chains);
    if let Some((chain, _)) = locals
        .iter()
        .find(|(chain, its)| its.has_any && !geometry.takes_data(chain.row))
    {
        return Err(SeedError::Brokers {
            topic: chains[&chain.topic].0.name.clone(),
            broker: chain.row,
        });
    }
    let sessions = sessions(found, &chains, geometry.sessions)?;
    let absent = locals
        .iter()
        .find(|(chain, its)| its.has_any && geometry.is_spare(chain.row));
    let mut table = region.session_table(claim);
    store_sessions(&mut table, &sessions);
    let highest_id = found.iter().map(|it| it.highest_id).max().unwrap_or(0);
    let mut records = region.topic_record_writer(claim);
    for record in 0..geometry.topics {
        let topic = chains.values().find(|(topic, _)| topic.record() == record);
        let bytes = topic.map_or_else(Vec::new, |(topic, _)| topic.encode());
        let stored = records.store_above(record, topics::version_above(highest_id), &bytes);
        stored.expect("a topic with the longest name fits its topic record");
    }
    for (topic, disk) in chains.values().filter(|(topic, _)| topic.is_ordered()) {
        let next = found[*disk].next_of(chain_of(topic.id));
        let mut root = region.goi_root_writer(claim, topic_record_of(topic.id));
        root.store(&GoiRoot {
            chain: topic.id,
            epoch,
            start: next,
            first: next,
            order: topic.order.level().into(),
            ..GoiRoot::default()
        });
    }
    for (topic, _) in chains.values().filter(|(topic, _)| !topic.is_ordered()) {
        for row in geometry.data_rows() {
            let chain = Chain {
                topic: topic.id,
                row,
            };
            let next = locals.get(&chain).map_or(0, |its| its.next);
            region.store_window(
                claim,
                row,
                topic.record(),
                &Window {
                    chain: topic.id,
                    first: next,
                    next,
                    ..Window::default()
                },
            );
        }
    }
    let mut row = region.sequencer_row_writer(claim);
    row.store(&SequencerRow {
        epoch,
        state: SequencerState::Active as u32,
        incarnation: claim.incarnation(),
        ..SequencerRow::default()
    });
    Ok(Seeded {
        topics: chains.len(),
        sessions: sessions.len(),
        absent: absent.map(|(chain, _)| chain.row),
    })
}

/// What disks have of a topic that is not ordered, of one broker.
#[derive(Clone, Copy, Default)]
struct Local {
    next: u64,
    /// Whether there is a message that could be read.
    has_any: bool,
}

/// What is there of all topics that are not ordered.
fn local_chains(found: &[Found], topics: &BTreeMap<u32, (Topic, usize)>) -> BTreeMap<Chain, Local> {
    let is_local = |chain: &Chain| {
        let topic = topics.get(&chain.topic);
        topic.is_some_and(|(topic, _)| !topic.is_ordered())
    };
    let mut locals: BTreeMap<Chain, Local> = BTreeMap::new();
    for its in found {
        for (chain, first) in its
            .firsts()
            .into_iter()
            .filter(|(chain, _)| is_local(chain))
        {
            let next = its.next_of(chain);
            let local = locals.entry(chain).or_default();
            local.next = local.next.max(next);
            local.has_any |= first < next;
        }
    }
    locals
}

/// By id, each topic and the disk that has most of it.
fn longest(found: &[Found]) -> BTreeMap<u32, (Topic, usize)> {
    let mut chains: BTreeMap<u32, (Topic, usize)> = BTreeMap::new();
    let holding = holding(found);
    for (disk, its) in found.iter().enumerate() {
        let ids = its.topics.iter().map(|topic| topic.id);
        for topic in ids.filter_map(|id| holding.get(&id).copied()) {
            let chain = chain_of(topic.id);
            let other = chains.get(&topic.id);
            let is_longer =
                other.is_none_or(|(_, other)| found[*other].next_of(chain) < its.next_of(chain));
            if is_longer {
                chains.insert(topic.id, (topic.clone(), disk));
            }
        }
    }
    chains
}

/// By place, the sessions of each topic as the disk knows them that has most of it.
fn sessions(
    found: &[Found],
    chains: &BTreeMap<u32, (Topic, usize)>,
    room: u32,
) -> Result<BTreeMap<u32, KnownSession>, SeedError> {
    let mut by_place = BTreeMap::new();
    let mut others = Vec::new();
    for (disk, its) in found.iter().enumerate() {
        for place in its.sessions.places() {
            let known = *its.sessions.get(place).expect("it has a place");
            let is_here = chains
                .get(&known.row.chain)
                .is_some_and(|(_, of)| *of == disk);
            if !is_here {
                continue;
            }
            if place < room && !by_place.contains_key(&place) {
                by_place.insert(place, known);
            } else {
                others.push(known);
            }
        }
    }
    // Each disk knows its own topics' sessions; where two had one place after each other, one of them gets another.
    let mut free = 0;
    for known in others {
        while by_place.contains_key(&free) {
            free += 1;
        }
        if free >= room {
            return Err(SeedError::Sessions { sessions: room });
        }
        by_place.insert(free, known);
    }
    Ok(by_place)
}

fn store_sessions<M: Memory>(table: &mut SessionTable<M>, sessions: &BTreeMap<u32, KnownSession>) {
    // A takeover reads rows until none has come for long, so places in between get an empty one.
    let end = sessions.keys().last().map_or(0, |last| last + 1);
    for place in 0..end {
        match sessions.get(&place) {
            Some(known) => {
                table.store_owner(place, &known.owner);
                table.store(place, &known.row);
            }
            None => table.store(place, &embar_fabric::SessionRow::default()),
        }
    }
}
