//! The server: sessions, ticks, and the way from one process to the next.
//!
//! A process that follows takes the listeners and the world while this one still accepts. First each player is sent on: what
//! it sent is taken and acknowledged, and so is what it was sent. Then the world stands still, and goes over. A player that
//! did not go in time loses nothing either, since the world knows the numbers of its moves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use embar_resume::{Keeper, KeeperSettings};
use embar_session::hand_over::{self, HandOverError};
use embar_session::{Address, Server, ServerBuilder, Settings, StartError};

use crate::arena::Arena;
use crate::guest::Guest;
use crate::pace::Pace;
use crate::protocol::PLAYERS_MAX;
use crate::world::World;
use crate::{complain, print};

/// How long players have to acknowledge what they were sent, before the world goes on without those who do not.
const DRAIN: Duration = Duration::from_secs(3);
/// How long a new process tries to listen, or to take over from an old one.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits for an offer before it tries again to listen: the old process may have ended.
const TAKE: Duration = Duration::from_secs(1);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two looks who is still there.
const LOOK: Duration = Duration::from_millis(5);
/// How long the ends of those sessions may take that are left.
const FAREWELL: Duration = Duration::from_secs(1);
/// Between two complaints about skipped ticks.
const COMPLAINTS: Duration = Duration::from_secs(1);

/// How to serve.
#[derive(Args)]
pub struct Options {
    /// Where to listen: `host:port` (port 0: any that is free) or `unix:/path`
    #[arg(default_value = "127.0.0.1:7777")]
    address: Address,
    /// A socket file by which the next process, started with the same address and path, takes over the world
    #[arg(long, value_name = "PATH")]
    hand_over: Option<PathBuf>,
    /// Milliseconds from one tick to the next
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(10..=1000))]
    tick: u32,
}

/// Serves until the process is asked to stop, or replaced.
///
/// # Errors
/// The address is not to be had.
pub fn run(options: &Options) -> Result<()> {
    let (server, keeper, arena) = open(options)?;
    let mut signals = crate::stop_signals()?;
    let (ends, end) = channel();
    let ticks = tick(&arena, Duration::from_millis(options.tick.into()));
    let server = Arc::new(server);
    let offering = options.hand_over.clone().map(|path| {
        let (server, keeper, arena) = (Arc::clone(&server), keeper.clone(), arena.clone());
        let ends = ends.clone();
        thread::spawn(move || {
            let is_replaced = offer(&server, &keeper, &arena, &path);
            drop(server);
            let _ = ends.send(());
            is_replaced
        })
    });
    thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            let _ = ends.send(());
        }
        // Who asks twice does not want to wait, also not for somebody who takes the world.
        if signals.next().is_some() {
            std::process::exit(1);
        }
    });
    end.recv()?;
    // Who is about to take the world gets it, and otherwise nobody does any more.
    server.stop_accepting();
    let is_replaced = offering.is_some_and(|it| it.join().unwrap_or_default());
    if !is_replaced {
        let _ = send_on(&keeper, DRAIN);
    }
    drop(ticks);
    if let Some(server) = Arc::into_inner(server) {
        server.shutdown(FAREWELL);
    }
    Ok(())
}

/// Listens; where another process does, it takes over from that one.
fn open(options: &Options) -> Result<(Server, Keeper, Arena)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // New ones each time: what came in an earlier try belongs to a world that is not played.
        let keeper = Keeper::new(KeeperSettings::default())?;
        let arena = Arena::new(World::new(fastrand::u64(..)));
        let builder = Server::builder().listen(&options.address);
        let server = match (start(builder, &keeper, arena.clone()), &options.hand_over) {
            (Err(StartError::Listen(error)), Some(path)) if error.is_in_use() => {
                match take_over(path, &keeper) {
                    Err(why) if Instant::now() < deadline && may_pass(&why) => {
                        if !nobody_offers(&why) {
                            complain(&why.to_string());
                        }
                    }
                    taken => {
                        let (server, arena) = taken
                            .with_context(|| format!("{error}, and it was not handed over"))?;
                        return Ok((server, keeper, arena));
                    }
                }
                thread::sleep(PAUSE);
                continue;
            }
            (started, _) => started?,
        };
        arena.thaw();
        print(&format!("listening on {}; Ctrl-C stops", server.address()));
        return Ok((server, keeper, arena));
    }
}

fn may_pass(why: &anyhow::Error) -> bool {
    why.downcast_ref().is_some_and(HandOverError::may_pass)
}

fn nobody_offers(why: &anyhow::Error) -> bool {
    matches!(why.downcast_ref(), Some(HandOverError::TimedOut))
}

fn start(
    builder: ServerBuilder<embar_session::Plain>,
    keeper: &Keeper,
    arena: Arena,
) -> Result<Server, StartError> {
    let settings = Settings::default().with(|settings| settings.max_sessions = PLAYERS_MAX * 2);
    let builder = builder.settings(settings);
    builder.start(keeper.handlers(move |_peer| Guest::new(&arena)))
}

/// The world of the process before. It stands still until that one has stopped: until then that one may go on with it.
fn take_over(path: &Path, keeper: &Keeper) -> Result<(Server, Arena)> {
    let mut taken = hand_over::take(path, TAKE)?;
    let world = World::read(&taken.state()).context("cannot go on with the world")?;
    let arena = Arena::new(world);
    let mut builder = Server::builder();
    for listener in taken.listeners() {
        builder = builder.listener(listener);
    }
    let server = start(builder, keeper, arena.clone())?;
    taken.ready()?;
    let (tick, players) = arena.figures();
    arena.thaw();
    print(&format!(
        "took over {} at tick {tick} with {players} players; Ctrl-C stops",
        server.address()
    ));
    Ok((server, arena))
}

/// Offers listeners and world until a process has them. Where that one does not get ready, the world goes on here. Returns whether one has them;
/// otherwise this one has stopped.
fn offer(server: &Server, keeper: &Keeper, arena: &Arena, path: &Path) -> bool {
    loop {
        let state = || {
            let left = send_on(keeper, DRAIN);
            let world = arena.freeze();
            print(&format!(
                "handing over; {left} players were away, or did not leave in time"
            ));
            Ok(world)
        };
        let offered = hand_over::offer_with_state(server, path, Duration::MAX, state);
        let was_frozen = arena.is_frozen();
        let Err(why) = offered else { return true };
        if was_frozen {
            arena.thaw();
            keeper.reopen();
        }
        if let HandOverError::NoListeners = why {
            return false;
        }
        complain(&format!("not replaced: {why}"));
        if !was_frozen {
            thread::sleep(COMPLAINTS);
        }
    }
}

/// Sends all players on, and waits until those are gone who are there. Nobody waits for who is away. Returns how many are left.
fn send_on(keeper: &Keeper, timeout: Duration) -> usize {
    let deadline = Instant::now() + timeout;
    let mut left = keeper.drain(Duration::ZERO);
    while left > keeper.suspended() && Instant::now() < deadline {
        thread::sleep(LOOK);
        left = keeper.sessions().len();
    }
    left
}

/// A thread that ticks until what this returns is dropped.
fn tick(arena: &Arena, every: Duration) -> Sender<()> {
    let (alive, ends) = channel();
    let arena = arena.clone();
    thread::spawn(move || {
        let mut pace = Pace::new(every, Instant::now());
        let mut skipped = Skipped::default();
        while ends.recv_timeout(pace.wait(Instant::now())) == Err(RecvTimeoutError::Timeout) {
            arena.tick();
            let now = Instant::now();
            if let Some(count) = skipped.add(pace.ticked(now), now) {
                complain(&format!("too slow: skipped {count} ticks"));
            }
        }
    });
    alive
}

/// Ticks that were skipped, and when that was said.
#[derive(Default)]
struct Skipped {
    count: u64,
    said: Option<Instant>,
}

impl Skipped {
    /// More were skipped. `Some`: that is to be said, and it is not said too often.
    fn add(&mut self, more: u32, now: Instant) -> Option<u64> {
        self.count += u64::from(more);
        let is_time = self.said.is_none_or(|said| now - said >= COMPLAINTS);
        if self.count == 0 || !is_time {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests;
