//! A whole run: a cluster, publishers and subscribers, faults, and the end of all of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_broker::BrokerConfig;
use embar_client::TopicSpec;
use embar_console::connect::Connector;
use embar_console::context::Context;
use embar_console::progress::Bar;
use embar_meter::random::SplitMix64;
use embar_supervise::logs;
use embar_supervise::regions;
use embar_supervise::{Cluster, Plan};
use tempfile::TempDir;

use super::books::Books;
use super::brokers::Brokers;
use super::checker::CHIEF;
use super::crowd::{self, Crowd};
use super::echo::Echo;
use super::faults::{Action, Fault, Schedule, Victim};
use super::neighbour::Neighbour;
use super::plan::{TOPIC, VerifyPlan};
use super::readers::{self, Readers};
use super::report::{Report, SubscriberReport};
use super::room::Room;
use super::violation::Kind;

/// A publisher that is acknowledged nothing for so long hangs.
pub const STALL_MAX: Duration = Duration::from_secs(30);
/// How long the subscriber that sees everything may take for the next message of those that it must see.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long reading everything at the end may take.
const READ_ALL_WITHIN: Duration = Duration::from_secs(60);
/// How long brokers that were killed last may take to come back.
const SERVE_WITHIN: Duration = Duration::from_secs(30);
/// How long a new cluster may take until somebody sequences.
const REIGN_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at what goes on.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs it. What is broken is in the report; an error means that there is no verdict.
pub fn run(plan: &VerifyPlan, context: &Context) -> Result<Report> {
    let logs = logs::temporary()?;
    let cluster = Cluster::start(cluster_plan(plan, &logs, &context.program), context)?;
    let mut brokers = Brokers::new(cluster, plan)?;
    let bootstrap = brokers.bootstrap();
    let spec = TopicSpec::new(TOPIC)
        .order(plan.order.try_into()?)
        .retention_bytes(plan.retention_bytes);
    let admin = Connector::new(&bootstrap, context.progress.clone()).admin()?;
    let created = admin.create_topic(spec).wait();
    let topic = created.with_context(|| format!("cannot create the topic {TOPIC}"))?;
    let room = Room::of(brokers.geometry(), plan);
    let books = Arc::new(Books::new(plan, room));
    await_reign(&mut brokers, &books)?;
    // Also runs of the same seed tell their messages apart.
    let run = SplitMix64::new(plan.seed ^ u64::from(std::process::id())).next_u64() as u32;
    let reading = readers::Setting {
        plan: plan.clone(),
        bootstrap: bootstrap.clone(),
        run,
        books: books.clone(),
    };
    let publishing = crowd::Setting {
        program: context.program.clone(),
        plan: plan.clone(),
        bootstrap,
        run,
        logs: logs.path().to_owned(),
    };
    let mut stage = Stage {
        plan,
        bar: context.bar("verifying", plan.bytes()),
        first_reign: brokers.reigns(),
        latest_reign: brokers.reigns(),
        readers: Readers::start(&reading)?,
        echo: (plan.acks > 0).then(|| Echo::start(&reading)).transpose()?,
        neighbour: plan
            .includes(Fault::DELETE)
            .then(|| Neighbour::start(&reading))
            .transpose()?,
        crowd: Crowd::start(publishing, &books)?,
        books,
        brokers,
        topic: topic.id,
        random: SplitMix64::new(plan.seed),
        faults: BTreeMap::new(),
        missed: 0,
    };
    let started = Instant::now();
    let went_on = stage.publish(started)? && stage.wind_up()?;
    stage.crowd.end();
    stage.echo = None;
    stage.see_the_rest()?;
    let seconds = started.elapsed().as_secs_f64();
    stage.readers.stop();
    let last = if went_on {
        readers::read_all(&reading, READ_ALL_WITHIN, &context.interrupt)
    } else {
        None
    };
    context.interrupt.check()?;
    let mut report = stage.report(seconds, last);
    if !report.kept {
        report.logs = Some(logs::keep(logs));
    }
    Ok(report)
}

fn cluster_plan(plan: &VerifyPlan, logs: &TempDir, program: &Path) -> Plan {
    Plan {
        program: program.to_owned(),
        brokers: plan.brokers,
        spares: plan.spares(),
        standbys: plan.standbys,
        // A name that the next run sweeps away if this one is killed.
        region: regions::temporary("bench-"),
        region_bytes: plan.region_bytes,
        topics: None,
        fresh: true,
        temporary: true,
        log_dir: logs.path().to_owned(),
        grace: Duration::from_secs(2),
        config: BrokerConfig {
            max_batch_bytes: plan.batch_bytes.max(2 << 20),
            ..BrokerConfig::default()
        },
    }
}

/// Takeovers are counted from the first reign on.
fn await_reign(brokers: &mut Brokers, books: &Books) -> Result<()> {
    let deadline = Instant::now() + REIGN_WITHIN;
    while brokers.reigns() == 0 {
        anyhow::ensure!(
            Instant::now() < deadline,
            "nobody sequences {REIGN_WITHIN:?} after the start"
        );
        brokers.watch(Instant::now() + LOOK_EVERY, books)?;
    }
    Ok(())
}

/// Everybody who takes part. They end in the order of the fields: publishers and subscribers before the brokers.
struct Stage<'a> {
    plan: &'a VerifyPlan,
    bar: Box<dyn Bar>,
    crowd: Crowd,
    readers: Readers,
    echo: Option<Echo>,
    neighbour: Option<Neighbour>,
    brokers: Brokers,
    books: Arc<Books>,
    first_reign: u32,
    latest_reign: u32,
    /// The number of the topic.
    topic: u32,
    random: SplitMix64,
    faults: BTreeMap<Fault, u64>,
    /// Faults for which there was nobody at the time.
    missed: u64,
}

impl Stage<'_> {
    /// Publishers publish and faults happen until the time is up; false if it hangs.
    fn publish(&mut self, started: Instant) -> Result<bool> {
        let end = started + self.plan.duration;
        let mut schedule = Schedule::new(&self.plan.faults, self.plan.every, started);
        while Instant::now() < end {
            let due = schedule.next().map_or(end, |due| due.min(end));
            if !self.look(due)? {
                return Ok(false);
            }
            for fault in schedule.take_due(Instant::now()) {
                self.strike(fault)?;
            }
        }
        Ok(true)
    }

    /// Everybody goes on, and publishers end; false if it hangs.
    fn wind_up(&mut self) -> Result<bool> {
        self.brokers.resume_all();
        self.crowd.stop();
        while self.crowd.running() > 0 {
            if !self.look(Instant::now() + LOOK_EVERY)? {
                return Ok(false);
            }
        }
        let deadline = Instant::now() + SERVE_WITHIN;
        if let Some(mut neighbour) = self.neighbour.take() {
            neighbour.stop();
            self.count_late(Fault::DELETE, neighbour.take_turns());
        }
        while !self.brokers.all_serve() {
            if Instant::now() >= deadline {
                self.books.checker().fail(
                    Kind::Liveness,
                    format_args!("not all brokers serve again after {SERVE_WITHIN:?}"),
                );
                return Ok(false);
            }
            self.look(Instant::now() + LOOK_EVERY)?;
        }
        Ok(true)
    }

    /// Waits until the first subscriber saw what it must see. What it does not is missed by the checks.
    fn see_the_rest(&mut self) -> Result<()> {
        let mut seen = (0, Instant::now());
        while !self.books.checker().is_complete() && seen.1.elapsed() < SILENCE_MAX {
            self.brokers
                .watch(Instant::now() + LOOK_EVERY, &self.books)?;
            let (messages, _) = self.books.checker().messages(CHIEF);
            if messages != seen.0 {
                seen = (messages, Instant::now());
            }
        }
        Ok(())
    }

    /// Watches everybody for a moment, at most until `until`; false if nothing goes on.
    fn look(&mut self, until: Instant) -> Result<bool> {
        let due = [self.brokers.next_due(), self.crowd.next_due()];
        let due = due.into_iter().flatten().fold(until, Instant::min);
        let deadline = due.min(Instant::now() + LOOK_EVERY);
        self.brokers.watch(deadline, &self.books)?;
        self.crowd.resume_due(Instant::now());
        self.crowd.running();
        let left = self.brokers.take_left();
        self.count_late(Fault::DRAIN, left);
        let turns = self.neighbour.as_mut().map_or(0, Neighbour::take_turns);
        self.count_late(Fault::DELETE, turns);
        let reigns = self.brokers.reigns();
        if reigns != std::mem::replace(&mut self.latest_reign, reigns) {
            self.books.checker().disturbed();
        }
        for (stream, first, next) in self.brokers.windows(self.topic) {
            self.books.checker().offered(stream, first, next);
        }
        let acknowledged = Books::count(&self.books.acknowledged);
        let bytes = acknowledged.saturating_mul(self.plan.message_bytes.into());
        self.bar.set(bytes);
        let longest = self.books.gaps().longest_wait(Instant::now());
        let Some((publisher, waited)) = longest.filter(|(_, waited)| *waited > STALL_MAX) else {
            return Ok(true);
        };
        self.books.checker().fail(
            Kind::Liveness,
            format_args!("publisher {publisher} was acknowledged nothing for {waited:.0?}"),
        );
        Ok(false)
    }

    fn strike(&mut self, fault: Fault) -> Result<()> {
        // From just before it is done: what comes after is its gap.
        let now = Instant::now();
        if !matches!(fault.victim, Victim::Publisher | Victim::Topic) {
            self.books.checker().disturbed();
        }
        let done = match (fault.action, fault.victim) {
            (Action::Pause, Victim::Publisher) => {
                let until = now + self.plan.pause_for.draw(&mut self.random);
                self.crowd.pause(self.random.next_u64(), until)?
            }
            (_, Victim::Publisher) => self.crowd.kill(self.random.next_u64())?,
            (_, Victim::Topic) => self.neighbour.as_ref().is_some_and(Neighbour::go),
            _ => self.brokers.strike(fault)?,
        };
        if done {
            self.books.gaps().fault(fault, now);
        } else {
            self.missed += 1;
        }
        // Others are counted when they have come about.
        if done && !fault.is_asked_for() {
            self.count_late(fault, 1);
        }
        Ok(())
    }

    fn count_late(&mut self, fault: Fault, times: u64) {
        if times > 0 {
            *self.faults.entry(fault).or_default() += times;
        }
    }

    /// Ends everybody and says what was seen.
    fn report(self, seconds: f64, last: Option<usize>) -> Report {
        let Self {
            plan,
            crowd,
            brokers,
            books,
            ..
        } = self;
        let published = crowd.published();
        let last_reign = brokers.reigns();
        let (failed_starts, overtaken) = (brokers.failed_starts(), brokers.overtaken());
        brokers.stop();
        let gaps = match plan.acks {
            0 => Vec::new(),
            _ => books.gaps().report(),
        };
        let mut checker = books.checker();
        checker.finish(last);
        let tried = !self.faults.is_empty() || last_reign > self.first_reign;
        let subscribers = (0..plan.subscribers as usize).map(|index| {
            let (messages, repeated) = checker.messages(index);
            SubscriberReport { messages, repeated }
        });
        Report {
            verify: "order",
            config: plan.clone(),
            seconds,
            published,
            acknowledged: Books::count(&books.acknowledged),
            unplaced: Books::count(&books.unplaced),
            given_up: Books::count(&books.given_up),
            not_stored: Books::count(&books.not_stored),
            reread: Books::count(&books.reread),
            subscribers: subscribers.collect(),
            read_at_the_end: last.map(|last| checker.messages(last).0),
            read_from_the_first: last.map(|last| checker.is_whole(last)),
            retained: Some(checker.retained().clone()).filter(|it| it.looks > 0),
            untried: plan
                .faults
                .iter()
                .filter(|fault| !self.faults.contains_key(fault))
                .copied()
                .collect(),
            tried,
            faults: self.faults,
            missed_faults: self.missed,
            failed_starts,
            overtaken,
            first_reign: self.first_reign,
            last_reign,
            takeovers: last_reign.saturating_sub(self.first_reign),
            gaps,
            logs: None,
            kept: tried && checker.violations().total == 0,
            violations: checker.violations().clone(),
        }
    }
}
