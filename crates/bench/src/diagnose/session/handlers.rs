//! The handlers of both ends, and what they tell of their time.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use embar_diagnose::session::observed::Way;
use embar_session::{Flow, Handler, Message, SendError, Session};

use crate::session::copying::ECHO;
use crate::session::proto::EchoView;

/// One message of so many is timed.
pub(super) const SAMPLE: u64 = 32;

/// What handlers of one end counted, all sessions together.
#[derive(Default)]
pub(super) struct Tally {
    /// Nanoseconds of the application's own code in handlers, from samples: without what they send.
    pub(super) own_ns: AtomicU64,
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
    pub(super) payload: Arc<[u8]>,
    pub(super) in_flight: u32,
    pub(super) on_their_way: u32,
}

impl Asker {
    /// Sends as many as may be on their way. A full ring is no error: there is more room when an answer comes.
    fn fill(&mut self, session: &Session) -> Result<(), SendError> {
        while self.on_their_way < self.in_flight {
            match ask(session, &self.payload) {
                Ok(()) => self.on_their_way += 1,
                Err(SendError::Full) if self.on_their_way > 0 => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Taker {
    /// What an application does with a message.
    fn use_it(&mut self, payload: &[u8]) {
        self.taken += 1;
        let began = self.taken.is_multiple_of(SAMPLE).then(Instant::now);
        black_box(payload);
        spin(self.computes);
        if let Some(began) = began {
            let took = began.elapsed().saturating_sub(clock_takes());
            let ns = took.as_nanos() as u64 * SAMPLE;
            self.tally.own_ns.fetch_add(ns, Relaxed);
        }
    }

    fn take(&mut self, session: &Session, message: &Message<'_>) -> Result<(), SendError> {
        let Ok(echo) = message.decode::<EchoView<'_>>() else {
            self.tally.wrong.fetch_add(1, Relaxed);
            return Ok(());
        };
        self.use_it(echo.payload);
        match self.way {
            Way::OneWay => Ok(()),
            Way::Echo => session.send_view(ECHO, &echo),
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
        let echo = message.decode::<EchoView<'_>>();
        if echo.is_ok_and(|it| it.payload.len() != self.payload.len()) {
            self.tally.wrong.fetch_add(1, Relaxed);
        }
        self.on_their_way = self.on_their_way.saturating_sub(1);
        if self.fill(session).is_err() {
            session.abort();
        }
        Flow::Continue
    }
}

/// Sends one message.
pub(super) fn ask(session: &Session, payload: &[u8]) -> Result<(), SendError> {
    let sequence = 1;
    session.send_view(ECHO, &EchoView { sequence, payload })
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
