//! What this broker cannot know: what lies behind damaged memory, and what became of its batches while
//! it stood still.

use std::collections::BTreeSet;

use embar_fabric::GoiRecord;
use embar_memory::Memory;
use embar_wire::control::ErrorCode;

use super::Log;
use super::chain::Chain;
use super::order::{Answer, Tag};
use super::ordered::Ordered;

impl<M: Memory> Log<M> {
    /// Finds topics whose order ends where memory is damaged. What was submitted to them is answered,
    /// so that it holds up nothing else. True when there is a new one.
    pub(super) fn look_for_damage(&mut self) -> bool {
        let ordering = &mut self.ordering;
        if !ordering.damaged.is_empty() {
            // A successor may have cut the order there, and go on.
            let still: BTreeSet<u32> = ordering.participant.damaged().collect();
            ordering.damaged.retain(|id| still.contains(id));
        }
        let new = |id: &u32| !ordering.damaged.contains(id);
        let found: Vec<u32> = ordering.participant.damaged().filter(new).collect();
        for id in &found {
            let next = self.ordering.participant.next(*id);
            tracing::error!(
                topic = id,
                position = next,
                "the order is damaged here: nothing behind it can be read, and nothing more is stored"
            );
            self.ordering.damaged.insert(*id);
            // Whoever waits for more is to be told.
            self.ordering.grown.push(*id);
            for (_, tag) in self.ordering.participant.disown(*id) {
                self.leave_in_doubt(tag);
            }
        }
        !found.is_empty()
    }

    /// A submission that may have its place behind the damage, where others may have read it: its bytes
    /// stay as they are, and its extent is not used again.
    fn leave_in_doubt(&mut self, tag: Tag<M>) {
        let ticket = match tag {
            Tag::Session(ticket) => ticket,
            Tag::Batch {
                ticket,
                place,
                reservation,
            } => {
                self.intake.settle(place.len);
                if let Ok(extents) = self.extents_of(place.topic) {
                    extents.leave(&place);
                    self.resized(place.topic);
                }
                drop(reservation.seal());
                ticket
            }
        };
        let damaged = Answer::Refused(ErrorCode::Damaged, 0);
        self.ordering.answer(ticket, damaged);
    }

    /// A batch that is not submitted at all.
    pub(super) fn refuse_damaged(&mut self, tag: Tag<M>) {
        let ticket = self.forget(tag);
        let damaged = Answer::Refused(ErrorCode::Damaged, 0);
        self.ordering.answer(ticket, damaged);
    }

    /// Whether nothing more of a topic can be stored, or read.
    pub(super) fn is_damaged(&self, topic: u32) -> bool {
        self.ordering.damaged.contains(&topic) || self.unknown.contains(&topic)
    }

    /// Why whoever reads all that there is of a topic would miss something, and from where on it can be
    /// read. `None` when nothing is missing but what was evicted.
    pub fn why_incomplete(&self, topic: u32) -> Option<String> {
        let kept = self.kept(topic).unwrap_or_default();
        if self.unknown.contains(&topic) {
            let why = "what this broker has of the topic cannot be told, as memory is damaged: read it at the others, or delete the topic";
            return Some(why.into());
        }
        if self.is_damaged(topic) {
            return Some(format!(
                "memory is damaged at position {} of the topic: nothing can be read behind it; {}..{} can be read from offset {} on",
                kept.next, kept.first, kept.next, kept.first
            ));
        }
        let lost = self.lost(topic);
        (lost > 0).then(|| {
            format!(
                "memory is damaged: offsets of the topic below {lost} are lost on this broker; {}..{} can be read from offset {} on",
                kept.first, kept.next, kept.first
            )
        })
    }

    /// Messages of a topic below this offset are gone because of damage; 0 when none are.
    pub(super) fn lost(&self, topic: u32) -> u64 {
        let ordered = self.ordered.get(&topic).map(Ordered::lost);
        let kept = self.chains.get(&topic).map(Chain::lost);
        ordered.or(kept).unwrap_or(0)
    }

    /// Positions below `first` were given up before they were seen here: this broker stood still for
    /// so long that the others went around. What was submitted and is not answered may have been
    /// among them or may not, and nobody will tell.
    pub(super) fn skipped(&mut self, chain: u32, first: u64) {
        if self.ordering.participant.awaits_places(chain) && !self.ordering.overtaken {
            self.ordering.overtaken = true;
            tracing::error!(
                topic = chain,
                first,
                "the others have given up what this broker had not read yet, and what it submitted may be among that"
            );
        }
        if let Some(topic) = self.ordered.get_mut(&chain) {
            topic.skip_to(first);
            self.evictions += 1;
            self.resized(chain);
        }
    }

    /// Whether a record is the next one of its topic. Closed topics are followed no more.
    pub(super) fn continues(&self, topic: u32, record: &GoiRecord) -> bool {
        let topic = self.ordered.get(&topic);
        topic.is_some_and(|topic| topic.continues(record))
    }

    /// Whether there are submissions that will never be answered, or the order that was read is not the
    /// one that there is. The broker is to end then: its next incarnation knows what was ordered, and
    /// whoever waits sends again in its session, where each batch is stored once.
    pub fn is_overtaken(&self) -> bool {
        self.ordering.overtaken
    }
}
