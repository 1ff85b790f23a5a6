//! The handlers of both ends, and what they tell of their time.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use embar_diagnose::session::observed::Way;
use embar_session::{Flow, Handler, Message, SendError, Session};

use super::messages::{Arrived, LARGE, Messages};

/// One message of so many is timed.
pub(super) const SAMPLE: u64 = 32;

/// What handlers of one end counted, all sessions together.
#[derive(Default)]
pub(super) struct Tally {
    /// Nanoseconds of the application's own code in handlers, from samples: without what they send.
    pub(super) own_ns: AtomicU64,
    /// Nanoseconds in which handlers decoded, likewise.
    pub(super) decoding_ns: AtomicU64,
    /// Messages of more than [`LARGE`] bytes.
    pub(super) large: AtomicU64,
    /// Bytes of their payloads.
    pub(super) large_bytes: AtomicU64,
    /// Messages that were not what was sent.
    pub(super) wrong: AtomicU64,
}

/// Takes messages, and answers them if that is asked.
pub(super) struct Taker {
    pub(super) way: Way,
    /// How long it computes for each message, on purpose.
    pub(super) computes: Duration,
    pub(super) tally: Arc<Tally>,
    pub(super) taken: u64,
}

/// Keeps so many messages on their way, once the first one was sent.
pub(super) struct Asker {
    pub(super) tally: Arc<Tally>,
    pub(super) messages: Arc<Messages>,
    pub(super) in_flight: u32,
    pub(super) on_their_way: u32,
    /// How many it has sent, the first one included.
    pub(super) sent: u64,
}

impl Asker {
    /// Sends as many as may be on their way. A full ring is no error: there is more room when an answer comes.
    fn fill(&mut self, session: &Session) -> Result<(), SendError> {
        while self.on_their_way < self.in_flight {
            match self.messages.send(session, self.sent) {
                Ok(()) => {
                    self.on_their_way += 1;
                    self.sent += 1;
                }
                Err(SendError::Full) if self.on_their_way > 0 => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Taker {
    /// Decodes a message, and does with it what an application does.
    fn use_it<'a>(&mut self, message: &Message<'a>) -> Option<Arrived<'a>> {
        self.taken += 1;
        let clock = || self.taken.is_multiple_of(SAMPLE).then(Instant::now);
        let began = clock();
        let arrived = Arrived::decode(message)?;
        let decoded = clock();
        let payload = black_box(arrived.payload());
        spin(self.computes);
        if let Some((began, decoded)) = began.zip(decoded) {
            add(&self.tally.own_ns, decoded.elapsed());
            add(&self.tally.decoding_ns, decoded - began);
        }
        if payload.len() > LARGE {
            self.tally.large.fetch_add(1, Relaxed);
            let bytes = payload.len() as u64;
            self.tally.large_bytes.fetch_add(bytes, Relaxed);
        }
        Some(arrived)
    }

    fn take(&mut self, session: &Session, message: &Message<'_>) -> Result<(), SendError> {
        let Some(arrived) = self.use_it(message) else {
            self.tally.wrong.fetch_add(1, Relaxed);
            return Ok(());
        };
        match self.way {
            Way::OneWay => Ok(()),
            Way::Echo => arrived.answer(session),
        }
    }
}

impl Handler for Taker {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if self.take(session, &message).is_err() {
            session.abort();
        }
        Flow::Continue
    }
}

impl Handler for Asker {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let arrived = Arrived::decode(&message);
        if !arrived.is_some_and(|it| self.messages.has(it.payload())) {
            self.tally.wrong.fetch_add(1, Relaxed);
        }
        self.on_their_way = self.on_their_way.saturating_sub(1);
        if self.fill(session).is_err() {
            session.abort();
        }
        Flow::Continue
    }
}

/// Adds what one message of so many took, less what the clock takes.
fn add(to: &AtomicU64, took: Duration) {
    let ns = took.saturating_sub(clock_takes()).as_nanos() as u64;
    to.fetch_add(ns * SAMPLE, Relaxed);
}

/// What it takes to read the clock twice: the least of many tries. Measured once.
pub(super) fn clock_takes() -> Duration {
    static TAKES: OnceLock<Duration> = OnceLock::new();
    let once = |_| Instant::now().elapsed();
    *TAKES.get_or_init(|| (0..1000).map(once).min().unwrap_or_default())
}

/// Computes for so long.
fn spin(time: Duration) {
    if time.is_zero() {
        return;
    }
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}
