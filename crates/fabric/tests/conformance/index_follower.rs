use std::collections::BTreeMap;

use embar_fabric::index::PAGE_RECORDS;
use embar_fabric::{
    Geometry, IndexCursor, IndexFollower, IndexRecord, IndexWriter, RecordLost, Region,
};
use embar_memory::Memory;

use crate::common::small;
use crate::setup::Setup;

const CHAINS: [u32; 2] = [7, 8];

fn geometry() -> Geometry {
    Geometry {
        disks: 1,
        index_pages: 8,
        lane_slots: 4,
        ..small()
    }
}

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What one process appends, as the broker of row 1.
struct Broker<M: Memory> {
    writer: IndexWriter<M>,
    /// By chain, the end of its window.
    ends: BTreeMap<u32, u64>,
}

impl<M: Memory> Broker<M> {
    fn new(region: &Region<M>, ends: BTreeMap<u32, u64>) -> Self {
        Self {
            writer: region.index_writer(&region.claim_unlocked(1)),
            ends,
        }
    }

    /// Appends a batch of so many messages, and names its page if that is new. False if the index is full.
    fn append(&mut self, chain: u32, count: u32) -> bool {
        let end = self.ends.entry(chain).or_default();
        let record = IndexRecord {
            base: *end,
            count,
            payload_at: *end * 64,
            len: 128,
            ..IndexRecord::default()
        };
        let pages = self.writer.pages_of(chain);
        if self.writer.append(chain, &record).is_err() {
            return false;
        }
        if self.writer.pages_of(chain) > pages {
            self.writer.announce(&[chain]);
        }
        *end += u64::from(count);
        true
    }
}

/// What another process has read of it.
struct Reader<M: Memory> {
    follower: IndexFollower<M>,
    cursors: BTreeMap<u32, IndexCursor>,
    /// Chains that may have grown.
    due: Vec<u32>,
}

impl<M: Memory> Reader<M> {
    fn new(region: &Region<M>, nexts: &BTreeMap<u32, u64>) -> Self {
        let cursors =
            { nexts.iter() }.map(|(chain, next)| (*chain, IndexCursor::new(*chain, *next)));
        Self {
            follower: region.index_follower(1),
            cursors: cursors.collect(),
            due: Vec::new(),
        }
    }

    /// Reads the chains that have grown as it is told, at most `limit` records of each.
    fn read(&mut self, ends: &BTreeMap<u32, u64>, limit: usize) {
        if !self.follower.take_grown(&mut self.due) {
            self.due.extend(CHAINS);
        }
        self.due.retain(|chain| {
            let (Some(cursor), Some(end)) = (self.cursors.get_mut(chain), ends.get(chain)) else {
                return false;
            };
            let (mut records, before) = (Vec::new(), cursor.next());
            let read = self.follower.read(cursor, *end, limit, &mut records);
            assert_eq!(read, Ok(()), "chain {chain} from {before} to {end}");
            let mut next = before;
            for record in &records {
                assert_eq!((record.base, record.payload_at), (next, next * 64));
                next += u64::from(record.count);
            }
            assert_eq!(cursor.next(), next);
            assert!(next == *end || records.len() == limit);
            next < *end
        });
    }

    fn nexts(&self) -> BTreeMap<u32, u64> {
        { self.cursors.iter() }
            .map(|(chain, cursor)| (*chain, cursor.next()))
            .collect()
    }
}

pub fn what_is_appended_is_read_by_those_who_are_told<S: Setup>() {
    for seed in 1..20 {
        let setup = S::new(&geometry());
        let mut random = Random(seed);
        let none = CHAINS.map(|chain| (chain, 0)).into();
        let mut broker = Broker::new(&setup.host(), none);
        let mut reader = Reader::new(&setup.host(), &broker.ends);
        for _ in 0..2000 {
            match random.below(100) {
                0..80 => {
                    let chain = CHAINS[random.below(2) as usize];
                    broker.append(chain, 1 + random.below(3) as u32);
                }
                80..88 => broker.writer.announce(&CHAINS),
                88..94 => reader.read(&broker.ends, 1 + random.below(100) as usize),
                94..97 => {
                    for (chain, next) in reader.nexts() {
                        broker.writer.release_before(chain, random.below(next + 1));
                    }
                }
                97 => broker = Broker::new(&setup.host(), broker.ends),
                98 => reader = Reader::new(&setup.host(), &reader.nexts()),
                // More than the ring of the news has lines.
                _ => (0..10).for_each(|_| broker.writer.announce(&CHAINS)),
            }
        }
        broker.writer.announce(&CHAINS);
        reader.read(&broker.ends, usize::MAX >> 1);
        assert_eq!(reader.nexts(), broker.ends, "seed {seed}");
    }
}

pub fn a_page_is_known_before_all_of_it_is_told<S: Setup>() {
    let setup = S::new(&geometry());
    let mut broker = Broker::new(&setup.host(), BTreeMap::new());
    let mut reader = Reader::new(&setup.host(), &[(7, 0)].into());
    broker.append(7, 1);
    reader.read(&broker.ends, 100);
    // Of a page that is full and the next one, nobody has told but that they are there.
    for _ in 0..PAGE_RECORDS + 5 {
        broker.append(7, 1);
    }
    reader.read(&broker.ends, 1000);
    assert_eq!(reader.nexts(), broker.ends);
}

pub fn a_record_that_is_not_there_is_lost<S: Setup>() {
    let setup = S::new(&geometry());
    let mut broker = Broker::new(&setup.host(), BTreeMap::new());
    let here = setup.host();
    for _ in 0..10 {
        broker.append(7, 2);
    }
    let mut follower = here.index_follower(1);
    assert!(!follower.take_grown(&mut Vec::new()), "it is new here");
    let (mut cursor, mut records) = (IndexCursor::new(7, 4), Vec::new());
    let lost = follower.read(&mut cursor, 22, 100, &mut records);
    assert_eq!(lost, Err(RecordLost));
    assert_eq!(
        (cursor.next(), records.len()),
        (20, 8),
        "what is there counts"
    );
    // Offsets at which no record begins are no records either.
    let mut inside = IndexCursor::new(7, 5);
    let lost = follower.read(&mut inside, 20, 100, &mut records);
    assert_eq!((lost, records.len()), (Err(RecordLost), 8));
    let mut other = IndexCursor::new(9, 0);
    let lost = follower.read(&mut other, 1, 100, &mut records);
    assert_eq!(lost, Err(RecordLost), "a chain without pages");
}
