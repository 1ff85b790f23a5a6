//! Runs all trials: path by path and size by size, and within each the walls and the log by turns.

use std::cell::Cell;

use anyhow::{Result, anyhow};
use embar_console::context::Context;
use embar_console::progress::Bar;
use embar_meter::experiment::{Experiment, ExperimentError, Outcome, Sample};
use embar_supervise::work::Abort;

use super::ours::Ours;
use super::plan::{Path, WallsPlan};
use super::report::{WallRow, WallsReport};
use super::rows::{Config, configs, rows};
use crate::private_cluster::PrivateCluster;
use crate::wall::drive::Receivers;

/// Starts receiving processes and, unless only walls are wanted, a cluster; measures; ends all of them.
pub fn run(plan: &WallsPlan, context: &Context) -> Result<WallsReport> {
    let wall = plan.wall(Path::PublishTcp, 2 << 20, 1);
    let receivers = Receivers::start(&wall, context)?;
    let rounds = |ours| Rounds {
        plan: plan.clone(),
        receivers,
        ours,
        done_bytes: Cell::new(0),
        bar: context.bar("walls", bytes_of(plan)),
        context: context.clone(),
    };
    if plan.walls_only {
        let rounds = rounds(None);
        return rounds.run(&Abort::default());
    }
    let largest = plan.batch_bytes.iter().max().copied().unwrap_or(0);
    let cluster_plan = plan.ours(Path::PublishTcp, 0, largest, "walls");
    let mut private = PrivateCluster::start("bench-", &cluster_plan, true, context)?;
    let rounds = rounds(Some(Ours::new(plan, &private, context)));
    let report = private
        .cluster
        .run("bench-walls", move |abort| rounds.run(abort))?;
    private.stop();
    Ok(report)
}

/// Bytes of all trials together.
fn bytes_of(plan: &WallsPlan) -> u64 {
    let configs = |path: &Path| configs(*path, &plan.orders, plan.walls_only).len();
    let configs: usize = plan.paths.iter().map(configs).sum();
    let trials = configs * plan.batch_bytes.len() * (plan.warmup + plan.trials);
    trials as u64 * plan.total_bytes
}

struct Rounds {
    plan: WallsPlan,
    receivers: Receivers,
    ours: Option<Ours>,
    done_bytes: Cell<u64>,
    bar: Box<dyn Bar>,
    context: Context,
}

impl Rounds {
    fn run(&self, abort: &Abort) -> Result<WallsReport> {
        let mut measured = Vec::new();
        for &path in &self.plan.paths {
            for &batch_bytes in &self.plan.batch_bytes {
                for row in self.group(path, batch_bytes, abort)? {
                    self.context.note(&row);
                    measured.push(row);
                }
            }
        }
        Ok(WallsReport::new(&self.plan, measured))
    }

    /// One path with batches of one size.
    fn group(&self, path: Path, batch_bytes: u32, abort: &Abort) -> Result<Vec<WallRow>> {
        let configs = configs(path, &self.plan.orders, self.plan.walls_only);
        let mut read_threads = 1;
        if let Some(ours) = &self.ours {
            ours.begin(path, batch_bytes, abort)?;
            if self.plan.read_threads.is_none() && path.is_read() {
                read_threads = ours.receiving_threads(path, abort)?;
            }
        }
        let wall_plan = self.plan.wall(path, batch_bytes, read_threads);
        let outcome = Experiment::new(configs.iter().map(|config| format!("{config:?}")))
            .unit("MiB/s")
            .rotating()
            .warmup(self.plan.warmup)
            .trials(self.plan.trials)
            .run(|index, _| {
                abort.check()?;
                let rate = match (configs[index], &self.ours) {
                    (Config::Wall(wall), _) => self.receivers.run(wall, &wall_plan)?,
                    (Config::Ours { order, verified }, Some(ours)) => {
                        ours.trial(path, order, batch_bytes, verified, abort)?
                    }
                    (ours, None) => return Err(anyhow!("{ours:?} has no cluster")),
                };
                self.done_bytes
                    .set(self.done_bytes.get() + self.plan.total_bytes);
                self.bar.set(self.done_bytes.get());
                Ok(Sample::from(rate))
            })
            .map_err(|error: ExperimentError<anyhow::Error>| match error {
                ExperimentError::Trial { trial, cause, .. } => {
                    cause.context(format!("{}, {trial}", path.name()))
                }
                other => anyhow!("{other}"),
            })?;
        if let Some(ours) = &self.ours {
            ours.end(path)?;
        }
        self.rows(path, batch_bytes, &configs, &outcome)
    }

    fn rows(
        &self,
        path: Path,
        batch_bytes: u32,
        configs: &[Config],
        outcome: &Outcome,
    ) -> Result<Vec<WallRow>> {
        rows(batch_bytes, configs)
            .iter()
            .map(|row| WallRow::of(path, batch_bytes, row, outcome))
            .collect()
    }
}
