//! Clients that keep to no rule of streams by shared memory, beside the honest ones of a run: each connection is one attack.
//!
//! They run in processes of their own, which are stopped and killed at any moment. What they do wrong must end
//! their own connections, and change nothing for others: that is for the checks of the run to find. They report what they
//! tried, a line for each attack.

mod greeting;
mod publishing;
mod raw_stream;
mod subscribing;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use embar_meter::random::SplitMix64;
use embar_session::RingPools;
use serde::{Deserialize, Serialize};

use publishing::HostilePublisher;
use subscribing::HostileSubscriber;

/// The command of the program that runs a hostile client; the specification is its argument.
pub const COMMAND: &str = "verify-hostile";

/// Begins the report of an attack that did what it must not do.
pub const HARM: &str = "harm";

/// Wait before it tries a broker again: brokers die here.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// What a hostile client poses as.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Pose {
    /// A publisher.
    Publisher,
    /// A subscriber.
    Subscriber,
}

/// One hostile process, as its parent wants it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostileSpec {
    /// What it poses as.
    pub pose: Pose,
    /// The directory of the brokers' socket files.
    pub sockets: PathBuf,
    /// Rows of data brokers: from 1 on to this one.
    pub last_row: u16,
    /// A topic that nobody else uses, which publishers open.
    pub topic: String,
    /// The topic that honest clients use, which subscribers read.
    pub honest_topic: String,
    /// The run, and its honest publishers, whose identities are forged.
    pub run: u32,
    /// How many of these there are.
    pub publishers: u32,
    /// Where random choices begin.
    pub seed: u64,
}

/// Attacks until its parent ends it. `spec` is a [`HostileSpec`] in JSON.
pub fn run(spec: &str) -> Result<()> {
    let spec: HostileSpec = serde_json::from_str(spec).context("this is no hostile client")?;
    super::publisher::end_with_parent()?;
    let rings = RingPools::new(16 << 10, 64 << 10, 4)?;
    let mut random = SplitMix64::new(spec.seed);
    loop {
        let row = 1 + random.below(spec.last_row.into());
        let path = spec.sockets.join(format!("{row}.shm"));
        let (name, result) = match spec.pose {
            Pose::Publisher => pose_as_publisher(&path, &spec, &rings, &mut random),
            Pose::Subscriber => pose_as_subscriber(&path, &spec, &rings, &mut random),
        };
        let line = match result {
            Ok(()) => name.to_owned(),
            Err(error) if error.to_string().starts_with(HARM) => error.to_string(),
            // It was refused, or its broker is away: the next attack is another one.
            Err(_) => {
                std::thread::sleep(RETRY_AFTER);
                format!("{name}: ended by the broker")
            }
        };
        let mut output = std::io::stdout().lock();
        writeln!(output, "{line}").context("the verifier does not read any more")?;
    }
}

fn pose_as_publisher(
    path: &Path,
    spec: &HostileSpec,
    rings: &RingPools,
    random: &mut SplitMix64,
) -> (&'static str, Result<()>) {
    let open = |random: &mut SplitMix64| HostilePublisher::open(path, spec, rings, random);
    match random.below(13) {
        0 => ("greeting", greeting::greet_badly(path, random)),
        1 => ("crowd", greeting::crowd(path, random)),
        2 => (
            "scribbling",
            open(random).and_then(|mut it| it.scribble(random)),
        ),
        3 => (
            "longer batch",
            open(random).and_then(|mut it| it.lengthen(random)),
        ),
        4 => ("damage", open(random).and_then(|mut it| it.damage(random))),
        5 => (
            "disorder",
            open(random).and_then(|mut it| it.disorder(random)),
        ),
        6 => (
            "forgery",
            open(random).and_then(|mut it| it.forge(spec, random)),
        ),
        7 => (
            "lying records",
            open(random).and_then(|mut it| it.lie(random)),
        ),
        8 => (
            "miscounting",
            open(random).and_then(|mut it| it.miscount(random)),
        ),
        9 => (
            "withdrawing",
            open(random).and_then(|mut it| it.withdraw(random)),
        ),
        10 => (
            "going on after the end",
            open(random).and_then(|mut it| it.end_and_go_on()),
        ),
        11 => (
            "hearing nothing",
            open(random).and_then(|mut it| it.hear_nothing()),
        ),
        _ => (
            "beginning only",
            open(random).and_then(|mut it| it.begin_only()),
        ),
    }
}

fn pose_as_subscriber(
    path: &Path,
    spec: &HostileSpec,
    rings: &RingPools,
    random: &mut SplitMix64,
) -> (&'static str, Result<()>) {
    let open =
        |random: &mut SplitMix64| HostileSubscriber::open(path, &spec.honest_topic, rings, random);
    match random.below(6) {
        0 => ("greeting", greeting::greet_badly(path, random)),
        1 => ("holding", open(random).and_then(|mut it| it.hold())),
        2 => (
            "miscounting",
            open(random).and_then(|mut it| it.miscount(random)),
        ),
        3 => ("napping", open(random).and_then(|mut it| it.nap(random))),
        4 => (
            "overwriting",
            open(random).and_then(|mut it| it.overwrite()),
        ),
        _ => ("babble", open(random).and_then(|mut it| it.babble(random))),
    }
}
