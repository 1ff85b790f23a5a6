//! `bench publish --compare`: measures publishing at several order levels by turns, on one cluster, and compares each
//! level with the first one. Each trial has a new topic.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use embar_console::context::Context;
use embar_meter::experiment::{Experiment, ExperimentError, Outcome, Sample};
use embar_supervise::work::Abort;
use serde::Serialize;

use super::plan::{BenchPlan, Metering, parse_order};
use super::private_cluster::PrivateCluster;
use super::publish::PublishTrial;
use super::report::{ComparisonReport, SeriesReport, Summary, series};
use super::shared_cluster::SharedCluster;
use super::usage::{Costs, median};

/// What to compare: order levels, the first of which the others are compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    orders: Vec<u32>,
}

/// Why a text is no comparison.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is nothing to compare: write two or more different order levels, as in order=0,1,2,5"
)]
pub struct ParseCompareError {
    text: String,
}

impl FromStr for Compare {
    type Err = ParseCompareError;

    fn from_str(text: &str) -> Result<Self, ParseCompareError> {
        let orders = || {
            let orders = text.strip_prefix("order=")?.split(',').map(parse_order);
            let orders: Vec<u32> = orders.collect::<Result<_, _>>().ok()?;
            let differ = (1..orders.len()).all(|i| !orders[..i].contains(&orders[i]));
            (orders.len() > 1 && differ).then_some(orders)
        };
        let wrong = || ParseCompareError {
            text: text.to_owned(),
        };
        orders().map(|orders| Self { orders }).ok_or_else(wrong)
    }
}

impl fmt::Display for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let orders: Vec<String> = self.orders.iter().map(u32::to_string).collect();
        write!(f, "order={}", orders.join(","))
    }
}

impl Compare {
    /// A plan for each order level.
    pub fn plans(&self, plan: &BenchPlan) -> Vec<BenchPlan> {
        let plans = self.orders.iter().map(|order| BenchPlan {
            order: *order,
            ..plan.clone()
        });
        plans.collect()
    }
}

/// What the comparison gave.
#[derive(Debug, Serialize)]
pub struct CompareReport<'a> {
    bench: &'static str,
    compare: String,
    /// The plan of the first order level; the others differ in nothing else.
    config: &'a BenchPlan,
    orders: Vec<ComparedOrder<'a>>,
    series: Vec<SeriesReport>,
    /// Each order level compared with the first.
    comparisons: Vec<ComparisonReport>,
    #[serde(skip)]
    outcome: &'a Outcome,
}

/// What one order level gave.
#[derive(Debug, Serialize)]
struct ComparedOrder<'a> {
    order: u32,
    #[serde(flatten)]
    summary: Summary,
    costs: Costs,
    trials: &'a [PublishTrial],
}

/// What was measured.
pub struct CompareTrials {
    /// By order level, in the order they were given.
    pub trials: Vec<Vec<PublishTrial>>,
    outcome: Outcome,
}

/// Measures all of them on one cluster, with a new topic for each trial.
pub fn measure(plans: &[BenchPlan], context: &Context) -> Result<CompareTrials> {
    let plan = &plans[0];
    let metering = plan.metering == Metering::On;
    let mut private = PrivateCluster::start("bench-", plan, metering, context)?;
    let rounds = Rounds {
        plans: plans.to_vec(),
        cluster: SharedCluster::new(&private, plan, metering, context),
    };
    let measured = private
        .cluster
        .run("bench-compare", move |abort| rounds.run(abort))?;
    private.stop();
    Ok(measured)
}

/// Trials of all plans, in rounds.
struct Rounds {
    plans: Vec<BenchPlan>,
    cluster: SharedCluster,
}

impl Rounds {
    fn run(&self, abort: &Abort) -> Result<CompareTrials> {
        let names = self
            .plans
            .iter()
            .map(|plan| format!("order {}", plan.order));
        let mut trials = vec![Vec::new(); self.plans.len()];
        let outcome = Experiment::new(names)
            .unit("MiB/s")
            .rotating()
            .warmup(self.plans[0].warmup)
            .trials(self.plans[0].trials)
            .run(|index, round| {
                let trial = self.cluster.publish(&self.plans[index], abort)?;
                let rate = trial.rate.mib_per_s;
                let order = self.plans[index].order;
                self.cluster
                    .context
                    .note(format_args!("order {order}, {round}: {rate:.1} MiB/s"));
                if !round.warmup {
                    trials[index].push(trial);
                }
                Ok(Sample::from(rate))
            })
            .map_err(|error: ExperimentError<anyhow::Error>| match error {
                ExperimentError::Trial { name, trial, cause } => {
                    cause.context(format!("{name}, {trial}"))
                }
                other => anyhow::anyhow!("{other}"),
            })?;
        Ok(CompareTrials { trials, outcome })
    }
}

impl fmt::Display for CompareReport<'_> {
    /// The report for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outcome.fmt(f)
    }
}

/// Sums up what was measured.
pub fn report<'a>(
    compare: &Compare,
    plans: &'a [BenchPlan],
    measured: &'a CompareTrials,
) -> Result<CompareReport<'a>> {
    let outcome = &measured.outcome;
    let of_order = |(plan, trials): (&BenchPlan, &'_ Vec<PublishTrial>)| {
        Ok((
            plan.order,
            Summary::of(&trials.iter().map(|trial| trial.rate).collect::<Vec<_>>())?,
            median(&trials.iter().map(|trial| trial.costs).collect::<Vec<_>>()),
        ))
    };
    let summaries = plans.iter().zip(&measured.trials).map(of_order);
    let summaries = summaries.collect::<Result<Vec<_>>>()?;
    let orders = summaries.into_iter().zip(&measured.trials);
    Ok(CompareReport {
        bench: "publish",
        compare: compare.to_string(),
        config: &plans[0],
        orders: orders
            .map(|((order, summary, costs), trials)| ComparedOrder {
                order,
                summary,
                costs,
                trials,
            })
            .collect(),
        series: series(outcome),
        comparisons: (1..plans.len())
            .map(|changed| ComparisonReport::of(outcome, 0, changed))
            .collect::<Result<_>>()?,
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_as_people_write_them() {
        for text in ["order=0,1,2,5", "order=5,0"] {
            assert_eq!(text.parse::<Compare>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "order",
            "order=",
            "order=0",
            "order=0,0",
            "order=0,3",
            "acks=0,1",
            "0,1",
        ] {
            let error = text.parse::<Compare>().expect_err(text).to_string();
            assert!(error.contains("order=0,1,2,5"), "{error}");
        }
    }

    #[test]
    fn plans_differ_in_the_order_only() {
        let plan = super::super::plan::tests::plan();
        let compare: Compare = "order=0,5".parse().expect("orders");
        let plans = compare.plans(&plan);
        assert_eq!((plans[0].order, plans[1].order), (0, 5));
        assert_eq!(
            plans[0].describe().replace("order 0", ""),
            plans[1].describe().replace("order 5", "")
        );
    }
}
