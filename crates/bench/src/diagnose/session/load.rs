//! A server, a client with sessions to it, and threads that send, as long as they are looked at.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use embar_diagnose::session::observed::Way;
use embar_session::{
    Address, Client, OnFull, Plain, SendError, Server, Session, SessionStats, Settings,
};
use tempfile::TempDir;

use super::handlers::{Asker, SAMPLE, Taker, Tally, clock_takes};
use super::inject::Fault;
use super::messages::Messages;
use super::plan::{RING_BYTES, SessionLoad};
use super::tls::Encryption;
use crate::diagnose::pace::Pace;
use crate::session::measure::settings;
use crate::session::plan::Transport;

/// The threads that send begin so.
pub(super) const SENDS: &str = "send-";
/// Messages between two looks at the clock and at whether to stop.
const LOOK_EVERY: u64 = 8 * SAMPLE;
/// A ring that stays full for so long has nobody who empties it; whoever waits looks then whether to stop.
const FULL_FOR: Duration = Duration::from_millis(200);
/// A call that sends and takes longer has waited, which sessions count.
const WAITS: Duration = Duration::from_micros(50);
/// How long the ends may take to end.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Sessions that are used. Dropping them ends them.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    sending: Arc<SendTally>,
    client_tally: Arc<Tally>,
    server_tally: Arc<Tally>,
    threads: Vec<JoinHandle<Result<()>>>,
    sessions: Vec<Session>,
    /// Where the server listens.
    pub(super) address: Address,
    client: Option<Client>,
    server: Option<Server>,
    _dir: Option<TempDir>,
}

/// What was done so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Moved {
    pub(super) client: Counted,
    pub(super) server: Counted,
    /// Nanoseconds that threads were in calls that send, from samples, without their waits for room.
    pub(super) in_sends_ns: u64,
    /// Nanoseconds that threads waited until what they sent had left.
    pub(super) waited_to_leave_ns: u64,
}

/// What threads that send count of their time, nanoseconds.
#[derive(Default)]
struct SendTally {
    in_sends: AtomicU64,
    waited_to_leave: AtomicU64,
}

/// What one end counted, all its sessions together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) messages_received: u64,
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) waited_for_room: Duration,
    pub(super) own_ns: u64,
    pub(super) decoding_ns: u64,
    pub(super) large: u64,
    pub(super) large_bytes: u64,
}

impl Load {
    /// Starts it.
    pub(super) fn start(plan: &SessionLoad) -> Result<Self> {
        let frame = plan.messages().frame_bytes();
        let messages = Arc::new(Messages::of(plan.messages()));
        let encryption = plan.by_tls.then(Encryption::make).transpose()?;
        let (server_tally, client_tally) = (Arc::<Tally>::default(), Arc::<Tally>::default());
        let (address, dir) = listen(plan)?;
        let computes = plan.faults.iter().find_map(|fault| match fault {
            Fault::SlowHandler(time) => Some(*time),
            _ => None,
        });
        let of_server = of_end(plan, frame, plan.ring_of(RING_BYTES), |it| {
            it.sockets.recv_buffer_bytes = plan.recv_buffer.map(|it| it as usize);
        });
        let mut server = Server::builder().settings(of_server).listen(address);
        if let Some(encryption) = &encryption {
            server = server.tls(Arc::clone(&encryption.server));
        }
        let (way, tally) = (plan.way, Arc::clone(&server_tally));
        let server = server
            .start(move |_| Taker {
                way,
                computes: computes.unwrap_or_default(),
                tally: Arc::clone(&tally),
                taken: 0,
            })
            .context("cannot start the server")?;
        let of_client = of_end(plan, frame, plan.ring_bytes(), |it| {
            it.sockets.send_buffer_bytes = plan.send_buffer.map(|it| it as usize);
        });
        let client = Client::with(Plain, of_client).context("cannot start the client")?;
        let address = server.address();
        let opening: Vec<_> = (0..plan.sessions)
            .map(|_| {
                let handler = Asker {
                    tally: Arc::clone(&client_tally),
                    messages: Arc::clone(&messages),
                    in_flight: plan.in_flight,
                    on_their_way: 1,
                    sent: 1,
                };
                match &encryption {
                    Some(it) => client.open_tls(address.clone(), &it.client, &[], handler),
                    None => client.open(address.clone(), &[], handler),
                }
            })
            .collect();
        let open = |it: embar_session::Connecting| {
            it.wait()
                .map_err(|closed| anyhow!("cannot open a session to {address}: {closed}"))
        };
        let sessions = opening.into_iter().map(open).collect::<Result<_>>()?;
        let mut load = Self {
            stop: Arc::default(),
            sending: Arc::default(),
            client_tally,
            server_tally,
            threads: Vec::new(),
            sessions,
            address,
            client: Some(client),
            server: Some(server),
            _dir: dir,
        };
        match plan.way {
            Way::OneWay => load.send(plan, &messages)?,
            Way::Echo => load.ask(&messages)?,
        }
        Ok(load)
    }

    /// A thread for each session sends as fast as it can, or may.
    fn send(&mut self, plan: &SessionLoad, messages: &Arc<Messages>) -> Result<()> {
        let rate = plan.faults.iter().find_map(|fault| match fault {
            Fault::SlowSender(rate) => Some(*rate),
            _ => None,
        });
        for (number, session) in self.sessions.iter().enumerate() {
            let sending = Sending {
                session: session.clone(),
                messages: Arc::clone(messages),
                waits_after: plan.waits_after.map(u64::from),
                stop: Arc::clone(&self.stop),
                tally: Arc::clone(&self.sending),
                pace: Pace::new(rate, plan.sessions, plan.warm_up),
            };
            let builder = thread::Builder::new().name(format!("{SENDS}{number}"));
            self.threads.push(builder.spawn(move || sending.run())?);
        }
        Ok(())
    }

    /// Sends the first message of each session; handlers send the others.
    fn ask(&self, messages: &Messages) -> Result<()> {
        let first =
            |session| { messages.send(session, 0) }.context("cannot send the first message");
        self.sessions.iter().try_for_each(first)
    }

    /// What was done so far.
    pub(super) fn moved(&self) -> Moved {
        let server = self.server.iter().flat_map(Server::sessions);
        let client = self.sessions.iter();
        Moved {
            client: Counted::of(client.map(Session::stats), &self.client_tally),
            server: Counted::of(server.map(|it| it.stats()), &self.server_tally),
            in_sends_ns: self.sending.in_sends.load(Relaxed),
            waited_to_leave_ns: self.sending.waited_to_leave.load(Relaxed),
        }
    }

    /// Why it cannot go on, if it cannot.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(closed) = self.sessions.iter().find_map(Session::closed) {
            bail!("a session ended before its time: {closed}");
        }
        if self.threads.iter().any(JoinHandle::is_finished) {
            bail!("a thread that sends ended before its time");
        }
        Ok(())
    }

    /// Ends it, and tells why if it had ended before, or something was wrong.
    pub(super) fn end(mut self) -> Result<()> {
        let ended = self.stop();
        let wrong = [&self.client_tally, &self.server_tally];
        let wrong: u64 = wrong.iter().map(|it| it.wrong.load(Relaxed)).sum();
        if wrong > 0 {
            bail!("{wrong} messages did not arrive as they were sent");
        }
        ended
    }

    fn stop(&mut self) -> Result<()> {
        self.stop.store(true, Relaxed);
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread
                .join()
                .map_err(|_| anyhow!("a thread that sends panicked"));
            outcome = outcome.and(ended.and_then(|ended| ended));
        }
        for session in self.sessions.drain(..) {
            session.abort();
        }
        if let Some(client) = self.client.take() {
            client.shutdown(END_WITHIN);
        }
        if let Some(server) = self.server.take() {
            server.shutdown(END_WITHIN);
        }
        outcome
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _told_by_end = self.stop();
    }
}

impl Counted {
    fn of(sessions: impl Iterator<Item = SessionStats>, tally: &Tally) -> Self {
        let mut all = Self {
            own_ns: tally.own_ns.load(Relaxed),
            decoding_ns: tally.decoding_ns.load(Relaxed),
            large: tally.large.load(Relaxed),
            large_bytes: tally.large_bytes.load(Relaxed),
            ..Self::default()
        };
        for its in sessions {
            all.messages_received += its.messages_received;
            all.bytes_received += its.bytes_received;
            all.bytes_sent += its.bytes_sent;
            all.reads += its.reads;
            all.writes += its.writes;
            all.waited_for_room += its.waited_for_room;
        }
        all
    }
}

/// Where the server listens, and the directory of its socket.
fn listen(plan: &SessionLoad) -> Result<(Address, Option<TempDir>)> {
    match plan.transport {
        Transport::Tcp => Ok(("127.0.0.1:0".parse().context("an address")?, None)),
        Transport::Unix => {
            let dir = tempfile::tempdir().context("cannot make a directory for a socket")?;
            let address = Address::Unix(dir.path().join("diagnose.sock"));
            Ok((address, Some(dir)))
        }
    }
}

/// Settings of one end, whose rings have this size.
fn of_end(
    plan: &SessionLoad,
    frame: usize,
    ring: usize,
    change: impl FnOnce(&mut Settings),
) -> Settings {
    let mut all = settings(frame, RING_BYTES, plan.workers, Duration::ZERO);
    all.send_ring_bytes = ring;
    all.on_full = OnFull::Wait { timeout: FULL_FOR };
    change(&mut all);
    all
}

/// A thread that sends.
struct Sending {
    session: Session,
    messages: Arc<Messages>,
    waits_after: Option<u64>,
    stop: Arc<AtomicBool>,
    tally: Arc<SendTally>,
    pace: Pace,
}

impl Sending {
    fn run(mut self) -> Result<()> {
        let bytes = self.messages.bytes_of(LOOK_EVERY);
        let mut sent: u64 = 0;
        while !self.stop.load(Relaxed) {
            let timed = sent.is_multiple_of(SAMPLE);
            let began = timed.then(Instant::now);
            match self.messages.send(&self.session, sent) {
                Ok(()) => sent += 1,
                // Nobody empties it for a while: not for this thread to judge.
                Err(SendError::Full) => continue,
                Err(error) => return Err(error).context("cannot send"),
            }
            if let Some(began) = began {
                let took = began.elapsed();
                if took < WAITS {
                    let ns = took.saturating_sub(clock_takes()).as_nanos() as u64 * SAMPLE;
                    self.tally.in_sends.fetch_add(ns, Relaxed);
                }
            }
            if self.waits_after.is_some_and(|it| sent.is_multiple_of(it)) {
                self.wait_to_leave();
            }
            if sent.is_multiple_of(LOOK_EVERY) {
                self.pace.keep(bytes);
            }
        }
        Ok(())
    }

    /// Waits until all that was sent has left the ring: until there is room for as much as the ring holds.
    fn wait_to_leave(&self) {
        let began = Instant::now();
        let waker = Waker::from(Arc::new(Unparks(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut room = self.session.room(usize::MAX);
        while Pin::new(&mut room).poll(&mut context).is_pending() && !self.stop.load(Relaxed) {
            thread::park_timeout(FULL_FOR);
        }
        let ns = began.elapsed().as_nanos() as u64;
        self.tally.waited_to_leave.fetch_add(ns, Relaxed);
    }
}

/// Wakes a thread that is parked.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
