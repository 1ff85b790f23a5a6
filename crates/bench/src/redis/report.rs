//! The report on a bench of the Redis client.

use embar_meter::table::Table;
use serde::Serialize;

use super::figures::{PartOf, RedisRun, Summary};
use super::plan::RedisPlan;

/// All that is printed.
#[derive(Debug, Serialize)]
pub struct RedisReport<'a> {
    /// What was asked for.
    plan: &'a RedisPlan,
    /// Medians of each operation.
    operations: Vec<Summary>,
    /// All runs.
    runs: &'a [RedisRun],
}

impl<'a> RedisReport<'a> {
    /// The report on the runs of a plan.
    pub fn of(plan: &'a RedisPlan, runs: &'a [RedisRun]) -> Self {
        let mut report = Self {
            plan,
            operations: Vec::new(),
            runs,
        };
        report.operations = report.summaries(|run| Some(&run.all));
        report
    }

    fn summaries(&self, part: PartOf) -> Vec<Summary> {
        let operations = self.plan.operations.iter();
        operations
            .filter_map(|operation| {
                let runs = self.runs.iter();
                let runs: Vec<&RedisRun> = runs.filter(|run| run.operation == *operation).collect();
                Summary::of(*operation, &runs, part)
            })
            .collect()
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut lines = vec![self.table().to_string()];
        for run in self.runs {
            if let Some(profile) = &run.profile {
                lines.push(format!("\n{}, run {}", run.operation.name(), run.run));
                lines.push(profile.table().to_string());
            }
        }
        lines.join("\n")
    }

    fn table(&self) -> Table {
        let mut table = Table::new([
            "operation",
            "ops/s",
            "spread",
            "hits",
            "misses",
            "errors",
            "P50 (us)",
            "P99 (us)",
            "P99.9 (us)",
            "CPU (us/op)",
            "replies/write",
            "replies/read",
        ]);
        for whole in &self.operations {
            let name = whole.operation.name();
            table.row(whole.row(name.to_owned(), false));
            let kinds: [(&str, PartOf); 2] = [
                ("tasks", |run| run.tasks.as_ref()),
                ("threads", |run| run.blocking_threads.as_ref()),
            ];
            for (kind, part) in kinds {
                let summaries = self.summaries(part);
                let same = |part: &&Summary| part.operation == whole.operation;
                if let Some(part) = summaries.iter().find(same) {
                    table.row(part.row(format!("{name}, {kind}"), true));
                }
            }
        }
        table
    }

    /// Values that were read and are not those of their keys.
    pub fn wrong(&self) -> u64 {
        self.operations.iter().map(|summary| summary.wrong).sum()
    }

    /// The first operation of which none succeeded, and why, as far as is known.
    pub fn all_failed(&self) -> Option<(&'static str, Option<&str>)> {
        let nothing = |run: &&RedisRun| run.all.operations == 0 && run.all.wrong == 0;
        let run = self.runs.iter().find(nothing)?;
        Some((run.operation.name(), run.first_error.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{outcome, seen};
    use super::super::measure::CallerResults;
    use super::super::plan::Operation;
    use super::super::plan::tests::plan;
    use super::super::tally::Counts;
    use super::*;

    #[test]
    fn the_report_has_medians_and_sums() {
        let run = |(number, hits)| RedisRun::of(Operation::Get, number, outcome(hits));
        let runs: Vec<RedisRun> = [(1, 99), (2, 199), (3, 299)].map(run).into();
        let plan = plan();
        let report = RedisReport::of(&plan, &runs);
        let [get] = report.operations.as_slice() else {
            panic!("only GETs were run");
        };
        assert_eq!(
            (get.runs, get.ops_per_s, get.ops_per_s_spread),
            (3, 100.0, 1.0)
        );
        assert_eq!((get.hits, get.misses, get.errors), (597, 3, 6));
        assert!(report.table().to_string().contains("100.0%"));
        assert!(report.all_failed().is_none());
        let json = serde_json::to_value(&report).expect("JSON");
        for key in [
            "ops_per_s",
            "hits",
            "misses",
            "errors",
            "p50_ns",
            "p99_ns",
            "p999_ns",
            "client_cpu_us_per_op",
        ] {
            assert!(json["operations"][0][key].is_number(), "{key}");
            assert!(json["runs"][2][key].is_number(), "{key}");
        }
        assert_eq!(json["plan"]["mix"], "80:20");
    }

    #[test]
    fn a_run_without_operations_has_no_latency() {
        let mut nothing = outcome(0);
        nothing.tasks = Some(CallerResults {
            counts: Counts {
                errors: 3,
                first_error: Some("refused".into()),
                ..Counts::default()
            },
            ..seen(1, 0, 1)
        });
        let (plan, runs) = (plan(), [RedisRun::of(Operation::Get, 1, nothing)]);
        let report = RedisReport::of(&plan, &runs);
        assert_eq!(report.operations[0].p50_ns, None);
        assert_eq!(report.all_failed(), Some(("get", Some("refused"))));
    }
}
