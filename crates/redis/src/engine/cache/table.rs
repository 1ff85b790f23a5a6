//! One part of a cache, as a function of what happened: which replies it has, which are asked for, and which go
//! when there is no room for all.
//!
//! An entry is a command with its key and, once that came, the reply. It is made when the command is about to be
//! sent, so that a change that is reported before the reply comes finds it:
//!
//! ```text
//! missing ── ask ──▶ asked ── store ──▶ valid
//!    ▲                 │                  │
//!    └──── drop_key, forget, no room ─────┘
//! ```
//!
//! The ticket of an asked entry names the request. When its reply comes and the entry is not there any more, or is
//! that of a later request, the reply is not kept: it may be older than a change that was reported meanwhile.
//!
//! Entries lie side by side, and one that goes leaves its place to the last one. To make room, a hand goes round
//! and takes the first one that nobody has used since it came by last.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashTable;

use super::validity::{SlotVersion, SlotVersions, Validity};

/// No entry.
const NONE: u32 = u32::MAX;

/// Bytes that an entry takes besides its command and its reply: its place, the counters of the reply, and its
/// places in the two tables, which are half empty at worst.
const ENTRY_BYTES: usize = size_of::<Entry<usize>>() + 16 + 2 * 2 * (size_of::<u32>() + 1);

/// A command and its key, with their hashes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name<'n> {
    /// Encoded.
    pub command: &'n [u8],
    /// Where the key is in it.
    pub key: (usize, usize),
    pub hash: u64,
    pub key_hash: u64,
}

/// A reply that the cache keeps.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Reply {
    pub frame: Arc<[u8]>,
    /// When it was asked for, in nanoseconds.
    pub asked_at: u64,
    /// When the server lets the key expire at the earliest, likewise.
    pub expires_at: u64,
    pub validity: Validity,
}

/// What the table has of a command. `F` is what callers wait for.
#[derive(Debug)]
pub(super) enum Found<'t, F> {
    Valid(&'t Reply),
    Asked(&'t F),
    Missing,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
enum Content<F> {
    Asked { ticket: u64, flight: F },
    Valid(Reply),
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Entry<F> {
    command: Box<[u8]>,
    key: Range<u32>,
    hash: u64,
    key_hash: u64,
    /// The neighbours among the entries of the same key.
    previous: u32,
    next: u32,
    slot: SlotVersion,
    /// Somebody has used it since the hand came by.
    was_used: bool,
    content: Content<F>,
}

impl<F> Entry<F> {
    fn key(&self) -> &[u8] {
        &self.command[self.key.start as usize..self.key.end as usize]
    }

    fn bytes(&self) -> usize {
        let reply = match &self.content {
            Content::Asked { .. } => 0,
            Content::Valid(reply) => reply.frame.len(),
        };
        ENTRY_BYTES + self.command.len() + reply
    }

    /// Whether it may be used by who wants nothing older than `max_age`.
    fn is_good(&self, now: u64, max_age: u64, slots: &SlotVersions) -> bool {
        let is_good = match &self.content {
            Content::Asked { .. } => true,
            Content::Valid(reply) => {
                let is_young = now.saturating_sub(reply.asked_at) < max_age;
                is_young && now < reply.expires_at && reply.validity.holds()
            }
        };
        is_good && slots.is_current(self.slot)
    }
}

/// What happened in a table.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub joined: u64,
    pub invalidated: u64,
    pub evicted: u64,
}

/// One part of a cache.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Table<F> {
    entries: Vec<Entry<F>>,
    /// Places of entries, by their commands.
    commands: HashTable<u32>,
    /// Of the entries of each key, the place of the first one.
    keys: HashTable<u32>,
    /// Where the hand is.
    hand: usize,
    bytes: usize,
    max_bytes: usize,
    pub counts: Counts,
}

impl<F> Table<F> {
    pub fn new(max_bytes: usize) -> Self {
        Self {
            entries: Vec::new(),
            commands: HashTable::new(),
            keys: HashTable::new(),
            hand: 0,
            bytes: 0,
            max_bytes,
            counts: Counts::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(&self, name: &Name<'_>) -> Option<u32> {
        let is_it = |place: &u32| *self.entries[*place as usize].command == *name.command;
        self.commands.find(name.hash, is_it).copied()
    }

    /// What it has of a command, for who wants nothing older than `max_age` nanoseconds. What is too old, or does not
    /// hold any more, goes.
    #[inline]
    pub fn find(
        &mut self,
        name: &Name<'_>,
        now: u64,
        max_age: u64,
        slots: &SlotVersions,
    ) -> Found<'_, F> {
        let Some(place) = self.place(name) else {
            return Found::Missing;
        };
        if !self.entries[place as usize].is_good(now, max_age, slots) {
            self.remove(place);
            return Found::Missing;
        }
        let entry = &mut self.entries[place as usize];
        entry.was_used = true;
        match &entry.content {
            Content::Valid(reply) => {
                self.counts.hits += 1;
                Found::Valid(reply)
            }
            Content::Asked { flight, .. } => {
                self.counts.joined += 1;
                Found::Asked(flight)
            }
        }
    }

    /// A command is about to be sent that the table does not have, and whose reply it is to keep. A key that is too
    /// large for it gets no entry.
    pub fn ask(&mut self, name: &Name<'_>, slot: SlotVersion, ticket: u64, flight: F) {
        debug_assert!(self.place(name).is_none(), "it is asked for once");
        self.counts.misses += 1;
        let bytes = ENTRY_BYTES + name.command.len();
        if bytes > self.max_bytes || self.entries.len() >= NONE as usize {
            return;
        }
        let (start, end) = name.key;
        let place = self.entries.len() as u32;
        let head = self.head(&name.command[start..end], name.key_hash);
        self.entries.push(Entry {
            command: name.command.into(),
            key: start as u32..end as u32,
            hash: name.hash,
            key_hash: name.key_hash,
            previous: NONE,
            next: head.unwrap_or(NONE),
            slot,
            was_used: false,
            content: Content::Asked { ticket, flight },
        });
        let entries = &self.entries;
        let hash = |place: &u32| entries[*place as usize].hash;
        self.commands.insert_unique(name.hash, place, hash);
        match head {
            Some(head) => {
                self.lead(name.key_hash, head, place);
                self.entries[head as usize].previous = place;
            }
            None => {
                let hash = |place: &u32| entries[*place as usize].key_hash;
                self.keys.insert_unique(name.key_hash, place, hash);
            }
        }
        self.bytes += bytes;
        self.make_room(place);
    }

    /// The reply to the request with this ticket came: whether it is kept.
    pub fn store(&mut self, name: &Name<'_>, ticket: u64, reply: Reply) -> bool {
        let Some(place) = self.asked(name, ticket) else {
            return false;
        };
        let len = reply.frame.len();
        let entry = &mut self.entries[place as usize];
        if !reply.validity.is_tracked() || entry.bytes() + len > self.max_bytes {
            self.remove(place);
            return false;
        }
        entry.content = Content::Valid(reply);
        self.bytes += len;
        self.make_room(place);
        true
    }

    /// Removes what was asked for, whoever asked.
    pub fn remove_asked(&mut self, name: &Name<'_>) {
        if let Some(place) = self.place(name)
            && matches!(self.entries[place as usize].content, Content::Asked { .. })
        {
            self.remove(place);
        }
    }

    /// The request with this ticket has no reply to keep.
    pub fn forget(&mut self, name: &Name<'_>, ticket: u64) {
        if let Some(place) = self.asked(name, ticket) {
            self.remove(place);
        }
    }

    fn asked(&self, name: &Name<'_>, ticket: u64) -> Option<u32> {
        let place = self.place(name)?;
        let content = &self.entries[place as usize].content;
        matches!(content, Content::Asked { ticket: known, .. } if *known == ticket).then_some(place)
    }

    /// The key has changed: all its entries go.
    pub fn drop_key(&mut self, key: &[u8], key_hash: u64) {
        while let Some(head) = self.head(key, key_hash) {
            self.remove(head);
            self.counts.invalidated += 1;
        }
    }

    /// Removes entries that cannot be used any more, of at most `count` from place `from` on. Where to go on.
    pub fn purge(
        &mut self,
        from: usize,
        count: usize,
        now: u64,
        slots: &SlotVersions,
    ) -> Option<usize> {
        let mut place = from;
        for _ in 0..count {
            let entry = self.entries.get(place)?;
            if entry.is_good(now, u64::MAX, slots) {
                place += 1;
            } else {
                self.remove(place as u32);
                self.counts.invalidated += 1;
            }
        }
        Some(place)
    }

    /// The first entry of a key.
    fn head(&self, key: &[u8], key_hash: u64) -> Option<u32> {
        let is_it = |place: &u32| self.entries[*place as usize].key() == key;
        self.keys.find(key_hash, is_it).copied()
    }

    /// The first entry of a key is another one.
    fn lead(&mut self, key_hash: u64, from: u32, to: u32) {
        let head = self.keys.find_mut(key_hash, |place| *place == from);
        *head.expect("the first entry of a key is known") = to;
    }

    /// Takes out what nobody has used, until there is room for all, but not the entry at `kept`, which alone has room.
    fn make_room(&mut self, mut kept: u32) {
        while self.bytes > self.max_bytes {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let hand = self.hand as u32;
            let entry = &mut self.entries[self.hand];
            if hand == kept || std::mem::take(&mut entry.was_used) {
                self.hand += 1;
                continue;
            }
            let last = self.entries.len() as u32 - 1;
            self.remove(hand);
            self.counts.evicted += 1;
            if kept == last {
                kept = hand;
            }
        }
    }

    fn remove(&mut self, place: u32) {
        let entry = self.entries.swap_remove(place as usize);
        self.bytes -= entry.bytes();
        let of_command = self.commands.find_entry(entry.hash, |it| *it == place);
        of_command
            .expect("an entry is found by its command")
            .remove();
        let moved = self.entries.len() as u32;
        // Before the last entry is known at its new place, as the two may be neighbours.
        let at = |known: u32| if known == moved { place } else { known };
        match entry.previous {
            NONE if entry.next == NONE => {
                let of_key = self.keys.find_entry(entry.key_hash, |it| *it == place);
                of_key.expect("the first entry of a key is known").remove();
            }
            NONE => self.lead(entry.key_hash, place, entry.next),
            previous => self.entries[at(previous) as usize].next = entry.next,
        }
        if entry.next != NONE {
            self.entries[at(entry.next) as usize].previous = entry.previous;
        }
        if place != moved {
            self.moved(moved, place);
        }
        if self.entries.is_empty() {
            // Whatever there was, its memory is not needed for a while.
            self.entries = Vec::new();
            self.commands = HashTable::new();
            self.keys = HashTable::new();
        }
    }

    /// The entry that was last has another place.
    fn moved(&mut self, from: u32, to: u32) {
        let entry = &self.entries[to as usize];
        let (hash, key_hash) = (entry.hash, entry.key_hash);
        let (previous, next) = (entry.previous, entry.next);
        let of_command = self.commands.find_mut(hash, |place| *place == from);
        *of_command.expect("an entry is found by its command") = to;
        match previous {
            NONE => self.lead(key_hash, from, to),
            previous => self.entries[previous as usize].next = to,
        }
        if next != NONE {
            self.entries[next as usize].previous = to;
        }
    }
}

#[cfg(test)]
mod tests;
