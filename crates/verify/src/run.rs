//! A whole run of `verify order`: a cluster, publishers and subscribers, faults, and the report.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_broker::BrokerConfig;
use embar_client::{Admin, TopicSpec};
use embar_console::connect::Connector;
use embar_console::context::Context;
use embar_console::progress::Bar;
use embar_meter::random::SplitMix64;
use embar_supervise::logs;
use embar_supervise::regions;
use embar_supervise::{Cluster, ClusterPlan};
use tempfile::TempDir;

use super::brokers::Brokers;
use super::checker::REFERENCE_READER;
use super::disk_reader::DiskReaderSetup;
use super::faults::{Action, Fault, Schedule, Victim};
use super::hostile::{HostileSpec, Pose};
use super::hostile_processes::HostileProcesses;
use super::plan::{TOPIC, VerifyPlan};
use super::power::Power;
use super::publisher_processes::{self, PublisherProcesses};
use super::readback::Readback;
use super::readers::{self, Readers};
use super::report::{OrderReport, SubscriberReport};
use super::retention_model::RetentionModel;
use super::shared::Shared;
use super::stall_detector::STALL_MAX;
use super::topic_churn::TopicChurn;
use super::violation::Kind;

/// How long the reference reader may take for the next message that it must see.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long reading everything at the end may take.
const READ_ALL_WITHIN: Duration = Duration::from_secs(60);
/// How long brokers that were killed last may take to come back.
const SERVE_WITHIN: Duration = Duration::from_secs(30);
/// How long a new cluster may take until a broker sequences.
const TERM_WITHIN: Duration = Duration::from_secs(10);
/// The topic of hostile publishers, and what it keeps on each broker.
const HOSTILE_TOPIC: &str = "hostile";
const HOSTILE_BYTES: u64 = 1 << 20;
/// Between two looks at the run.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs the plan. The report has the violations; an error means that there is no verdict.
pub fn run(plan: &VerifyPlan, context: &Context) -> Result<OrderReport> {
    let logs = logs::temporary()?;
    let mut power = Power::make(plan)?;
    let dirs = power.as_ref().map_or_else(Vec::new, Power::dirs);
    let cluster = Cluster::start(cluster_plan(plan, dirs, &logs, &context.program), context)?;
    let mut brokers = Brokers::new(cluster, plan)?;
    let bootstrap = brokers.bootstrap();
    let spec = TopicSpec::new(TOPIC)
        .order(plan.order.try_into()?)
        .retention_bytes(plan.retention_bytes)
        .replication_factor(plan.replication_factor);
    let admin = Connector::new(&bootstrap, context.progress.clone()).admin()?;
    let created = admin.create_topic(spec).wait();
    let topic = created.with_context(|| format!("cannot create the topic {TOPIC}"))?;
    let retention = RetentionModel::of(brokers.geometry(), plan);
    let shared = Arc::new(Shared::new(plan, retention)?);
    await_first_term(&mut brokers, &shared)?;
    // Runs with the same seed have different messages, too.
    let run = SplitMix64::new(plan.seed ^ u64::from(std::process::id())).next_u64() as u32;
    let hostile = hostile_specs(plan, &brokers, &admin, run)?;
    if let Some(power) = &mut power {
        let setup = DiskReaderSetup {
            run,
            message_bytes: plan.message_bytes,
            topic: topic.id,
        };
        power.begin(setup, &mut shared.checker());
    }
    let reading = readers::ReaderSetup {
        plan: plan.clone(),
        bootstrap: bootstrap.clone(),
        run,
        shared: shared.clone(),
    };
    let publishing = publisher_processes::ProcessSetup {
        program: context.program.clone(),
        plan: plan.clone(),
        bootstrap,
        run,
        logs: logs.path().to_owned(),
    };
    let mut run = OrderRun {
        plan,
        bar: context.bar("verifying", plan.bytes()),
        first_term: brokers.terms(),
        latest_term: brokers.terms(),
        readers: Readers::start(&reading)?,
        readback: (plan.acks > 0 && plan.has_subscribers())
            .then(|| Readback::start(&reading))
            .transpose()?,
        topic_churn: plan
            .includes(Fault::DELETE)
            .then(|| TopicChurn::start(&reading))
            .transpose()?,
        publishers: PublisherProcesses::start(publishing, &shared)?,
        hostile: Some(HostileProcesses::start(
            context.program.clone(),
            hostile,
            &shared,
        )?),
        shared,
        brokers,
        power,
        progress: context.clone(),
        topic: topic.id,
        random: SplitMix64::new(plan.seed),
        faults: BTreeMap::new(),
        missed: 0,
    };
    let started = Instant::now();
    let is_alive = run.publish(started)? && run.finish_publishing()?;
    run.publishers.kill_all();
    run.readback = None;
    if run.power.is_some() {
        run.cut_at_the_end()?;
    } else {
        run.await_reference_reader()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    run.readers.stop();
    let last = if is_alive && plan.has_subscribers() {
        readers::read_all(&reading, READ_ALL_WITHIN, &context.interrupt)
    } else {
        None
    };
    context.interrupt.check()?;
    let mut report = run.report(seconds, last);
    if !report.kept {
        report.logs = Some(logs::keep(logs));
    }
    Ok(report)
}

fn cluster_plan(
    plan: &VerifyPlan,
    disks: Vec<PathBuf>,
    logs: &TempDir,
    program: &Path,
) -> ClusterPlan {
    ClusterPlan {
        program: program.to_owned(),
        brokers: plan.brokers,
        spares: plan.spares(),
        standbys: plan.standbys,
        // The next run removes a region of this name if this one is killed.
        region: regions::temporary("bench-"),
        region_bytes: plan.region_bytes,
        topics: None,
        fresh: true,
        temporary: true,
        kill_with_parent: Vec::new(),
        log_dir: logs.path().to_owned(),
        grace: Duration::from_secs(2),
        config: BrokerConfig {
            max_batch_bytes: plan.batch_bytes.max(2 << 20),
            data: disks,
            ..BrokerConfig::default()
        },
    }
}

/// The hostile clients, and a topic for them, which keeps little.
fn hostile_specs(
    plan: &VerifyPlan,
    brokers: &Brokers,
    admin: &Admin,
    run: u32,
) -> Result<Vec<HostileSpec>> {
    if plan.hostile.is_empty() {
        return Ok(Vec::new());
    }
    let spec = TopicSpec::new(HOSTILE_TOPIC)
        .order(plan.order.try_into()?)
        .retention_bytes(HOSTILE_BYTES);
    let created = admin.create_topic(spec).wait();
    created.with_context(|| format!("cannot create the topic {HOSTILE_TOPIC}"))?;
    let spec = |(number, pose): (usize, &Pose)| HostileSpec {
        pose: *pose,
        sockets: brokers.sockets(),
        last_row: plan.brokers - 1,
        topic: HOSTILE_TOPIC.into(),
        honest_topic: TOPIC.into(),
        run,
        publishers: plan.publishers,
        seed: plan.seed.wrapping_add(number as u64),
    };
    Ok(plan.hostile.iter().enumerate().map(spec).collect())
}

/// Waits for the first term of a sequencer: takeovers are counted from there.
fn await_first_term(brokers: &mut Brokers, shared: &Shared) -> Result<()> {
    let deadline = Instant::now() + TERM_WITHIN;
    while brokers.terms() == 0 {
        anyhow::ensure!(
            Instant::now() < deadline,
            "no broker sequences {TERM_WITHIN:?} after the start"
        );
        brokers.watch(Instant::now() + LOOK_EVERY, shared)?;
    }
    Ok(())
}

/// All parts of a run. They are dropped in the order of the fields: publishers and subscribers before the brokers.
struct OrderRun<'a> {
    plan: &'a VerifyPlan,
    bar: Box<dyn Bar>,
    publishers: PublisherProcesses,
    hostile: Option<HostileProcesses>,
    readers: Readers,
    readback: Option<Readback>,
    topic_churn: Option<TopicChurn>,
    brokers: Brokers,
    /// After the brokers, which have files open on its disks.
    power: Option<Power>,
    progress: Context,
    shared: Arc<Shared>,
    first_term: u32,
    latest_term: u32,
    /// The number of the verified topic.
    topic: u32,
    random: SplitMix64,
    faults: BTreeMap<Fault, u64>,
    /// Faults that found no process at the time.
    missed: u64,
}

impl OrderRun<'_> {
    /// Lets publishers publish and injects faults until the time is up; false if the run hangs.
    fn publish(&mut self, started: Instant) -> Result<bool> {
        let end = started + self.plan.duration;
        let mut schedule = Schedule::new(&self.plan.faults, self.plan.every, started);
        loop {
            let now = Instant::now();
            let goes_on = match &mut self.power {
                // Publishers that ended by themselves are a violation, and nothing more comes.
                Some(power) => power.is_to_cut() && self.publishers.running() > 0,
                None => now < end,
            };
            if !goes_on {
                break;
            }
            let due = [schedule.next(), self.next_cut(now)];
            let end = self.power.is_none().then_some(end);
            let due = due.into_iter().flatten().chain(end).min();
            if !self.watch(due.unwrap_or(now + LOOK_EVERY))? {
                return Ok(false);
            }
            if self.next_cut(now).is_some_and(|due| due <= Instant::now()) {
                self.cut_power()?;
            }
            for fault in schedule.take_due(Instant::now()) {
                self.inject(fault)?;
            }
        }
        Ok(true)
    }

    /// Resumes all processes and waits until the publishers have ended and all brokers serve; false if the run hangs.
    fn finish_publishing(&mut self) -> Result<bool> {
        self.brokers.resume_all();
        self.publishers.stop();
        while self.publishers.running() > 0 {
            if !self.watch(Instant::now() + LOOK_EVERY)? {
                return Ok(false);
            }
        }
        let deadline = Instant::now() + SERVE_WITHIN;
        if let Some(mut topic_churn) = self.topic_churn.take() {
            topic_churn.stop();
            self.count(Fault::DELETE, topic_churn.take_turns());
        }
        while !self.brokers.all_serve() {
            if Instant::now() >= deadline {
                self.shared.fail_liveness(
                    SERVE_WITHIN,
                    format_args!("not all brokers serve again after {SERVE_WITHIN:?}"),
                );
                return Ok(false);
            }
            self.watch(Instant::now() + LOOK_EVERY)?;
        }
        Ok(true)
    }

    /// Waits until the reference reader saw what it must see. The checks find what it did not see.
    fn await_reference_reader(&mut self) -> Result<()> {
        let mut seen = (0, Instant::now());
        while !self.shared.checker().is_complete() {
            if seen.1.elapsed() >= SILENCE_MAX {
                self.shared.fail_liveness(
                    SILENCE_MAX,
                    format_args!(
                        "subscriber {REFERENCE_READER} got nothing for {SILENCE_MAX:?}, and must see more"
                    ),
                );
                return Ok(());
            }
            self.brokers
                .watch(Instant::now() + LOOK_EVERY, &self.shared)?;
            let (messages, _) = self.shared.checker().messages(REFERENCE_READER);
            if messages != seen.0 {
                seen = (messages, Instant::now());
            }
        }
        Ok(())
    }

    /// Watches all parts for a moment, at most until `until`; false if a publisher hangs.
    fn watch(&mut self, until: Instant) -> Result<bool> {
        let due = [self.brokers.next_due(), self.publishers.next_due()];
        let due = due.into_iter().flatten().fold(until, Instant::min);
        let deadline = due.min(Instant::now() + LOOK_EVERY);
        self.brokers.watch(deadline, &self.shared)?;
        if !self.watch_power()? {
            return Ok(false);
        }
        self.publishers.resume_due(Instant::now());
        self.publishers.running();
        let left = self.brokers.take_left();
        self.count(Fault::DRAIN, left);
        let turns = self.topic_churn.as_mut().map_or(0, TopicChurn::take_turns);
        self.count(Fault::DELETE, turns);
        let terms = self.brokers.terms();
        if terms != std::mem::replace(&mut self.latest_term, terms) {
            self.shared.checker().disturbed();
        }
        if self.plan.has_subscribers() {
            for (stream, first, next) in self.brokers.windows(self.topic) {
                self.shared.checker().offered(stream, first, next);
            }
        }
        let acknowledged = Shared::count(&self.shared.acknowledged);
        let bytes = acknowledged.saturating_mul(self.plan.message_bytes.into());
        self.bar.set(bytes);
        let longest = self.shared.gaps().longest_wait(Instant::now());
        let Some((publisher, waited)) = longest.filter(|(_, waited)| *waited > STALL_MAX) else {
            return Ok(true);
        };
        self.shared.fail_liveness(
            waited,
            format_args!("publisher {publisher} got no acknowledgement for {waited:.0?}"),
        );
        Ok(false)
    }

    fn inject(&mut self, fault: Fault) -> Result<()> {
        // The time just before the fault: what comes after is its gap.
        let now = Instant::now();
        if !matches!(fault.victim, Victim::Publisher | Victim::Topic) {
            self.shared.checker().disturbed();
        }
        let done = match (fault.action, fault.victim) {
            (Action::Pause, Victim::Publisher) => {
                let until = now + self.plan.pause_for.draw(&mut self.random);
                self.publishers.pause(self.random.next_u64(), until)?
            }
            (_, Victim::Publisher) => self.publishers.kill(self.random.next_u64())?,
            (_, Victim::Topic) => self.topic_churn.as_ref().is_some_and(TopicChurn::go),
            _ => self.brokers.inject(fault)?,
        };
        if done {
            self.shared.gaps().fault(fault, now);
        } else {
            self.missed += 1;
        }
        // A fault that a process was asked for counts once it has happened.
        if done && !fault.is_asked_for() {
            self.count(fault, 1);
        }
        Ok(())
    }

    fn next_cut(&mut self, now: Instant) -> Option<Instant> {
        let power = self.power.as_mut()?;
        let acknowledged = Shared::count(&self.shared.acknowledged);
        power.next_due(now, acknowledged)
    }

    /// Cuts the power of the disks, and a moment later all processes are gone, too.
    fn cut_power(&mut self) -> Result<()> {
        let Some(power) = &mut self.power else {
            return Ok(());
        };
        let now = Instant::now();
        power.cut()?;
        std::thread::sleep(power.afterlife());
        self.shared.checker().disturbed();
        self.brokers.power_off();
        self.shared.gaps().fault(Fault::CUT, now);
        self.count(Fault::CUT, 1);
        Ok(())
    }

    /// Once all processes are dead, the power is back, and what the disks have is checked; false if the log did not come back.
    fn watch_power(&mut self) -> Result<bool> {
        let Some(power) = &mut self.power else {
            return Ok(true);
        };
        let (cut, of) = power.progress();
        if let Some(how) = self.brokers.take_lost() {
            let text = format_args!("the log did not come back after cut {cut}: the head {how}");
            self.shared.checker().fail(Kind::Failure, text);
            return Ok(false);
        }
        if !self.brokers.is_dead() {
            return Ok(true);
        }
        self.brokers.lose_memory()?;
        if !power.back(&self.shared)? {
            return Ok(false);
        }
        self.progress.note(format_args!(
            "cut {cut} of {of}: {} messages are on the disk",
            power.report().messages
        ));
        self.brokers.power_on();
        Ok(true)
    }

    /// Cuts the power once more, now that all is acknowledged, and checks what the disks have.
    fn cut_at_the_end(&mut self) -> Result<()> {
        let Some(power) = &mut self.power else {
            return Ok(());
        };
        power.cut()?;
        self.brokers.power_off();
        while !self.brokers.is_dead() {
            self.brokers
                .watch(Instant::now() + LOOK_EVERY, &self.shared)?;
        }
        power.back(&self.shared)?;
        Ok(())
    }

    fn count(&mut self, fault: Fault, times: u64) {
        if times > 0 {
            *self.faults.entry(fault).or_default() += times;
        }
    }

    /// Ends all parts and sums up.
    fn report(self, seconds: f64, last: Option<usize>) -> OrderReport {
        let Self {
            plan,
            publishers,
            hostile,
            brokers,
            power,
            shared,
            ..
        } = self;
        let attacks = hostile.map(HostileProcesses::stop).unwrap_or_default();
        let published = publishers.published();
        let last_term = brokers.terms();
        let (failed_starts, overtaken) = (brokers.failed_starts(), brokers.overtaken());
        brokers.stop();
        let gaps = match plan.acks {
            0 => Vec::new(),
            _ => shared.gaps().report(),
        };
        let mut checker = shared.checker();
        checker.finish(last);
        let tried = !(self.faults.is_empty() && attacks.is_empty()) || last_term > self.first_term;
        let subscribers = (0..plan.subscribers as usize).map(|index| {
            let (messages, repeated) = checker.messages(index);
            SubscriberReport { messages, repeated }
        });
        OrderReport {
            verify: "order",
            config: plan.clone(),
            seconds,
            published,
            acknowledged: Shared::count(&shared.acknowledged),
            unplaced: Shared::count(&shared.unplaced),
            given_up: Shared::count(&shared.given_up),
            not_stored: Shared::count(&shared.not_stored),
            reread: Shared::count(&shared.reread),
            timer_late_max_ms: shared.timer_late_max().as_secs_f64() * 1e3,
            subscribers: subscribers.collect(),
            read_at_the_end: last.map(|last| checker.messages(last).0),
            read_from_the_first: last.map(|last| checker.is_whole(last)),
            disk: power.as_ref().map(Power::report),
            retained: Some(checker.retained().clone()).filter(|it| it.looks > 0),
            untried: plan
                .faults
                .iter()
                .filter(|fault| !self.faults.contains_key(fault))
                .copied()
                .collect(),
            tried,
            faults: self.faults,
            attacks,
            missed_faults: self.missed,
            failed_starts,
            overtaken,
            first_term: self.first_term,
            last_term,
            takeovers: last_term.saturating_sub(self.first_term),
            gaps,
            logs: None,
            kept: tried && checker.violations().total == 0,
            violations: checker.violations().clone(),
        }
    }
}
