//! The table of batches that came before their predecessors and wait for them.

use crate::action::Arrival;

const NONE: u32 = u32::MAX;

/// A bounded table, by session and number. A number may be there several times, as a publisher that gets no answer
/// sends a batch again by another broker: the others wait behind the first.
///
/// The table is a slab of entries, with a hash table of chains and each session's list through it. Whatever a
/// client puts in, inserting and taking look only at entries of other numbers that share a bucket: a session's
/// numbers lie in its window, and multiplication spreads numbers that lie together.
#[derive(Debug)]
pub(crate) struct Held {
    entries: Vec<Entry>,
    buckets: Box<[u32]>,
    shift: u32,
    /// By session, the entry that came last.
    newest: Box<[u32]>,
    /// The first entry that can be used again.
    free: u32,
    len: u32,
    limit: u32,
}

#[derive(Debug)]
struct Entry {
    arrival: Arrival,
    /// The next entry of the bucket, or the next free one.
    next: u32,
    /// Another one of the same number.
    waiting: u32,
    /// The session's entry that came after this one.
    newer: u32,
    /// The session's entry that came before this one.
    older: u32,
}

impl Held {
    /// An empty table for `limit` batches of as many sessions.
    pub fn new(limit: u32, sessions: u32) -> Self {
        let buckets = (limit as usize).next_power_of_two().max(2);
        Self {
            entries: Vec::with_capacity(limit as usize),
            buckets: vec![NONE; buckets].into(),
            shift: u64::BITS - buckets.trailing_zeros(),
            newest: vec![NONE; sessions as usize].into(),
            free: NONE,
            len: 0,
            limit,
        }
    }

    /// Batches in it.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Batches that it still has room for.
    pub fn room(&self) -> u32 {
        self.limit - self.len
    }

    /// Keeps a batch. There must be room.
    pub fn insert(&mut self, arrival: &Arrival) {
        let (session, number) = (arrival.record.session, arrival.record.sequence);
        let bucket = self.bucket(session, number);
        let first = self.find(self.buckets[bucket], session, number);
        let first = first.map(|(_, first)| first);
        let older = self.newest[session as usize];
        let at = self.put(Entry {
            arrival: *arrival,
            next: first.map_or(self.buckets[bucket], |_| NONE),
            waiting: first.map_or(NONE, |first| self.entries[first as usize].waiting),
            newer: NONE,
            older,
        });
        match first {
            Some(first) => self.entries[first as usize].waiting = at,
            None => self.buckets[bucket] = at,
        }
        if let Some(older) = self.entries.get_mut(older as usize) {
            older.newer = at;
        }
        self.newest[session as usize] = at;
        self.len += 1;
    }

    /// Takes the batch of a session and number; of several, the first that came.
    pub fn take(&mut self, session: u32, number: u64) -> Option<Arrival> {
        let bucket = self.bucket(session, number);
        let (before, at) = self.find(self.buckets[bucket], session, number)?;
        let Entry {
            arrival,
            next,
            waiting,
            newer,
            older,
        } = self.entries[at as usize];
        let successor = if waiting == NONE {
            next
        } else {
            self.entries[waiting as usize].next = next;
            waiting
        };
        match before {
            NONE => self.buckets[bucket] = successor,
            before => self.entries[before as usize].next = successor,
        }
        match self.entries.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest[session as usize] = older,
        }
        if let Some(older) = self.entries.get_mut(older as usize) {
            older.newer = newer;
        }
        self.entries[at as usize].next = self.free;
        self.free = at;
        self.len -= 1;
        Some(arrival)
    }

    /// A number that the session holds.
    pub fn any(&self, session: u32) -> Option<u64> {
        let newest = self.newest[session as usize];
        Some(self.entries.get(newest as usize)?.arrival.record.sequence)
    }

    /// Keeps only what `keep` says, looking at each batch once.
    pub fn retain(&mut self, mut keep: impl FnMut(&Arrival) -> bool) {
        let mut kept = Vec::new();
        for bucket in 0..self.buckets.len() {
            while let Some(entry) = self.entries.get(self.buckets[bucket] as usize) {
                let record = &entry.arrival.record;
                let arrival = self.take(record.session, record.sequence);
                kept.extend(arrival.filter(&mut keep));
            }
        }
        for arrival in &kept {
            self.insert(arrival);
        }
    }

    fn bucket(&self, session: u32, number: u64) -> usize {
        let key = number ^ u64::from(session).rotate_left(40);
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// The entry of a session and number in a bucket that begins with `at`, and the one before it.
    fn find(&self, mut at: u32, session: u32, number: u64) -> Option<(u32, u32)> {
        let mut before = NONE;
        while let Some(entry) = self.entries.get(at as usize) {
            let record = &entry.arrival.record;
            if record.session == session && record.sequence == number {
                return Some((before, at));
            }
            before = at;
            at = entry.next;
        }
        None
    }

    fn put(&mut self, entry: Entry) -> u32 {
        let at = self.free;
        if let Some(free) = self.entries.get_mut(at as usize) {
            self.free = free.next;
            *free = entry;
            return at;
        }
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use embar_fabric::PbrRecord;

    use super::*;
    use crate::action::Source;

    fn arrival(session: u32, sequence: u64, number: u64) -> Arrival {
        Arrival {
            source: Source {
                row: 1,
                lane: 0,
                incarnation: 1,
                number,
            },
            record: PbrRecord {
                session,
                sequence,
                ..Default::default()
            },
        }
    }

    fn take(held: &mut Held, session: u32, sequence: u64) -> Option<u64> {
        held.take(session, sequence).map(|it| it.source.number)
    }

    #[test]
    fn batches_are_found_by_session_and_number() {
        let mut held = Held::new(64, 8);
        for i in 0..64 {
            held.insert(&arrival(i % 4, u64::from(i / 4), i.into()));
        }
        assert_eq!((held.len(), held.room()), (64, 0));
        assert_eq!(take(&mut held, 4, 0), None);
        for i in (0..64).rev() {
            assert_eq!(take(&mut held, i % 4, u64::from(i / 4)), Some(i.into()));
            assert_eq!(take(&mut held, i % 4, u64::from(i / 4)), None);
        }
        assert_eq!((held.len(), held.room()), (0, 64));
    }

    #[test]
    fn others_of_a_number_wait_behind_the_first() {
        let mut held = Held::new(8, 2);
        for (sequence, number) in [(7, 1), (8, 2), (7, 3), (7, 4)] {
            held.insert(&arrival(0, sequence, number));
        }
        assert_eq!(take(&mut held, 0, 7), Some(1));
        let others = [take(&mut held, 0, 7), take(&mut held, 0, 7)];
        assert!(others.contains(&Some(3)) && others.contains(&Some(4)));
        assert_eq!(take(&mut held, 0, 7), None);
        assert_eq!(take(&mut held, 0, 8), Some(2));
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn a_session_finds_all_that_it_holds() {
        let mut held = Held::new(8, 2);
        for (session, sequence) in [(0, 3), (1, 3), (0, 5), (0, 3), (0, 4), (1, 9)] {
            held.insert(&arrival(session, sequence, 0));
        }
        assert_eq!(take(&mut held, 0, 5), Some(0));
        let mut found = Vec::new();
        while let Some(number) = held.any(0) {
            assert_eq!(take(&mut held, 0, number), Some(0));
            found.push(number);
        }
        found.sort_unstable();
        assert_eq!(found, [3, 3, 4]);
        assert_eq!(held.len(), 2);
        assert_eq!(held.any(1), Some(9));
    }

    #[test]
    fn what_is_not_kept_is_gone_and_its_room_is_free() {
        let mut held = Held::new(8, 2);
        for (sequence, number) in [(7, 1), (8, 2), (7, 3), (9, 4)] {
            held.insert(&arrival(0, sequence, number));
        }
        held.retain(|arrival| arrival.source.number > 2);
        assert_eq!((held.len(), held.room()), (2, 6));
        assert_eq!(take(&mut held, 0, 7), Some(3));
        assert_eq!(take(&mut held, 0, 8), None);
        assert_eq!(take(&mut held, 0, 9), Some(4));
        for number in 0..8 {
            held.insert(&arrival(1, number, number));
        }
        assert_eq!(held.entries.len(), 8, "entries are used again");
    }
}
