//! What one reader must see: every position in turn, and each publisher's messages as the order level promises.

use std::collections::{BTreeMap, HashMap};

use embar_client::Position;

use super::ranges::Ranges;
use super::reference_log::{BLOCK, BlockHash, ReferenceLog, Stream};
use super::stamp::{Origin, Stamp};
use super::violation::{Kind, Violations};

/// What an order level promises to readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// One order over all brokers, in which nothing is repeated.
    pub total: bool,
    /// Each publisher's messages are in it as they were published.
    pub publishers: bool,
}

impl Promise {
    /// The promise of an order level.
    pub fn of(order: u32) -> Self {
        Self {
            total: order >= 2,
            publishers: order == 5,
        }
    }
}

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderStart {
    /// With the first message there ever was.
    AtZero,
    /// With the first message that is retained.
    Earliest,
    /// At a position that is not known beforehand.
    Anywhere,
    /// At this position of the one order.
    At(u64),
}

/// The state of one reader, and the checks of what it sees.
#[derive(Debug)]
pub struct ReaderCheck {
    name: String,
    cursors: BTreeMap<Stream, Cursor>,
    begin: ReaderStart,
    /// Messages that any reader had seen when it began, over all streams.
    known: u64,
    origins: HashMap<Origin, Ranges>,
    newest: HashMap<u32, u32>,
    /// How often it was overtaken.
    skips: u64,
    /// That count when it last saw a message of each origin.
    skips_seen: HashMap<Origin, u64>,
    /// Numbers of each origin that it may have skipped.
    skipped: HashMap<Origin, Ranges>,
    messages: u64,
    repeated: u64,
}

/// How far the reader is in one stream.
#[derive(Debug, Default)]
struct Cursor {
    first: u64,
    next: Option<u64>,
    block: BlockHash,
    block_positions: u64,
}

impl ReaderCheck {
    /// A reader of this name.
    pub fn new(name: impl Into<String>, begin: ReaderStart) -> Self {
        Self {
            name: name.into(),
            cursors: BTreeMap::new(),
            begin,
            known: 0,
            origins: HashMap::new(),
            newest: HashMap::new(),
            skips: 0,
            skips_seen: HashMap::new(),
            skipped: HashMap::new(),
            messages: 0,
            repeated: 0,
        }
    }

    /// The reader opens the topic anew and begins elsewhere: it may see again what it saw. All readers together have seen
    /// `known` messages.
    pub fn begin(&mut self, begin: ReaderStart, known: u64) {
        self.cursors.clear();
        self.origins.clear();
        self.newest.clear();
        self.skips_seen.clear();
        self.skipped.clear();
        (self.begin, self.known) = (begin, known);
    }

    /// The reader learned that everything before `position` is gone, and goes on there.
    pub fn skip(&mut self, position: Position) {
        let cursor = self.cursors.entry(position.broker).or_default();
        (cursor.next, cursor.block_positions) = (Some(position.offset), 0);
        cursor.block = BlockHash::default();
        self.skips += 1;
    }

    /// How often it was overtaken.
    pub fn skips(&self) -> u64 {
        self.skips
    }

    /// Numbers of one origin that may be among what the reader skipped, where the order keeps each origin's.
    pub fn skipped_numbers(&self, origin: Origin) -> Ranges {
        let mut all = self.skipped.get(&origin).cloned().unwrap_or_default();
        if self.skips_seen.get(&origin).copied().unwrap_or(0) < self.skips {
            let end = self.seen(origin).map_or(0, Ranges::end);
            all.merge(&Ranges::of(end, u64::MAX));
        }
        all
    }

    /// The name of the reader.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether there is something for the reader to read, where streams end at `ends`.
    pub fn is_behind(&self, mut ends: impl Iterator<Item = (Stream, u64)>) -> bool {
        if !self.cursors.is_empty() {
            return ends.any(|(broker, end)| {
                let cursor = self.cursors.get(&broker);
                cursor
                    .and_then(|cursor| cursor.next)
                    .is_some_and(|next| next < end)
            });
        }
        let ends: u64 = ends.map(|(_, end)| end).sum();
        match self.begin {
            ReaderStart::AtZero | ReaderStart::Earliest => ends > 0,
            ReaderStart::At(offset) => ends > offset,
            ReaderStart::Anywhere => ends > self.known,
        }
    }

    /// Whether the reader began with the first message there ever was, in each stream that it saw.
    pub fn is_whole(&self) -> bool {
        self.cursors.values().all(|cursor| cursor.first == 0)
    }

    /// Messages in all.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Messages that came again.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// The position that the reader comes to next.
    pub fn next(&self, stream: Stream) -> u64 {
        self.cursors
            .get(&stream)
            .and_then(|cursor| cursor.next)
            .unwrap_or(0)
    }

    /// Numbers of one origin that the reader saw.
    pub fn seen(&self, origin: Origin) -> Option<&Ranges> {
        self.origins.get(&origin)
    }

    /// Each origin of which the reader saw messages, with their numbers.
    pub fn origins(&self) -> impl Iterator<Item = (&Origin, &Ranges)> {
        self.origins.iter()
    }

    /// Checks the next message; one without a valid stamp has `None`. Messages from `kept_from` on must be there.
    pub fn step(
        &mut self,
        promise: Promise,
        (position, stamp): (Position, Option<Stamp>),
        kept_from: u64,
        reference_log: &mut ReferenceLog,
        violations: &mut Violations,
    ) {
        self.messages += 1;
        self.check_start(position, kept_from, violations);
        self.check_position(position, stamp, reference_log, violations);
        match stamp {
            Some(stamp) => self.check_origin(promise, position, stamp, violations),
            None => violations.add(
                Kind::Damaged,
                format_args!("{}: {position} is damaged, or of another run", self.name),
            ),
        }
    }

    /// Checks the first message of a stream.
    fn check_start(&mut self, position: Position, kept_from: u64, violations: &mut Violations) {
        let cursor = self.cursors.entry(position.broker).or_default();
        if cursor.next.is_some() {
            return;
        }
        cursor.first = position.offset;
        if self.begin == ReaderStart::Earliest && position.offset > kept_from {
            violations.add(
                Kind::Lost,
                format_args!(
                    "{}: the earliest is {position}, and there was room for everything from {kept_from} on",
                    self.name
                ),
            );
        }
    }

    fn check_position(
        &mut self,
        position: Position,
        stamp: Option<Stamp>,
        reference_log: &mut ReferenceLog,
        violations: &mut Violations,
    ) {
        let cursor = self.cursors.entry(position.broker).or_default();
        let expected = cursor.next.or(match self.begin {
            ReaderStart::AtZero => Some(0),
            ReaderStart::Earliest | ReaderStart::Anywhere => None,
            ReaderStart::At(offset) => Some(offset),
        });
        let block = position.offset / BLOCK;
        let jumped = cursor.next != Some(position.offset);
        if let Some(expected) = expected
            && expected != position.offset
        {
            violations.add(
                Kind::Hole,
                format_args!(
                    "{}: {position} came where {expected} comes next{}",
                    self.name,
                    if cursor.next.is_none() {
                        ", at the beginning"
                    } else {
                        ""
                    }
                ),
            );
        }
        cursor.next = Some(position.offset.saturating_add(1));
        if jumped || position.offset.is_multiple_of(BLOCK) {
            (cursor.block, cursor.block_positions) = (BlockHash::default(), 0);
        }
        let Some(stamp) = stamp else {
            return;
        };
        if !reference_log.agrees(position.offset, stamp.digest()) {
            violations.add(
                Kind::Disagreement,
                format_args!(
                    "{}: {position} is {stamp}, and was something else before",
                    self.name
                ),
            );
        }
        cursor.block.add(stamp.digest());
        cursor.block_positions += 1;
        if cursor.block_positions == BLOCK && !reference_log.agrees_on_block(block, cursor.block) {
            violations.add(
                Kind::Disagreement,
                format_args!(
                    "{}: positions {} to {} are not what others saw there",
                    self.name,
                    block * BLOCK,
                    position.offset
                ),
            );
        }
    }

    fn check_origin(
        &mut self,
        promise: Promise,
        position: Position,
        stamp: Stamp,
        violations: &mut Violations,
    ) {
        let Stamp { origin, number } = stamp;
        let newest = self
            .newest
            .entry(origin.publisher)
            .or_insert(origin.instance);
        if origin.instance < *newest && promise.total {
            violations.add(
                Kind::Deposed,
                format_args!(
                    "{}: {stamp} at {position} came after a message of its process {newest}",
                    self.name
                ),
            );
        }
        *newest = origin.instance.max(*newest);
        let seen = self.origins.entry(origin).or_default();
        let end = seen.end();
        if self.skips > 0 && self.skips_seen.insert(origin, self.skips).unwrap_or(0) < self.skips {
            let skipped = self.skipped.entry(origin).or_default();
            skipped.merge(&Ranges::of(end, number));
        }
        if !seen.insert(number, 1) {
            self.repeated += 1;
            if promise.total {
                violations.add(
                    Kind::Duplicate,
                    format_args!("{}: {stamp} came again at {position}", self.name),
                );
            }
        } else if promise.publishers && end > number {
            violations.add(
                Kind::OutOfOrder,
                format_args!(
                    "{}: {stamp} at {position} came after its message {}",
                    self.name,
                    end - 1
                ),
            );
        }
    }
}
