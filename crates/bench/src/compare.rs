//! `bench publish --compare`: measures publishing by turns, at several order levels on one cluster, or with brokers that
//! receive in several ways. It compares each with the first one. Each trial has a new topic.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use embar_broker::ReceivePath;
use embar_console::context::Context;
use embar_meter::experiment::{Experiment, ExperimentError, Outcome, Sample};
use serde::Serialize;

use super::plan::{BenchPlan, Metering, parse_order};
use super::private_cluster::PrivateCluster;
use super::publish::{PublishTrial, trial};
use super::report::{ComparisonReport, Derived, SeriesReport, Summary, merged, series};
use super::shared_cluster::SharedCluster;
use super::usage::{Costs, median};

/// What to compare. The others are compared with the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Order levels.
    Orders(Vec<u32>),
    /// Ways in which brokers receive payloads.
    Receive(Vec<ReceivePath>),
}

/// Why a text is no comparison.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is nothing to compare: write two or more different order levels, as in order=0,1,2,5, or ways to receive, as in receive=direct,staging,blocking,uring"
)]
pub struct ParseCompareError {
    text: String,
}

impl FromStr for Compare {
    type Err = ParseCompareError;

    fn from_str(text: &str) -> Result<Self, ParseCompareError> {
        let parsed = match text.split_once('=') {
            Some(("order", list)) => differing(list, |one| parse_order(one).ok()).map(Self::Orders),
            Some(("receive", list)) => differing(list, |one| one.parse().ok()).map(Self::Receive),
            _ => None,
        };
        parsed.ok_or_else(|| ParseCompareError {
            text: text.to_owned(),
        })
    }
}

/// A list of two or more, each of them once.
fn differing<T: PartialEq>(list: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let all: Vec<T> = list.split(',').map(parse).collect::<Option<_>>()?;
    let differ = (1..all.len()).all(|i| !all[..i].contains(&all[i]));
    (all.len() > 1 && differ).then_some(all)
}

impl fmt::Display for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = match self {
            Self::Orders(orders) => orders.iter().map(u32::to_string).collect(),
            Self::Receive(paths) => paths.iter().map(ReceivePath::to_string).collect(),
        };
        write!(f, "{}={}", self.setting(), values.join(","))
    }
}

impl Compare {
    /// The option whose values are compared.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Orders(_) => "order",
            Self::Receive(_) => "receive",
        }
    }

    /// A plan for each value.
    pub fn plans(&self, plan: &BenchPlan) -> Vec<BenchPlan> {
        let with_order = |order: &u32| BenchPlan {
            order: *order,
            ..plan.clone()
        };
        let with_path = |path: &ReceivePath| BenchPlan {
            receive: *path,
            ..plan.clone()
        };
        match self {
            Self::Orders(orders) => orders.iter().map(with_order).collect(),
            Self::Receive(paths) => paths.iter().map(with_path).collect(),
        }
    }

    /// What a plan of this comparison is called.
    fn name_of(&self, plan: &BenchPlan) -> String {
        match self {
            Self::Orders(_) => format!("order {}", plan.order),
            Self::Receive(_) => plan.receive.to_string(),
        }
    }
}

/// What the comparison gave.
#[derive(Debug, Serialize)]
pub struct CompareReport<'a> {
    bench: &'static str,
    compare: String,
    /// The plan of the first; the others differ in nothing else.
    config: &'a BenchPlan,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    orders: Vec<Compared<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<Compared<'a>>,
    series: Vec<SeriesReport>,
    /// Each compared with the first.
    comparisons: Vec<ComparisonReport>,
    #[serde(skip)]
    outcome: &'a Outcome,
}

/// What one of them gave.
#[derive(Debug, Serialize)]
struct Compared<'a> {
    order: u32,
    receive: String,
    #[serde(flatten)]
    summary: Summary,
    costs: Costs,
    #[serde(flatten)]
    derived: Derived,
    trials: &'a [PublishTrial],
}

/// What was measured.
pub struct CompareTrials {
    /// By value, in the order they were given.
    pub trials: Vec<Vec<PublishTrial>>,
    outcome: Outcome,
}

/// Measures all of them: order levels on one cluster, with a new topic for each trial, and ways to receive with new
/// brokers for each trial.
pub fn measure(compare: &Compare, plans: &[BenchPlan], context: &Context) -> Result<CompareTrials> {
    let plan = &plans[0];
    let metering = plan.metering == Metering::On;
    let rounds = Rounds {
        names: plans.iter().map(|plan| compare.name_of(plan)).collect(),
        plans: plans.to_vec(),
        context: context.clone(),
    };
    if let Compare::Receive(_) = compare {
        return rounds.run(|plan| trial(plan, metering, context));
    }
    let mut private = PrivateCluster::start("bench-", plan, metering, context)?;
    let cluster = SharedCluster::new(&private, plan, metering, context);
    let measured = private.cluster.run("bench-compare", move |abort| {
        rounds.run(|plan| cluster.publish(plan, abort))
    })?;
    private.stop();
    Ok(measured)
}

/// The error of an experiment. It keeps the trial's own, and with it the exit code.
pub fn trial_failed(error: ExperimentError<anyhow::Error>) -> anyhow::Error {
    match error {
        ExperimentError::Trial { name, trial, cause } => cause.context(format!("{name}, {trial}")),
        other => anyhow::anyhow!("{other}"),
    }
}

/// Trials of all plans, in rounds.
struct Rounds {
    names: Vec<String>,
    plans: Vec<BenchPlan>,
    context: Context,
}

impl Rounds {
    fn run(&self, publish: impl Fn(&BenchPlan) -> Result<PublishTrial>) -> Result<CompareTrials> {
        let mut trials = vec![Vec::new(); self.plans.len()];
        let outcome = Experiment::new(&self.names)
            .unit("MiB/s")
            .rotating()
            .warmup(self.plans[0].warmup)
            .trials(self.plans[0].trials)
            .run(|index, round| {
                let trial = publish(&self.plans[index])?;
                let rate = trial.rate.mib_per_s;
                let name = &self.names[index];
                self.context
                    .note(format_args!("{name}, {round}: {rate:.1} MiB/s"));
                if !round.warmup {
                    trials[index].push(trial);
                }
                Ok(Sample::from(rate))
            })
            .map_err(trial_failed)?;
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
    let one = |(plan, trials): (&BenchPlan, &'a Vec<PublishTrial>)| {
        let profile = merged(trials.iter().map(|trial| trial.broker_profile.as_ref()));
        Ok(Compared {
            order: plan.order,
            receive: plan.receive.to_string(),
            summary: Summary::of(&trials.iter().map(|trial| trial.rate).collect::<Vec<_>>())?,
            costs: median(&trials.iter().map(|trial| trial.costs).collect::<Vec<_>>()),
            derived: profile.as_ref().map(Derived::of).unwrap_or_default(),
            trials,
        })
    };
    let compared = plans.iter().zip(&measured.trials).map(one);
    let compared = compared.collect::<Result<Vec<_>>>()?;
    let (orders, paths) = match compare {
        Compare::Orders(_) => (compared, Vec::new()),
        Compare::Receive(_) => (Vec::new(), compared),
    };
    Ok(CompareReport {
        bench: "publish",
        compare: compare.to_string(),
        config: &plans[0],
        orders,
        paths,
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
        for text in ["order=0,1,2,5", "order=5,0", "receive=uring,direct"] {
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
            "receive=uring",
            "receive=direct,direct",
            "receive=direct,epoll",
            "receive=0,1",
            "0,1",
        ] {
            let error = text.parse::<Compare>().expect_err(text).to_string();
            assert!(error.contains("order=0,1,2,5"), "{error}");
        }
    }

    #[test]
    fn plans_differ_in_the_path_only() {
        let plan = super::super::plan::tests::plan();
        let compare: Compare = "receive=direct,staging".parse().expect("paths");
        let plans = compare.plans(&plan);
        let paths = plans.iter().map(|plan| plan.receive);
        assert!(paths.eq([ReceivePath::Direct, ReceivePath::Staging]));
        assert_eq!(
            plans[0].describe().replace("receive direct", ""),
            plans[1].describe().replace("receive staging", "")
        );
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
