//! A process that may sequence, and that writes the disks while it does.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use embar_broker::BrokerConfig;
use embar_broker::candidacy::{Candidacy, Outcome};
use embar_broker::clock::Timestamp;
use embar_broker::journal::{Found, Gathered, Limits, Writer, seed};
use embar_disk::format::{Before, index_name, segment_name};
use embar_disk::recover::RecoverError;
use embar_disk::{
    AlignedBuffer, Simulated as Disk, SimulatedFile, Storage, give_back, keep_reserve,
    prepare_segment, store_index,
};
use embar_fabric::{Claim, SharedNews};
use embar_frame::Now;
use embar_memory::{Outage, Power, Simulated};
use embar_order::{Leadership, Term};
use embar_wire::time::WallNs;
use fastrand::Rng;

use super::busy::Busy;
use super::disks::disk_id;
use super::memory::{DISKS, Files, Mapping};

/// Bytes of a segment: hardly more than a largest batch of these tests, and the facts.
pub const SEGMENT_BYTES: u64 = 96 << 10;
/// Bytes that a commit gathers.
const GATHER_BYTES: usize = 24 << 10;

/// See the module.
pub struct Candidate {
    pub row: u16,
    mapping: Mapping,
    /// Another value of the same region, as a process has for its writers.
    for_writers: Mapping,
    claim: Arc<Claim>,
    news: SharedNews<Simulated>,
    candidacy: Candidacy<Simulated>,
    pub writers: Vec<DiskWriter>,
}

/// Of one disk, in one term.
pub struct DiskWriter {
    term: Term,
    state: State,
    file: Option<SimulatedFile>,
    wants_segment: bool,
    /// The file of the next segment, by its number.
    prepared: Option<(u64, SimulatedFile)>,
    /// What is to be given back: a thread may do it late, when its term is over.
    gone: Option<(Before, BTreeSet<u32>)>,
    given_back: u64,
    clock: Timestamp,
    pub writes: Vec<Write>,
}

enum State {
    /// It did not read the disk yet.
    Waits,
    Open(Box<Writer<Simulated>>),
    /// The term is over: commits on their way go on.
    Deposed,
    /// It cannot be read.
    Failed,
}

/// A commit on its way.
pub struct Write {
    pub file: SimulatedFile,
    at: u64,
    bytes: Vec<u8>,
    ticket: u64,
    /// Its number in the file, once it was begun.
    number: Option<u64>,
    is_shown: bool,
}

impl Write {
    /// It comes a step further, and does not end.
    pub fn step(&mut self) {
        match self.number {
            None => self.number = Some(self.file.begin(self.at, &self.bytes)),
            Some(number) if !self.is_shown => {
                self.file.show(number);
                self.is_shown = true;
            }
            Some(_) => {}
        }
    }

    /// Ends it, if it was begun.
    pub fn end(&self) -> bool {
        self.number.map(|number| self.file.end(number)).is_some()
    }

    pub fn is_begun(&self) -> bool {
        self.number.is_some()
    }
}

impl Candidate {
    pub fn new(files: &Files, row: u16) -> Self {
        let power = Power::default();
        let mapping = files.map(&power);
        let for_writers = files.map(&power);
        let claim = Arc::new(mapping.region.claim_unlocked(row));
        let config = BrokerConfig {
            gap_lease: Duration::from_millis(500),
            ..BrokerConfig::default()
        };
        Self {
            row,
            candidacy: Candidacy::new(&mapping.region, &claim, &config, Now(0)),
            news: for_writers.region.frontier_news_writer(&claim),
            mapping,
            for_writers,
            claim,
            writers: Vec::new(),
        }
    }

    /// For the head, which makes topics and restores a region.
    pub fn head(&self) -> (&Mapping, &Arc<Claim>) {
        (&self.mapping, &self.claim)
    }

    /// Puts what the disks have into the region.
    pub fn restore(&self, found: &[Found]) {
        let seeded = seed(&self.mapping.region, &self.claim, found);
        seeded.expect("there is room for all of it");
    }

    /// Sequences from now on.
    pub fn take_over(&mut self, now: Now) {
        match self.candidacy.take_over(now, &|_| true).outcome {
            Outcome::TookOver { .. } => {}
            other => panic!("{other:?}"),
        }
        let region = &self.mapping.region;
        let term = Leadership::observe(region).term.expect("it is active");
        self.writers = (0..DISKS).map(|_| DiskWriter::new(term)).collect();
    }

    /// Sequences, while it is not deposed.
    pub fn turn(&mut self, now: Now) {
        if self.candidacy.sequencer().is_some() {
            self.candidacy.turn(now, &|_| true);
        }
    }

    /// It fails behind so many accesses to memory.
    pub fn fail_after(&self, accesses: u64) {
        self.mapping.power.fail_after(accesses, Outage::Process);
    }

    /// A commit ends, and the process does before it has said so, or while it does.
    pub fn fail_in_sync(&mut self, random: &mut Rng) {
        self.fail_after(random.u64(..60));
        if let Some(writer) = random.choice(&mut self.writers) {
            writer.writes.iter_mut().for_each(Write::step);
            writer.end_some(random);
        }
    }

    /// Whether a disk takes what comes in this one's term; nothing while that is open.
    pub fn takes(&self, disk: u16) -> Option<bool> {
        match &self.writers.get(usize::from(disk))?.state {
            State::Waits | State::Deposed => None,
            State::Open(writer) => Some(!writer.has_failed()),
            State::Failed => Some(false),
        }
    }

    /// Bytes that were given back since the last call.
    pub fn takes_given_back(&mut self) -> u64 {
        let given = self.writers.iter_mut();
        given.map(|it| std::mem::take(&mut it.given_back)).sum()
    }

    pub fn has_failed(&self) -> bool {
        self.mapping.power.failed().is_some()
    }

    /// It dies.
    pub fn end(&self, outage: Outage) {
        self.mapping.end(outage);
        self.for_writers.end(outage);
    }

    /// One of its writers does something. `others` are commits of others that are on their way.
    pub fn write(&mut self, disk: u16, disks: &[Disk], others: Vec<&mut Write>, random: &mut Rng) {
        let Self {
            writers,
            for_writers,
            claim,
            news,
            ..
        } = self;
        let Some(writer) = writers.get_mut(usize::from(disk)) else {
            return;
        };
        let storage = &disks[usize::from(disk)];
        if let State::Waits = writer.state {
            let begin = |start| Writer::new(&for_writers.region, claim, writer.term, disk, start);
            let region = (writer.term.epoch, for_writers.region.nonce());
            let busy = Busy::new(storage, others, random.fork());
            let found = Found::read(&busy, &disk_id(disk));
            let lasts = writer.term.lasts(&for_writers.region);
            writer.state = match found {
                _ if !lasts => State::Deposed,
                Ok(found) => {
                    let (found_in, epoch) = (found.recovered.epoch, writer.term.epoch);
                    assert!(
                        found_in < epoch,
                        "disk {disk}: epoch {epoch} was used before"
                    );
                    let bytes = (SEGMENT_BYTES, Limits::NONE);
                    let start = found.start(region, bytes, news.clone());
                    State::Open(Box::new(begin(start)))
                }
                Err(RecoverError::Io { .. }) => State::Failed,
                Err(error) => panic!("{error}"),
            };
            return;
        }
        writer.step(storage, random);
    }
}

impl DiskWriter {
    fn new(term: Term) -> Self {
        Self {
            term,
            state: State::Waits,
            file: None,
            wants_segment: false,
            prepared: None,
            gone: None,
            given_back: 0,
            clock: Timestamp {
                now: Now(1),
                wall: WallNs(1),
            },
            writes: Vec::new(),
        }
    }

    fn step(&mut self, disk: &Disk, random: &mut Rng) {
        match random.u8(..9) {
            8 => self.tidy(disk),
            0..3 => self.gather(disk, random),
            3 if self.writes.is_empty() && !self.wants_segment => self.confirm(),
            3..6 => {
                if let Some(write) = random.choice(&mut self.writes) {
                    write.step();
                }
            }
            _ => self.end_some(random),
        }
    }

    fn gather(&mut self, disk: &Disk, random: &mut Rng) {
        if self.wants_segment {
            return self.begin_segment(disk, random);
        }
        // Nothing comes of age, but it is looked what is gone.
        self.clock.now = self.clock.now.after(Duration::from_millis(150));
        let State::Open(writer) = &mut self.state else {
            return;
        };
        if writer.is_full() && random.u8(..4) == 0 {
            if let Ok(file) = writer.make_segment(disk) {
                self.prepared = Some((writer.next_segment().0, file));
                writer.say_room();
            }
            return;
        }
        let gathered = writer.gather(AlignedBuffer::new(GATHER_BYTES), self.clock);
        self.take(gathered);
    }

    fn confirm(&mut self) {
        if let State::Open(writer) = &mut self.state
            && self.file.is_some()
        {
            let confirmed = writer.confirm(AlignedBuffer::new(GATHER_BYTES), 1);
            self.take(confirmed);
        }
    }

    fn take(&mut self, gathered: Gathered) {
        match gathered {
            Gathered::Commit(commit) => self.writes.push(Write {
                file: self.file.clone().expect("a segment was begun"),
                at: commit.at,
                bytes: commit.buffer[..commit.len].to_vec(),
                ticket: commit.ticket,
                number: None,
                is_shown: false,
            }),
            Gathered::Segment(_) => self.wants_segment = true,
            Gathered::Deposed => self.state = State::Deposed,
            Gathered::Nothing(_) | Gathered::Busy(_) => {}
        }
    }

    fn begin_segment(&mut self, disk: &Disk, random: &mut Rng) {
        self.wants_segment = false;
        if let State::Open(writer) = &mut self.state {
            let next = writer.next_segment();
            let prepared = self.prepared.take().filter(|(number, _)| *number == next.0);
            let made = match prepared {
                Some((_, file)) => Ok(file),
                None if writer.is_full() => match writer.take_reserve(disk) {
                    Ok(file) => Ok(file),
                    Err(_) => return,
                },
                None => writer.make_segment(disk),
            };
            let nonce = random.u64(1..);
            let file = match made {
                Ok(file) => file,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::StorageFull);
                    return writer.say_full();
                }
            };
            let begun = writer.begin_segment(&file, nonce, 1).map(|()| file);
            match begun {
                Ok(file) => self.file = Some(file),
                Err(error) => {
                    assert_eq!(
                        error.kind(),
                        ErrorKind::StorageFull,
                        "it was not told to fail"
                    );
                    writer.fail();
                }
            }
        }
    }

    /// What is to be done beside gathering.
    fn tidy(&mut self, disk: &Disk) {
        self.give_back(disk);
        let State::Open(writer) = &mut self.state else {
            return;
        };
        if self.prepared.is_none() && writer.wants_segment_soon() {
            let next = writer.next_segment();
            // Whatever was in the way is noticed when the segment is to be begun.
            let made = prepare_segment(disk, next).ok();
            self.prepared = made.map(|file| (next.0, file));
        }
        if self.file.is_some() && !writer.is_full() {
            drop(keep_reserve(disk, writer.reserve_bytes()));
        }
        if let Some(index) = writer.take_index() {
            drop(store_index(disk, &index));
        }
        self.gone = self.gone.take().or_else(|| writer.take_gone());
        for segment in writer.take_removals() {
            drop(disk.remove(&segment_name(segment)));
            drop(disk.remove(&index_name(segment)));
        }
    }

    /// Its thread looked at the term when it took this up, and perhaps stood still since.
    fn give_back(&mut self, disk: &Disk) {
        if let Some((segment, gone)) = self.gone.take() {
            // It was removed meanwhile, or the disk fails.
            let given = give_back(disk, &segment, &gone, &mut || true).unwrap_or(0);
            self.given_back += given;
            if let State::Open(writer) = &mut self.state {
                writer.gave_back(segment.number, given);
            }
        }
    }

    fn end_some(&mut self, random: &mut Rng) {
        let begun = self.writes.iter().enumerate();
        let begun = begun
            .filter(|(_, it)| it.is_begun())
            .map(|(place, _)| place);
        let places: Vec<usize> = begun.collect();
        let Some(place) = random.choice(places) else {
            return;
        };
        let write = self.writes.remove(place);
        assert!(write.end());
        self.written(write.ticket, Ok(()));
    }

    fn written(&mut self, ticket: u64, written: io::Result<()>) {
        if let State::Open(writer) = &mut self.state {
            // It has failed then.
            drop(writer.written(ticket, written));
        }
    }

    /// The oldest of its writes fails.
    pub fn fail_write(&mut self, random: &mut Rng) {
        let Some(place) = self.writes.iter().position(|_| true) else {
            return;
        };
        while !self.writes[place].is_begun() {
            self.writes[place].step();
        }
        let write = self.writes.remove(place);
        let number = write.number.expect("it is begun");
        write.file.fail(number, &mut |below| random.u64(..below));
        self.written(write.ticket, Err(io::Error::other("the disk is broken")));
    }
}
