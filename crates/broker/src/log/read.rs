//! Reads batches for subscribers. The header of each batch of an ordered topic is made anew, with its position. The
//! payload of such a batch is sent from the memory in which it lies, this broker's or another's.

use std::ops::Range;

use embar_fabric::RegionError;
use embar_fabric::geometry::topic_record_of;
use embar_memory::Memory;
use embar_transport::{Payload, Pieces};
use embar_wire::isolation::Isolation;
use embar_wire::limits::BATCH_HEADER_BYTES;
use embar_wire::share::Share;

use super::ordered_topic::{OrderedBatch, OrderedTopic};
use super::{Log, Read};

/// What a subscriber wants to read.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The topic's id.
    pub topic: u32,
    /// An offset in the first batch.
    pub from: u64,
    /// Which batches of an ordered topic.
    pub share: Share,
    /// Up to where, if the topic is on disks.
    pub isolation: Isolation,
}

impl Wanted {
    /// All of a topic from an offset on that is readable, whether it is on disks or not.
    #[must_use]
    pub fn latest(topic: u32, from: u64) -> Self {
        Self {
            topic,
            from,
            share: Share::All,
            isolation: Isolation::Latest,
        }
    }
}

/// Why a batch cannot be had.
enum Missing {
    /// Its bytes are not those that the order describes.
    Replaced,
    /// Its broker's memory cannot be mapped here.
    OutOfReach(RegionError),
}

impl<M: Memory> Log<M> {
    /// Whole batches of a topic from the one that contains an offset, at most `max_bytes` of
    /// them (one batch in any case). Those of ordered topics come in what `pieces` makes, as far as the share has them.
    /// Takes one from `passes` for each batch that the share does not have, and passes over no more than these.
    pub fn read(
        &self,
        wanted: &Wanted,
        max_bytes: usize,
        passes: &mut usize,
        pieces: impl FnOnce() -> Box<Pieces<M>>,
    ) -> Read<M> {
        let Wanted { topic, from, .. } = *wanted;
        let Some(local) = self.local.get(&topic) else {
            return self.read_ordered(wanted, max_bytes, passes, pieces);
        };
        if self.is_damaged(topic) {
            return Read::Damaged;
        }
        if from < local.first {
            return match local.disks() {
                0 if from < local.lost() => Read::Damaged,
                0 => Read::Evicted { first: local.first },
                _ => Read::OnDisk { first: local.first },
            };
        }
        let end = local.readable(wanted.isolation);
        let run = (from < end).then(|| local.run(from, end, max_bytes));
        match run.flatten() {
            Some((span, next)) => Read::Batches { span, next },
            None => Read::End,
        }
    }

    /// As [`Log::read`], for ordered topics.
    fn read_ordered(
        &self,
        wanted: &Wanted,
        max_bytes: usize,
        passes: &mut usize,
        pieces: impl FnOnce() -> Box<Pieces<M>>,
    ) -> Read<M> {
        let Wanted {
            topic, from, share, ..
        } = *wanted;
        let Some(ordered) = self.ordered.get(&topic) else {
            return Read::UnknownTopic;
        };
        if from < ordered.first && ordered.disks() != 0 {
            return Read::OnDisk {
                first: ordered.first,
            };
        }
        if from < ordered.first && from < ordered.lost() {
            return Read::Damaged;
        }
        if from < ordered.first {
            return Read::Evicted {
                first: ordered.first,
            };
        }
        if from >= ordered.next {
            return if self.is_damaged(topic) {
                Read::Damaged
            } else {
                Read::End
            };
        }
        let end = ordered.readable(wanted.isolation);
        if from >= end {
            return Read::End;
        }
        let mut next = from;
        for batch in ordered.batches_from(from) {
            if batch.end() > end {
                break;
            }
            if share.has(self.claim.row().into(), batch.row.into(), batch.len) {
                return self.collect(ordered, (next..end, share), max_bytes, passes, pieces());
            }
            if *passes == 0 {
                break;
            }
            *passes -= 1;
            next = batch.end();
        }
        Read::Skipped { next }
    }

    /// Puts whole batches of a share into `pieces`, from the one on that contains the first position, which is in the share.
    fn collect(
        &self,
        topic: &OrderedTopic<M>,
        (range, share): (Range<u64>, Share),
        max_bytes: usize,
        passes: &mut usize,
        mut pieces: Box<Pieces<M>>,
    ) -> Read<M> {
        let mut foreign: Vec<(u16, u64)> = Vec::new();
        let first = range.start;
        let mut next = first;
        for batch in topic.batches_from(first) {
            if batch.end() > range.end {
                break;
            }
            if !share.has(self.claim.row().into(), batch.row.into(), batch.len) {
                if *passes == 0 {
                    break;
                }
                *passes -= 1;
                next = batch.end();
                continue;
            }
            let full = pieces.len() + batch.len as usize > max_bytes;
            if !pieces.is_empty() && (full || pieces.is_full()) {
                break;
            }
            let (header, payload) = match self.piece(topic.id, batch) {
                Ok(piece) => piece,
                Err(missing) if pieces.is_empty() => {
                    return self.explain_missing(topic.id, batch, missing);
                }
                Err(_) => break,
            };
            if batch.span.is_none() {
                match foreign.iter_mut().find(|(row, _)| *row == batch.row) {
                    Some((_, lowest)) => *lowest = batch.base.min(*lowest),
                    None => foreign.push((batch.row, batch.base)),
                }
            }
            pieces.push(header, payload);
            next = batch.end();
        }
        Read::Pieces {
            pieces,
            first,
            next,
            foreign,
        }
    }

    /// A batch with its position.
    fn piece(
        &self,
        topic: u32,
        batch: &OrderedBatch<M>,
    ) -> Result<([u8; BATCH_HEADER_BYTES], Payload<M>), Missing> {
        if batch.span.is_none() {
            self.region.reach(batch.row).map_err(Missing::OutOfReach)?;
        }
        self.piece_in_reach(topic, batch).ok_or(Missing::Replaced)
    }

    fn piece_in_reach(
        &self,
        topic: u32,
        batch: &OrderedBatch<M>,
    ) -> Option<([u8; BATCH_HEADER_BYTES], Payload<M>)> {
        let mut bytes = [0; BATCH_HEADER_BYTES];
        let payload = match &batch.span {
            Some(span) => {
                // Lent is the payload alone: the header may be voided under readers of this incarnation by the next one.
                span.with_bytes(|all| bytes.copy_from_slice(&all[..BATCH_HEADER_BYTES]));
                Payload::Own(span.slice(BATCH_HEADER_BYTES..span.len()))
            }
            None => {
                let len = batch.len.checked_sub(BATCH_HEADER_BYTES as u32)?;
                let head = BATCH_HEADER_BYTES as u32;
                let header = self.region.foreign(batch.row, batch.payload_at, head)?;
                header.invalidate();
                header.copy_to(0, &mut bytes);
                let at = batch.payload_at + u64::from(head);
                Payload::Foreign(self.region.foreign(batch.row, at, len)?)
            }
        };
        let mut header = batch.header_in(&bytes, topic)?;
        let append_time = header.append_time();
        header.stamp(batch.base, append_time);
        Some((*header.as_bytes(), payload))
    }

    /// What a reader gets instead of a batch that is not where the order says it is.
    fn explain_missing(&self, topic: u32, batch: &OrderedBatch<M>, missing: Missing) -> Read<M> {
        let (position, broker) = (batch.base, batch.row);
        match (self.first_of(batch.row, topic), missing) {
            // The other broker knew before this one that the disks have it.
            (Some(first), _) if first > batch.base && self.all_disks(topic) != 0 => {
                Read::OnDisk { first }
            }
            (Some(first), _) if first > batch.base => Read::Evicted { first },
            (_, Missing::OutOfReach(error)) => {
                tracing::error!(
                    topic,
                    position,
                    broker,
                    %error,
                    "the memory of another broker cannot be mapped: raise the limits of this process on open files and mappings if it has reached them"
                );
                Read::OutOfReach { broker }
            }
            (_, Missing::Replaced) => {
                tracing::error!(
                    topic,
                    position,
                    broker,
                    "a batch of the order is not where its record says: memory is damaged"
                );
                Read::Damaged
            }
        }
    }

    fn first_of(&self, row: u16, topic: u32) -> Option<u64> {
        let window = self.region.window(row, topic_record_of(topic)).found()?;
        (window.chain == topic).then_some(window.first)
    }

    /// Whether other brokers still kept what was read from their memory. To be asked after the bytes were
    /// taken; `foreign` is that of [`Read::Pieces`].
    pub fn was_kept(&self, topic: u32, foreign: &[(u16, u64)]) -> bool {
        let kept = |(row, base): &(u16, u64)| {
            self.first_of(*row, topic)
                .is_some_and(|first| first <= *base)
        };
        foreign.iter().all(kept)
    }
}
