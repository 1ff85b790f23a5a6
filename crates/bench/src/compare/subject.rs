//! What is known of each bench that can be compared: how to run it once, and where its report has which figure.

use anyhow::{Context as _, Result, bail, ensure};
use embar_meter::Better;
use serde_json::Value;

/// A bench.
#[derive(Debug)]
pub struct Subject {
    /// Its name on the command line.
    pub bench: &'static str,
    /// Options that make it measure once, unless they are given.
    pub once: &'static [(&'static str, &'static str)],
    /// Where its report says what was run.
    config: &'static str,
    /// What can be compared, the first one unless told otherwise.
    metrics: &'static [Metric],
}

/// A figure of a bench's report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// What it is called.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
    /// Where the report has it.
    at: &'static str,
    /// Units of it in one of the report's.
    scale: f64,
}

const TRIAL: &[(&str, &str)] = &[("trials", "1"), ("warmup", "0")];

const fn rate(name: &'static str, unit: &'static str, at: &'static str) -> Metric {
    Metric {
        name,
        unit,
        better: Better::Higher,
        at,
        scale: 1.0,
    }
}

const fn time(name: &'static str, at: &'static str, scale: f64) -> Metric {
    Metric {
        name,
        unit: "us",
        better: Better::Lower,
        at,
        scale,
    }
}

const THROUGHPUT: Metric = rate("throughput", "MiB/s", "/median_mib_per_s");
const CLIENT_CPU: Metric = Metric {
    name: "client-cpu",
    unit: "s/GiB",
    better: Better::Lower,
    at: "/costs/client/cpu_s_per_gib",
    scale: 1.0,
};
const BROKER_CPU: Metric = Metric {
    name: "broker-cpu",
    at: "/costs/brokers/cpu_s_per_gib",
    ..CLIENT_CPU
};

/// All of them.
const SUBJECTS: &[Subject] = &[
    Subject {
        bench: "publish",
        once: TRIAL,
        config: "/config",
        metrics: &[THROUGHPUT, CLIENT_CPU, BROKER_CPU],
    },
    Subject {
        bench: "read",
        once: TRIAL,
        config: "/config",
        metrics: &[THROUGHPUT, CLIENT_CPU, BROKER_CPU],
    },
    Subject {
        bench: "e2e",
        once: TRIAL,
        config: "/config",
        metrics: &[
            THROUGHPUT,
            time("p50", "/trials/0/latency_us/p50", 1.0),
            time("p99", "/trials/0/latency_us/p99", 1.0),
            CLIENT_CPU,
            BROKER_CPU,
        ],
    },
    Subject {
        bench: "latency",
        once: TRIAL,
        config: "/config",
        metrics: &[
            // The bare round trip comes first.
            time("p50", "/alone/1/latency_us/p50", 1.0),
            time("p99", "/alone/1/latency_us/p99", 1.0),
            time("loaded-p50", "/loaded/0/latency_us/p50", 1.0),
            time("loaded-p99", "/loaded/0/latency_us/p99", 1.0),
        ],
    },
    Subject {
        bench: "session",
        once: &[("runs", "1"), ("warmup", "0")],
        config: "/config",
        metrics: &[
            rate("messages", "messages/s", "/runs/0/messages_per_s"),
            time("p50", "/runs/0/p50_ns", 1e-3),
            time("p99", "/runs/0/p99_ns", 1e-3),
        ],
    },
    Subject {
        bench: "redis",
        once: &[("runs", "1")],
        config: "/plan",
        metrics: &[
            rate("operations", "ops/s", "/operations/0/ops_per_s"),
            time("p50", "/operations/0/latency_us/p50", 1.0),
            time("p99", "/operations/0/latency_us/p99", 1.0),
        ],
    },
];

impl Subject {
    /// The bench of this name.
    pub fn find(bench: &str) -> Result<&'static Self> {
        let found = SUBJECTS.iter().find(|it| it.bench == bench);
        found.with_context(|| {
            let names: Vec<_> = SUBJECTS.iter().map(|it| it.bench).collect();
            format!(
                "bench {bench} compares what it compares: --compare and --precision are for {}",
                names.join(", ")
            )
        })
    }

    /// The metric of this name, or the first one.
    pub fn metric(&self, name: Option<&str>) -> Result<Metric> {
        let Some(name) = name else {
            return Ok(self.metrics[0]);
        };
        let Some(found) = self.metrics.iter().find(|it| it.name == name) else {
            let names: Vec<_> = self.metrics.iter().map(|it| it.name).collect();
            bail!(
                "bench {} has no metric {name:?}: it has {}",
                self.bench,
                names.join(", ")
            );
        };
        Ok(*found)
    }

    /// What the report says was run.
    pub fn config(&self, report: &Value) -> Value {
        report.pointer(self.config).cloned().unwrap_or_default()
    }
}

impl Metric {
    /// Its value in a report.
    pub fn of(&self, report: &Value) -> Result<f64> {
        // Of several trials in one run the one in the middle counts.
        let value = match self.at.split_once("/0/") {
            Some((list, at)) if list == "/trials" || list == "/runs" => {
                let trials = report.pointer(list).and_then(Value::as_array);
                let values = trials.into_iter().flatten();
                let values = values.filter_map(|it| it.pointer(&format!("/{at}"))?.as_f64());
                embar_meter::stats::median(&values.collect::<Vec<_>>())
            }
            _ => report.pointer(self.at).and_then(Value::as_f64),
        };
        let value = value
            .with_context(|| format!("this run has no {}: its options leave it out", self.name))?;
        ensure!(
            value > 0.0,
            "{} is 0: the trial was too short to see any of it, so make it longer",
            self.name
        );
        Ok(value * self.scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bench_or_metric_that_is_not_there_names_those_that_are() {
        let error = Subject::find("walls").expect_err("walls").to_string();
        assert!(error.contains("publish, read, e2e"), "{error}");
        let subject = Subject::find("e2e").expect("e2e");
        let error = subject.metric(Some("p12")).expect_err("p12").to_string();
        assert!(error.contains("throughput, p50, p99"), "{error}");
        assert_eq!(subject.metric(None).expect("the first").name, "throughput");
    }

    #[test]
    fn a_metric_is_read_in_its_unit() {
        let report = serde_json::json!({ "config": { "a": 1 }, "runs": [{ "p50_ns": 4500.0 }] });
        let subject = Subject::find("session").expect("session");
        let metric = subject.metric(Some("p50")).expect("p50");
        assert_eq!(
            (metric.of(&report).expect("there"), metric.unit),
            (4.5, "us")
        );
        assert_eq!(subject.config(&report)["a"], 1);
        let p99 = subject.metric(Some("p99")).expect("p99");
        let error = p99.of(&report).expect_err("none").to_string();
        assert!(error.contains("its options leave it out"), "{error}");
        let nothing = serde_json::json!({ "runs": [{ "p99_ns": 0 }] });
        let error = p99.of(&nothing).expect_err("none").to_string();
        assert!(error.contains("make it longer"), "{error}");
    }
}
