//! Runs all trials: path by path and size by size, and within each the walls and the log by turns.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use embar_client::Transport;
use embar_console::context::Context;
use embar_console::progress::Bar;
use embar_meter::experiment::{Better, Experiment, ExperimentError, Outcome, Sample};
use embar_supervise::work::Abort;

use super::ours::Ours;
use super::plan::{
    Carrier, Case, Cluster, Path, SHM_BATCH_BYTES, SPIN, SPINNING_REGION_BYTES, WallsPlan,
};
use super::report::{WallRow, WallsReport};
use super::rows::{Config, configs, rows};
use super::times::TimeRow;
use crate::plan::BenchPlan;
use crate::private_cluster::PrivateCluster;
use crate::wall::drive::Receivers;
use crate::wall::shm::drive::SharedMemory;
use crate::wall::shm::ping::{self, RoundTrips};

/// Starts a cluster, unless only walls are measured; measures; ends it.
pub fn run(plan: &WallsPlan, context: &Context) -> Result<WallsReport> {
    let rounds = |ours| Rounds {
        plan: plan.clone(),
        ours,
        done_bytes: Cell::new(0),
        bar: context.bar("walls", bytes_of(plan)),
        context: context.clone(),
    };
    if plan.walls_only {
        return rounds(Vec::new()).run(&Abort::default());
    }
    let largest = plan.batch_bytes.iter().max().copied().unwrap_or(0);
    let any = Case {
        path: Path::PublishTcp,
        batch_bytes: largest.max(SHM_BATCH_BYTES),
        message_bytes: plan.message_bytes,
    };
    let cluster_plan = plan.ours(any, 0, "walls");
    let mut private = PrivateCluster::start("bench-", &cluster_plan, true, context)?;
    let mut ours = vec![(
        Cluster::Several,
        Ours::new(plan, &private, Duration::ZERO, context),
    )];
    let mut others = Vec::new();
    for (cluster, spin) in [(Cluster::One, Duration::ZERO), (Cluster::Spinning, SPIN)] {
        let runs_there = |path: &Path| path.clusters().contains(&cluster);
        if plan.paths.iter().any(runs_there) {
            let private = start_one(&cluster_plan, spin, context)?;
            ours.push((cluster, Ours::new(plan, &private, spin, context)));
            others.push(private);
        }
    }
    let rounds = rounds(ours);
    let report = private
        .cluster
        .run("bench-walls", move |abort| rounds.run(abort))?;
    private.stop();
    others.into_iter().for_each(PrivateCluster::stop);
    Ok(report)
}

/// A broker that is alone, and spins if it is told to. While nobody uses it, it costs the others nothing.
fn start_one(plan: &BenchPlan, spin: Duration, context: &Context) -> Result<PrivateCluster> {
    let (region_bytes, name) = match spin {
        Duration::ZERO => (plan.region_bytes, "one"),
        _ => (plan.region_bytes.min(SPINNING_REGION_BYTES), "spinning"),
    };
    let plan = BenchPlan {
        brokers: 1,
        data_brokers: 1,
        region_bytes,
        spin,
        ..plan.clone()
    };
    PrivateCluster::start_with("bench-", &plan, context, |cluster| {
        // Beside the region of the other cluster.
        cluster.region.set_extension(name);
    })
}

/// Bytes of all trials together.
fn bytes_of(plan: &WallsPlan) -> u64 {
    let cases = plan.cases();
    let configs = |case: &Case| configs(case.path, &plan.orders, plan.walls_only).len();
    let configs: usize = cases.iter().map(configs).sum();
    (configs * (plan.warmup + plan.trials)) as u64 * plan.total_bytes
}

struct Rounds {
    plan: WallsPlan,
    /// Those that run; none if only walls are measured.
    ours: Vec<(Cluster, Ours)>,
    done_bytes: Cell<u64>,
    bar: Box<dyn Bar>,
    context: Context,
}

/// What the walls of a case need. It takes as much memory as the log has, so it is there while it is used.
enum Walls {
    Sockets(Receivers),
    Shm(SharedMemory),
}

impl Rounds {
    fn run(&self, abort: &Abort) -> Result<WallsReport> {
        let mut report = WallsReport::new(&self.plan);
        let cases = self.plan.cases();
        for cases in cases.chunk_by(|one, next| is_shm(one) == is_shm(next)) {
            let walls = self.walls(cases[0])?;
            for &case in cases {
                self.group(case, &walls, &mut report, abort)?;
            }
        }
        Ok(report)
    }

    fn walls(&self, case: Case) -> Result<Walls> {
        match case.path.carrier() {
            Carrier::Sockets(transport) => {
                let plan = self.plan.wall(case, transport, 1);
                Ok(Walls::Sockets(Receivers::start(&plan, &self.context)?))
            }
            Carrier::Shm => {
                let (ring_bytes, interrupt) = (self.plan.region_bytes, &self.context.interrupt);
                let memory = SharedMemory::new(ring_bytes, SHM_BATCH_BYTES, interrupt);
                Ok(Walls::Shm(
                    memory.context("cannot make the ring of the walls")?,
                ))
            }
        }
    }

    /// One path with batches and messages of one size.
    fn group(
        &self,
        case: Case,
        walls: &Walls,
        report: &mut WallsReport,
        abort: &Abort,
    ) -> Result<()> {
        let path = case.path;
        let configs = configs(path, &self.plan.orders, self.plan.walls_only);
        let on = |(cluster, _): &&(Cluster, Ours)| path.clusters().contains(cluster);
        let ours: Vec<&Ours> = self.ours.iter().filter(on).map(|(_, ours)| ours).collect();
        let mut read_threads = 1;
        for ours in &ours {
            ours.begin(case, abort)?;
            let sockets = matches!(walls, Walls::Sockets(_));
            if sockets && self.plan.read_threads.is_none() && path.is_read() {
                read_threads = ours.receiving_threads(path, abort)?;
            }
        }
        let group = Group {
            rounds: self,
            case,
            walls,
            read_threads,
            abort,
            slow_ns: RefCell::new(vec![Vec::new(); configs.len()]),
        };
        let outcome = group.run(&configs)?;
        for ours in ours {
            ours.end(path)?;
        }
        for row in rows(case, &configs) {
            if path.is_timed() {
                let slow_ns = group.slow_ns.borrow();
                let row = TimeRow::of(case, &row, &outcome, &slow_ns)?;
                self.context.note(&row);
                report.times.push(row);
            } else {
                let row = WallRow::of(case, &row, self.plan.brokers, &outcome)?;
                self.context.note(&row);
                report.rows.push(row);
            }
        }
        Ok(())
    }
}

fn is_shm(case: &Case) -> bool {
    case.path.carrier() == Carrier::Shm
}

/// The trials of one case.
struct Group<'a> {
    rounds: &'a Rounds,
    case: Case,
    walls: &'a Walls,
    read_threads: u16,
    abort: &'a Abort,
    /// What 99 of 100 round trips do not exceed, of each configuration and trial.
    slow_ns: RefCell<Vec<Vec<f64>>>,
}

impl Group<'_> {
    fn run(&self, configs: &[Config]) -> Result<Outcome> {
        let Rounds { plan, .. } = self.rounds;
        let timed = self.case.path.is_timed();
        let (unit, better) = if timed {
            ("ns", Better::Lower)
        } else {
            ("MiB/s", Better::Higher)
        };
        Experiment::new(configs.iter().map(|config| format!("{config:?}")))
            .unit(unit)
            .better(better)
            .rotating()
            .warmup(plan.warmup)
            .trials(plan.trials)
            .run(|index, trial| {
                self.abort.check()?;
                let value = if timed {
                    let times = self.round_trips(configs[index])?;
                    if !trial.warmup {
                        self.slow_ns.borrow_mut()[index].push(times.p99_ns);
                    }
                    times.p50_ns
                } else {
                    self.rate(configs[index])?
                };
                let done = self.rounds.done_bytes.get() + plan.total_bytes;
                self.rounds.done_bytes.set(done);
                self.rounds.bar.set(done);
                Ok(Sample::from(value))
            })
            .map_err(|error: ExperimentError<anyhow::Error>| match error {
                ExperimentError::Trial { trial, cause, .. } => {
                    cause.context(format!("{}, {trial}", self.case.path.name()))
                }
                other => anyhow!("{other}"),
            })
    }

    /// MiB/s of one trial.
    fn rate(&self, config: Config) -> Result<f64> {
        let Rounds { plan, .. } = self.rounds;
        match (config, self.walls) {
            (Config::Wall(wall), Walls::Sockets(receivers)) => {
                let Carrier::Sockets(transport) = self.case.path.carrier() else {
                    return Err(anyhow!("{wall:?} has no sockets"));
                };
                receivers.run(wall, &plan.wall(self.case, transport, self.read_threads))
            }
            (Config::Shm(wall), Walls::Shm(memory)) => memory.run(wall, &plan.shm_wall(self.case)),
            (
                Config::Ours {
                    order,
                    reader,
                    cluster,
                },
                _,
            ) => self
                .ours(cluster)?
                .trial(self.case, order, reader, self.abort),
            (Config::Beside { order, local }, _) => {
                let other = match local {
                    true => Transport::Shm,
                    false => Transport::Tcp,
                };
                let ours = self.ours(Cluster::Several)?;
                ours.beside(self.case, order, other, self.abort)
            }
            (other, ..) => Err(anyhow!("{other:?} has nothing to run on")),
        }
    }

    fn round_trips(&self, config: Config) -> Result<RoundTrips> {
        let Rounds { plan, context, .. } = self.rounds;
        match config {
            Config::Ping(ping) => ping::measure(ping, plan.round_trips(), &context.interrupt),
            Config::Ours { order, cluster, .. } => self
                .ours(cluster)?
                .round_trips(self.case, order, self.abort),
            other => Err(anyhow!("{other:?} has no round trips")),
        }
    }

    fn ours(&self, cluster: Cluster) -> Result<&Ours> {
        let mut ours = self.rounds.ours.iter();
        let found = ours.find(|(other, _)| *other == cluster);
        let (_, ours) = found.with_context(|| format!("{cluster:?} does not run"))?;
        Ok(ours)
    }
}
