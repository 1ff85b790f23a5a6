//! What the log does where memory is damaged. It stores lost windows again, finds topics whose order ends at damage,
//! refuses what is submitted to them, and says which offsets of a topic are lost.
//!
//! A broker that stood still for long is here, too. Others may have evicted what it had not read of the order. So it
//! cannot learn any more what became of its own batches, and has to end.

use std::collections::BTreeSet;
use std::ops::Bound;

use embar_fabric::GoiRecord;
use embar_memory::Memory;
use embar_wire::control::ErrorCode;

use super::Log;
use super::local_topic::LocalTopic;
use super::order::{Answer, Submission};
use super::ordered_topic::OrderedTopic;

/// Windows that [`Log::restore_windows`] reads back.
const WINDOWS_PER_CALL: usize = 128;

impl<M: Memory> Log<M> {
    /// Reads the windows of the next few topics back, and stores again what memory has lost. Each call goes on
    /// behind the topics of the one before.
    pub fn restore_windows(&mut self) {
        for _ in 0..WINDOWS_PER_CALL.min(self.local.len() + self.ordered.len()) {
            let behind = |id| (Bound::Excluded(id), Bound::Unbounded);
            let range = self
                .window_read_back
                .map_or((Bound::Unbounded, Bound::Unbounded), behind);
            let local = self.local.range(range).next().map(|(id, _)| *id);
            let ordered = self.ordered.range(range).next().map(|(id, _)| *id);
            self.window_read_back = local.into_iter().chain(ordered).min();
            let Some(id) = self.window_read_back else {
                continue;
            };
            let local = self.local.get_mut(&id).map(LocalTopic::restore_window);
            let ordered = self.ordered.get_mut(&id).map(OrderedTopic::restore_window);
            if local.or(ordered) == Some(true) {
                tracing::warn!(
                    topic = id,
                    "memory had lost the window of a topic: it is stored again"
                );
            }
        }
    }

    /// Finds topics whose order ends where memory is damaged, and answers what was submitted to them, so that
    /// it holds up nothing else. True when there is a new one.
    pub(super) fn look_for_damage(&mut self) -> bool {
        let order = &mut self.order;
        if !order.damaged.is_empty() {
            // A successor of the sequencer may have cut the order there, and go on.
            let still: BTreeSet<u32> = order.participant.damaged().collect();
            order.damaged.retain(|id| still.contains(id));
        }
        let new = |id: &u32| !order.damaged.contains(id);
        let found: Vec<u32> = order.participant.damaged().filter(new).collect();
        for id in &found {
            let next = self.order.participant.next(*id);
            tracing::error!(
                topic = id,
                position = next,
                "the order is damaged here: nothing behind it can be read, and nothing more is stored"
            );
            self.order.damaged.insert(*id);
            // Wakes the subscribers that wait for more, so that they find out.
            self.order.grown.push(*id);
            for (_, submission) in self.order.participant.disown(*id) {
                self.keep_unresolved(submission);
            }
        }
        !found.is_empty()
    }

    /// A submission that may have its position behind the damage, where others may have read it: its bytes
    /// stay as they are, and its extent is not used again.
    fn keep_unresolved(&mut self, submission: Submission<M>) {
        let submitter = match submission {
            Submission::Session(submitter) => submitter,
            Submission::Batch { submitter, space } => {
                let location = space.location;
                self.admission.settle(location.len);
                if let Ok(extents) = self.extents_of(location.topic) {
                    extents.keep_for_ever(&location);
                    self.update_size(location.topic);
                }
                drop(space.reservation.seal());
                submitter
            }
        };
        let damaged = Answer::Refused(ErrorCode::Damaged, 0);
        self.order.answer(submitter, damaged);
    }

    /// Answers a batch that is not submitted at all.
    pub(super) fn refuse_damaged(&mut self, submission: Submission<M>) {
        let submitter = self.release(submission);
        let damaged = Answer::Refused(ErrorCode::Damaged, 0);
        self.order.answer(submitter, damaged);
    }

    /// Whether nothing more of a topic can be stored, or read.
    pub(super) fn is_damaged(&self, topic: u32) -> bool {
        self.order.damaged.contains(&topic) || self.unknown.contains(&topic)
    }

    /// Why a reader of all that there is of a topic would miss something, and from where on it can be
    /// read. `None` when nothing is missing but what was evicted.
    pub fn why_incomplete(&self, topic: u32) -> Option<String> {
        let stats = self.topic_stats(topic).unwrap_or_default();
        if self.unknown.contains(&topic) {
            let why = "what this broker has of the topic cannot be told, as memory is damaged: read it at the others, or delete the topic";
            return Some(why.into());
        }
        if self.is_damaged(topic) {
            return Some(format!(
                "memory is damaged at position {} of the topic: nothing can be read behind it; {}..{} can be read from offset {} on",
                stats.next, stats.first, stats.next, stats.first
            ));
        }
        let lost = self.lost(topic);
        (lost > 0).then(|| {
            format!(
                "memory is damaged: offsets of the topic below {lost} are lost on this broker; {}..{} can be read from offset {} on",
                stats.first, stats.next, stats.first
            )
        })
    }

    /// Messages of a topic below this offset are gone because of damage; 0 when none are.
    fn lost(&self, topic: u32) -> u64 {
        let ordered = self.ordered.get(&topic).map(OrderedTopic::lost);
        let local = self.local.get(&topic).map(LocalTopic::lost);
        ordered.or(local).unwrap_or(0)
    }

    /// Positions below `first` were given up before this broker read them: it stood still for so long that the
    /// others went on without it. What it submitted and has no answer for may have been among them, and
    /// nothing will ever say so.
    pub(super) fn skipped(&mut self, topic: u32, first: u64) {
        if self.order.participant.awaits_places(topic) && !self.order.overtaken {
            self.order.overtaken = true;
            tracing::error!(
                topic,
                first,
                "the others have given up what this broker had not read yet, and what it submitted may be among that"
            );
        }
        if let Some(followed) = self.ordered.get_mut(&topic) {
            followed.skip_to(first);
            self.evictions += 1;
            self.update_size(topic);
        }
    }

    /// Whether a record is the next one of its topic, which is open.
    pub(super) fn continues(&self, topic: u32, record: &GoiRecord) -> bool {
        let topic = self.ordered.get(&topic);
        topic.is_some_and(|topic| topic.continues(record))
    }

    /// Whether there are submissions that will never be answered, or the order that was read is not the
    /// one that there is. The broker is to end then: its next incarnation knows what was ordered, and the
    /// publishers send again in their sessions, where each batch is stored once.
    pub fn is_overtaken(&self) -> bool {
        self.order.overtaken
    }
}
