//! Load: many players of one process, each of which moves at a rate towards the nearest coin. At the end it says what became
//! of every move.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use embar_session::{Address, SendError};
use hdrhistogram::Histogram;

use crate::pilot::{Eyes, Pilot, Tally, connector};
use crate::print;
use crate::protocol::{Direction, PLAYERS_MAX, SnapshotView};

/// How long the last moves may take to be made; a server may be replaced meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks whether something has come about.
const LOOK: Duration = Duration::from_millis(5);

/// What bots do.
#[derive(Args)]
pub struct Options {
    /// Where the server listens
    address: Address,
    /// How many play
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=PLAYERS_MAX as i64))]
    count: u32,
    /// How long they play, in seconds; Ctrl-C ends it earlier
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 10)]
    seconds: u64,
    /// How many moves a second each of them makes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
}

/// What a bot sees.
struct Sight {
    /// Towards the nearest coin.
    direction: Direction,
    /// Moves that were made, the number of the last of them, and finds, as the world says.
    moves: u64,
    last_move: u64,
    finds: u64,
    snapshots: u64,
    /// How many times it was at another server when it saw one.
    restarts: u32,
    last_snapshot: Option<Instant>,
    /// The longest time without a snapshot, since it was asked for.
    longest_wait: Duration,
    /// When moves were sent that were not seen to be made.
    sent: VecDeque<(u64, Instant)>,
    /// How long moves took from the key to the picture, in microseconds.
    latencies: Histogram<u64>,
}

#[derive(Clone)]
struct BotEyes(Arc<Mutex<Sight>>);

impl BotEyes {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Sight {
            direction: Direction::DIRECTION_RIGHT,
            moves: 0,
            last_move: 0,
            finds: 0,
            snapshots: 0,
            restarts: 0,
            last_snapshot: None,
            longest_wait: Duration::ZERO,
            sent: VecDeque::new(),
            latencies: histogram(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Sight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Eyes for BotEyes {
    fn see(&mut self, so_far: &Tally, snapshot: &SnapshotView<'_>) {
        let mut sight = self.lock();
        let now = Instant::now();
        if let Some(last) = sight.last_snapshot.replace(now) {
            sight.longest_wait = sight.longest_wait.max(now - last);
        }
        sight.snapshots += 1;
        sight.restarts = so_far.restarts;
        let Some(player) = snapshot.players.iter().find(|it| it.id == so_far.me) else {
            return;
        };
        (sight.moves, sight.finds) = (player.moves, player.finds);
        sight.last_move = player.last_move;
        while let Some(&(number, at)) = sight.sent.front()
            && number <= player.last_move
        {
            sight.sent.pop_front();
            let micros = u64::try_from((now - at).as_micros()).unwrap_or(u64::MAX);
            sight.latencies.saturating_record(micros);
        }
        let coins = snapshot.coins.iter();
        let nearest = coins.min_by_key(|it| it.x.abs_diff(player.x) + it.y.abs_diff(player.y));
        if let Some(coin) = nearest {
            sight.direction = if coin.x > player.x {
                Direction::DIRECTION_RIGHT
            } else if coin.x < player.x {
                Direction::DIRECTION_LEFT
            } else if coin.y > player.y {
                Direction::DIRECTION_DOWN
            } else {
                Direction::DIRECTION_UP
            };
        }
    }
}

/// Of microseconds, up to an hour.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(3_600_000_000, 3).expect("bounds that it takes")
}

struct Bot {
    pilot: Pilot,
    eyes: BotEyes,
}

impl Bot {
    /// # Errors
    /// Its session is over.
    fn go(&mut self) -> Result<()> {
        let mut sight = self.eyes.lock();
        let (direction, now) = (sight.direction, Instant::now());
        match self.pilot.go(direction) {
            Ok(number) => sight.sent.push_back((number, now)),
            // The server is away for long: this move was never made.
            Err(SendError::Full) => {}
            Err(_) => bail!("a bot cannot play: {:?}", self.pilot.session().state()),
        }
        Ok(())
    }

    /// Whether the world has made all its moves, and it knows of all its finds.
    fn is_done(&self) -> bool {
        let sight = self.eyes.lock();
        sight.last_move == self.pilot.sent() && sight.finds == self.pilot.tally().finds
    }
}

/// Plays, and prints what became of it.
///
/// # Errors
/// Bots could not play, or moves or finds were lost or doubled.
pub fn run(options: &Options) -> Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut signals = crate::stop_signals()?;
    let told = Arc::clone(&is_over);
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            told.store(true, Ordering::Relaxed);
        }
    });
    let connector = connector()?;
    // So that several of these programs can play at once.
    let team: String = (0..3).map(|_| fastrand::lowercase()).collect();
    let mut bots = Vec::new();
    for number in 0..options.count {
        let eyes = BotEyes::new();
        let letter = char::from(b'a' + (number % 26) as u8);
        let name = format!("{letter}{team}{number}");
        let pilot = Pilot::join(&connector, &options.address, &name, eyes.clone())?;
        bots.push(Bot { pilot, eyes });
    }
    wait_for("the bots do not come in", &bots, |bot| {
        bot.eyes.lock().snapshots > 0
    })?;
    print(&format!("{} bots are in", bots.len()));
    let began = Instant::now();
    let lasts = Duration::from_secs(options.seconds);
    play(&mut bots, options.rate, lasts, &is_over)?;
    let played = began.elapsed();
    let settled = wait_for("not all moves were made in time", &bots, Bot::is_done);
    let figures = Figures::of(&bots);
    figures.print(played);
    for bot in &bots {
        bot.pilot.session().close();
    }
    settled?;
    let wrong = figures.moves_lost + figures.moves_doubled + figures.finds_lost;
    ensure!(wrong == 0, "not everything counted once");
    Ok(())
}

/// # Errors
/// `what`, when it takes too long; or the end of a session.
fn wait_for(what: &str, bots: &[Bot], done: impl Fn(&Bot) -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !bots.iter().all(&done) {
        if let Some(ended) = bots
            .iter()
            .find_map(|it| it.pilot.session().state().ended().cloned())
        {
            return Err(ended).context("a bot cannot play");
        }
        ensure!(Instant::now() < deadline, "{what}");
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Moves at absolute times, so that a late one does not lower the rate.
fn play(bots: &mut [Bot], rate: u32, lasts: Duration, is_over: &AtomicBool) -> Result<()> {
    let between = Duration::from_secs(1) / rate / u32::try_from(bots.len())?;
    let began = Instant::now();
    let mut next = began;
    let mut restarts = 0;
    loop {
        for bot in &mut *bots {
            let now = Instant::now();
            if is_over.load(Ordering::Relaxed) || now - began >= lasts {
                return Ok(());
            }
            thread::sleep(next.saturating_duration_since(now));
            bot.go()?;
            next += between;
        }
        let all = bots.iter().map(|it| it.eyes.lock().restarts).min();
        if let Some(all) = all.filter(|all| *all > restarts) {
            restarts = all;
            let waits = bots
                .iter()
                .map(|it| std::mem::take(&mut it.eyes.lock().longest_wait));
            let longest = waits.max().unwrap_or_default().as_millis();
            print(&format!(
                "restart {all}: all bots are back, after {longest} ms without a snapshot at most"
            ));
        }
    }
}

/// Of all bots together.
struct Figures {
    bots: usize,
    moves: u64,
    moves_lost: u64,
    moves_doubled: u64,
    finds: u64,
    finds_lost: u64,
    snapshots: u64,
    latencies: Histogram<u64>,
}

impl Figures {
    fn of(bots: &[Bot]) -> Self {
        let mut all = Self {
            bots: bots.len(),
            moves: 0,
            moves_lost: 0,
            moves_doubled: 0,
            finds: 0,
            finds_lost: 0,
            snapshots: 0,
            latencies: histogram(),
        };
        for bot in bots {
            let sight = bot.eyes.lock();
            let (sent, tally) = (bot.pilot.sent(), bot.pilot.tally());
            all.moves += sent;
            all.moves_lost += sent.saturating_sub(sight.moves);
            all.moves_doubled += sight.moves.saturating_sub(sent);
            all.finds += sight.finds;
            all.finds_lost += tally.finds_lost + sight.finds.saturating_sub(tally.finds);
            all.snapshots += sight.snapshots;
            let added = all.latencies.add(&sight.latencies);
            added.expect("they are alike");
        }
        all
    }

    fn print(&self, played: Duration) {
        let each = self.snapshots as f64 / self.bots as f64 / played.as_secs_f64();
        let at = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1000.0;
        print(&format!(
            "moves      {} made, {} lost, {} doubled",
            self.moves - self.moves_lost,
            self.moves_lost,
            self.moves_doubled
        ));
        print(&format!(
            "finds      {} told, {} lost",
            self.finds, self.finds_lost
        ));
        print(&format!("snapshots  {each:.1} a second for each bot"));
        print(&format!(
            "from the key to the picture  P50 {:.1} ms, P99 {:.1} ms, max {:.1} ms",
            at(0.5),
            at(0.99),
            at(1.0)
        ));
    }
}
