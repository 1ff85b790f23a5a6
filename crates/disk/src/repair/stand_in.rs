//! Makes the commits that stand in for those whose bytes cannot be had again.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::Fix;
use super::copies::Copies;
use super::runs::messages_of;
use crate::aligned::AlignedBuffer;
use crate::format::{ALIGN_BYTES, Chain, CommitHeader};
use crate::journal::{CommitBuilder, Progress, Refused};
use crate::verify::Lost;

/// Commits that are to be made anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    /// Their segment's nonce.
    pub nonce: u64,
    /// Numbers of the first and the last.
    pub first: u32,
    pub last: u32,
    /// Where they begin, and end if something is behind them.
    pub at: u64,
    pub end: Option<u64>,
    /// Checksum of the commit before.
    pub before: u32,
    /// Checksum that the last one is known by.
    pub crc: u32,
    /// When they were made, about.
    pub time: u64,
    /// The last says that all facts were said.
    pub completes_facts: bool,
}

/// What is to be in them.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    /// The messages of a chain, as far as there are any.
    Messages(Chain, Range<u64>),
    /// What copies have of a chain from a position on, as long as there is room.
    More(Chain, u64),
    /// A fact: what it is about, its key and its bytes.
    Fact(u16, u64, Vec<u8>),
    /// Where a chain goes on.
    Next(Chain, u64),
}

/// Batches of damaged commits that are whole, by chain and position.
pub(super) type Own = BTreeMap<(Chain, u64), Vec<u8>>;

/// The commits, and what is lost of the messages; `None` where they do not fit.
pub(super) fn stand_in(
    hole: &Hole,
    pieces: impl IntoIterator<Item = Piece>,
    own: &Own,
    copies: &mut dyn Copies,
) -> Option<Vec<Fix>> {
    let mut left = Left {
        pieces: pieces.into_iter().collect(),
        own,
        copies,
        lost: Vec::new(),
    };
    let (mut fixes, mut at, mut before) = (Vec::new(), hole.at, hole.before);
    for number in hole.first..=hole.last {
        let behind = u64::from(hole.last - number);
        let room = hole.end.map(|end| end - at);
        let (least, most) = bounds(room, behind)?;
        let mut builder = CommitBuilder::new(AlignedBuffer::new(most));
        while left.put(&mut builder)? {}
        let is_last = number == hole.last;
        if is_last {
            left.pieces
                .retain(|piece| !matches!(piece, Piece::More(..)));
        }
        if is_last && !left.pieces.is_empty() {
            return None;
        }
        if is_last && hole.completes_facts {
            builder.complete_facts();
        }
        let len = builder.bytes().max(least);
        let crc = is_last.then_some(hole.crc);
        let name = (hole.nonce, number);
        let (made, crc) = builder.stand_in(len, name, before, hole.time, crc);
        // There may be many, each made with room for a largest one.
        let mut bytes = AlignedBuffer::new(len);
        bytes.copy_from_slice(&made[..len]);
        fixes.push(Fix {
            at,
            bytes,
            len,
            commits: Some((number, number)),
            is_exact: false,
            lost: std::mem::take(&mut left.lost),
            lost_facts: false,
        });
        at += len as u64;
        before = crc;
    }
    Some(fixes)
}

/// How long a commit may be of which so many are behind, if all have so much room.
fn bounds(room: Option<u64>, behind: u64) -> Option<(usize, usize)> {
    let most = u64::from(CommitHeader::BYTES_MAX);
    let Some(room) = room else {
        return Some((ALIGN_BYTES, most as usize));
    };
    let least = room.saturating_sub(behind * most).max(ALIGN_BYTES as u64);
    let least = if behind == 0 { room } else { least };
    let most = most.min(room.checked_sub(behind * ALIGN_BYTES as u64)?);
    (least <= most && least > 0).then_some((least as usize, most as usize))
}

/// What is not in a commit yet.
struct Left<'a> {
    pieces: VecDeque<Piece>,
    own: &'a Own,
    copies: &'a mut dyn Copies,
    lost: Vec<Lost>,
}

impl Left<'_> {
    /// Puts the next piece into a commit, or a part of it. False where the commit is full, or nothing is left; `None` where it fits
    /// nowhere.
    fn put(&mut self, builder: &mut CommitBuilder) -> Option<bool> {
        let Some(piece) = self.pieces.front().cloned() else {
            return Some(false);
        };
        let put = match piece {
            Piece::Fact(about, key, bytes) => builder.fact(about, key, &bytes),
            Piece::Next(chain, next) => builder.next(&Progress { chain, next }),
            Piece::More(chain, from) => return self.put_more(builder, chain, from),
            Piece::Messages(chain, positions) => return self.put_batch(builder, chain, positions),
        };
        self.done(put)
    }

    fn done(&mut self, put: Result<(), Refused>) -> Option<bool> {
        match put {
            Ok(()) => {
                self.pieces.pop_front();
                Some(true)
            }
            Err(Refused::Full) => Some(false),
            Err(Refused::Damaged) => None,
        }
    }

    fn put_batch(
        &mut self,
        builder: &mut CommitBuilder,
        chain: Chain,
        positions: Range<u64>,
    ) -> Option<bool> {
        if positions.is_empty() {
            self.pieces.pop_front();
            return Some(true);
        }
        let (first, end) = (positions.start, positions.end);
        let batch = self.own.get(&(chain, first)).cloned();
        let Some(batch) = batch.or_else(|| self.copies.batch(chain, first)) else {
            let next = self.next_whole(chain, first + 1).unwrap_or(end).min(end);
            self.lose(chain, first..next);
            // Both: so whoever reads this segment alone knows that the chain was to go on before.
            let said = [Piece::Next(chain, first), Piece::Next(chain, next)];
            self.pieces[0] = Piece::Messages(chain, next..end);
            said.into_iter()
                .rev()
                .for_each(|it| self.pieces.push_front(it));
            return Some(true);
        };
        let header = BatchHeader::parse(&batch, MAX_BATCH_BYTES).ok()?;
        let fill = |room: &mut [u8]| room.copy_from_slice(&batch[BATCH_HEADER_BYTES..]);
        match builder.batch(chain.row, &header, fill) {
            Ok(()) => {
                let next = first + u64::from(messages_of(&batch)?);
                self.pieces[0] = Piece::Messages(chain, next..end);
                Some(true)
            }
            put => self.done(put),
        }
    }

    fn put_more(&mut self, builder: &mut CommitBuilder, chain: Chain, from: u64) -> Option<bool> {
        let Some(batch) = self.copies.batch(chain, from) else {
            self.pieces.pop_front();
            return Some(true);
        };
        let header = BatchHeader::parse(&batch, MAX_BATCH_BYTES).ok()?;
        let fill = |room: &mut [u8]| room.copy_from_slice(&batch[BATCH_HEADER_BYTES..]);
        let put = builder.batch(chain.row, &header, fill);
        if put.is_ok() {
            // Each chain has its turn.
            let next = from + u64::from(messages_of(&batch)?);
            self.pieces.push_back(Piece::More(chain, next));
        }
        self.done(put)
    }

    fn next_whole(&self, chain: Chain, from: u64) -> Option<u64> {
        let own = self.own.range((chain, from)..=(chain, u64::MAX)).next();
        let own = own.map(|((_, first), _)| *first);
        let copy = self.copies.first_from(chain, from);
        own.into_iter().chain(copy).min()
    }

    fn lose(&mut self, chain: Chain, positions: Range<u64>) {
        match self.lost.last_mut() {
            Some(last) if last.chain == chain && last.next == positions.start => {
                last.next = positions.end;
            }
            _ => self.lost.push(Lost {
                chain,
                first: positions.start,
                next: positions.end,
            }),
        }
    }
}
