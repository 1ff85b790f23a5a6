//! What the checkers know: what publishers sealed, and what was ever visible in the log.

use std::collections::BTreeMap;

use embar_client::sim_api::{Failure, Outcome};
use embar_wire::batch::{BatchFlags, BatchHeader};

use crate::violation::{Check, Invariant, ensure};

/// A batch's name: producer and sequence.
pub type Name = (u64, u64);

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
    /// What the publisher was told.
    pub outcome: Option<Outcome>,
}

/// A batch as it was visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Which batch.
    pub name: Name,
    /// Messages.
    pub count: u32,
    /// Where its bytes are.
    pub blog_at: u64,
    /// Frame length in bytes.
    pub len: u32,
    /// Its flags.
    pub flags: u16,
}

/// All that was ever visible of one topic; nothing is ever forgotten.
#[derive(Debug, Default)]
pub struct History {
    /// By base offset.
    pub batches: BTreeMap<u64, Visible>,
    /// Offset of the next message.
    pub next: u64,
    /// First offset that is still kept.
    pub first: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Books {
    /// Everything that was ever handed to a publisher.
    pub sealed: BTreeMap<Name, Sealed>,
    /// By topic id.
    pub topics: BTreeMap<u32, History>,
}

impl Books {
    /// A publisher sealed a batch.
    pub fn seal(&mut self, frame: &[u8], may_repeat: bool) {
        let header = BatchHeader::parse(frame, u32::MAX).expect("sealed by the real builder");
        let sealed = Sealed {
            topic: header.topic(),
            count: header.message_count(),
            len: header.frame_len(),
            payload_crc: header.payload_crc(),
            may_repeat,
            outcome: None,
        };
        self.sealed
            .insert((header.producer(), header.sequence()), sealed);
    }

    /// A publisher was told what became of a batch.
    pub fn resolve(&mut self, name: Name, outcome: Outcome) -> Check {
        let sealed = self.sealed.get_mut(&name);
        let first = sealed.as_ref().is_some_and(|s| s.outcome.is_none());
        ensure(Invariant::Delivery, first, || {
            format!("batch {name:?} was resolved twice, or never sealed")
        })?;
        let Some(sealed) = sealed else { return Ok(()) };
        sealed.outcome = Some(outcome);
        let Outcome::Stored(position) = outcome else {
            return Ok(());
        };
        let found = self.topics.get(&sealed.topic);
        let found = found.and_then(|t| t.batches.get(&position.offset));
        ensure(Invariant::I6, found.is_some_and(|v| v.name == name), || {
            format!(
                "batch {name:?} is acknowledged at offset {}, where {found:?} is",
                position.offset
            )
        })
    }

    /// Whether a visible batch was acknowledged to its publisher.
    pub fn is_acknowledged(&self, name: Name) -> bool {
        let sealed = self.sealed.get(&name);
        matches!(sealed.and_then(|s| s.outcome), Some(Outcome::Stored(_)))
    }

    /// Checks that a header in the log, or on its way to a subscriber, is that of a sealed batch.
    pub fn is_genuine(&self, header: &BatchHeader) -> bool {
        let sealed = self.sealed.get(&(header.producer(), header.sequence()));
        sealed.is_some_and(|s| {
            s.topic == header.topic()
                && s.count == header.message_count()
                && s.len == header.frame_len()
                && s.payload_crc == header.payload_crc()
        })
    }

    /// When all is over: what became of each batch is what its publisher was told.
    pub fn settle(&self) -> Check {
        let mut seen: BTreeMap<Name, (u32, u32)> = BTreeMap::new();
        for visible in self.topics.values().flat_map(|t| t.batches.values()) {
            let (times, unflagged) = seen.entry(visible.name).or_default();
            *times += 1;
            *unflagged += u32::from(visible.flags & BatchFlags::POSSIBLE_DUPLICATE.bits() == 0);
        }
        for (name, sealed) in &self.sealed {
            let (times, unflagged) = seen.get(name).copied().unwrap_or_default();
            let say = |what: &str| {
                format!(
                    "batch {name:?} is {what} ({times} times visible, {unflagged} of them unflagged): {sealed:?}"
                )
            };
            let delivery =
                |holds: bool, what: &str| ensure(Invariant::Delivery, holds, || say(what));
            delivery(sealed.outcome.is_some(), "unresolved")?;
            delivery(unflagged <= 1, "stored twice without being flagged")?;
            delivery(
                times <= 1 || sealed.may_repeat,
                "stored twice although it must not be resent",
            )?;
            match sealed.outcome {
                Some(Outcome::Stored(_)) => delivery(times >= 1, "acknowledged and not stored")?,
                Some(Outcome::Failed(Failure::TimedOut | Failure::Closed)) => {
                    delivery(times == 0, "reported as not stored")?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
