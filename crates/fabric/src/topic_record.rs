//! Topic records: small documents, one for each topic, that the head stores and all processes read.
//!
//! A topic record holds two copies of 512 bytes; odd and even versions take turns, so a head that dies
//! while it stores leaves the version before readable. A store writes both, one after the other, so
//! that either may be lost. A copy spans several lines, which reach memory in any order: it counts
//! only when the words at both ends agree and its checksum matches.
//!
//! Copy: `commit word (nonce << 32 | version) 0..8 | length 8..12 | CRC-32C 12..16 | payload 16..496 | zero 496..504 |
//! commit word 504..512`. The checksum covers commit word, length, payload and place.

use embar_memory::canary::{Canary, injected};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_memory::{Damage, LINE_BYTES, Memory};

use crate::crc::crc32c;
use crate::news::NewsWriter;
use crate::slot::{IN_PROGRESS, Look, Seen, after, mark_of, newest};
use crate::sync::fence;

/// Bytes of a topic record: two copies.
pub const TOPIC_RECORD_BYTES: u64 = 2 * COPY_BYTES;
/// Most payload bytes of a topic record.
pub const TOPIC_RECORD_PAYLOAD_BYTES_MAX: usize = 480;

const COPY_BYTES: u64 = 512;
const PAYLOAD_AT: usize = 16;
const TAIL_AT: u64 = COPY_BYTES - 8;

const _: () = assert!(PAYLOAD_AT + TOPIC_RECORD_PAYLOAD_BYTES_MAX <= TAIL_AT as usize);

/// A payload longer than [`TOPIC_RECORD_PAYLOAD_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes do not fit into a topic record of {TOPIC_RECORD_PAYLOAD_BYTES_MAX}")]
pub struct TopicRecordTooLarge {
    /// Bytes that were to be stored.
    pub len: usize,
}

/// Where one topic record lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TopicRecordAt {
    pub at: u64,
    pub nonce: u32,
}

impl TopicRecordAt {
    fn copy(self, parity: u32) -> u64 {
        self.at + u64::from(parity) * COPY_BYTES
    }

    /// The version that a commit word is of.
    fn version_in(self, commit: u64) -> Option<u32> {
        (commit >> 32 == u64::from(self.nonce)).then_some(commit as u32)
    }
}

/// The commit word of a copy.
fn commit_word(nonce: u32, version: u32) -> u64 {
    u64::from(nonce) << 32 | u64::from(version)
}

/// Stores topic records. Only the head has one.
#[derive(Debug)]
pub struct TopicRecordWriter<M> {
    memory: Arc<M>,
    records: Vec<(TopicRecordAt, u32)>,
    news: NewsWriter<M>,
}

impl<M: Memory> TopicRecordWriter<M> {
    /// Continues after the versions that are there. Where only one copy of a topic record can be read, or the
    /// head before died between the two, both are made to say the same.
    pub(crate) fn attach(
        memory: Arc<M>,
        records: impl Iterator<Item = TopicRecordAt>,
        news: NewsWriter<M>,
    ) -> Self {
        let records = records.map(|record| (record, 0)).collect();
        let mut writer = Self {
            memory,
            records,
            news,
        };
        for i in 0..writer.records.len() {
            writer.mend(i);
        }
        writer
    }

    fn mend(&mut self, i: usize) {
        let (record, version) = &mut self.records[i];
        let Seen::Found((newest, payload)) = load(&*self.memory, *record) else {
            return;
        };
        *version = newest;
        let copies = [0, 1].map(|copy| look(&*self.memory, record.copy(copy), record.nonce));
        let same =
            |copy: &Look<Vec<u8>>| matches!(copy, Look::Found(_, found) if *found == payload);
        if copies.iter().all(same) {
            return;
        }
        // What cannot be read may have been newer, and versions are never used twice.
        *version = version.wrapping_add(2);
        self.store_both(i, &payload);
    }

    /// Stores `payload` into topic record `i` as its next version, and announces it in
    /// [`News::TopicRecords`](crate::news::News::TopicRecords). Every load after the return sees it.
    ///
    /// Returns that version. Panics when there is no topic record `i`.
    pub fn store(&mut self, i: u16, payload: &[u8]) -> Result<u32, TopicRecordTooLarge> {
        if payload.len() > TOPIC_RECORD_PAYLOAD_BYTES_MAX {
            return Err(TopicRecordTooLarge { len: payload.len() });
        }
        self.store_both(usize::from(i), payload);
        self.news.announce(&[i.into()]);
        Ok(self.records[usize::from(i)].1)
    }

    /// As [`TopicRecordWriter::store`], with a version of at least `version`.
    pub fn store_above(
        &mut self,
        i: u16,
        version: u32,
        payload: &[u8],
    ) -> Result<u32, TopicRecordTooLarge> {
        let (_, last) = &mut self.records[usize::from(i)];
        *last = version.max(*last);
        self.store(i, payload)
    }

    fn store_both(&mut self, i: usize, payload: &[u8]) {
        let (record, version) = self.records[i];
        let last = look(&*self.memory, record.copy(version % 2), record.nonce);
        let first = after(version, &last);
        let second = first.wrapping_add(1);
        for version in [first, second] {
            let commit = commit_word(record.nonce, version);
            self.store_copy(record.copy(version % 2), commit, payload);
        }
        self.records[i].1 = second;
    }

    fn store_copy(&self, at: u64, commit: u64, payload: &[u8]) {
        let memory = &*self.memory;
        memory.store(at, IN_PROGRESS);
        memory.store(at + TAIL_AT, IN_PROGRESS);
        // Partner: the acquire fence in `look`.
        fence(Ordering::Release);
        let mut middle = [0; TAIL_AT as usize - 8];
        middle[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        middle[4..8].copy_from_slice(&checksum(at, commit, payload).to_le_bytes());
        middle[8..8 + payload.len()].copy_from_slice(payload);
        memory.write(at + 8, &middle);
        memory.store(at + TAIL_AT, commit);
        // Partner: the first load in `look`.
        memory.store(at, commit);
        if !injected(Canary::TopicRecordWriteBack) {
            memory.write_back(at, COPY_BYTES);
        }
        memory.fence();
    }
}

/// Reads topic records.
#[derive(Debug, Clone)]
pub struct TopicRecordReader<M> {
    pub(crate) memory: Arc<M>,
    pub(crate) first: TopicRecordAt,
    pub(crate) records: u16,
}

impl<M: Memory> TopicRecordReader<M> {
    /// The newest `(version, payload)` of topic record `i`, or nothing when none was stored yet.
    ///
    /// Also nothing when the head overtook every one of a bounded number of attempts. Panics when there
    /// is no topic record `i`.
    pub fn load(&self, i: u16) -> Seen<(u32, Vec<u8>)> {
        assert!(i < self.records, "no topic record {i}");
        let at = self.first.at + u64::from(i) * TOPIC_RECORD_BYTES;
        load(&*self.memory, TopicRecordAt { at, ..self.first })
    }

    /// The version that a load of topic record `i` would give, without reading the payload; 0 when none
    /// was stored yet, nothing when only a load can find out. Another load may find a newer one, or, where
    /// memory is damaged, another one.
    pub fn version(&self, i: u16) -> Option<u32> {
        assert!(i < self.records, "no topic record {i}");
        let at = self.first.at + u64::from(i) * TOPIC_RECORD_BYTES;
        let record = TopicRecordAt { at, ..self.first };
        let commits = [0, 1].map(|parity| word(&*self.memory, record.copy(parity)));
        match commits.map(|commit| record.version_in(commit)) {
            [Some(even), Some(odd)] if odd.wrapping_sub(even).cast_signed() > 0 => Some(odd),
            [Some(even), _] => Some(even),
            [None, Some(odd)] => Some(odd),
            [None, None] => {
                let blank = |commit: &u64| mark_of::<()>(*commit).is_some();
                let is_blank = commits.iter().all(blank) && !is_left(&*self.memory, record);
                is_blank.then_some(0)
            }
        }
    }

    /// Number of topic records.
    pub fn count(&self) -> u16 {
        self.records
    }
}

fn load<M: Memory>(memory: &M, record: TopicRecordAt) -> Seen<(u32, Vec<u8>)> {
    match newest(|copy| look(memory, record.copy(copy as u32), record.nonce)) {
        Seen::Nothing if is_left(memory, record) => Seen::Damaged,
        seen => seen,
    }
}

/// Whether a topic record whose copies begin as if nothing was ever stored ends otherwise. The second copy is
/// begun when all of the first one is in memory: where both have their ends, what they began with is lost.
fn is_left<M: Memory>(memory: &M, record: TopicRecordAt) -> bool {
    let copies = [0, 1].map(|parity| record.copy(parity));
    let ends = copies.map(|copy| word(memory, copy + TAIL_AT));
    let is_whole = ends.iter().all(|end| record.version_in(*end).is_some());
    // Only now: they may have been stored meanwhile.
    let is_blank = |copy: u64| matches!(mark_of::<()>(word(memory, copy)), Some(Look::Blank));
    is_whole && copies.into_iter().all(is_blank)
}

/// A word as it is in memory.
fn word<M: Memory>(memory: &M, at: u64) -> u64 {
    if !injected(Canary::TopicRecordInvalidate) {
        memory.invalidate(at / LINE_BYTES * LINE_BYTES, LINE_BYTES);
    }
    memory.load(at)
}

fn look<M: Memory>(memory: &M, at: u64, nonce: u32) -> Look<Vec<u8>> {
    if !injected(Canary::TopicRecordInvalidate) {
        memory.invalidate(at, COPY_BYTES);
    }
    // Acquire. Partner: the last store in `store`.
    let commit = memory.load(at);
    if let Some(mark) = mark_of(commit) {
        return mark;
    }
    let mut copy = [0; COPY_BYTES as usize];
    memory.read(at, &mut copy);
    // Partner: the release fence in `store`.
    fence(Ordering::Acquire);
    if memory.load(at) != commit {
        return Look::InProgress;
    }
    let whole = commit >> 32 == u64::from(nonce) && memory.load(at + TAIL_AT) == commit;
    match payload_of(&copy, at, commit).filter(|_| whole) {
        Some(payload) => Look::Found(commit as u32, payload.to_vec()),
        // Or, without coherence, its lines are on their way: then the other copy counts, too.
        None => {
            memory.note_damage(at, Damage::Lost);
            Look::Damaged(commit as u32)
        }
    }
}

fn payload_of(copy: &[u8; COPY_BYTES as usize], at: u64, commit: u64) -> Option<&[u8]> {
    let word = |at: usize| u32::from_le_bytes(copy[at..at + 4].try_into().expect("four bytes"));
    let len = Some(word(8) as usize).filter(|len| *len <= TOPIC_RECORD_PAYLOAD_BYTES_MAX)?;
    let payload = &copy[PAYLOAD_AT..PAYLOAD_AT + len];
    (word(12) == checksum(at, commit, payload)).then_some(payload)
}

fn checksum(at: u64, commit: u64, payload: &[u8]) -> u32 {
    let mut bytes = [0; 20 + TOPIC_RECORD_PAYLOAD_BYTES_MAX];
    bytes[..8].copy_from_slice(&commit.to_le_bytes());
    bytes[8..16].copy_from_slice(&at.to_le_bytes());
    bytes[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes[20..20 + payload.len()].copy_from_slice(payload);
    crc32c(&bytes[..20 + payload.len()])
}
