//! The parameters of `bench redis`: which operations, how many callers, which server, which sizes.

use std::time::{Duration, Instant};

use embar_console::setting::BadSetting;
use embar_console::size::as_seconds;
use embar_meter::table::grouped;
use serde::Serialize;

use super::work::{Hot, Mix, Shape};

/// What callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// SET of a key.
    Set,
    /// GET of a key.
    Get,
    /// Both, in the shares of the mix.
    Mixed,
}

impl Operation {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Get => "get",
            Self::Mixed => "mixed",
        }
    }
}

/// What one run after the other does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Operations {
    /// SETs
    Set,
    /// GETs
    Get,
    /// Both, in the shares of the mix
    Mixed,
    /// All three, one after the other
    All,
}

impl Operations {
    /// The operations one by one, in order.
    pub fn each(self) -> Vec<Operation> {
        match self {
            Self::Set => vec![Operation::Set],
            Self::Get => vec![Operation::Get],
            Self::Mixed => vec![Operation::Mixed],
            Self::All => vec![Operation::Set, Operation::Get, Operation::Mixed],
        }
    }
}

/// Where connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// By a task of the runtime of the callers
    Task,
    /// By a thread of their own
    Thread,
}

/// What callers do besides, so that a diagnosis has something to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Habits {
    /// What more of their operations are about.
    pub hot: Hot,
    /// How long a caller computes after each operation or pipeline.
    pub computes: Duration,
    /// How long it sleeps then. Tasks only.
    pub sleeps: Duration,
}

impl Habits {
    /// What a caller does after an operation, if anything.
    pub(super) async fn follow(self) {
        if !self.computes.is_zero() {
            let until = Instant::now() + self.computes;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        if !self.sleeps.is_zero() {
            tokio::time::sleep(self.sleeps).await;
        }
    }
}

/// Parameters of a bench of the Redis client; `plan` in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct RedisPlan {
    /// The operations; one run follows the other.
    pub operations: Vec<Operation>,
    /// What mixed operations consist of.
    pub mix: Mix,
    /// Sizes of keys and values, and how many keys.
    #[serde(flatten)]
    pub shape: Shape,
    /// How long each run counts.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
    /// How long callers work before each run counts.
    #[serde(rename = "warmup_s", serialize_with = "as_seconds")]
    pub warmup: Duration,
    /// Runs of each operation.
    pub runs: usize,
    /// Tasks that do one operation, or pipeline, after the other.
    pub callers: u64,
    /// Threads that do the same, and wait by blocking.
    pub blocking_threads: u64,
    /// Threads of the runtime on which tasks run.
    pub threads: usize,
    /// Operations of an explicit pipeline; 1 for none.
    pub pipeline: u64,
    /// Connections to each node.
    pub mux_per_node: usize,
    /// Where connections are served.
    pub driver: Driver,
    /// Values are copied out of replies, as a program does that keeps them.
    pub owned_values: bool,
    /// All keys are written before the first run.
    pub load: bool,
    /// Stages are timed.
    pub profile: bool,
    /// The server, without secrets.
    pub server: String,
    /// What callers do besides; nothing in a bench.
    #[serde(skip)]
    pub habits: Habits,
}

impl RedisPlan {
    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        self.shape.check()?;
        let wrong = |settings, why: &str| Err(BadSetting::new(settings, why));
        if self.callers + self.blocking_threads == 0 {
            return wrong(
                &["callers", "blocking_threads"],
                "there must be at least one caller",
            );
        }
        if self.duration.is_zero() {
            return wrong(&["duration"], "a run must be longer than 0 s");
        }
        if self.runs == 0 {
            return wrong(&["runs"], "there must be at least one run");
        }
        if self.threads == 0 {
            return wrong(&["threads"], "tasks need at least one thread");
        }
        if self.pipeline == 0 {
            return wrong(&["pipeline"], "a pipeline has at least one operation");
        }
        if self.mux_per_node == 0 {
            return wrong(
                &["mux_per_node"],
                "there must be at least one connection to each node",
            );
        }
        Ok(())
    }

    /// What an operation consists of.
    pub fn mix_of(&self, operation: Operation) -> Mix {
        match operation {
            Operation::Set => Mix::WRITES,
            Operation::Get => Mix::READS,
            Operation::Mixed => self.mix,
        }
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let pipeline = match self.pipeline {
            1 => "one operation at a time".to_owned(),
            many => format!("pipelines of {many} operations"),
        };
        let blocking = match self.blocking_threads {
            0 => String::new(),
            many => format!(" and {many} blocking thread(s)"),
        };
        let driver = match self.driver {
            Driver::Task => "a task",
            Driver::Thread => "a thread of its own",
        };
        format!(
            "{} caller(s) on {} thread(s){blocking}, {pipeline}, {} keys of {} bytes with values of {} bytes, {}, \
             {} connection(s) to each node served by {driver}, {} run(s) of {} s after {} s",
            self.callers,
            self.threads,
            grouped(self.shape.keyspace),
            self.shape.key_size,
            self.shape.value_size,
            self.server,
            self.mux_per_node,
            self.runs,
            self.duration.as_secs_f64(),
            self.warmup.as_secs_f64(),
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan that is valid.
    pub fn plan() -> RedisPlan {
        RedisPlan {
            operations: Operations::All.each(),
            mix: Mix {
                reads: 80,
                writes: 20,
            },
            shape: Shape {
                key_size: 16,
                value_size: 256,
                keyspace: 1000,
            },
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
            runs: 1,
            callers: 4,
            blocking_threads: 0,
            threads: 1,
            pipeline: 1,
            mux_per_node: 1,
            driver: Driver::Task,
            owned_values: false,
            load: true,
            profile: false,
            server: "cluster 127.0.0.1:7000".into(),
            habits: Habits::default(),
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        assert!(plan().validate().is_ok());
        let refused = |setting: &str, plan: RedisPlan| {
            let error = plan.validate().expect_err("it cannot be run");
            assert!(error.settings.contains(&setting), "{error}");
        };
        let callers = 0;
        refused("callers", RedisPlan { callers, ..plan() });
        let duration = Duration::ZERO;
        refused("duration", RedisPlan { duration, ..plan() });
        refused("runs", RedisPlan { runs: 0, ..plan() });
        let threads = 0;
        refused("threads", RedisPlan { threads, ..plan() });
        let mut shape = plan().shape;
        shape.key_size = 2;
        refused("key_size", RedisPlan { shape, ..plan() });
    }

    #[test]
    fn blocking_threads_may_call_alone() {
        let alone = RedisPlan {
            callers: 0,
            blocking_threads: 1,
            ..plan()
        };
        assert!(alone.validate().is_ok());
    }

    #[test]
    fn only_mixed_operations_are_mixed() {
        let plan = plan();
        let mixes: Vec<_> = plan.operations.iter().map(|op| plan.mix_of(*op)).collect();
        assert_eq!(mixes, [Mix::WRITES, Mix::READS, plan.mix]);
    }
}
