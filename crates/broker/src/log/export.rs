//! Reading. Of ordered topics the header of each batch is made anew, with its position, and its payload
//! is sent from wherever it lies.

use embar_fabric::RegionError;
use embar_fabric::geometry::cell_of;
use embar_memory::Memory;
use embar_transport::{Payload, Pieces};
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::ordered::Entry;
use super::{Log, Read};

/// Why a batch cannot be had.
enum Missing {
    /// Something else is in its place.
    Replaced,
    /// Its broker's memory cannot be mapped here.
    OutOfReach(RegionError),
}

impl<M: Memory> Log<M> {
    /// Whole batches from the one that contains `from`, at most `max_bytes` of
    /// them (one batch in any case). Those of ordered topics are put into `pieces`.
    pub fn read(
        &self,
        topic: u32,
        from: u64,
        max_bytes: usize,
        pieces: impl FnOnce() -> Box<Pieces<M>>,
    ) -> Read<M> {
        let Some(chain) = self.chains.get(&topic) else {
            return self.read_ordered(topic, from, max_bytes, pieces);
        };
        if self.is_damaged(topic) || from < chain.first && from < chain.lost() {
            return Read::Damaged;
        }
        if from < chain.first {
            return Read::Evicted { first: chain.first };
        }
        if from >= chain.next {
            return Read::End;
        }
        let (span, next) = chain.run(from, max_bytes);
        Read::Batches { span, next }
    }

    /// As [`Log::read`], for ordered topics.
    fn read_ordered(
        &self,
        topic: u32,
        from: u64,
        max_bytes: usize,
        pieces: impl FnOnce() -> Box<Pieces<M>>,
    ) -> Read<M> {
        let Some(ordered) = self.ordered.get(&topic) else {
            return Read::UnknownTopic;
        };
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
        let mut pieces = pieces();
        let mut foreign: Vec<(u16, u64)> = Vec::new();
        let mut next = from;
        for entry in ordered.batches_from(from) {
            let full = pieces.len() + entry.len as usize > max_bytes;
            if !pieces.is_empty() && (full || pieces.is_full()) {
                break;
            }
            let (header, payload) = match self.piece(topic, entry) {
                Ok(piece) => piece,
                Err(missing) if pieces.is_empty() => return self.why_not(topic, entry, missing),
                Err(_) => break,
            };
            if entry.span.is_none() {
                match foreign.iter_mut().find(|(row, _)| *row == entry.row) {
                    Some((_, lowest)) => *lowest = entry.base.min(*lowest),
                    None => foreign.push((entry.row, entry.base)),
                }
            }
            pieces.push(header, payload);
            next = entry.end();
        }
        Read::Pieces {
            pieces,
            next,
            foreign,
        }
    }

    /// A batch with its position.
    fn piece(
        &self,
        topic: u32,
        entry: &Entry<M>,
    ) -> Result<([u8; BATCH_HEADER_BYTES], Payload<M>), Missing> {
        if entry.span.is_none() {
            self.region.reach(entry.row).map_err(Missing::OutOfReach)?;
        }
        self.piece_in_reach(topic, entry).ok_or(Missing::Replaced)
    }

    fn piece_in_reach(
        &self,
        topic: u32,
        entry: &Entry<M>,
    ) -> Option<([u8; BATCH_HEADER_BYTES], Payload<M>)> {
        let mut bytes = [0; BATCH_HEADER_BYTES];
        let payload = match &entry.span {
            Some(span) => {
                span.with_bytes(|all| bytes.copy_from_slice(&all[..BATCH_HEADER_BYTES]));
                Payload::Own(span.slice(BATCH_HEADER_BYTES..span.len()))
            }
            None => {
                let len = entry.len.checked_sub(BATCH_HEADER_BYTES as u32)?;
                let head = BATCH_HEADER_BYTES as u32;
                let header = self.region.foreign(entry.row, entry.blog_at, head)?;
                header.invalidate();
                header.copy_to(0, &mut bytes);
                let at = entry.blog_at + u64::from(head);
                Payload::Foreign(self.region.foreign(entry.row, at, len)?)
            }
        };
        let mut header = entry.header_in(&bytes, topic)?;
        let append_time = header.append_time();
        header.stamp(entry.base, append_time);
        Some((*header.as_bytes(), payload))
    }

    /// Why a batch is not where the order says it is.
    fn why_not(&self, topic: u32, entry: &Entry<M>, missing: Missing) -> Read<M> {
        let (position, broker) = (entry.base, entry.row);
        match (self.first_of(entry.row, topic), missing) {
            (Some(first), _) if first > entry.base => Read::Evicted { first },
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
        let window = self.region.window(row, cell_of(topic)).found()?;
        (window.chain == topic).then_some(window.first)
    }

    /// Whether bytes that were taken from other brokers' memory were still theirs: to be asked after
    /// they were taken. `foreign` is what [`Read::Pieces`] said.
    pub fn was_kept(&self, topic: u32, foreign: &[(u16, u64)]) -> bool {
        let kept = |(row, base): &(u16, u64)| {
            self.first_of(*row, topic)
                .is_some_and(|first| first <= *base)
        };
        foreign.iter().all(kept)
    }
}
