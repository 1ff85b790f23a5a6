//! What counted is there after the power went at any moment, in its order and once; what is there besides was written.

use std::collections::{BTreeMap, VecDeque};

use embar_disk::format::{BatchRun, Run, RunKind, SegmentHeader, index_name, segment_name};
use embar_disk::recover::{RecoverError, Recovered, recover};
use embar_disk::scan::{Depth, Scan};
use embar_disk::{
    AlignedBuffer, Chain, Commit, CommitBuilder, Journal, Position, Progress, Refused, Simulated,
    Storage, StoredFile, begin_segment, make_segment, prepare_segment, store_index,
};
use embar_wire::batch::{BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;

const DISK: [u8; 16] = *b"a disk for tests";
const SEGMENT_BYTES: u64 = 128 << 10;
const COMMIT_BYTES: usize = 16 << 10;
const FACT: u16 = 1;

const CHAINS: [Chain; 3] = [
    Chain {
        topic: 1,
        row: Run::ORDERED,
    },
    Chain { topic: 2, row: 1 },
    Chain { topic: 2, row: 2 },
];

/// A batch with its place, as it is to be found again.
fn batch(chain: Chain, first: u64, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new(), 8 << 10);
    for _ in 0..random.usize(1..4) {
        let value = vec![random.u8(..); random.usize(0..1500)];
        builder.try_push(None, &[], &value).expect("it fits");
    }
    let fields = SealFields {
        topic: chain.topic,
        producer: random.u64(..),
        ..SealFields::default()
    };
    let mut frame: Vec<u8> = builder.seal(fields).into();
    let mut header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("sealed");
    header.stamp(first, WallNs(1));
    frame[..BATCH_HEADER_BYTES].copy_from_slice(header.as_bytes());
    frame
}

fn header_of(frame: &[u8]) -> BatchHeader {
    BatchHeader::parse(frame, MAX_BATCH_BYTES).expect("a batch")
}

/// What a writer did: batches by chain, and how much of it counts.
#[derive(Clone, Default)]
struct Done {
    batches: BTreeMap<Chain, Vec<Vec<u8>>>,
    counted: BTreeMap<Chain, u64>,
    /// The fact grows by one each time: as written, and as it counts.
    fact: u64,
    fact_counted: u64,
}

impl Done {
    fn next(&self, chain: Chain) -> u64 {
        let last = self.batches.get(&chain).and_then(|batches| batches.last());
        last.map_or(0, |frame| {
            let header = header_of(frame);
            header.base_offset() + u64::from(header.message_count())
        })
    }

    /// Only what lies below a position is left of a chain.
    fn cut(&mut self, chain: Chain, next: u64) {
        if let Some(batches) = self.batches.get_mut(&chain) {
            batches.retain(|frame| header_of(frame).base_offset() < next);
        }
        assert_eq!(self.next(chain), next, "cut between batches");
    }
}

/// A commit on its way: its file, and the write's number.
struct Writing<F> {
    file: F,
    number: u64,
    ticket: u64,
}

/// A writer in its term.
struct Writer {
    disk: Simulated,
    journal: Journal,
    file: Option<<Simulated as Storage>::File>,
    writing: VecDeque<Writing<<Simulated as Storage>::File>>,
}

impl Writer {
    fn new(disk: &Simulated, epoch: u32, position: Position) -> Self {
        Self {
            disk: disk.clone(),
            journal: Journal::new(DISK, (epoch, 1), SEGMENT_BYTES, position),
            file: None,
            writing: VecDeque::new(),
        }
    }

    /// Begins a segment and says the facts, synced.
    fn begin_segment(&mut self, done: &mut Done, random: &mut fastrand::Rng) {
        let nonce = random.u64(1..);
        let file = make_segment(&self.disk, &mut self.journal).expect("no fault");
        begin_segment(&mut self.journal, &file, nonce, 1).expect("no fault");
        self.file = Some(file);
        // In two commits, the second of which says that these are all.
        let mut builder = self.builder();
        self.journal.say_first_kept(&mut builder).expect("room");
        builder
            .fact(FACT, 7, &done.fact.to_le_bytes())
            .expect("room");
        self.write(builder);
        let mut builder = self.builder();
        for progress in self.journal.chains() {
            builder.next(&progress).expect("room");
        }
        builder.complete_facts();
        self.write(builder);
        while !self.writing.is_empty() {
            self.end(0, done);
        }
    }

    fn builder(&self) -> CommitBuilder {
        CommitBuilder::new(AlignedBuffer::new(COMMIT_BYTES))
    }

    /// False when the segment is full.
    fn write(&mut self, builder: CommitBuilder) -> bool {
        if !self.journal.fits(&builder) {
            return false;
        }
        let commit = self.journal.seal(builder, 1);
        let Commit {
            at,
            buffer,
            len,
            ticket,
            ..
        } = commit;
        let file = self.file.clone().expect("a segment");
        let number = file.begin(at, &buffer[..len]);
        self.writing.push_back(Writing {
            file,
            number,
            ticket,
        });
        true
    }

    /// The write at this place of those that are on their way ends.
    fn end(&mut self, place: usize, done: &mut Done) {
        let writing = self.writing.remove(place).expect("it was begun");
        writing.file.end(writing.number);
        let mut counts = Vec::new();
        self.journal.synced(writing.ticket, &mut counts);
        for Progress { chain, next } in counts {
            done.counted.insert(chain, next);
        }
        // Facts are not among what a journal tells of: this one counts when all before it do.
        if self.writing.is_empty() {
            done.fact_counted = done.fact;
        }
    }

    /// One commit, or, if the segment is full, the next segment.
    fn commit_somewhere(&mut self, done: &mut Done, random: &mut fastrand::Rng) {
        if !self.commit(done, random) {
            while !self.writing.is_empty() {
                self.end(0, done);
            }
            self.begin_segment(done, random);
        }
    }

    /// One commit with some batches of some chains, and sometimes a fact.
    fn commit(&mut self, done: &mut Done, random: &mut fastrand::Rng) -> bool {
        let before = done.clone();
        let mut builder = self.builder();
        if random.u8(..4) == 0 {
            done.fact += 1;
            builder
                .fact(FACT, 7, &done.fact.to_le_bytes())
                .expect("room");
        }
        for _ in 0..random.usize(1..4) {
            let chain = CHAINS[random.usize(..CHAINS.len())];
            let frame = batch(chain, done.next(chain), random);
            let payload = &frame[BATCH_HEADER_BYTES..];
            match builder.batch(chain.row, &header_of(&frame), |into| {
                into.copy_from_slice(payload);
            }) {
                Ok(()) => done.batches.entry(chain).or_default().push(frame),
                Err(Refused::Full) => break,
                Err(Refused::Damaged) => panic!("it was not"),
            }
        }
        let written = self.write(builder);
        if !written {
            *done = before;
        }
        written
    }
}

/// All batches that count, by chain.
fn read_all(disk: &Simulated, recovered: &Recovered) -> BTreeMap<Chain, Vec<Vec<u8>>> {
    let mut batches: BTreeMap<Chain, Vec<Vec<u8>>> = BTreeMap::new();
    for segment in &recovered.segments {
        let file = disk
            .open(&segment_name(segment.header.number))
            .expect("there");
        let mut scan = Scan::new(&file, segment.header, Depth::Payloads);
        while scan.number() < segment.counted.commits {
            let mut see = |found: &embar_disk::scan::Found, bytes: &[u8]| {
                for run in &found.runs {
                    if run.kind != RunKind::Batches {
                        continue;
                    }
                    let bytes = &bytes[run.at as usize..(run.at + run.bytes) as usize];
                    let chain = Chain {
                        topic: run.chain,
                        row: run.row,
                    };
                    let all = batches.entry(chain).or_default();
                    all.extend(BatchRun::new(run, bytes).map(|(_, frame)| frame.to_vec()));
                }
            };
            let found = scan.next(&mut see).expect("no fault");
            assert!(found.is_some(), "what counts is whole");
        }
    }
    batches
}

/// Compares what is there with what was done, which is cut to that.
fn check(disk: &Simulated, recovered: &Recovered, done: &mut Done) {
    let batches = read_all(disk, recovered);
    for chain in CHAINS {
        let counted = done.counted.get(&chain).copied().unwrap_or(0);
        let next = recovered.position.chains.get(&chain).copied().unwrap_or(0);
        assert!(
            next >= counted,
            "{chain:?}: {counted} counted, {next} is there"
        );
        done.cut(chain, next);
        done.counted.insert(chain, next);
        let expected = done.batches.get(&chain).cloned().unwrap_or_default();
        let found = batches.get(&chain).cloned().unwrap_or_default();
        assert!(
            found == expected,
            "{chain:?}: other batches than were written"
        );
    }
    let fact = recovered.facts.get(&(FACT, 7));
    let fact = fact.map_or(0, |bytes| {
        u64::from_le_bytes(bytes[..].try_into().expect("8 bytes"))
    });
    assert!((done.fact_counted..=done.fact).contains(&fact));
    (done.fact, done.fact_counted) = (fact, fact);
}

#[test]
fn what_counted_survives_a_power_cut_at_any_moment() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut disk = Simulated::new();
        let mut done = Done::default();
        let mut position = Position::default();
        let mut epoch = 0;
        for _ in 0..4 {
            epoch += 1;
            let mut writer = Writer::new(&disk, epoch, position);
            // Whatever a deposed writer still does changes nothing: it goes on with its own segments.
            let mut deposed: Option<(Writer, Done)> = None;
            for _ in 0..random.usize(1..120) {
                match random.u8(..20) {
                    0..8 if writer.writing.len() < 3 => {
                        writer.commit_somewhere(&mut done, &mut random);
                    }
                    8..16 if !writer.writing.is_empty() => {
                        let place = random.usize(..writer.writing.len());
                        writer.end(place, &mut done);
                    }
                    16 if writer.journal.wants_confirmation() => {
                        let builder = writer.builder();
                        writer.write(builder);
                    }
                    17 => {
                        if let Some((old, its_own)) = &mut deposed
                            && old.file.is_some()
                        {
                            if old.writing.is_empty() {
                                old.commit(its_own, &mut random);
                            } else {
                                old.end(0, its_own);
                            }
                        }
                    }
                    18 if random.bool() => {
                        // The region says what counts; another process goes on.
                        epoch += 1;
                        let number = writer.journal.next_segment().0 + u64::from(random.bool());
                        let counts = Position {
                            before: writer.journal.counted(),
                            segment: number,
                            first_kept: 0,
                            chains: done.counted.clone(),
                        };
                        let next = Writer::new(&disk, epoch, counts);
                        let old = std::mem::replace(&mut writer, next);
                        deposed = Some((old, done.clone()));
                        for chain in CHAINS {
                            done.cut(chain, done.counted.get(&chain).copied().unwrap_or(0));
                        }
                        done.fact = done.fact_counted;
                        writer.begin_segment(&mut done, &mut random);
                    }
                    _ => {}
                }
            }
            disk = disk.cut_power(&mut |below| random.u64(..below));
            let recovered = recover(&disk, &DISK, &mut |_| {}).expect("nothing is damaged");
            check(&disk, &recovered, &mut done);
            epoch = epoch.max(recovered.epoch);
            position = recovered.position;
        }
    }
}

/// A disk with two commits of facts and so many of batches, of which all but the last are known to count; with the places of
/// all.
fn written(commits: usize) -> (Simulated, Done, SegmentHeader, Vec<u64>) {
    let mut random = fastrand::Rng::with_seed(1);
    let disk = Simulated::new();
    let mut done = Done::default();
    let mut writer = Writer::new(&disk, 1, Position::default());
    writer.begin_segment(&mut done, &mut random);
    let mut places = Vec::new();
    for _ in 0..commits {
        assert!(writer.commit(&mut done, &mut random));
        writer.end(0, &mut done);
    }
    let file = disk.open(&segment_name(0)).expect("there");
    let mut first = AlignedBuffer::new(1);
    file.read(0, &mut first).expect("no fault");
    let header = SegmentHeader::decode(&first).expect("written");
    let mut scan = Scan::new(&file, header, Depth::Payloads);
    while let Some(found) = scan.next(&mut |_, _| {}).expect("no fault") {
        places.push(found.at);
    }
    (disk, done, header, places)
}

#[test]
fn a_commit_that_counted_and_is_damaged_is_told_from_a_torn_one() {
    let (disk, _, header, places) = written(6);
    let recovered = |disk: &Simulated| recover(disk, &DISK, &mut |_| {});
    let commits = |of: &Recovered| of.segments[0].counted.commits;
    let whole = recovered(&disk).expect("whole");
    assert_eq!((whole.segments[0].header, commits(&whole)), (header, 8));
    assert_eq!(places.len(), 8, "two of facts, six of batches");
    // The last: nothing says that it counted.
    let name = segment_name(0);
    disk.flip(&name, 8 * (places[7] + 70));
    let torn = recovered(&disk).expect("torn");
    assert_eq!(commits(&torn), 7);
    disk.flip(&name, 8 * (places[7] + 70));
    // One that commits behind it count, in its header, its table and its payload.
    for at in [places[4], places[4] + 8, places[4] + 100, places[5] - 1] {
        disk.flip(&name, 8 * at);
        let found = recovered(&disk);
        // Behind the table there is nothing that means anything.
        if at == places[5] - 1 {
            assert!(found.is_ok());
        } else {
            let is_it = matches!(&found, Err(RecoverError::Damaged { commit: 4, .. }));
            assert!(is_it, "{at}: {found:?}");
        }
        disk.flip(&name, 8 * at);
    }
}

#[test]
fn a_confirmed_commit_that_is_damaged_is_no_torn_one() {
    let (disk, mut done, ..) = written(1);
    let before = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    let mut writer = Writer::new(&disk, 2, before.position);
    let mut random = fastrand::Rng::with_seed(2);
    writer.begin_segment(&mut done, &mut random);
    assert!(writer.commit(&mut done, &mut random));
    assert!(!writer.journal.wants_confirmation(), "it is on its way");
    writer.end(0, &mut done);
    assert!(writer.journal.wants_confirmation());
    let builder = writer.builder();
    assert!(writer.write(builder));
    writer.end(0, &mut done);
    assert!(!writer.journal.wants_confirmation());
    disk.flip(&segment_name(1), 8 * (4096 + 2 * 4096 + 80));
    let found = recover(&disk, &DISK, &mut |_| {});
    assert!(
        matches!(found, Err(RecoverError::Damaged { commit: 2, .. })),
        "{found:?}"
    );
}

#[test]
fn a_last_segment_that_lost_its_header_is_missed() {
    let (disk, mut done, ..) = written(2);
    disk.flip(&segment_name(0), 100);
    let found = recover(&disk, &DISK, &mut |_| {});
    assert!(
        matches!(found, Err(RecoverError::NoSegment { .. })),
        "all of it"
    );
    disk.flip(&segment_name(0), 100);
    let first = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    let mut writer = Writer::new(&disk, 2, first.position);
    let file = prepare_segment(&disk, writer.journal.next_segment()).expect("no fault");
    begin_segment(&mut writer.journal, &file, 77, 1).expect("no fault");
    disk.flip(&segment_name(1), 100);
    let found = recover(&disk, &DISK, &mut |_| {}).expect("torn, as nothing counted in it");
    assert_eq!(found.dead, [1]);
    let mut random = fastrand::Rng::with_seed(2);
    writer.begin_segment(&mut done, &mut random);
    disk.flip(&segment_name(2), 100);
    let found = recover(&disk, &DISK, &mut |_| {});
    assert!(
        matches!(found, Err(RecoverError::NoSegment { .. })),
        "what was committed"
    );
}

#[test]
fn a_number_that_a_deposed_writer_took_is_passed_over() {
    let (disk, mut done, ..) = written(1);
    let found = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    let mut random = fastrand::Rng::with_seed(2);
    let mut deposed = Writer::new(&disk, 2, found.position.clone());
    let mut writer = Writer::new(&disk, 3, found.position);
    deposed.begin_segment(&mut done.clone(), &mut random);
    writer.begin_segment(&mut done, &mut random);
    assert!(writer.commit(&mut done, &mut random));
    writer.end(0, &mut done);
    let recovered = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    let numbers = |of: &Recovered| -> Vec<u64> {
        let segments = of.segments.iter();
        segments.map(|it| it.header.number).collect()
    };
    assert_eq!(
        (numbers(&recovered), &recovered.dead[..]),
        (vec![0, 2], &[1][..])
    );
    check(&disk, &recovered, &mut done);
}

#[test]
fn segments_of_another_disk_are_refused_and_missing_ones_named() {
    let (disk, mut done, ..) = written(2);
    let other = [0; 16];
    let found = recover(&disk, &other, &mut |_| {});
    assert!(matches!(found, Err(RecoverError::Foreign { .. })));
    let first = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    let mut writer = Writer::new(&disk, 2, first.position);
    let mut random = fastrand::Rng::with_seed(2);
    writer.begin_segment(&mut done, &mut random);
    disk.remove(&segment_name(0)).expect("there");
    let found = recover(&disk, &DISK, &mut |_| {});
    assert!(matches!(found, Err(RecoverError::NoSegment { .. })));
    // Once the journal says that it is no longer kept, nobody misses it.
    writer.journal.keep_from(1);
    let mut builder = writer.builder();
    writer.journal.say_first_kept(&mut builder).expect("room");
    writer.write(builder);
    writer.end(0, &mut done);
    let found = recover(&disk, &DISK, &mut |_| {}).expect("kept from there on");
    assert_eq!(found.position.first_kept, 1);
    assert_eq!(found.segments.len(), 1);
}

#[test]
fn whatever_is_damaged_is_an_error_or_the_end_and_never_other_batches() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let disk = Simulated::new();
        let mut done = Done::default();
        let mut writer = Writer::new(&disk, 1, Position::default());
        for _ in 0..40 {
            if !writer.commit(&mut done, &mut random) {
                writer.begin_segment(&mut done, &mut random);
            } else {
                writer.end(0, &mut done);
            }
        }
        let names = disk.names().expect("no fault");
        for _ in 0..random.usize(1..4) {
            let name = &names[random.usize(..names.len())];
            let bytes = disk.open(name).and_then(|file| file.size()).expect("there");
            disk.flip(name, random.u64(..8 * bytes));
        }
        let Ok(recovered) = recover(&disk, &DISK, &mut |_| {}) else {
            continue;
        };
        // Nothing promises that the last commit is told from a torn one, and a damaged batch of an older segment is found when it is
        // read.
        for (chain, next) in &recovered.position.chains {
            assert!(*next <= done.next(*chain), "{chain:?}");
        }
    }
}

#[test]
fn a_write_that_landed_elsewhere_is_an_error_or_the_end_and_never_other_batches() {
    let mut errors = 0;
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let disk = Simulated::new();
        let mut done = Done::default();
        let mut writer = Writer::new(&disk, 1, Position::default());
        writer.begin_segment(&mut done, &mut random);
        let misdirected = random.usize(..8);
        for number in 0..8 {
            assert!(writer.commit(&mut done, &mut random), "it has room");
            if number == misdirected {
                let writing = writer.writing.pop_front().expect("it was begun");
                let at = random.u64(1..SEGMENT_BYTES / 4096 / 2) * 4096;
                writing.file.end_at(writing.number, at);
                writer.journal.synced(writing.ticket, &mut Vec::new());
            } else {
                writer.end(0, &mut done);
            }
        }
        match recover(&disk, &DISK, &mut |_| {}) {
            Err(_) => errors += 1,
            Ok(recovered) => {
                let batches = read_all(&disk, &recovered);
                for (chain, found) in batches {
                    assert!(done.batches[&chain].starts_with(&found), "{chain:?}");
                }
            }
        }
    }
    assert!(errors > 150, "nobody notices: {errors}");
}

#[test]
fn facts_of_commits_that_do_not_count_are_no_beginning() {
    let mut random = fastrand::Rng::with_seed(3);
    let (disk, mut done, ..) = written(2);
    let found = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    let facts = found.facts.clone();
    let mut writer = Writer::new(&disk, 2, found.position);
    let file = make_segment(&disk, &mut writer.journal).expect("no fault");
    begin_segment(&mut writer.journal, &file, 5, 1).expect("no fault");
    writer.file = Some(file);
    let begun = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    for index in &begun.unindexed {
        store_index(&disk, index).expect("no fault");
    }
    // All facts and a batch, of which only the table gets to the disk.
    let frame = batch(CHAINS[0], done.next(CHAINS[0]), &mut random);
    let mut builder = writer.builder();
    for progress in writer.journal.chains() {
        builder.next(&progress).expect("room");
    }
    builder.complete_facts();
    let payload = &frame[BATCH_HEADER_BYTES..];
    let put = builder.batch(CHAINS[0].row, &header_of(&frame), |into| {
        into.copy_from_slice(payload);
    });
    put.expect("room");
    assert!(writer.write(builder));
    writer.end(0, &mut done);
    let lost = 8 * (4096 + 64 + BATCH_HEADER_BYTES as u64 + 200);
    disk.flip(&segment_name(1), lost);
    let torn = recover(&disk, &DISK, &mut |_| {}).expect("torn");
    assert_eq!(torn.facts, facts);
    assert_eq!(torn.segments[1].counted.commits, 0);
    // What a successor did not see does not count when it gets to the disk later.
    disk.flip(&segment_name(1), lost);
    let mut successor = Writer::new(&disk, 3, begun.position);
    let file = make_segment(&disk, &mut successor.journal).expect("no fault");
    begin_segment(&mut successor.journal, &file, 6, 1).expect("no fault");
    let found = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    assert_eq!(found.facts, facts);
}

#[test]
fn an_index_stands_for_its_segment() {
    let mut random = fastrand::Rng::with_seed(9);
    let disk = Simulated::new();
    let mut done = Done::default();
    let mut writer = Writer::new(&disk, 1, Position::default());
    while writer.journal.next_segment().0 < 4 {
        if !writer.commit(&mut done, &mut random) {
            writer.begin_segment(&mut done, &mut random);
        } else {
            writer.end(0, &mut done);
        }
    }
    let scanned = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    assert_eq!(scanned.unindexed.len(), 3, "all that are over");
    for index in &scanned.unindexed {
        let file = index.encode();
        let stored = disk.create(&index_name(index.segment.number), file.len() as u64);
        let mut bytes = AlignedBuffer::new(file.len());
        bytes[..file.len()].copy_from_slice(&file);
        let len = bytes.len();
        stored
            .expect("new")
            .write_synced(0, &bytes, len)
            .expect("no fault");
    }
    // What is not read is not missed: a commit in the middle of the first segment.
    disk.flip(&segment_name(0), 8 * (SEGMENT_BYTES / 2));
    let indexed = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    assert!(indexed.unindexed.is_empty());
    assert_eq!(indexed.position, scanned.position);
    assert_eq!(indexed.facts, scanned.facts);
    let parts = |of: &Recovered| -> Vec<_> {
        let segments = of.segments.iter();
        segments
            .map(|it| (it.counted, it.end, it.chains.clone()))
            .collect()
    };
    assert_eq!(parts(&indexed), parts(&scanned));
}
