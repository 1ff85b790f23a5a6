//! `verify sessions`: publishers are killed, one process of them after the other, and the next one must still be served.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_broker::{BrokerConfig, Cluster};
use embar_client::{Admin, Order, TopicSpec};
use embar_console::context::Context;
use embar_console::paint::Paint;
use embar_console::setting::BadSetting;
use embar_console::size::as_seconds;
use embar_meter::table::grouped;
use serde::Serialize;

use super::findings::{Findings, NotKept};
use super::own_timer::{Evidence, OwnTimer};
use super::victims::{self, TOPIC, VictimsSpec, publish, publish_first};

/// What to run.
#[derive(Clone, Debug, Serialize)]
pub struct SessionsPlan {
    /// Publishers that are killed.
    pub killed: u32,
    /// Publishers of one process, which is killed when all of them have published.
    pub at_once: u32,
    /// Publishers that the cluster knows at a time.
    pub places: u32,
    /// Brokers, the head included.
    pub brokers: u16,
    /// Bytes of shared memory in all.
    pub region_bytes: u64,
    /// How soon the next publisher is to be served.
    #[serde(rename = "within_s", serialize_with = "as_seconds")]
    pub within: Duration,
    /// How long a publisher without a connection keeps its place.
    #[serde(rename = "session_idle_s", serialize_with = "as_seconds")]
    pub session_idle: Duration,
}

impl SessionsPlan {
    /// Whether there are more publishers than places: those that are killed, the one that lives, and the last one.
    fn needs_places_again(&self) -> bool {
        u64::from(self.killed) + 2 > self.places.into()
    }
}

/// Everything about a run.
#[derive(Clone, Debug, Serialize)]
pub struct SessionsReport {
    /// What was verified.
    pub verify: &'static str,
    /// What was run.
    pub config: SessionsPlan,
    /// How long it took.
    pub seconds: f64,
    /// From opening to the first acknowledgement: the slowest of those that were killed.
    pub slowest_killed_ms: f64,
    /// The same of the publisher that came after all of them.
    pub next_ms: f64,
    /// By how much the verifier's own timer was late at most.
    pub timer_late_max_ms: f64,
    /// What the time of the publisher that came last proves, should it be too long.
    #[serde(skip)]
    pub evidence: Evidence,
    /// Whether the publisher that lived all the time could go on.
    pub lived: bool,
    /// Whether there were more publishers than places, so that one needed the place of another.
    pub tried: bool,
    /// Whether that was tried, the one that lived went on, and the next one was served in time.
    pub kept: bool,
}

/// Runs it.
pub fn run(plan: &SessionsPlan, context: &Context) -> Result<SessionsReport> {
    if plan.at_once >= plan.places {
        let why = format!(
            "{} publishers at once and the one that lives need more than {} places",
            plan.at_once, plan.places
        );
        return Err(BadSetting::new(&["at_once", "places"], why).into());
    }
    let config = BrokerConfig {
        session_idle: plan.session_idle,
        ..BrokerConfig::default()
    };
    let cluster = Cluster::builder()
        .brokers(plan.brokers)
        .region_bytes(plan.region_bytes)
        .sessions(plan.places)
        .config(config);
    let cluster = cluster.start().context("cannot start a cluster")?;
    let bootstrap = cluster.bootstrap().to_string();
    let spec = TopicSpec::new(TOPIC).order(Order::TotalPerPublisher);
    let created = Admin::connect(&bootstrap)?.create_topic(spec).wait();
    created.with_context(|| format!("cannot create the topic {TOPIC}"))?;
    let (alive, _) = publish_first(&bootstrap)?;
    let timer = OwnTimer::start()?;
    let started = Instant::now();
    let (mut killed, mut slowest) = (0, Duration::ZERO);
    while killed < plan.killed {
        context.interrupt.check()?;
        let count = plan.at_once.min(plan.killed - killed);
        slowest = slowest.max(kill_some(&context.program, &bootstrap, count)?);
        killed += count;
    }
    let (_next, took) = publish_first(&bootstrap)?;
    let evidence = timer.judge(took);
    let lived = publish(&alive).is_ok();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let tried = plan.needs_places_again();
    let mut report = SessionsReport {
        verify: "sessions",
        config: plan.clone(),
        seconds: started.elapsed().as_secs_f64(),
        slowest_killed_ms: ms(slowest),
        next_ms: ms(took),
        timer_late_max_ms: ms(timer.longest()),
        evidence,
        lived,
        tried,
        kept: false,
    };
    report.kept = tried && !report.is_broken();
    Ok(report)
}

/// Starts a process with so many publishers, and kills it when all have published; how long the slowest of
/// them took.
fn kill_some(program: &Path, bootstrap: &str, count: u32) -> Result<Duration> {
    let spec = VictimsSpec {
        bootstrap: bootstrap.to_owned(),
        count,
    };
    let mut process = Command::new(program)
        .arg(victims::COMMAND)
        .arg(serde_json::to_string(&spec)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start publishers")?;
    let output = process.stdout.take().context("a piped standard output")?;
    let mut said = String::new();
    BufReader::new(output).read_line(&mut said)?;
    process.kill()?;
    let status = process.wait()?;
    match said.strip_prefix(victims::READY).map(str::trim) {
        Some(slowest) => Ok(Duration::from_micros(slowest.parse()?)),
        None => bail!("publishers ended before they were killed ({status})"),
    }
}

impl Findings for SessionsReport {
    fn text(&self, paint: Paint) -> String {
        let config = &self.config;
        let verdict = match (self.kept, self.is_broken()) {
            (true, _) => paint.good("kept"),
            (_, true) => paint.bad("broken"),
            (_, false) => paint.bad("nothing was tried"),
        };
        format!(
            "{} publishers were killed on {} places in {:.1} s; the slowest of them was served after {:.0} ms\n{verdict}: {}",
            grouped(config.killed.into()),
            grouped(config.places.into()),
            self.seconds,
            self.slowest_killed_ms,
            self.next()
        )
    }

    fn verdict(&self) -> Result<(), NotKept> {
        let config = &self.config;
        if !self.lived {
            let what = "the publisher that lived all the time lost its place";
            return Err(NotKept::Broken(what.into()));
        }
        if self.is_broken() {
            let (next, evidence) = (self.next(), self.evidence);
            let what = format!("{next}, and not within {:?}{evidence}", config.within);
            return Err(NotKept::Broken(what));
        }
        if !self.tried {
            return Err(NotKept::NothingTried(format!(
                "{} publishers on {} places never needed the place of another",
                grouped(u64::from(config.killed) + 2),
                grouped(config.places.into())
            )));
        }
        Ok(())
    }
}

impl SessionsReport {
    fn is_broken(&self) -> bool {
        !self.lived || self.next_ms > self.config.within.as_secs_f64() * 1e3
    }

    fn next(&self) -> String {
        format!("the next one was served after {:.0} ms", self.next_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(killed: u32, lived: bool, next_ms: f64) -> Result<(), NotKept> {
        let config = SessionsPlan {
            killed,
            at_once: 10,
            places: 100,
            brokers: 2,
            region_bytes: 1 << 30,
            within: Duration::from_secs(1),
            session_idle: Duration::from_secs(1),
        };
        let tried = config.needs_places_again();
        let mut report = SessionsReport {
            verify: "sessions",
            seconds: 1.0,
            slowest_killed_ms: 1.0,
            next_ms,
            timer_late_max_ms: 0.0,
            evidence: Evidence::Sound,
            lived,
            tried,
            kept: false,
            config,
        };
        report.kept = tried && !report.is_broken();
        assert_eq!(report.kept, report.verdict().is_ok());
        report.verdict()
    }

    #[test]
    fn nothing_was_tried_unless_a_place_was_needed_twice() {
        let is_broken = |verdict| matches!(verdict, Err(NotKept::Broken(_)));
        assert!(verdict(99, true, 5.0).is_ok());
        assert!(matches!(
            verdict(98, true, 5.0),
            Err(NotKept::NothingTried(_))
        ));
        assert!(is_broken(verdict(99, true, 1001.0)));
        assert!(is_broken(verdict(98, false, 5.0)), "there was room for it");
    }
}
