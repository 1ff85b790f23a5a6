//! One reader's way through a topic: no position is left out, and each publisher's messages come as they may.

use std::collections::{BTreeMap, HashMap};

use super::ranges::Ranges;
use super::stamp::{Origin, Stamp};
use super::truth::{BLOCK, Roll, Truth};
use super::violation::{Kind, Violations};

/// What an order level promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// One order over all brokers, in which nothing is repeated.
    pub total: bool,
    /// Each publisher's messages are in it as they were published.
    pub publishers: bool,
}

impl Promise {
    /// Of an order level.
    pub fn of(order: u32) -> Self {
        Self {
            total: order >= 2,
            publishers: order == 5,
        }
    }
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The broker that counts; `None` where there is one order over all.
    pub broker: Option<u32>,
    /// The position.
    pub offset: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.broker {
            Some(broker) => write!(f, "offset {} of broker {broker}", self.offset),
            None => write!(f, "position {}", self.offset),
        }
    }
}

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With the first message there ever was.
    AtZero,
    /// With the first message that is retained.
    Earliest,
    /// Nobody can tell.
    Anywhere,
    /// At this position of the one order.
    At(u64),
}

/// One reader.
#[derive(Debug)]
pub struct Trail {
    name: String,
    walks: BTreeMap<Option<u32>, Walk>,
    begin: Begin,
    /// Messages that were known of when it began, over all brokers.
    known: u64,
    origins: HashMap<Origin, Ranges>,
    newest: HashMap<u32, u32>,
    /// How often it was overtaken.
    skips: u64,
    /// The same when it last saw a message of each.
    skips_heard: HashMap<Origin, u64>,
    /// What it may have missed of each.
    passed: HashMap<Origin, Ranges>,
    messages: u64,
    repeated: u64,
}

/// Through one broker's offsets, or the one order.
#[derive(Debug, Default)]
struct Walk {
    first: u64,
    next: Option<u64>,
    block: Roll,
    in_block: u64,
}

impl Trail {
    /// A reader of this name.
    pub fn new(name: impl Into<String>, begin: Begin) -> Self {
        Self {
            name: name.into(),
            walks: BTreeMap::new(),
            begin,
            known: 0,
            origins: HashMap::new(),
            newest: HashMap::new(),
            skips: 0,
            skips_heard: HashMap::new(),
            passed: HashMap::new(),
            messages: 0,
            repeated: 0,
        }
    }

    /// The reader opens the topic anew and begins elsewhere: it may see again what it saw. `known` messages were seen by
    /// anybody until now.
    pub fn begin(&mut self, begin: Begin, known: u64) {
        self.walks.clear();
        self.origins.clear();
        self.newest.clear();
        self.skips_heard.clear();
        self.passed.clear();
        (self.begin, self.known) = (begin, known);
    }

    /// The reader was told that everything before `place` is gone, and goes on there.
    pub fn skip(&mut self, place: Place) {
        let walk = self.walks.entry(place.broker).or_default();
        (walk.next, walk.in_block) = (Some(place.offset), 0);
        walk.block = Roll::default();
        self.skips += 1;
    }

    /// How often it was overtaken.
    pub fn skips(&self) -> u64 {
        self.skips
    }

    /// Numbers of one origin that may be among what it was overtaken by, in an order that keeps each origin's.
    pub fn passed_over(&self, origin: Origin) -> Ranges {
        let mut all = self.passed.get(&origin).cloned().unwrap_or_default();
        if self.skips_heard.get(&origin).copied().unwrap_or(0) < self.skips {
            let end = self.seen(origin).map_or(0, Ranges::end);
            all.merge(&Ranges::of(end, u64::MAX));
        }
        all
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether there is something for it to read, where streams end at `ends`.
    pub fn is_behind(&self, mut ends: impl Iterator<Item = (Option<u32>, u64)>) -> bool {
        if !self.walks.is_empty() {
            return ends.any(|(broker, end)| {
                let walk = self.walks.get(&broker);
                walk.and_then(|walk| walk.next)
                    .is_some_and(|next| next < end)
            });
        }
        let ends: u64 = ends.map(|(_, end)| end).sum();
        match self.begin {
            Begin::AtZero | Begin::Earliest => ends > 0,
            Begin::At(offset) => ends > offset,
            Begin::Anywhere => ends > self.known,
        }
    }

    /// Whether it began with the first message there ever was, of each stream that it saw.
    pub fn is_whole(&self) -> bool {
        self.walks.values().all(|walk| walk.first == 0)
    }

    /// Messages in all.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Messages that came more than once where that is allowed.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// The position it comes to next.
    pub fn next(&self, broker: Option<u32>) -> u64 {
        self.walks
            .get(&broker)
            .and_then(|walk| walk.next)
            .unwrap_or(0)
    }

    /// Numbers that it saw of one origin.
    pub fn seen(&self, origin: Origin) -> Option<&Ranges> {
        self.origins.get(&origin)
    }

    /// Everybody whose messages it saw.
    pub fn origins(&self) -> impl Iterator<Item = (&Origin, &Ranges)> {
        self.origins.iter()
    }

    /// Takes the next message; `None` is one without a valid stamp. Messages at `kept_from` and behind must be there.
    pub fn step(
        &mut self,
        promise: Promise,
        (place, stamp): (Place, Option<Stamp>),
        kept_from: u64,
        truth: &mut Truth,
        violations: &mut Violations,
    ) {
        self.messages += 1;
        self.set_out(place, kept_from, violations);
        self.walk(place, stamp, truth, violations);
        match stamp {
            Some(stamp) => self.hear(promise, place, stamp, violations),
            None => violations.add(
                Kind::Damaged,
                format_args!("{}: {place} is damaged, or of somebody else", self.name),
            ),
        }
    }

    /// Looks at the first message of a stream.
    fn set_out(&mut self, place: Place, kept_from: u64, violations: &mut Violations) {
        let walk = self.walks.entry(place.broker).or_default();
        if walk.next.is_some() {
            return;
        }
        walk.first = place.offset;
        if self.begin == Begin::Earliest && place.offset > kept_from {
            violations.add(
                Kind::Lost,
                format_args!(
                    "{}: the earliest is {place}, and there was room for everything from {kept_from} on",
                    self.name
                ),
            );
        }
    }

    fn walk(
        &mut self,
        place: Place,
        stamp: Option<Stamp>,
        truth: &mut Truth,
        violations: &mut Violations,
    ) {
        let walk = self.walks.entry(place.broker).or_default();
        let expected = walk.next.or(match self.begin {
            Begin::AtZero => Some(0),
            Begin::Earliest | Begin::Anywhere => None,
            Begin::At(offset) => Some(offset),
        });
        let block = place.offset / BLOCK;
        let jumped = walk.next != Some(place.offset);
        if let Some(expected) = expected
            && expected != place.offset
        {
            violations.add(
                Kind::Hole,
                format_args!(
                    "{}: {place} came where {expected} comes next{}",
                    self.name,
                    if walk.next.is_none() {
                        ", at the beginning"
                    } else {
                        ""
                    }
                ),
            );
        }
        walk.next = Some(place.offset.saturating_add(1));
        if jumped || place.offset.is_multiple_of(BLOCK) {
            (walk.block, walk.in_block) = (Roll::default(), 0);
        }
        let Some(stamp) = stamp else {
            return;
        };
        if !truth.agrees(place.offset, stamp.digest()) {
            violations.add(
                Kind::Disagreement,
                format_args!(
                    "{}: {place} is {stamp}, and was something else before",
                    self.name
                ),
            );
        }
        walk.block.add(stamp.digest());
        walk.in_block += 1;
        if walk.in_block == BLOCK && !truth.agrees_on_block(block, walk.block) {
            violations.add(
                Kind::Disagreement,
                format_args!(
                    "{}: positions {} to {} are not what others saw there",
                    self.name,
                    block * BLOCK,
                    place.offset
                ),
            );
        }
    }

    fn hear(&mut self, promise: Promise, place: Place, stamp: Stamp, violations: &mut Violations) {
        let Stamp { origin, number } = stamp;
        let newest = self
            .newest
            .entry(origin.publisher)
            .or_insert(origin.instance);
        if origin.instance < *newest && promise.total {
            violations.add(
                Kind::Deposed,
                format_args!(
                    "{}: {stamp} at {place} came after a message of its process {newest}",
                    self.name
                ),
            );
        }
        *newest = origin.instance.max(*newest);
        let seen = self.origins.entry(origin).or_default();
        let end = seen.end();
        if self.skips > 0 && self.skips_heard.insert(origin, self.skips).unwrap_or(0) < self.skips {
            let passed = self.passed.entry(origin).or_default();
            passed.merge(&Ranges::of(end, number));
        }
        if !seen.insert(number, 1) {
            self.repeated += 1;
            if promise.total {
                violations.add(
                    Kind::Duplicate,
                    format_args!("{}: {stamp} came again at {place}", self.name),
                );
            }
        } else if promise.publishers && end > number {
            violations.add(
                Kind::OutOfOrder,
                format_args!(
                    "{}: {stamp} at {place} came after its message {}",
                    self.name,
                    end - 1
                ),
            );
        }
    }
}
