//! Reads what was acknowledged a moment ago: whichever broker is asked, it must be there at once.
//!
//! Each look opens a subscriber of its own. It reads until the end as it was when it began, or begins at the latest
//! message: both tell how far its broker was by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use embar_client::{OpenError, Positions, ReadError, Start, Subscriber};
use embar_meter::random::SplitMix64;

use super::ledger::Run;
use super::log_client_error::LogClientError;
use super::plan::TOPIC;
use super::readers::Setting;
use super::stamp::{self, Stamp};
use super::trail::Place;
use super::violation::Kind;

/// Between two looks; an acknowledgement that comes meanwhile is read at once.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Brokers that die are given up soon: what cannot be read at all is noticed by others.
const WITHIN: Duration = Duration::from_secs(2);

/// The thread that reads, until it is stopped.
pub struct Echo {
    setting: Setting,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts it.
    pub fn start(setting: &Setting) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, its) = (stop.clone(), setting.clone());
        let mut random = SplitMix64::new(setting.plan.seed ^ 0xEC40);
        let thread = std::thread::Builder::new()
            .name("echo".into())
            .spawn(move || {
                while !told.load(Ordering::Relaxed) {
                    if let Some((run, place)) = its.books.take_latest() {
                        its.look(run, place, random.below(2) == 0);
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
            })?;
        Ok(Self {
            setting: setting.clone(),
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
            // What it said is on standard error.
            let text = "the verifier's reader of what was just acknowledged panicked";
            self.setting.books.checker().fail(Kind::Failure, text);
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Setting {
    /// Looks whether `run` is at `place`, or whether the end is behind it.
    fn look(&self, run: Run, place: Place, latest: bool) {
        let end = place.offset + run.count;
        let looked = if latest {
            self.end_of(place).map(|known| match known {
                Some(known) if known < end => Some(format!("the end is at {known}")),
                _ => None,
            })
        } else {
            self.reread(run, place)
        };
        let wrong = match looked {
            Ok(Some(_)) if self.plan.may_be_away() => return,
            Ok(wrong) => wrong,
            Err(error) if error.passes() => return,
            Err(LogClientError::Read(ReadError::Evicted {
                broker,
                position,
                first_available,
            })) => {
                // It tells what is wrong with that itself.
                let mut checker = self.books.checker();
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
        self.books.reread.fetch_add(1, Ordering::Relaxed);
        if let Some(wrong) = wrong {
            let (first, last, origin) = (run.number, run.number + run.count - 1, run.origin);
            self.books.checker().fail(
                Kind::Stale,
                format_args!(
                    "messages {first} to {last} of {origin} were acknowledged at {place}, and could not be read at once: {wrong}"
                ),
            );
        }
    }

    /// The end that a new subscriber begins at, if its broker is among those that it reached.
    fn end_of(&self, place: Place) -> Result<Option<u64>, LogClientError> {
        let mut subscriber = self.open_at(Start::Latest, false)?;
        // Where it begins it knows once it has looked for a message.
        match subscriber.next_timeout(LOOK_EVERY) {
            Ok(Some(message)) if message.broker == place.broker => {
                return Ok(Some(message.offset));
            }
            Ok(_) | Err(ReadError::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let position = subscriber.position();
        Ok(match place.broker {
            None => position.position(),
            Some(broker) => position.next(broker),
        })
    }

    /// What of `run` is not at `place`, if anything.
    fn reread(&self, run: Run, place: Place) -> Result<Option<String>, LogClientError> {
        let start = match place.broker {
            None => Positions::at(place.offset),
            Some(broker) => {
                // Of the others only what comes.
                let ends: Vec<_> = self.books.checker().ends().collect();
                let ends = ends.into_iter().filter_map(|(row, end)| Some((row?, end)));
                let mut start = Positions::from_iter(ends);
                start.set(broker, place.offset);
                start
            }
        };
        let mut subscriber = self.open_at(Start::Positions(start), true)?;
        let mut seen = 0;
        while seen < run.count {
            let Some(message) = subscriber.next_timeout(WITHIN)? else {
                return Ok(Some(format!("the end came after {seen} of them")));
            };
            let at = place.offset + seen;
            if message.broker != place.broker || message.offset < at {
                continue;
            }
            let bytes = self.plan.message_bytes as usize;
            let is = stamp::read(self.run, bytes, message.value);
            let should = Stamp {
                origin: run.origin,
                number: run.number + seen,
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
