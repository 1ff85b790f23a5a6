//! The honest peers of a drill: sessions that do round trips all the time, and newcomers that connect, do one, and
//! leave.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use embar_session::{
    Client, Closed, Connecting, Flow, Handler, Message, Plain, Session, Settings, TlsTarget,
};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::DrillPlan;
use super::server::Listening;
use crate::session::certificate;
use crate::session::copying::{Arrived, ECHO};
use crate::session::payloads::Payloads;
use crate::session::plan::ReceiveMode;
use crate::session::record::Clock;
use crate::session::server::echo_task;

/// Between two newcomers.
const NEWCOMER_EVERY: Duration = Duration::from_millis(20);
/// Sessions of the client beside those that last.
const NEWCOMERS_MAX: usize = 16;
/// Bytes of each ring of a client's session, unless messages need more.
const RING_BYTES: usize = 64 << 10;
/// Longest latency that is told apart, nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What honest peers saw in some time.
#[derive(Debug)]
pub(super) struct Seen {
    /// Round trips of the sessions that last, nanoseconds.
    pub(super) round_trips: Histogram<u64>,
    /// From when a newcomer began to connect until it had its echo, nanoseconds.
    pub(super) newcomers: Histogram<u64>,
}

impl Seen {
    fn new() -> Self {
        let empty = || {
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
                .expect("bounds that a histogram can have")
        };
        Self {
            round_trips: empty(),
            newcomers: empty(),
        }
    }
}

/// What went wrong for honest peers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Harm {
    /// Messages of sessions that were not echoed in time.
    pub lost: u64,
    /// Echoes that were not what was sent.
    pub wrong: u64,
    /// Sessions that ended although nobody wanted that.
    pub sessions_ended: u64,
    /// Newcomers that got no session, or no echo in time.
    pub newcomers_failed: u64,
    /// Some reasons, as the honest saw them.
    pub reasons: Vec<String>,
}

/// Reasons that are kept.
const REASONS: usize = 5;

impl Harm {
    /// Whether there was none.
    pub fn is_none(&self) -> bool {
        self.lost + self.wrong + self.sessions_ended + self.newcomers_failed == 0
    }

    fn because(&mut self, reason: String) {
        if self.reasons.len() < REASONS && !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }
}

struct Shared {
    clock: Clock,
    timeout: Duration,
    payloads: Payloads,
    /// Nothing more is to be sent.
    stop: AtomicBool,
    tally: Mutex<(Seen, Harm)>,
}

impl Shared {
    fn tally(&self) -> MutexGuard<'_, (Seen, Harm)> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn ask(&self, session: &Session, number: u32, sequence: u64) -> bool {
        let echo = self.payloads.echo(number, sequence);
        session.send_view(ECHO, &echo).is_ok()
    }

    /// Whether this is the echo of that message.
    fn is_echo(&self, message: Message<'_>, number: u32, sequence: u64) -> bool {
        let arrived = Arrived::from_ring(ReceiveMode::ZeroCopy, &message);
        message.id() == ECHO
            && arrived.is_ok_and(|arrived| {
                let (came, payload) = arrived.parts();
                self.payloads.is_right(number, sequence, came, payload)
            })
    }
}

/// A session that lasts.
struct Regular {
    number: u32,
    sequence: u64,
    sent_at: u64,
    shared: Arc<Shared>,
    /// Told when its last echo has come, or never will.
    done: Option<Sender<()>>,
}

impl Regular {
    fn ask(&mut self, session: &Session, now: u64) {
        self.sequence += 1;
        self.sent_at = now;
        if !self.shared.ask(session, self.number, self.sequence) {
            session.abort();
        }
    }
}

impl Handler for Regular {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        let now = self.shared.clock.now();
        self.ask(session, now);
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let now = self.shared.clock.now();
        let right = self.shared.is_echo(message, self.number, self.sequence);
        let latency = now.saturating_sub(self.sent_at);
        let mut tally = self.shared.tally();
        let (seen, harm) = &mut *tally;
        seen.round_trips.saturating_record(latency);
        harm.wrong += u64::from(!right);
        harm.lost += u64::from(u128::from(latency) > self.shared.timeout.as_nanos());
        drop(tally);
        if self.shared.is_stopping() {
            // Dropped, it tells the same.
            drop(self.done.take());
        } else {
            self.ask(session, now);
        }
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        if self.done.is_none() {
            return;
        }
        let mut tally = self.shared.tally();
        tally.1.lost += 1;
        tally.1.sessions_ended += 1;
        tally.1.because(why.to_string());
    }
}

/// A session that does one round trip.
struct Newcomer {
    number: u32,
    shared: Arc<Shared>,
    came: Sender<bool>,
}

impl Handler for Newcomer {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        if !self.shared.ask(session, self.number, 1) {
            session.abort();
        }
    }

    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let right = self.shared.is_echo(message, self.number, 1);
        // Nobody waits any more for one that came too late.
        let _told = self.came.send(right);
        Flow::Continue
    }
}

/// How clients reach the server.
struct Door {
    listening: Listening,
    trusted: Option<TlsTarget>,
    greeting: Vec<u8>,
}

impl Door {
    fn open(&self, client: &Client, handler: impl Handler) -> Connecting {
        let address = self.listening.address;
        match &self.trusted {
            Some(tls) => client.open_tls(address, tls, &self.greeting, handler),
            None => client.open(address, &self.greeting, handler),
        }
    }
}

/// The honest peers.
pub(super) struct Honest {
    shared: Arc<Shared>,
    sessions: Vec<Session>,
    /// One that ends when all sessions have their last echoes.
    done: std::sync::mpsc::Receiver<()>,
    newcomers: Option<JoinHandle<()>>,
    // Last: sessions end with it.
    _client: Arc<Client>,
}

impl Honest {
    /// Opens the sessions that last; they, and newcomers, begin at once.
    pub(super) fn start(plan: &DrillPlan, listening: Listening) -> Result<Self> {
        let payloads = Payloads::new(plan.payload);
        let ring = RING_BYTES
            .max(4 * payloads.frame_bytes())
            .next_power_of_two();
        let settings = Settings::default().with(|settings| {
            settings.send_ring_bytes = ring;
            settings.recv_ring_bytes = ring;
            settings.max_sessions = plan.sessions as usize + NEWCOMERS_MAX;
            settings.session.max_frame_bytes = (ring / 2) as u32;
            settings.session.hello_timeout = plan.timeout;
        });
        let client = Client::with(Plain, settings).context("cannot start the client")?;
        let client = Arc::new(client);
        let shared = Arc::new(Shared {
            clock: Clock::calibrated(),
            timeout: plan.timeout,
            payloads,
            stop: AtomicBool::new(false),
            tally: Mutex::new((Seen::new(), Harm::default())),
        });
        let door = Door {
            trusted: listening
                .certificate
                .as_deref()
                .map(certificate::trusting)
                .transpose()?,
            listening,
            greeting: echo_task(plan.payload),
        };
        let (done, all_done) = channel();
        let regulars: Vec<Connecting> = (0..plan.sessions)
            .map(|number| {
                let regular = Regular {
                    number,
                    sequence: 0,
                    sent_at: 0,
                    shared: Arc::clone(&shared),
                    done: Some(done.clone()),
                };
                door.open(&client, regular)
            })
            .collect();
        drop(done);
        let mut sessions = Vec::new();
        for connecting in regulars {
            let session = connecting
                .wait()
                .map_err(|closed| anyhow!("cannot open an honest session: {closed}"))?;
            sessions.push(session);
        }
        let newcomers = {
            let (client, shared) = (Arc::clone(&client), Arc::clone(&shared));
            let first = plan.sessions;
            thread::Builder::new()
                .name("newcomers".into())
                .spawn(move || come(&door, &client, &shared, first))
                .context("cannot start a thread")?
        };
        Ok(Self {
            shared,
            sessions,
            done: all_done,
            newcomers: Some(newcomers),
            _client: client,
        })
    }

    /// What was seen since the last time.
    pub(super) fn take(&self) -> Seen {
        let fresh = Seen::new();
        std::mem::replace(&mut self.shared.tally().0, fresh)
    }

    /// Waits for the last echoes, and ends. What went wrong in all the time.
    pub(super) fn end(mut self) -> Harm {
        self.stop();
        let deadline = Instant::now() + self.shared.timeout;
        let left = deadline.saturating_duration_since(Instant::now());
        // Nothing is ever sent by it: it ends, or does not.
        if self.done.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            let mut tally = self.shared.tally();
            tally
                .1
                .because("the last echoes did not come in time".to_owned());
            drop(tally);
            // Each that misses one counts it as lost when it is closed.
            for session in &self.sessions {
                session.abort();
            }
            let _closed = self.done.recv_timeout(self.shared.timeout);
        }
        for session in &self.sessions {
            session.close();
        }
        self.shared.tally().1.clone()
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(newcomers) = self.newcomers.take()
            && newcomers.join().is_err()
        {
            let mut tally = self.shared.tally();
            tally.1.newcomers_failed += 1;
            tally
                .1
                .because("the thread of newcomers panicked".to_owned());
        }
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Newcomers, one after the other.
fn come(door: &Door, client: &Client, shared: &Arc<Shared>, first: u32) {
    let mut number = first;
    while !shared.is_stopping() {
        let began = shared.clock.now();
        let (came, echo) = channel();
        let newcomer = Newcomer {
            number,
            shared: Arc::clone(shared),
            came,
        };
        let outcome = match door.open(client, newcomer).wait() {
            Ok(session) => {
                let outcome = match echo.recv_timeout(shared.timeout) {
                    Ok(true) => Ok(()),
                    Ok(false) => Err("a newcomer got a wrong echo".to_owned()),
                    Err(_) => Err("a newcomer got no echo in time".to_owned()),
                };
                session.close();
                outcome
            }
            Err(closed) => Err(format!("a newcomer got no session: {closed}")),
        };
        let took = shared.clock.now().saturating_sub(began);
        let mut tally = shared.tally();
        match outcome {
            Ok(()) => tally.0.newcomers.saturating_record(took),
            Err(why) => {
                tally.1.newcomers_failed += 1;
                tally.1.because(why);
            }
        }
        drop(tally);
        number = number.wrapping_add(1).max(first);
        thread::sleep(NEWCOMER_EVERY);
    }
}
