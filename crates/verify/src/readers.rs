//! The subscribers, each a thread of this process: the first follows the topic from its first message on, the others come
//! and go and begin where chance has it. In the end one more reads everything that is retained.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_client::{Positions, ReadError, Start, Subscriber};
use embar_console::interrupt::Interrupt;
use embar_meter::random::SplitMix64;

use super::books::Books;
use super::checker::CHIEF;
use super::faults::Span;
use super::log_client_error::LogClientError;
use super::patience::Patience;
use super::plan::{TOPIC, VerifyPlan};
use super::run::STALL_MAX;
use super::stamp::{self, Stamp};
use super::trail::{Begin, Place};
use super::violation::Kind;

/// Messages handed to the checks at once.
const CHUNK: usize = 256;
/// Longest that a message waits for a chunk to fill.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two looks at whether a subscriber that is given nothing should be.
const WATCH_EVERY: Duration = Duration::from_millis(500);
/// Wait before opening is tried again: brokers die here.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long a subscriber that comes and goes stays.
const STAY: Span = Span {
    shortest: Duration::from_millis(200),
    longest: Duration::from_secs(3),
};

/// What every subscriber is opened with.
#[derive(Clone)]
pub struct Setting {
    /// What is run.
    pub plan: VerifyPlan,
    /// Addresses of all brokers.
    pub bootstrap: String,
    /// Marks this run's messages.
    pub run: u32,
    /// Where what they see is entered.
    pub books: Arc<Books>,
}

/// All of them, until they are stopped.
pub struct Readers {
    books: Arc<Books>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts them.
    pub fn start(setting: &Setting) -> Result<Self> {
        let mut readers = Self {
            books: setting.books.clone(),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        for number in 0..setting.plan.subscribers {
            let index = match number {
                0 => CHIEF,
                number => {
                    let name = format!("subscriber {number}");
                    setting.books.checker().add_reader(name)
                }
            };
            let seed = setting.plan.seed ^ u64::from(number) << 32;
            let mut reader = Reader::new(setting, index, &readers.stop, seed);
            let work = move || match index {
                CHIEF => reader.follow(),
                _ => reader.come_and_go(),
            };
            let thread = std::thread::Builder::new().name(format!("subscriber-{number}"));
            readers.threads.push(thread.spawn(work)?);
        }
        Ok(readers)
    }

    /// Ends them.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                // What it said is on standard error.
                let mut checker = self.books.checker();
                checker.fail(
                    Kind::Failure,
                    format_args!("{name} of the verifier panicked"),
                );
            }
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads everything that is retained, once; the reader's index, unless it could not.
pub fn read_all(setting: &Setting, within: Duration, interrupt: &Interrupt) -> Option<usize> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    interrupt.on_raise(move || told.store(true, Ordering::Relaxed));
    let books = &setting.books;
    let index = books.checker().add_reader("a subscriber at the end");
    let mut reader = Reader::new(setting, index, &stop, 0);
    let deadline = Instant::now() + within;
    while !reader.stopped() && Instant::now() < deadline {
        books.checker().begin(reader.index, Begin::Earliest);
        let read = reader
            .open(Start::Earliest, true)
            .and_then(|mut subscriber| reader.read(&mut subscriber, Some(deadline)));
        match read {
            Ok(()) if Instant::now() < deadline => return Some(reader.index),
            Err(error) if !error.passes() && reader.judge(&error) != Verdict::Overtaken => {
                return None;
            }
            _ => std::thread::sleep(AGAIN_AFTER),
        }
    }
    books.checker().fail(
        Kind::Liveness,
        format_args!("what is retained could not be read within {within:?}"),
    );
    None
}

/// What ended a reader's reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// What it came to had to make room.
    Overtaken,
    /// What it came to is gone and must not be.
    Lost,
    /// It cannot go on.
    Failed,
}

struct Reader {
    setting: Setting,
    index: usize,
    stop: Arc<AtomicBool>,
    random: SplitMix64,
    patience: Patience,
}

impl Reader {
    fn new(setting: &Setting, index: usize, stop: &Arc<AtomicBool>, seed: u64) -> Self {
        Self {
            setting: setting.clone(),
            index,
            stop: stop.clone(),
            random: SplitMix64::new(seed),
            patience: Patience::new(STALL_MAX, Instant::now()),
        }
    }

    /// Sees every message from the first on.
    fn follow(&mut self) {
        let mut start = Start::Earliest;
        while !self.stopped() {
            self.look();
            let ended = match self.open(start.clone(), false) {
                Err(error) => Err(error),
                Ok(mut subscriber) => {
                    let ended = self.read(&mut subscriber, None);
                    let position = subscriber.position();
                    if !position.is_empty() {
                        start = Start::Positions(position);
                    }
                    ended
                }
            };
            match ended {
                Ok(()) => return,
                Err(error) if error.passes() => std::thread::sleep(AGAIN_AFTER),
                Err(error) => match self.pass_over(&error, &start) {
                    Some(next) => start = Start::Positions(next),
                    None => return,
                },
            }
        }
    }

    /// Where the reader that sees everything goes on, if it was too slow for the log and may be.
    fn pass_over(&mut self, error: &LogClientError, start: &Start) -> Option<Positions> {
        let &LogClientError::Read(ReadError::Evicted {
            broker,
            first_available,
            ..
        }) = error
        else {
            self.judge(error);
            return None;
        };
        if self.judge(error) != Verdict::Overtaken {
            return None;
        }
        let ordered = self.setting.plan.order >= 2;
        self.setting.books.checker().skip(Place {
            broker: self.setting.plan.stream(broker),
            offset: first_available,
        });
        Some(match start {
            _ if ordered => Positions::at(first_available),
            Start::Positions(positions) => {
                let mut next = positions.clone();
                next.set(broker, first_available);
                next
            }
            _ => Positions::from_iter([(broker, first_available)]),
        })
    }

    /// Opens the topic again and again.
    fn come_and_go(&mut self) {
        let mut position = Positions::new();
        while !self.stopped() {
            // What it waited for is where it began before.
            self.look();
            let (start, begin) = self.choose(&position);
            if let Some(begin) = begin {
                self.setting.books.checker().begin(self.index, begin);
            }
            let until = Instant::now() + STAY.draw(&mut self.random);
            let ended = match self.open(start, false) {
                Err(error) => {
                    // It was nowhere, and goes on from nowhere.
                    position = Positions::new();
                    Err(error)
                }
                Ok(mut subscriber) => {
                    let ended = self.read(&mut subscriber, Some(until));
                    position = subscriber.position();
                    ended
                }
            };
            match ended {
                Ok(()) => {}
                Err(error) if error.passes() => std::thread::sleep(AGAIN_AFTER),
                Err(error) => match self.judge(&error) {
                    Verdict::Failed => return,
                    Verdict::Overtaken | Verdict::Lost => position = Positions::new(),
                },
            }
        }
    }

    /// Where it stood, at the first message, at the next one to come, or anywhere; and what follows for the checks, unless
    /// it goes on.
    fn choose(&mut self, position: &Positions) -> (Start, Option<Begin>) {
        match self.random.below(5) {
            0 if !position.is_empty() => (Start::Positions(position.clone()), None),
            0 | 1 => (Start::Earliest, Some(Begin::Earliest)),
            2 => (Start::Latest, Some(Begin::Anywhere)),
            _ => {
                let ends: Vec<_> = self.setting.books.checker().ends().collect();
                if self.setting.plan.order >= 2 {
                    let end = ends.first().map_or(0, |(_, end)| *end);
                    let at = self.random.below(end + 1);
                    return (Start::Positions(Positions::at(at)), Some(Begin::At(at)));
                }
                let positions = ends.into_iter().filter_map(|(broker, end)| {
                    let at = self.random.below(end + 1);
                    Some((broker?, at))
                });
                (Start::Positions(positions.collect()), Some(Begin::Anywhere))
            }
        }
    }

    fn open(&self, start: Start, until_end: bool) -> Result<Subscriber, LogClientError> {
        Subscriber::builder(&self.setting.bootstrap)
            .topic(TOPIC)
            .from(start)
            .until_end(until_end)
            .metering(false)
            .open()
            .map_err(LogClientError::from)
    }

    /// Reads until the time is up, or it is stopped, or at the end.
    fn read(
        &mut self,
        subscriber: &mut Subscriber,
        until: Option<Instant>,
    ) -> Result<(), LogClientError> {
        let (run, bytes) = (self.setting.run, self.setting.plan.message_bytes as usize);
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            let ended = match subscriber.next_timeout(LOOK_EVERY) {
                Ok(Some(message)) => {
                    let place = Place {
                        broker: message.broker,
                        offset: message.offset,
                    };
                    chunk.push((place, stamp::read(run, bytes, message.value)));
                    if chunk.len() < CHUNK {
                        continue;
                    }
                    None
                }
                Ok(None) => Some(Ok(())),
                Err(ReadError::TimedOut { .. }) => None,
                Err(error) => Some(Err(error.into())),
            };
            self.enter(&mut chunk);
            if self.patience.unwatched(Instant::now()) >= WATCH_EVERY {
                self.look();
            }
            if let Some(ended) = ended {
                return ended;
            }
            if self.stopped() || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
        }
    }

    fn enter(&mut self, chunk: &mut Vec<(Place, Option<Stamp>)>) {
        if !chunk.is_empty() {
            self.patience.fed(Instant::now());
            self.setting.books.checker().read(self.index, chunk);
            chunk.clear();
        }
    }

    /// Looks whether it is given what there is.
    fn look(&mut self) {
        let mut checker = self.setting.books.checker();
        let is_behind = checker.is_behind(self.index);
        if let Some(waited) = self.patience.look(Instant::now(), is_behind) {
            checker.fail(
                Kind::Liveness,
                format_args!(
                    "subscriber {} was given nothing for {waited:.0?}, and there was something to read",
                    self.index
                ),
            );
        }
    }

    /// Says of an error that does not pass what it means, and enters what is a violation.
    fn judge(&self, error: &LogClientError) -> Verdict {
        let mut checker = self.setting.books.checker();
        match *error {
            LogClientError::Read(ReadError::Evicted {
                broker,
                position,
                first_available,
            }) if checker.evicted(
                self.index,
                self.setting.plan.stream(broker),
                position,
                first_available,
            ) =>
            {
                Verdict::Overtaken
            }
            LogClientError::Read(ReadError::Evicted { .. }) => Verdict::Lost,
            _ => {
                let text = format_args!("subscriber {}: {error}", self.index);
                checker.fail(Kind::Failure, text);
                Verdict::Failed
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::Room;
    use super::*;

    #[test]
    fn a_subscriber_that_panics_is_a_violation() {
        let plan = super::super::plan::tests::plan();
        let books = Arc::new(Books::new(&plan, Room::new(1, 1, 1)));
        let spawn = |work: fn()| std::thread::Builder::new().name("one".into()).spawn(work);
        let mut readers = Readers {
            books: books.clone(),
            stop: Arc::default(),
            threads: vec![
                spawn(|| {}).expect("starts"),
                spawn(|| panic!("as a test")).expect("starts"),
            ],
        };
        readers.stop();
        let checker = books.checker();
        assert_eq!(checker.violations().of(Kind::Failure), 1);
        let told = &checker.violations().first[0];
        assert!(told.contains("one of the verifier panicked"), "{told}");
    }
}
