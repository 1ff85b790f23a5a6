//! The subscribers, each a thread of this process: the first follows the topic from its first message on, the others open
//! it again and again at random positions. In the end one more reads everything that is retained.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_console::interrupt::Interrupt;
use embar_meter::random::SplitMix64;

use super::checker::REFERENCE_READER;
use super::faults::DurationRange;
use super::log_client_error::LogClientError;
use super::plan::{TOPIC, VerifyPlan};
use super::reader_check::ReaderStart;
use super::shared::Shared;
use super::stall_detector::{STALL_MAX, StallDetector};
use super::stamp::{self, Stamp};
use super::violation::Kind;
use embar_client::{Position, Positions, ReadError, Start, Subscriber};

/// Messages that a reader hands to the checks at once.
const CHUNK: usize = 256;
/// Longest that a message waits for a chunk to fill.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two looks at whether a subscriber that gets nothing should get something.
const WATCH_EVERY: Duration = Duration::from_millis(500);
/// Wait before a reader tries again to open the topic: brokers die here.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// How long a subscriber that opens the topic repeatedly stays.
const STAY: DurationRange = DurationRange {
    shortest: Duration::from_millis(200),
    longest: Duration::from_secs(3),
};

/// What every subscriber needs.
#[derive(Clone)]
pub struct ReaderSetup {
    /// What is run.
    pub plan: VerifyPlan,
    /// Addresses of all brokers.
    pub bootstrap: String,
    /// Marks this run's messages.
    pub run: u32,
    /// The checks of what they see.
    pub shared: Arc<Shared>,
}

/// The threads of all subscribers, until they are stopped.
pub struct Readers {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts them.
    pub fn start(setup: &ReaderSetup) -> Result<Self> {
        let mut readers = Self {
            shared: setup.shared.clone(),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        for number in 0..setup.plan.subscribers {
            let index = match number {
                0 => REFERENCE_READER,
                number => {
                    let name = format!("subscriber {number}");
                    setup.shared.checker().add_reader(name)
                }
            };
            let seed = setup.plan.seed ^ u64::from(number) << 32;
            let mut reader = Reader::new(setup, index, &readers.stop, seed);
            let work = move || match index {
                REFERENCE_READER => reader.follow(),
                _ => reader.reopen_repeatedly(),
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
                // Its message is on standard error.
                let mut checker = self.shared.checker();
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
pub fn read_all(setup: &ReaderSetup, within: Duration, interrupt: &Interrupt) -> Option<usize> {
    let stop = Arc::new(AtomicBool::new(false));
    let is_stopped = stop.clone();
    interrupt.on_raise(move || is_stopped.store(true, Ordering::Relaxed));
    let shared = &setup.shared;
    let index = shared.checker().add_reader("a subscriber at the end");
    let mut reader = Reader::new(setup, index, &stop, 0);
    let deadline = Instant::now() + within;
    while !reader.is_stopped() && Instant::now() < deadline {
        shared.checker().begin(reader.index, ReaderStart::Earliest);
        let read = reader
            .open(Start::Earliest, true)
            .and_then(|mut subscriber| reader.read(&mut subscriber, Some(deadline)));
        match read {
            Ok(()) if Instant::now() < deadline => return Some(reader.index),
            Err(error) if !error.passes() && reader.judge(&error) != ReadEnd::Overtaken => {
                return None;
            }
            _ => std::thread::sleep(RETRY_AFTER),
        }
    }
    shared.fail_liveness(
        within,
        format_args!("what is retained could not be read within {within:?}"),
    );
    None
}

/// Why a reader stopped reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadEnd {
    /// The messages it came to had made room for others.
    Overtaken,
    /// The messages it came to are gone, and must not be.
    Lost,
    /// It cannot go on.
    Failed,
}

struct Reader {
    setup: ReaderSetup,
    index: usize,
    stop: Arc<AtomicBool>,
    random: SplitMix64,
    stall: StallDetector,
}

impl Reader {
    fn new(setup: &ReaderSetup, index: usize, stop: &Arc<AtomicBool>, seed: u64) -> Self {
        Self {
            setup: setup.clone(),
            index,
            stop: stop.clone(),
            random: SplitMix64::new(seed),
            stall: StallDetector::new(STALL_MAX, Instant::now()),
        }
    }

    /// Reads every message from the first on.
    fn follow(&mut self) {
        let mut start = Start::Earliest;
        while !self.is_stopped() {
            self.check_progress();
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
                Err(error) if error.passes() => std::thread::sleep(RETRY_AFTER),
                Err(error) => match self.skip(&error, &start) {
                    Some(next) => start = Start::Positions(next),
                    None => return,
                },
            }
        }
    }

    /// Where the reference reader goes on, if it was overtaken and that is allowed.
    fn skip(&mut self, error: &LogClientError, start: &Start) -> Option<Positions> {
        let &LogClientError::Read(ReadError::Evicted {
            broker,
            first_available,
            ..
        }) = error
        else {
            self.judge(error);
            return None;
        };
        if self.judge(error) != ReadEnd::Overtaken {
            return None;
        }
        let ordered = self.setup.plan.order >= 2;
        self.setup.shared.checker().skip(Position {
            broker: self.setup.plan.stream(broker),
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
    fn reopen_repeatedly(&mut self) {
        let mut position = Positions::new();
        while !self.is_stopped() {
            // Its wait belongs to where it began before.
            self.check_progress();
            let (start, begin) = self.choose(&position);
            if let Some(begin) = begin {
                self.setup.shared.checker().begin(self.index, begin);
            }
            let until = Instant::now() + STAY.draw(&mut self.random);
            let ended = match self.open(start, false) {
                Err(error) => {
                    // It has no position to go on from.
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
                Err(error) if error.passes() => std::thread::sleep(RETRY_AFTER),
                Err(error) => match self.judge(&error) {
                    ReadEnd::Failed => return,
                    ReadEnd::Overtaken | ReadEnd::Lost => position = Positions::new(),
                },
            }
        }
    }

    /// Where it stood, at the first message, at the next one to come, or anywhere; and what follows for the checks, unless
    /// it goes on.
    fn choose(&mut self, position: &Positions) -> (Start, Option<ReaderStart>) {
        match self.random.below(5) {
            0 if !position.is_empty() => (Start::Positions(position.clone()), None),
            0 | 1 => (Start::Earliest, Some(ReaderStart::Earliest)),
            2 => (Start::Latest, Some(ReaderStart::Anywhere)),
            _ => {
                let ends: Vec<_> = self.setup.shared.checker().ends().collect();
                if self.setup.plan.order >= 2 {
                    let end = ends.first().map_or(0, |(_, end)| *end);
                    let at = self.random.below(end + 1);
                    return (
                        Start::Positions(Positions::at(at)),
                        Some(ReaderStart::At(at)),
                    );
                }
                let positions = ends.into_iter().filter_map(|(broker, end)| {
                    let at = self.random.below(end + 1);
                    Some((broker?, at))
                });
                (
                    Start::Positions(positions.collect()),
                    Some(ReaderStart::Anywhere),
                )
            }
        }
    }

    fn open(&self, start: Start, until_end: bool) -> Result<Subscriber, LogClientError> {
        Subscriber::builder(&self.setup.bootstrap)
            .topic(TOPIC)
            .from(start)
            .until_end(until_end)
            .metering(false)
            .transport(self.setup.plan.transport_of(self.index))
            .open()
            .map_err(LogClientError::from)
    }

    /// Reads until the time is up, or it is stopped, or at the end.
    fn read(
        &mut self,
        subscriber: &mut Subscriber,
        until: Option<Instant>,
    ) -> Result<(), LogClientError> {
        let (run, bytes) = (self.setup.run, self.setup.plan.message_bytes as usize);
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            let ended = match subscriber.next_timeout(LOOK_EVERY) {
                Ok(Some(message)) => {
                    let position = Position {
                        broker: message.broker,
                        offset: message.offset,
                    };
                    chunk.push((position, stamp::read(run, bytes, message.value)));
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
            if self.stall.since_look(Instant::now()) >= WATCH_EVERY {
                self.check_progress();
            }
            if let Some(ended) = ended {
                return ended;
            }
            if self.is_stopped() || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
        }
    }

    fn enter(&mut self, chunk: &mut Vec<(Position, Option<Stamp>)>) {
        if !chunk.is_empty() {
            self.stall.fed(Instant::now());
            self.setup.shared.checker().read(self.index, chunk);
            chunk.clear();
        }
    }

    /// Adds a violation if the reader gets nothing although there is something to read.
    fn check_progress(&mut self) {
        let shared = &self.setup.shared;
        let is_behind = shared.checker().is_behind(self.index);
        if let Some(waited) = self.stall.look(Instant::now(), is_behind) {
            shared.fail_liveness(
                waited,
                format_args!(
                    "subscriber {} got nothing for {waited:.0?}, and there was something to read",
                    self.index
                ),
            );
        }
    }

    /// What an error that does not pass means; adds a violation if it is one.
    fn judge(&self, error: &LogClientError) -> ReadEnd {
        let mut checker = self.setup.shared.checker();
        match *error {
            LogClientError::Read(ReadError::Evicted {
                broker,
                position,
                first_available,
            }) if checker.evicted(
                self.index,
                self.setup.plan.stream(broker),
                position,
                first_available,
            ) =>
            {
                ReadEnd::Overtaken
            }
            LogClientError::Read(ReadError::Evicted { .. }) => ReadEnd::Lost,
            _ => {
                let text = format_args!("subscriber {}: {error}", self.index);
                checker.fail(Kind::Failure, text);
                ReadEnd::Failed
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::retention_model::RetentionModel;
    use super::*;

    #[test]
    fn a_subscriber_that_panics_is_a_violation() {
        let plan = super::super::plan::tests::plan();
        let shared = Arc::new(Shared::new(&plan, RetentionModel::new(1, 1, 1)).expect("a thread"));
        let spawn = |work: fn()| std::thread::Builder::new().name("one".into()).spawn(work);
        let mut readers = Readers {
            shared: shared.clone(),
            stop: Arc::default(),
            threads: vec![
                spawn(|| {}).expect("starts"),
                spawn(|| panic!("as a test")).expect("starts"),
            ],
        };
        readers.stop();
        let checker = shared.checker();
        assert_eq!(checker.violations().of(Kind::Failure), 1);
        let first = &checker.violations().first[0];
        assert!(first.contains("one of the verifier panicked"), "{first}");
    }
}
