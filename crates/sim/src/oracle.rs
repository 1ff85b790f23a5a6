//! The oracle: what publishers sealed, and what was ever visible in the log.

use std::collections::{BTreeMap, BTreeSet};

use embar_broker::topics::Topic;
use embar_client::sim_api::{Failure, Outcome};
use embar_wire::batch::{BatchFlags, BatchHeader};
use embar_wire::message::Messages;

use crate::violation::{Check, Invariant, ensure};

/// A batch's name, which its first message carries: its maker, and its number there. Sessions number batches anew,
/// so headers do not carry it.
pub type Name = (u64, u64);

/// Bytes of a first message that carry the name.
pub const NAME_BYTES: usize = 16;
/// Names of makers from here on are byzantine clients'.
pub const FIRST_BYZANTINE: u64 = 1 << 32;

/// The first message of a batch begins with this.
pub fn name_bytes((maker, number): Name) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    bytes[..8].copy_from_slice(&maker.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The name that a batch's payload carries.
pub fn name_of(header: &BatchHeader, payload: &[u8]) -> Option<Name> {
    let first = Messages::new(payload, header.message_count())
        .next()?
        .ok()?;
    let bytes = first.value.get(..NAME_BYTES)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    Some((word(0), word(8)))
}

/// A batch as its publisher sealed it.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// Topic id.
    pub topic: u32,
    /// Messages.
    pub count: u32,
    /// Frame length in bytes.
    pub len: u32,
    /// Of its payload.
    pub payload_crc: u32,
    /// Whether the publisher may send it twice.
    pub may_repeat: bool,
    /// The outcome that the publisher received.
    pub outcome: Option<Outcome>,
    /// Its process died before it received one.
    pub abandoned: bool,
    /// Ordered topics: no append that had ended when this one began lies at or above.
    pub above: u64,
}

/// A batch as it was visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Which batch; none if its bytes were gone when it was first looked at.
    pub name: Option<Name>,
    /// What its record shows: producer and sequence.
    pub numbered: (u64, u64),
    /// Messages.
    pub count: u32,
    /// The row of its payload file, and where it lies there.
    pub place: (u16, u64),
    /// Frame length in bytes.
    pub len: u32,
    /// Its flags.
    pub flags: u16,
    /// Of its session; 0 in topics of orders 0 and 1.
    pub session_epoch: u32,
}

impl Visible {
    /// Whether this can be the batch of a name, count of messages and frame length.
    fn may_be(&self, name: Name, (count, len): (u32, u32)) -> bool {
        match self.name {
            Some(known) => known == name,
            None => (self.count, self.len) == (count, len),
        }
    }

    fn is_flagged(&self) -> bool {
        self.flags & BatchFlags::POSSIBLE_DUPLICATE.bits() != 0
    }
}

/// What counts offsets: a topic and a broker's row, or a topic alone if it is ordered.
pub type Counted = (u32, Option<u16>);

/// All that was ever visible of one order; nothing is ever forgotten.
#[derive(Debug, Default)]
pub struct History {
    /// By base offset.
    pub batches: BTreeMap<u64, Visible>,
    /// Offset of the next message.
    pub next: u64,
    /// First offset that is still kept.
    pub first: u64,
    /// Positions that were given up before any checker saw them.
    pub unseen: Vec<(u64, u64)>,
    /// Ordered: one above the highest position that was acknowledged.
    pub acknowledged: u64,
    /// Positions that publishers received, and the batch of each.
    pub told: BTreeMap<u64, Name>,
    /// What lies below was lost with damaged memory, if nothing above was evicted since.
    pub lost_below: u64,
}

/// What was at a position was given up before it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unseen;

impl History {
    /// What lies at an offset, unless no checker saw it.
    pub fn at(&self, base: u64) -> Result<Option<Visible>, Unseen> {
        let mut unseen = self.unseen.iter();
        if unseen.any(|(from, to)| (*from..*to).contains(&base)) {
            return Err(Unseen);
        }
        Ok(self.batches.get(&base).copied())
    }
}

/// All that the checkers know of a run.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Everything that was ever handed to a publisher.
    pub sealed: BTreeMap<Name, Sealed>,
    /// By what counts.
    pub histories: BTreeMap<Counted, History>,
    /// Order levels, by topic id.
    pub orders: BTreeMap<u32, u8>,
    /// Names of all topics that there ever were, by id.
    pub names: BTreeMap<u32, String>,
    /// Topics that were deleted, or may have been: true if they surely were. No rule holds any more for what they
    /// held.
    pub deleted: BTreeMap<u32, bool>,
    /// Publishers whose session was lost or taken: what they have is in doubt.
    pub bereft: BTreeSet<u64>,
    /// Of which records were lost with damaged memory: what of it is kept may end, or begin, there.
    pub hurt: BTreeSet<Counted>,
}

impl Oracle {
    /// Whether a topic has one order over all brokers.
    pub fn is_ordered(&self, topic: u32) -> bool {
        self.orders.get(&topic).is_some_and(|order| *order > 1)
    }

    /// A topic was created.
    pub fn enter(&mut self, topic: &Topic) {
        self.orders.insert(topic.id, topic.order.level());
        self.names.insert(topic.id, topic.name.clone());
    }

    /// Whether a topic of this name exists, or may: the head died while it deleted the last one.
    pub fn may_exist(&self, name: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|(id, its)| its == name && self.deleted.get(id) != Some(&true))
    }

    /// Whether a topic of this name was deleted, or may have been.
    pub fn may_be_replaced(&self, name: &str) -> bool {
        let mut deleted = self.deleted.keys();
        deleted.any(|id| self.names.get(id).is_some_and(|its| its == name))
    }

    /// Whether a topic was deleted, or may have been.
    pub fn may_be_deleted(&self, topic: u32) -> bool {
        self.deleted.contains_key(&topic)
    }

    /// Whether records of some topic of this name were lost: a client that asks by name may meet that one.
    pub fn is_hurt_by_name(&self, name: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|(id, its)| its == name && self.is_hurt(*id))
    }

    /// Whether records of a topic were lost, on whichever broker.
    pub fn is_hurt(&self, topic: u32) -> bool {
        let hurt = (topic, None)..=(topic, Some(u16::MAX));
        self.hurt.range(hurt).next().is_some()
    }

    /// What counts the offsets of a topic that a broker serves.
    pub fn counted(&self, topic: u32, row: u16) -> Counted {
        (topic, (!self.is_ordered(topic)).then_some(row))
    }

    /// All that counts of a topic.
    pub fn of_topic(&self, topic: u32) -> impl Iterator<Item = (Option<u16>, &History)> {
        let all = self
            .histories
            .range((topic, None)..=(topic, Some(u16::MAX)));
        all.map(|((_, row), history)| (*row, history))
    }

    /// A client sealed a batch.
    pub fn seal(&mut self, name: Name, frame: &[u8], may_repeat: bool) {
        let header = BatchHeader::parse(frame, u32::MAX).expect("sealed by the real builder");
        let topic = header.topic();
        let ordered = self.histories.get(&(topic, None));
        let sealed = Sealed {
            topic,
            count: header.message_count(),
            len: header.frame_len(),
            payload_crc: header.payload_crc(),
            may_repeat,
            outcome: None,
            abandoned: false,
            above: ordered.map_or(0, |history| history.acknowledged),
        };
        self.sealed.insert(name, sealed);
    }

    /// The publisher of a batch died, and receives no outcome any more.
    pub fn abandon(&mut self, name: Name) {
        if let Some(sealed) = self.sealed.get_mut(&name) {
            sealed.abandoned = true;
        }
    }

    /// A publisher received the outcome of a batch.
    pub fn resolve(&mut self, name: Name, outcome: Outcome) -> Check {
        let sealed = self.sealed.get_mut(&name);
        let first = sealed.as_ref().is_some_and(|s| s.outcome.is_none());
        ensure(Invariant::Delivery, first, || {
            format!("batch {name:?} was resolved twice, or never sealed")
        })?;
        let Some(sealed) = sealed else { return Ok(()) };
        sealed.outcome = Some(outcome);
        let (topic, above) = (sealed.topic, sealed.above);
        let shape = (sealed.count, sealed.len);
        if self.deleted.contains_key(&topic) {
            return Ok(());
        }
        let Outcome::Stored(position) = outcome else {
            return Ok(());
        };
        let row = position
            .broker
            .and_then(|broker| u16::try_from(broker).ok());
        let is_hurt = self.hurt.contains(&(topic, row));
        let history = self.histories.entry((topic, row)).or_default();
        let other = history.told.insert(position.offset, name);
        ensure(Invariant::I3, other.is_none(), || {
            format!("batch {name:?} is acknowledged at {position:?}, and {other:?} was")
        })?;
        let found = history.at(position.offset);
        let same = match found {
            Ok(Some(found)) => found.may_be(name, shape),
            Ok(None) => is_hurt,
            Err(Unseen) => true,
        };
        ensure(Invariant::I6, same, || {
            format!("batch {name:?} is acknowledged at {position:?}, where {found:?} is")
        })?;
        if let Some(visible) = history.batches.get_mut(&position.offset) {
            // Its bytes may have been gone when a checker looked: this says which batch it was, and no other may
            // get the same.
            visible.name = Some(name);
        }
        if row.is_some() {
            return Ok(());
        }
        if let Ok(Some(visible)) = found {
            let end = position.offset + u64::from(visible.count);
            history.acknowledged = history.acknowledged.max(end);
        }
        ensure(Invariant::I5, position.offset >= above, || {
            format!(
                "batch {name:?} is at {}, but {above} was acknowledged before it was published",
                position.offset
            )
        })
    }

    /// Publishers of a topic that received the outcome that something is stored.
    pub fn stored_by(&self, topic: u32) -> Vec<u64> {
        let stored = self.sealed.iter().filter(|((maker, _), sealed)| {
            let is_stored = matches!(sealed.outcome, Some(Outcome::Stored(_)));
            *maker < FIRST_BYZANTINE && sealed.topic == topic && is_stored
        });
        let mut makers: Vec<u64> = stored.map(|((maker, _), _)| *maker).collect();
        makers.dedup();
        makers
    }

    /// Whether a visible batch was acknowledged to its publisher.
    pub fn is_acknowledged(&self, name: Name) -> bool {
        let sealed = self.sealed.get(&name);
        let outcome = sealed.and_then(|s| s.outcome);
        matches!(outcome, Some(Outcome::Stored(_) | Outcome::StoredSomewhere))
    }

    /// The name of a batch in the log, or on its way to a subscriber, if it is that of a sealed one.
    pub fn genuine(&self, header: &BatchHeader, payload: &[u8]) -> Option<Name> {
        let name = name_of(header, payload)?;
        let sealed = self.sealed.get(&name)?;
        let same = sealed.topic == header.topic()
            && sealed.count == header.message_count()
            && sealed.len == header.frame_len()
            && sealed.payload_crc == header.payload_crc();
        same.then_some(name)
    }

    /// When all is over: the outcome that each publisher received is what became of the batch.
    pub fn settle(&self) -> Check {
        let mut seen: BTreeMap<Name, (u32, u32)> = BTreeMap::new();
        let all = self.histories.values().flat_map(|t| t.batches.values());
        for visible in all {
            let Some(name) = visible.name else { continue };
            let (times, unflagged) = seen.entry(name).or_default();
            *times += 1;
            *unflagged += u32::from(!visible.is_flagged());
        }
        let all_seen = |topic| self.of_topic(topic).all(|(_, h)| h.unseen.is_empty());
        for (name, sealed) in self
            .sealed
            .iter()
            .filter(|(name, _)| name.0 < FIRST_BYZANTINE)
        {
            let (times, unflagged) = seen.get(name).copied().unwrap_or_default();
            let delivery = |holds: bool, what: &str| {
                ensure(Invariant::Delivery, holds, || {
                    format!(
                        "batch {name:?} is {what} ({times} times visible, {unflagged} of them unflagged): {sealed:?}"
                    )
                })
            };
            delivery(sealed.outcome.is_some() || sealed.abandoned, "unresolved")?;
            if self.may_be_deleted(sealed.topic) {
                continue;
            }
            delivery(unflagged <= 1, "stored twice without being flagged")?;
            delivery(
                times <= 1 || sealed.may_repeat,
                "stored twice although it must not be resent",
            )?;
            if self.is_hurt(sealed.topic) {
                continue;
            }
            match sealed.outcome {
                Some(Outcome::Stored(_)) if all_seen(sealed.topic) => {
                    delivery(times >= 1, "acknowledged and not stored")?;
                }
                Some(Outcome::StoredSomewhere) if all_seen(sealed.topic) => {
                    let mut batches = self
                        .of_topic(sealed.topic)
                        .flat_map(|(_, h)| h.batches.values());
                    let there = batches.any(|v| v.may_be(*name, (sealed.count, sealed.len)));
                    delivery(there, "acknowledged and not stored")?;
                }
                Some(Outcome::Failed(
                    Failure::TimedOut | Failure::Closed | Failure::Refused(_),
                )) => {
                    let certain = !self.bereft.contains(&name.0);
                    delivery(times == 0 || !certain, "reported as not stored")?;
                }
                _ => {}
            }
        }
        self.in_sequence()
    }

    /// Order 5: each publisher's batches come in the order in which it published them, each once.
    /// Order 2: each once, unless it says that it may come twice.
    fn in_sequence(&self) -> Check {
        for ((topic, row), history) in &self.histories {
            if row.is_some() {
                continue;
            }
            let follows = self.orders.get(topic) == Some(&5);
            let mut last: BTreeMap<u64, u64> = BTreeMap::new();
            for (base, visible) in &history.batches {
                let Some((maker, number)) = visible.name.filter(|name| name.0 < FIRST_BYZANTINE)
                else {
                    continue;
                };
                let before = last.insert(maker, number);
                let in_order = before.is_none_or(|before| before < number);
                ensure(Invariant::I5, in_order || !follows, || {
                    format!("topic {topic}: batch {number} of {maker} at {base} behind {before:?}")
                })?;
            }
        }
        Ok(())
    }
}
