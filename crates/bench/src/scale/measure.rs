//! Runs all points of all curves, each on a cluster of its own. A point that cannot be run is reported, and the next one
//! follows.

use anyhow::Result;
use embar_console::context::Context;

use super::load::{LoadJob, ScaleTrial, allow_files};
use super::plan::{Curve, Load, ScalePlan};
use super::report::{CurveReport, Point, ScaleReport};
use crate::private_cluster::PrivateCluster;

/// Topics that a region has room for beside those that are asked for.
const SPARE_TOPICS: u32 = 16;

/// Measures everything.
pub fn run(plan: &ScalePlan, context: &Context) -> Result<ScaleReport> {
    let count = plan.curves.iter().map(|curve| plan.points(*curve).count());
    let count: usize = count.sum();
    let mut done = 0;
    let mut curves = Vec::new();
    for &curve in &plan.curves {
        let mut points = Vec::new();
        for value in plan.points(curve) {
            context.interrupt.check()?;
            let trials = trials(plan, curve, value, context);
            // What was interrupted is no point that cannot be run.
            context.interrupt.check()?;
            let point = Point::new(curve, value, trials);
            done += 1;
            context.note(format_args!("{done}/{count} {point}"));
            points.push(point);
        }
        curves.push(CurveReport::new(curve, points, plan.cliff));
    }
    Ok(ScaleReport::new(plan, curves))
}

fn trials(
    plan: &ScalePlan,
    curve: Curve,
    value: u32,
    context: &Context,
) -> Result<Vec<ScaleTrial>> {
    let load = Load::at(curve, value);
    allow_files(&load)?;
    let cluster = plan.cluster(&load);
    let topics = u16::try_from(load.topics + SPARE_TOPICS)?;
    let mut private = PrivateCluster::start_with("bench-", &cluster, context, |cluster| {
        cluster.topics = Some(topics);
    })?;
    let job = LoadJob {
        load,
        order: plan.order,
        duration: plan.duration,
        trials: plan.trials,
        warmup: plan.warmup,
        connector: cluster.connector(private.cluster.head(), context.progress.clone()),
        pids: private.pids(),
    };
    let trials = private
        .cluster
        .run("bench-scale", move |abort| job.run(abort))?;
    private.stop();
    Ok(trials)
}
