//! Runs the rounds of each attack.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_console::context::Context;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::attacker::{AttackerSpec, Attacking, Tally};
use super::honest::{Harm, Honest, Seen};
use super::kind::Attack;
use super::plan::DrillPlan;
use super::server::{DrillServer, Figures, Listening, ServerSpec};

/// How often Ctrl-C is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What a server may take to notice that an attacker is gone.
const REST_WITHIN: Duration = Duration::from_secs(20);
/// Sessions of newcomers that may just be ending.
const NEWCOMERS: u64 = 2;

/// What honest peers saw in a part of a round. Latencies are in microseconds; there are none of nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// Round trips of the sessions that last.
    pub round_trips: u64,
    /// Their median.
    pub p50_us: Option<f64>,
    /// What one of a hundred exceeds.
    pub p99_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
    /// Newcomers that connected, got their echo and left.
    pub newcomers: u64,
    /// The median of what that took.
    pub newcomers_p50_us: Option<f64>,
    /// The longest that it took.
    pub newcomers_max_us: Option<f64>,
}

impl Part {
    fn of(seen: &Seen) -> Self {
        let at = |histogram: &Histogram<u64>, quantile: f64| {
            (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile) as f64 / 1e3)
        };
        let (round_trips, newcomers) = (&seen.round_trips, &seen.newcomers);
        Self {
            round_trips: round_trips.len(),
            p50_us: at(round_trips, 0.5),
            p99_us: at(round_trips, 0.99),
            max_us: at(round_trips, 1.0),
            newcomers: newcomers.len(),
            newcomers_p50_us: at(newcomers, 0.5),
            newcomers_max_us: at(newcomers, 1.0),
        }
    }
}

/// One round of an attack.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Without the attack.
    pub before: Part,
    /// While it was built up.
    pub building: Part,
    /// While it lasted.
    pub during: Part,
    /// What the attacker did.
    pub attacker: Tally,
    /// What the server had counted at the end of it, all rounds so far together.
    pub server: Figures,
}

/// What came of one attack.
#[derive(Clone, Debug, Serialize)]
pub struct Attacked {
    /// The attack.
    pub attack: Attack,
    /// Connections that it was to have at a time.
    pub connections: u32,
    /// Its rounds.
    pub rounds: Vec<Round>,
    /// When it was over for good.
    pub after: Part,
    /// What went wrong for honest peers.
    pub harm: Harm,
    /// The server before the first round.
    pub server_before: Figures,
    /// The server when it was over for good.
    pub server_after: Figures,
}

/// Attacks a server of its own.
pub fn attack(plan: &DrillPlan, attack: Attack, context: &Context) -> Result<Attacked> {
    let interrupt = &context.interrupt;
    let spec = ServerSpec {
        threads: plan.threads,
        encrypted: attack.is_encrypted(),
        honest_sessions: None,
    };
    let mut server = DrillServer::start(&context.program, &spec, interrupt)?;
    let Listening {
        address,
        certificate,
    } = server.listening.clone();
    let connections = attack.connections(plan.connections);
    let spec = AttackerSpec {
        attack,
        server: address,
        certificate,
        connections,
        addresses: plan.addresses,
    };
    let honest = Honest::start(plan, server.listening.clone())?;
    // The first one is cold.
    watch(plan.duration, context)?;
    let server_before = server.figures(interrupt)?;
    let mut rounds = Vec::with_capacity(plan.runs);
    for _ in 0..plan.runs {
        let before = quiet(&honest, plan, context)?;
        let (attacking, ready) = Attacking::start(&context.program, &spec, interrupt)?;
        if ready.connections < u64::from(connections) {
            context.note(format_args!(
                "{}: {} connections in place of {connections}, as the limit of open files allows no more; raise it with \
                 ulimit -n",
                attack.name(),
                ready.connections
            ));
        }
        let building = Part::of(&honest.take());
        watch(plan.duration, context)?;
        let during = Part::of(&honest.take());
        let figures = server.figures(interrupt)?;
        let attacker = attacking.stop(interrupt)?;
        rest(&mut server, plan, context)?;
        rounds.push(Round {
            before,
            building,
            during,
            attacker,
            server: figures,
        });
    }
    let after = quiet(&honest, plan, context)?;
    let harm = honest.end();
    // Those that were honest leave, too.
    let server_after = server.figures_when(interrupt, REST_WITHIN, |it| it.connections() == 0)?;
    Ok(Attacked {
        attack,
        connections,
        rounds,
        after,
        harm,
        server_before,
        server_after,
    })
}

fn quiet(honest: &Honest, plan: &DrillPlan, context: &Context) -> Result<Part> {
    drop(honest.take());
    watch(plan.duration, context)?;
    Ok(Part::of(&honest.take()))
}

/// Waits until the server has noticed that the attacker is gone.
fn rest(server: &mut DrillServer, plan: &DrillPlan, context: &Context) -> Result<Figures> {
    let honest = u64::from(plan.sessions) + NEWCOMERS;
    server.figures_when(&context.interrupt, REST_WITHIN, |it| {
        it.connections() <= honest
    })
}

fn watch(duration: Duration, context: &Context) -> Result<()> {
    let until = Instant::now() + duration;
    loop {
        context.interrupt.check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}
