//! Reads what was acknowledged a moment ago: it must be readable at once, from any broker.
//!
//! Each look opens a subscriber of its own. It reads until the end as it was when it began, or begins at the latest
//! message: both show how far its broker was by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use embar_meter::random::SplitMix64;

use super::ack_check::MessageRange;
use super::log_client_error::LogClientError;
use super::plan::TOPIC;
use super::readers::ReaderSetup;
use super::stamp::{self, Stamp};
use super::violation::Kind;
use embar_client::{OpenError, Position, Positions, ReadError, Start, Subscriber};

/// Between two looks; an acknowledgement that comes meanwhile is read at once.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A look at a broker that dies ends soon: other readers notice what cannot be read at all.
const WITHIN: Duration = Duration::from_secs(2);

/// The thread that reads, until it is stopped.
pub struct Readback {
    setup: ReaderSetup,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Readback {
    /// Starts it.
    pub fn start(setup: &ReaderSetup) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, its) = (stop.clone(), setup.clone());
        let mut random = SplitMix64::new(setup.plan.seed ^ 0xEC40);
        let thread = std::thread::Builder::new()
            .name("readback".into())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    if let Some((range, position)) = its.shared.take_latest() {
                        its.look(range, position, random.below(2) == 0);
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
            })?;
        Ok(Self {
            setup: setup.clone(),
            stop,
            thread: Some(thread),
        })
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            // Its message is on standard error.
            let text = "the verifier's reader of what was just acknowledged panicked";
            self.setup.shared.checker().fail(Kind::Failure, text);
        }
    }
}

impl Drop for Readback {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ReaderSetup {
    /// Checks that `range` is at `position`, or that the end is behind it.
    fn look(&self, range: MessageRange, position: Position, latest: bool) {
        let end = position.offset + range.count;
        let looked = if latest {
            self.end_of(position).map(|known| match known {
                Some(known) if known < end => Some(format!("the end is at {known}")),
                _ => None,
            })
        } else {
            self.reread(range, position)
        };
        let wrong = match looked {
            Ok(Some(_)) if self.plan.may_be_away() => return,
            Ok(wrong) => wrong,
            Err(error) if error.passes() => return,
            Err(LogClientError::Read(ReadError::Evicted {
                broker,
                position,
                first_available,
                // The checker adds the violation, if it is one.
            })) => {
                let mut checker = self.shared.checker();
                checker.was_evicted(
                    "the reader of what was just acknowledged",
                    self.plan.stream(broker),
                    position,
                    first_available,
                );
                return;
            }
            Err(error) => Some(error.to_string()),
        };
        self.shared.reread.fetch_add(1, Ordering::Relaxed);
        if let Some(wrong) = wrong {
            let (first, last, origin) =
                (range.number, range.number + range.count - 1, range.origin);
            self.shared.checker().fail(
                Kind::Stale,
                format_args!(
                    "messages {first} to {last} of {origin} were acknowledged at {position}, and could not be read at once: {wrong}"
                ),
            );
        }
    }

    /// The end at which a new subscriber begins, if it reached the broker.
    fn end_of(&self, position: Position) -> Result<Option<u64>, LogClientError> {
        let mut subscriber = self.open_at(Start::Latest, false)?;
        // It knows its beginning once it has looked for a message.
        match subscriber.next_timeout(LOOK_EVERY) {
            Ok(Some(message)) if message.broker == position.broker => {
                return Ok(Some(message.offset));
            }
            Ok(_) | Err(ReadError::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let next = subscriber.position();
        Ok(match position.broker {
            None => next.position(),
            Some(broker) => next.next(broker),
        })
    }

    /// What of `range` is not at `position`, if anything.
    fn reread(
        &self,
        range: MessageRange,
        position: Position,
    ) -> Result<Option<String>, LogClientError> {
        let start = match position.broker {
            None => Positions::at(position.offset),
            Some(broker) => {
                // Of the other brokers only new messages.
                let ends: Vec<_> = self.shared.checker().ends().collect();
                let ends = ends.into_iter().filter_map(|(row, end)| Some((row?, end)));
                let mut start = Positions::from_iter(ends);
                start.set(broker, position.offset);
                start
            }
        };
        let mut subscriber = self.open_at(Start::Positions(start), true)?;
        let mut seen = 0;
        while seen < range.count {
            let Some(message) = subscriber.next_timeout(WITHIN)? else {
                return Ok(Some(format!("the end came after {seen} of them")));
            };
            let at = position.offset + seen;
            if message.broker != position.broker || message.offset < at {
                continue;
            }
            let bytes = self.plan.message_bytes as usize;
            let is = stamp::read(self.run, bytes, message.value);
            let should = Stamp {
                origin: range.origin,
                number: range.number + seen,
            };
            if (message.offset, is) != (at, Some(should)) {
                return Ok(Some(format!("at {} is {is:?}", message.offset)));
            }
            seen += 1;
        }
        Ok(None)
    }

    fn open_at(&self, start: Start, until_end: bool) -> Result<Subscriber, OpenError> {
        Subscriber::builder(&self.bootstrap)
            .topic(TOPIC)
            .from(start)
            .until_end(until_end)
            .loss_timeout(WITHIN)
            .open_timeout(WITHIN)
            .metering(false)
            .open()
    }
}
