//! Starts the server and the client of `bench session`, and measures one run after the other with them: a phase over
//! sessions, or the same messages over bare sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use embar_console::context::Context;
use embar_console::interrupt::Interrupt;
use embar_console::setting::BadSetting;
use embar_readings::process::ProcessReading;
use embar_session::{
    Client as SessionClient, MemoryBudget, OnFull, Server as SessionServer, Session, Settings,
};
use embar_transport::Address;

use super::client::{EchoClient, SessionEvent};
use super::copying::{self, START};
use super::pace::Pace;
use super::payloads::Payloads;
use super::placement::Side;
use super::plan::{Phase, SessionPlan, Test, Transport};
use super::record::{Clock, EchoLimits, Record, Stall};
use super::report::MemoryUse;
use super::run::{Counted, SessionRun};
use super::server::{EchoServer, task};
use super::summary::WALL;
use super::wall;

/// Messages were lost while the highest rate was looked for.
#[derive(Debug, thiserror::Error)]
#[error("{lost} messages were lost while the highest rate was looked for")]
pub struct ProbeLost {
    /// How many messages were lost.
    pub lost: u64,
}

/// How often silence and Ctrl-C are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A run in which nothing comes back for this many timeouts is given up.
const TIMEOUTS_UNTIL_GIVEN_UP: u32 = 5;
/// What a session may take to end.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Messages that a ring holds at least.
const FRAMES_PER_RING: usize = 2;
/// Longest frame with a body, unless a frame of the plan is longer: what gathers lists of pieces
/// sends them as bodies.
const LONGEST_BODY: u32 = 16 << 20;
/// Messages between two looks at Ctrl-C.
const CHECK_EVERY: u64 = 4096;

/// A server, a client and what else all runs have in common.
pub struct SessionBench<'a> {
    plan: SessionPlan,
    payloads: Arc<Payloads>,
    context: &'a Context,
    clock: Clock,
    // Before the server, so that sessions end from the side that opened them.
    client: Option<SessionClient>,
    server: Option<SessionServer>,
    address: Option<Address>,
    _socket_dir: Option<tempfile::TempDir>,
}

/// Settings for sessions that carry frames of at most `frame_bytes`, in rings of at least `ring_bytes`.
pub fn settings(frame_bytes: usize, ring_bytes: usize, threads: u16, spin: Duration) -> Settings {
    let ring = ring_bytes.max(FRAMES_PER_RING * frame_bytes);
    let ring = ring.next_power_of_two();
    let mut settings = Settings::default().with(|settings| {
        settings.send_ring_bytes = ring;
        settings.recv_ring_bytes = ring;
        settings.workers = threads.into();
        settings.max_sessions = usize::MAX;
        settings.spin = spin;
        // What is measured is not what a server refuses.
        settings.admission.max_arrivals = usize::MAX;
        settings.admission.max_sessions_per_address = usize::MAX;
        settings.budget = Some(MemoryBudget::new(usize::MAX));
    });
    let session = &mut settings.session;
    // At most half a ring, so that there is room for an answer while another one is on its way.
    let half = u32::try_from(ring / 2).unwrap_or(u32::MAX);
    session.max_frame_bytes = half.min(session.max_frame_bytes).max(frame_bytes as u32);
    session.max_body_bytes = LONGEST_BODY.max(frame_bytes as u32);
    // A peer that is frozen is what this bench is to notice by itself.
    session.idle_timeout = Duration::ZERO;
    settings
}

impl<'a> SessionBench<'a> {
    /// Starts server and client for runs of this plan. Without phases only bare sockets can be measured.
    pub fn new(plan: &SessionPlan, phases: &[Phase], context: &'a Context) -> Result<Self> {
        let mut bench = Self {
            plan: plan.clone(),
            payloads: Arc::new(Payloads::new(plan.payload)),
            context,
            clock: Clock::calibrated(),
            client: None,
            server: None,
            address: None,
            _socket_dir: None,
        };
        if !phases.is_empty() {
            bench.start()?;
        }
        Ok(bench)
    }

    fn settings(&self) -> Settings {
        let mut settings = settings(
            self.payloads.frame_bytes(),
            self.plan.ring_bytes(),
            self.plan.threads,
            Duration::from_micros(self.plan.spin_us),
        );
        settings.on_full = OnFull::Wait {
            timeout: self.given_up_after(),
        };
        // So that only the warm-up touches fresh memory, as in a server that runs for long.
        settings.idle_rings = settings.idle_rings.max(self.plan.sessions as usize);
        settings
    }

    fn given_up_after(&self) -> Duration {
        self.plan.timeout * TIMEOUTS_UNTIL_GIVEN_UP
    }

    fn start(&mut self) -> Result<()> {
        embar_console::process::raise_file_limit();
        let placement = self.plan.placement;
        let address = match (&self.plan.connect, self.plan.transport) {
            (Some(address), _) => {
                let parsed: Result<Address, _> = address.parse();
                let wrong = |error: embar_transport::socket::AddressError| {
                    BadSetting::new(&["connect"], error.to_string())
                };
                self.address = Some(parsed.map_err(wrong)?);
                None
            }
            (None, Transport::Tcp) => Some("127.0.0.1:0".parse().context("an address")?),
            (None, Transport::Unix) => {
                let dir = tempfile::tempdir().context("cannot make a directory for a socket")?;
                let address = Address::Unix(dir.path().join("bench.sock"));
                self._socket_dir = Some(dir);
                Some(address)
            }
        };
        if let Some(address) = address {
            let settings = self.settings();
            let server = placement.on(Side::Server, || {
                let builder = SessionServer::builder().settings(settings).listen(address);
                builder
                    .start(|_| EchoServer::default())
                    .context("cannot start the server")
            })?;
            self.address = Some(server.address());
            self.server = Some(server);
        }
        let settings = self.settings();
        self.client = Some(placement.on(Side::Client, || {
            SessionClient::with(embar_session::Plain, settings).context("cannot start the client")
        })?);
        Ok(())
    }

    /// Why bare sockets cannot do the same.
    pub fn no_wall(&self) -> Option<&'static str> {
        self.plan.no_wall(self.payloads.frame_bytes())
    }

    /// Runs the same over bare sockets.
    pub fn wall(&self, number: usize) -> Result<SessionRun> {
        let (plan, interrupt) = (&self.plan, &self.context.interrupt);
        let frame_bytes = self.payloads.frame_bytes();
        if plan.test == Test::OneWay {
            let counted = wall::one_way(plan, frame_bytes, interrupt)?;
            return Ok(SessionRun::counted(WALL, number, plan, counted, None));
        }
        let records = match self.pace() {
            Some(pace) => {
                let more = frame_bytes - plan.payload.max as usize;
                wall::paced(plan, &pace, more, interrupt)?
            }
            None => wall::echoes(plan, frame_bytes, interrupt)?,
        };
        Ok(SessionRun::echoed(WALL, number, plan, &records, None))
    }

    /// Messages per second that the sessions reach when nothing holds them back.
    pub fn highest_rate(plan: &SessionPlan, phase: Phase, context: &'a Context) -> Result<f64> {
        let bench = Self::new(&plan.probe(), &[phase], context)?;
        // The first one is cold.
        bench.run(phase, 0)?;
        let run = bench.run(phase, 1)?;
        if !run.is_sound() {
            return Err(ProbeLost { lost: run.lost }.into());
        }
        Ok(run.messages_per_s)
    }

    fn pace(&self) -> Option<Pace> {
        let rate = self.plan.rate.filter(|_| self.plan.test.is_paced())?;
        Some(Pace::new(self.plan.sessions, rate))
    }

    /// Runs one phase over sessions.
    pub fn run(&self, phase: Phase, number: usize) -> Result<SessionRun> {
        let pace = self.pace().map(Arc::new);
        let mut open = self.open(phase, pace.as_ref())?;
        let run = if self.plan.test == Test::OneWay {
            self.count(&mut open, phase, number)?
        } else {
            self.echo(&mut open, phase, pace.as_deref(), number)?
        };
        for session in &open.sessions {
            session.close();
        }
        open.wait_for_the_end();
        Ok(run)
    }

    fn open(&self, phase: Phase, pace: Option<&Arc<Pace>>) -> Result<OpenSessions> {
        let (client, address) = self
            .client
            .as_ref()
            .zip(self.address.as_ref())
            .context("a bench with phases has a client")?;
        let (sender, events) = mpsc::channel();
        let greeting = task(&self.plan, phase);
        let one_way = self.plan.test == Test::OneWay;
        let limits = EchoLimits::of(&self.plan);
        let mut progress = Vec::new();
        let mut connecting = Vec::new();
        for session in 0..self.plan.sessions {
            let echoes = Arc::new(AtomicU64::new(0));
            progress.push(echoes.clone());
            let record = (!one_way)
                .then(|| Record::new(session, self.plan.iterations, self.plan.in_flight, limits));
            let handler = EchoClient {
                session,
                phase,
                payloads: self.payloads.clone(),
                in_flight: self.plan.in_flight as usize,
                pace: pace.cloned(),
                record,
                clock: self.clock,
                progress: echoes,
                events: sender.clone(),
            };
            connecting.push(client.open(address.clone(), &greeting, handler));
        }
        let mut sessions = Vec::new();
        for connecting in connecting {
            let session = connecting
                .wait()
                .map_err(|closed| anyhow!("cannot open a session to {address}: {closed}"))?;
            sessions.push(session);
        }
        Ok(OpenSessions {
            living: sessions.len(),
            sessions,
            progress,
            events,
        })
    }

    fn echo(
        &self,
        open: &mut OpenSessions,
        phase: Phase,
        pace: Option<&Pace>,
        number: usize,
    ) -> Result<SessionRun> {
        let (plan, interrupt) = (&self.plan, &self.context.interrupt);
        let given_up_after = self.given_up_after() + pace.map_or(Duration::ZERO, Pace::interval);
        let ended = thread::scope(|scope| -> Result<RunEnd> {
            if let Some(pace) = pace {
                let (payloads, sessions) = (&self.payloads, open.sessions.clone());
                let send = move || {
                    pace.send_all(plan, interrupt, |session, sequence| {
                        let echo = payloads.echo(session, sequence);
                        copying::send(phase.send, &sessions[session as usize], &echo).is_ok()
                    })
                };
                plan.placement.on(Side::Client, || {
                    thread::Builder::new()
                        .name("pace".into())
                        .spawn_scoped(scope, send)
                        .context("cannot start a thread")
                })?;
            } else {
                for session in &open.sessions {
                    // One that fails is closed, which is noticed below.
                    let _sent = session.send_with(START, 0, |_| {});
                }
            }
            open.watch(given_up_after, interrupt)
        })?;
        let limits = EchoLimits::of(plan);
        let mut records = ended.records;
        for session in 0..plan.sessions {
            // Not even its end was reported.
            if !records.iter().any(|record| record.session() == session) {
                records.push(Record::new(session, plan.iterations, 1, limits));
            }
        }
        records.sort_by_key(Record::session);
        Ok(SessionRun::echoed(
            phase.name(),
            number,
            plan,
            &records,
            ended.early,
        ))
    }

    fn count(&self, open: &mut OpenSessions, phase: Phase, number: usize) -> Result<SessionRun> {
        let (plan, interrupt) = (&self.plan, &self.context.interrupt);
        let session = open.sessions.first().context("one session")?.clone();
        let payloads = &self.payloads;
        let clock = self.clock;
        let send = move || -> Result<u64> {
            let started = clock.now();
            for sequence in 1..=plan.iterations {
                if sequence.is_multiple_of(CHECK_EVERY) {
                    interrupt.check()?;
                }
                if copying::send(phase.send, &session, &payloads.echo(0, sequence)).is_err() {
                    // It is closed, or full for too long; either shows in what is missing.
                    session.abort();
                    break;
                }
            }
            Ok(started)
        };
        let started = thread::scope(|scope| {
            let sending = plan.placement.on(Side::Client, || {
                thread::Builder::new()
                    .name("sender".into())
                    .spawn_scoped(scope, send)
                    .context("cannot start a thread")
            })?;
            sending
                .join()
                .map_err(|_| anyhow!("the sending thread panicked"))?
        })?;
        let (counted, early) = self.counted(open, started)?;
        Ok(SessionRun::counted(
            phase.name(),
            number,
            plan,
            counted,
            early,
        ))
    }

    /// Waits for the answer to the last message.
    fn counted(&self, open: &mut OpenSessions, started: u64) -> Result<(Counted, Option<String>)> {
        let sent = self.clock.now();
        let patience = self.given_up_after();
        let deadline = Instant::now() + patience;
        let mut early = Some(format!(
            "nothing was counted within {} s after the last message",
            patience.as_secs_f64()
        ));
        let mut counted = Counted {
            right: 0,
            wrong: 0,
            elapsed: Duration::ZERO,
            stall: None,
        };
        while Instant::now() < deadline {
            self.context.interrupt.check()?;
            match open.events.recv_timeout(LOOK_EVERY) {
                Ok(SessionEvent::Counted { right, wrong, at }) => {
                    counted.right = right;
                    counted.wrong = wrong;
                    counted.elapsed = Duration::from_nanos(at.saturating_sub(started));
                    early = None;
                    break;
                }
                Ok(SessionEvent::Closed { why, .. }) => {
                    open.living -= 1;
                    early = Some(format!("the session ended: {why}"));
                    break;
                }
                Ok(SessionEvent::Done(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let waited = self.clock.now().saturating_sub(sent);
        if early.is_some() || u128::from(waited) >= self.plan.stall.as_nanos() {
            counted.stall = Some(Stall {
                session: 0,
                sequence: self.plan.iterations,
                ms: waited as f64 / 1e6,
                ended: early.is_none(),
            });
        }
        Ok((counted, early))
    }

    /// The memory that sessions took until now.
    pub fn memory(&self) -> Option<MemoryUse> {
        self.client.as_ref()?;
        let settings = self.settings();
        let sides = 1 + u64::from(self.server.is_some());
        let rings = (settings.send_ring_bytes + settings.recv_ring_bytes) as u64;
        Some(MemoryUse {
            peak_rss_bytes: ProcessReading::of_self().ok()?.peak_rss_bytes?,
            ring_bytes: sides * u64::from(self.plan.sessions) * rings,
        })
    }
}

/// The sessions of one run.
struct OpenSessions {
    sessions: Vec<Session>,
    progress: Vec<Arc<AtomicU64>>,
    events: Receiver<SessionEvent>,
    /// Those whose end was not reported.
    living: usize,
}

/// What became of the sessions of one run.
struct RunEnd {
    records: Vec<Record>,
    early: Option<String>,
}

impl OpenSessions {
    /// Waits until all messages of all sessions came back, or nothing has come back for too long.
    fn watch(&mut self, given_up_after: Duration, interrupt: &Interrupt) -> Result<RunEnd> {
        let mut records: Vec<Record> = Vec::new();
        let mut early = None;
        let mut last_progress = vec![(0, Instant::now()); self.sessions.len()];
        let mut pending = self.sessions.len();
        let mut given_up: Option<Instant> = None;
        let mut next_look = Instant::now() + LOOK_EVERY;
        while pending > 0 && given_up.is_none_or(|since| since.elapsed() < END_WITHIN) {
            match self.events.recv_timeout(LOOK_EVERY) {
                Ok(SessionEvent::Done(record)) => {
                    records.push(record);
                    pending -= 1;
                }
                Ok(SessionEvent::Closed {
                    session,
                    record,
                    why,
                }) => {
                    self.living -= 1;
                    if let Some(record) = record {
                        early.get_or_insert_with(|| format!("session {session} ended: {why}"));
                        records.push(record);
                        pending -= 1;
                    }
                }
                Ok(SessionEvent::Counted { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() < next_look {
                continue;
            }
            next_look = Instant::now() + LOOK_EVERY;
            if let Err(interrupted) = interrupt.check() {
                self.abort();
                return Err(interrupted.into());
            }
            let silent = self.longest_silence(&mut last_progress, &records);
            if given_up.is_none() && silent >= given_up_after {
                let seconds = silent.as_secs_f64();
                early.get_or_insert_with(|| {
                    format!("nothing came back for {seconds:.1} s, so the run was given up")
                });
                self.abort();
                given_up = Some(Instant::now());
            }
        }
        Ok(RunEnd { records, early })
    }

    /// The longest silence of the sessions that still wait for something.
    fn longest_silence(&self, last_progress: &mut [(u64, Instant)], done: &[Record]) -> Duration {
        let mut waiting = vec![true; last_progress.len()];
        for record in done {
            waiting[record.session() as usize] = false;
        }
        let mut longest = Duration::ZERO;
        for ((progress, (last, since)), waiting) in
            self.progress.iter().zip(last_progress).zip(waiting)
        {
            let now = progress.load(Ordering::Relaxed);
            if now != *last || !waiting {
                (*last, *since) = (now, Instant::now());
            }
            longest = longest.max(since.elapsed());
        }
        longest
    }

    fn abort(&self) {
        for session in &self.sessions {
            session.abort();
        }
    }

    /// Waits until all sessions have ended, so that the next run does not share the machine with them.
    fn wait_for_the_end(&mut self) {
        let deadline = Instant::now() + END_WITHIN;
        while self.living > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(SessionEvent::Closed { .. }) => self.living -= 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
