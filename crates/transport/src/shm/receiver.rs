//! The side of a connection that takes what the peer published, and trusts none of it.
//!
//! Whatever lies in the peer's memory may change at any time. So each word and each record is copied once, and the copy is
//! checked. What is copied of bytes is whatever was there: whether they are what the peer meant, a checksum says, if
//! anything does.

use std::io;
use std::sync::Arc;

use embar_memory::canary::{Canary, injected};
use embar_memory::{Foreign, Memory};

use super::layout::{
    BODY_BYTES, COMMIT_AT, LINE_BYTES, RECORD_BYTES, Record, Sizes, WITHDRAWN_AT, violation,
};
use super::leases::{Leases, locked};
use super::sync::{Mutex, Ordering, fence};
use crate::buffer::Witness;

/// What looking for bytes found.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many were copied.
    Bytes(usize),
    /// None is there.
    Nothing,
    /// None is there, and none will come.
    End,
}

/// Takes what is in the peer's outbox, and counts in the outbox `own` what it is through with.
pub struct Receiver<O: Memory, I: Memory, L: Memory = I> {
    peer: Arc<I>,
    /// Of the peer's outbox.
    sizes: Sizes,
    /// What the peer handed over.
    memories: Box<[Arc<I>]>,
    /// What it lends: the memory behind those.
    lent: Option<Arc<L>>,
    /// The number of the record at the front: those before are taken.
    next: u64,
    /// As far as the leases know.
    told: u64,
    /// What the peer may use again.
    leases: Arc<Mutex<Leases<O, I>>>,
    /// The record at the front, once it was copied, and how many of its bytes were taken.
    front: Option<(Record, usize)>,
    ended: bool,
}

/// Bytes of a record, to be read where the peer lends them.
pub(super) struct LentPart<L> {
    pub memory: Arc<L>,
    pub at: u64,
    pub len: usize,
    /// The record, on which a lease has begun.
    pub record: u64,
}

impl<O: Memory, I: Memory, L: Memory> Receiver<O, I, L> {
    /// Of a fresh outbox of these sizes.
    ///
    /// # Panics
    /// If the peer's memory is shorter than its sizes say.
    pub fn new(
        own: Arc<O>,
        peer: Arc<I>,
        sizes: Sizes,
        memories: Box<[Arc<I>]>,
        lent: Option<Arc<L>>,
    ) -> Self {
        assert!(peer.len() >= sizes.outbox_bytes(), "a short outbox");
        let leases = Leases::new(own, Arc::clone(&peer));
        Self {
            peer,
            sizes,
            memories,
            lent,
            next: 0,
            told: 0,
            leases: Arc::new(Mutex::new(leases)),
            front: None,
            ended: false,
        }
    }

    /// Whether something is to be taken, be it nonsense. One load.
    #[inline]
    pub fn has_news(&self) -> bool {
        if self.front.is_some() || self.ended {
            return true;
        }
        let at = self.sizes.record_at(self.next);
        self.peer.invalidate(at, RECORD_BYTES);
        self.peer.load(at + COMMIT_AT) != self.sizes.commit_before(self.next)
    }

    /// Copies as many bytes as are there and fit. In front of what the peer lends it stops, unless that comes first: perhaps
    /// somebody reads it where it lies.
    ///
    /// # Errors
    /// `InvalidData` if the peer broke a rule. `ConnectionAborted` if it withdrew what it had referred to. What was copied is
    /// to be thrown away then, and the connection to be closed.
    pub fn take(&mut self, into: &mut [u8]) -> io::Result<Taken> {
        self.take_seen(into, None)
    }

    /// As [`Receiver::take`]; a witness sees what is copied, in parts, while it is in the cache, and the copy goes past that.
    ///
    /// # Errors
    /// As [`Receiver::take`].
    pub fn take_seen(
        &mut self,
        into: &mut [u8],
        witness: Option<&dyn Witness>,
    ) -> io::Result<Taken> {
        let mut filled = 0;
        while filled < into.len() && !self.ended {
            let Some((record, taken)) = self.front()? else {
                break;
            };
            if filled > 0 && taken == 0 && self.is_lent(&record) {
                break;
            }
            if record == Record::End {
                self.front = None;
                self.next += 1;
                self.ended = true;
                break;
            }
            let count = (record.len() - taken).min(into.len() - filled);
            let into = &mut into[filled..filled + count];
            self.copy(&record, taken, into, witness)?;
            filled += count;
            self.took(record, taken + count);
        }
        Ok(match filled {
            0 if self.ended => Taken::End,
            0 => Taken::Nothing,
            _ => Taken::Bytes(filled),
        })
    }

    /// The record at the front, copied and checked, and how much of it was taken.
    fn front(&mut self) -> io::Result<Option<(Record, usize)>> {
        if self.front.is_none() {
            let at = self.sizes.record_at(self.next);
            self.peer.invalidate(at, RECORD_BYTES);
            // Partner: the sender's store of this word.
            let commit = self.peer.load(at + COMMIT_AT);
            if commit == self.sizes.commit_before(self.next) {
                return Ok(None);
            }
            if commit != self.next + 1 {
                return Err(violation(format!(
                    "the place of record {} says {commit}",
                    self.next
                )));
            }
            let mut body = [0; BODY_BYTES];
            self.peer.read(at, &mut body);
            let len_of = |memory| match self.memories.get(usize::from(memory)) {
                Some(memory) => Some(memory.len()),
                None => self.lent_as(memory).map(|it| it.len()),
            };
            self.front = Some((Record::decode(&body, self.sizes, len_of)?, 0));
        }
        Ok(self.front)
    }

    /// Whether the next byte is the first that a record names of what the peer lends. (Nonsense is for the next receive to tell.)
    pub(super) fn is_at_lent(&mut self) -> bool {
        self.lent.is_some()
            && matches!(self.front(), Ok(Some((record, 0))) if self.is_lent(&record))
    }

    fn is_lent(&self, record: &Record) -> bool {
        matches!(record, Record::Reference { memory, .. } if self.lent_as(*memory).is_some())
    }

    /// Takes the next bytes, at least `least` and at most `most`, without a copy: if so many lie together in what the peer lends. They are
    /// consumed once the lease on the record has ended, too.
    pub(super) fn take_lent(&mut self, least: usize, most: usize) -> Option<LentPart<L>> {
        self.lent.as_ref()?;
        // Nonsense is for the next receive to tell.
        let (record, taken) = self.front().ok()??;
        let Record::Reference { memory, at, .. } = record else {
            return None;
        };
        let left = record.len() - taken;
        let lent = Arc::clone(self.lent_as(memory)?);
        if left < least.max(1) || most < least {
            return None;
        }
        let (len, number) = (left.min(most), self.next);
        locked(&self.leases).begin(number);
        self.took(record, taken + len);
        Some(LentPart {
            memory: lent,
            at: at + taken as u64,
            len,
            record: number,
        })
    }

    /// What the peer may use again, for who holds leases.
    pub(super) fn leases(&self) -> &Arc<Mutex<Leases<O, I>>> {
        &self.leases
    }

    /// So many bytes of the record at the front are taken.
    fn took(&mut self, record: Record, taken: usize) {
        if taken == record.len() {
            self.front = None;
            self.next += 1;
        } else {
            self.front = Some((record, taken));
        }
    }

    /// The memory that the peer lends, if records name it so.
    fn lent_as(&self, memory: u8) -> Option<&Arc<L>> {
        let is_lent = usize::from(memory) == self.memories.len();
        self.lent.as_ref().filter(|_| is_lent)
    }

    /// Copies bytes of a record that was checked, behind the first `taken`.
    fn copy(
        &mut self,
        record: &Record,
        taken: usize,
        into: &mut [u8],
        witness: Option<&dyn Witness>,
    ) -> io::Result<()> {
        let behind = taken as u64;
        match *record {
            Record::Inline { bytes, .. } => {
                into.copy_from_slice(&bytes[taken..taken + into.len()]);
                if let Some(witness) = witness {
                    witness.see(into);
                }
            }
            Record::Bytes { at, .. } => {
                let at = self.sizes.bytes_at() + u64::from(at) + behind;
                copy_out(&self.peer, at, into, witness)?;
            }
            Record::Reference { memory, at, .. } => match self.lent_as(memory) {
                Some(lent) => copy_out(lent, at + behind, into, witness)?,
                None => copy_out(
                    &self.memories[usize::from(memory)],
                    at + behind,
                    into,
                    witness,
                )?,
            },
            Record::End => {}
        }
        if matches!(record, Record::Reference { .. }) {
            // The copy comes before the look. Partner: the fence in `Sender::withdraw`.
            fence(Ordering::Acquire);
            self.peer.invalidate(WITHDRAWN_AT, LINE_BYTES);
            if self.peer.load(WITHDRAWN_AT) != 0 && !injected(Canary::StreamWithdrawn) {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the peer withdrew what it had referred to",
                ));
            }
        }
        Ok(())
    }

    /// Tells the peer what it may use again. True: it sleeps, and is to be woken for that.
    pub fn tell(&mut self) -> bool {
        if self.told == self.next {
            return false;
        }
        self.told = self.next;
        locked(&self.leases).take_to(self.next)
    }
}

/// Copies bytes that may change meanwhile.
fn copy_out<M: Memory>(
    memory: &Arc<M>,
    at: u64,
    into: &mut [u8],
    witness: Option<&dyn Witness>,
) -> io::Result<()> {
    let bytes = Foreign::over(memory, at, into.len());
    let bytes = bytes.ok_or_else(|| violation("bytes are not where a record says"))?;
    bytes.invalidate();
    match witness {
        Some(witness) => bytes.copy_seen(0, into, &mut |part| witness.see(part)),
        None => bytes.copy_to(0, into),
    }
    Ok(())
}
