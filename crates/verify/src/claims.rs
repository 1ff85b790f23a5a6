//! `verify claims`: connections announce batches that they never send, beside a publisher that sends its own.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{net::SocketAddr, sync::Arc, thread};

use anyhow::{Context as _, Result, bail};
use embar_broker::Cluster;
use embar_client::{Admin, Publisher, TopicSpec};
use embar_console::context::Context;
use embar_console::paint::Paint;
use embar_console::size::{Size, as_seconds};
use embar_meter::stats::median;
use embar_session::RingPools;
use serde::Serialize;

use super::claimant::Claimant;
use super::findings::{Findings, NotKept};

/// The topic.
const TOPIC: &str = "claims";
/// Bytes of one message.
const MESSAGE_BYTES: usize = 1024;
/// Bytes of a batch of the real publisher.
const BATCH_BYTES: usize = 256 << 10;
/// How long the claimants may take to begin, all together.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// Numbers of their producers begin here.
const PRODUCERS: u64 = 1 << 32;

/// What to run.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimsPlan {
    /// Order level of the topic.
    pub order: u32,
    /// Connections that claim.
    pub connections: u32,
    /// What each of them announces, in bytes.
    pub claim_bytes: u64,
    /// Each sends one byte so often.
    #[serde(rename = "drip_s", serialize_with = "as_seconds")]
    pub drip: Duration,
    /// Pairs of rounds: one without them, and one beside them.
    pub rounds: u32,
    /// How long one takes.
    #[serde(rename = "round_s", serialize_with = "as_seconds")]
    pub round: Duration,
    /// Bytes of shared memory in all.
    pub region_bytes: u64,
    /// Least share of the rate that is to be left.
    pub at_least: f64,
}

/// Rates of one pair of rounds, in MiB of values per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// Without claimants.
    pub alone_mib_per_s: f64,
    /// With them.
    pub beside_mib_per_s: f64,
}

/// Everything about a run.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimsReport {
    /// What was verified.
    pub verify: &'static str,
    /// What was run.
    pub config: ClaimsPlan,
    /// How long it took.
    pub seconds: f64,
    /// Messages that could not be read any more after all had claimed, while no publisher published.
    pub evicted_by_claims: u64,
    /// The rates.
    pub rounds: Vec<Round>,
    /// Median of the rates beside claimants, each over the one without.
    pub ratio: f64,
    /// Whether nothing went for claims, and enough of the rate was left.
    pub kept: bool,
}

/// Runs it.
pub fn run(plan: &ClaimsPlan, context: &Context) -> Result<ClaimsReport> {
    let started = Instant::now();
    let cluster = Cluster::builder()
        .brokers(2)
        .region_bytes(plan.region_bytes);
    let cluster = cluster.start().context("cannot start a cluster")?;
    let bootstrap = cluster.bootstrap().to_string();
    let admin = Admin::connect(&bootstrap)?;
    let spec = TopicSpec::new(TOPIC).order(plan.order.try_into()?);
    let created = admin.create_topic(spec).wait();
    created.with_context(|| format!("cannot create the topic {TOPIC}"))?;
    let publisher = Publisher::builder(&bootstrap)
        .topic(TOPIC)
        .auto_create(false)
        .batch_bytes(BATCH_BYTES)
        .open()?;
    while first(&admin)? == 0 {
        context.interrupt.check()?;
        rate(&publisher, Duration::from_millis(200))?;
    }
    let address = cluster.broker(1).context("broker 1 runs")?.address();
    let before = first(&admin)?;
    let claimants = Claimants::start(plan, address)?;
    let evicted_by_claims = first(&admin)? - before;
    claimants.stop()?;
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        context.interrupt.check()?;
        let alone = rate(&publisher, plan.round)?;
        let claimants = Claimants::start(plan, address)?;
        let beside = rate(&publisher, plan.round)?;
        claimants.stop()?;
        rounds.push(Round {
            alone_mib_per_s: alone,
            beside_mib_per_s: beside,
        });
    }
    let ratios: Vec<f64> = rounds
        .iter()
        .map(|round| round.beside_mib_per_s / round.alone_mib_per_s)
        .collect();
    let ratio = median(&ratios).context("there is a round")?;
    Ok(ClaimsReport {
        verify: "claims",
        config: plan.clone(),
        seconds: started.elapsed().as_secs_f64(),
        evicted_by_claims,
        rounds,
        ratio,
        kept: evicted_by_claims == 0 && ratio >= plan.at_least,
    })
}

/// The first message of the topic that can be read.
fn first(admin: &Admin) -> Result<u64> {
    let described = admin.describe_topic(TOPIC).wait()?;
    Ok(described.partitions.iter().map(|p| p.first).sum())
}

/// Publishes for so long and until all is acknowledged: MiB of values per second.
fn rate(publisher: &Publisher, time: Duration) -> Result<f64> {
    let value = vec![7; MESSAGE_BYTES];
    let started = Instant::now();
    let mut bytes = 0;
    while started.elapsed() < time {
        for _ in 0..64 {
            publisher.publish(&value)?;
            bytes += value.len();
        }
    }
    publisher.flush()?;
    Ok(bytes as f64 / f64::from(1 << 20) / started.elapsed().as_secs_f64())
}

/// Connections that claim until they are stopped, and connect again when the broker ends them.
struct Claimants {
    thread: JoinHandle<Result<()>>,
    stop: Arc<AtomicBool>,
}

impl Claimants {
    /// Returns when all have begun a batch and sent a byte more.
    fn start(plan: &ClaimsPlan, address: SocketAddr) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let begun = Arc::new(AtomicU32::new(0));
        let (plan, connections) = (plan.clone(), plan.connections);
        let thread = {
            let (stop, begun) = (Arc::clone(&stop), Arc::clone(&begun));
            thread::Builder::new()
                .name("claimants".into())
                .spawn(move || drip(&plan, address, &stop, &begun))?
        };
        let claimants = Self { thread, stop };
        let deadline = Instant::now() + BEGIN_WITHIN;
        while begun.load(Ordering::Acquire) < connections {
            if claimants.thread.is_finished() || Instant::now() > deadline {
                claimants.stop()?;
                bail!("not all {connections} connections could begin a batch");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(claimants)
    }

    fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Keeps all connections in the middle of a batch; `begun` is how many of them sent a byte after the first
/// ones, in the round in which most did.
fn drip(
    plan: &ClaimsPlan,
    address: SocketAddr,
    stop: &AtomicBool,
    begun: &AtomicU32,
) -> Result<()> {
    let rings = RingPools::new(16 << 10, 64 << 10, 4)?;
    let mut claimants: Vec<Option<Claimant>> = Vec::new();
    claimants.resize_with(plan.connections as usize, || None);
    let mut due = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let now = Instant::now();
        if now < due {
            thread::sleep((due - now).min(Duration::from_millis(20)));
            continue;
        }
        due = now + plan.drip;
        let mut dripped = 0;
        for (claimant, producer) in claimants.iter_mut().zip(PRODUCERS..) {
            if claimant.is_none() {
                *claimant =
                    Claimant::begin(address, &rings, TOPIC, producer, plan.claim_bytes).ok();
            } else if claimant.as_mut().is_some_and(|it| it.drip().is_err()) {
                *claimant = None;
            } else {
                dripped += 1;
            }
        }
        begun.fetch_max(dripped, Ordering::AcqRel);
    }
    Ok(())
}

impl Findings for ClaimsReport {
    fn text(&self, paint: Paint) -> String {
        let config = &self.config;
        let mut lines = vec![format!(
            "{} connections claimed {} each and sent a byte every {:?}; {} messages went for that",
            config.connections,
            Size(config.claim_bytes),
            config.drip,
            self.evicted_by_claims
        )];
        lines.extend(self.rounds.iter().map(|round| {
            format!(
                "  {:.0} MiB/s without them, {:.0} beside them",
                round.alone_mib_per_s, round.beside_mib_per_s
            )
        }));
        let verdict = match self.kept {
            true => paint.good("kept"),
            false => paint.bad("broken"),
        };
        lines.push(format!("{verdict}: {}", self.left()));
        lines.join("\n")
    }

    fn verdict(&self) -> Result<(), NotKept> {
        let what = match self.evicted_by_claims {
            _ if self.kept => return Ok(()),
            0 => format!("{}, and not {}", self.left(), self.config.at_least),
            gone => format!("{gone} messages were evicted for what was only announced"),
        };
        Err(NotKept::Broken(what))
    }
}

impl ClaimsReport {
    fn left(&self) -> String {
        format!("{:.2} of the rate is left", self.ratio)
    }
}
