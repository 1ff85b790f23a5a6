//! A server tells its players where everything is, many times a second. Three players look at the same time: one gets the state as
//! messages by TCP, one as messages by QUIC, one as datagrams by QUIC.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use embar_session::{Datagram, Flow, Handler, Message, Session};
use hdrhistogram::Histogram;

use crate::ends::Ends;

/// What the state is as a message, and as a datagram.
const STATE: u16 = 1;
/// A player wants to be told by messages, or by datagrams.
const BY_MESSAGES: u16 = 2;
const BY_DATAGRAMS: u16 = 3;

/// How often a player looks at the newest state.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Connections are young, and timers know nothing of the path.
const COLD: Duration = Duration::from_secs(2);
/// Longer than a connect takes.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    path: crate::Path,
    /// States a second
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// Bytes of a state
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(8..=1100))]
    bytes: u32,
    /// Seconds that count
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// The server's handler: says which way a player wants its state.
struct Game(Sender<(Session, u16)>);

impl Handler for Game {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let _ = self.0.send((session.clone(), message.id()));
        Flow::Continue
    }
}

/// When the newest state that a player has was sent, in nanoseconds since the start.
#[derive(Clone, Default)]
struct Newest(Arc<AtomicU64>);

impl Newest {
    fn see(&self, state: &[u8]) {
        if let Some(stamp) = state.first_chunk() {
            self.0
                .fetch_max(u64::from_le_bytes(*stamp), Ordering::Relaxed);
        }
    }
}

impl Handler for Newest {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        self.see(message.payload());
        Flow::Continue
    }

    fn datagram(&mut self, _: &Session, datagram: Datagram<'_>) {
        self.see(datagram.payload());
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    options.path.make()?;
    let (joined, joining) = channel();
    let ends = Ends::start(move |_| Game(joined.clone()))?;
    let newest: [Newest; 3] = Default::default();
    let sessions = [
        ends.by_tcp(newest[0].clone())?,
        ends.by_quic(newest[1].clone())?,
        ends.by_quic(newest[2].clone())?,
    ];
    for (session, way) in sessions
        .iter()
        .zip([BY_MESSAGES, BY_MESSAGES, BY_DATAGRAMS])
    {
        session.send_with(way, 0, |_| ())?;
    }
    let mut players = Vec::new();
    while players.len() < sessions.len() {
        let player = joining.recv_timeout(PATIENCE);
        players.push(player.context("a player does not say how it wants its state")?);
    }
    let start = Instant::now();
    let (options_rate, bytes) = (options.rate, options.bytes as usize);
    let end = start + COLD + Duration::from_secs(options.seconds.into());
    let telling = thread::spawn(move || tell(&players, start, end, options_rate, bytes));
    let ages = look(&newest, start, end)?;
    // A session that ended would look old.
    for session in &sessions {
        if let Some(why) = session.closed() {
            anyhow::bail!("a session ended: {why}");
        }
    }
    telling.join().expect("it does not panic");

    println!(
        "{} states a second of {bytes} bytes, {:?} each way, {} % of the packets lost",
        options.rate, options.path.delay, options.path.loss
    );
    println!(
        "{:<16} {:>8} {:>8} {:>8}   age of the newest state, ms",
        "", "P50", "P99", "max"
    );
    for (name, ages) in ["TCP, messages", "QUIC, messages", "QUIC, datagrams"]
        .iter()
        .zip(&ages)
    {
        let ms = |micros: u64| micros as f64 / 1000.0;
        let [p50, p99] = [0.5, 0.99].map(|part| ms(ages.value_at_quantile(part)));
        println!("{name:<16} {p50:>8.1} {p99:>8.1} {:>8.1}", ms(ages.max()));
    }
    if let Some(stats) = sessions[2].datagram_stats() {
        println!(
            "{} datagrams came, {} came too late",
            stats.received, stats.dropped
        );
    }
    Ok(())
}

/// Tells all players the state, as they want it.
fn tell(players: &[(Session, u16)], start: Instant, end: Instant, rate: u32, bytes: usize) {
    let mut due = start;
    while due < end {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let stamp = nanos(start.elapsed()).to_le_bytes();
        let fill = |to: &mut [u8]| {
            to.fill(0);
            to[..stamp.len()].copy_from_slice(&stamp);
        };
        for (player, way) in players {
            // One that cannot take it has the next one.
            if *way == BY_DATAGRAMS {
                let _ = player.send_datagram_with(STATE, bytes, fill);
            } else {
                let _ = player.send_with(STATE, bytes, fill);
            }
        }
        due += Duration::from_secs(1) / rate;
    }
}

/// How old the newest state of each player is, in microseconds, whenever it looks.
fn look(newest: &[Newest; 3], start: Instant, end: Instant) -> Result<[Histogram<u64>; 3]> {
    let new = || Histogram::new(3);
    let mut ages = [new()?, new()?, new()?];
    thread::sleep(COLD);
    while Instant::now() < end {
        for (ages, newest) in ages.iter_mut().zip(newest) {
            let sent = newest.0.load(Ordering::Relaxed);
            let age = nanos(start.elapsed()).saturating_sub(sent);
            ages.record(age / 1000)?;
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(ages)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
