//! The program that comes with Redis, for comparison: what can be had without a client that callers share.
//!
//! Its keys and connections are its own: as many connections as there are callers, and random keys of a key space of
//! the same size. It takes a number of requests instead of a time, so it is asked how fast it is first.

use super::cells::{Cell, Sample};
use super::{PATIENCE, output};
use crate::arguments::{Operation, Table};
use crate::machine;
use anyhow::{Context, ensure};
use std::time::Duration;
use tokio::process::Command;

/// Each key is written so many times on average, so that few are never written.
const LOADS: u64 = 5;

/// For how much of the measured time it shows how fast it is.
const TRIAL: f64 = 0.2;

/// The first guess at how fast that is, operations per second.
const GUESS: f64 = 20_000.0;

/// See the module.
pub struct RedisBenchmark<'a> {
    arguments: &'a Table,
    host: &'a str,
    port: &'a str,
}

impl<'a> RedisBenchmark<'a> {
    /// Writes its keys.
    pub async fn prepare(arguments: &'a Table) -> anyhow::Result<Self> {
        let seed = arguments.workload.cluster.first();
        let seed = seed.and_then(|seed| seed.rsplit_once(':'));
        let (host, port) = seed.context("the first node of --cluster is to be host:port")?;
        let benchmark = Self {
            arguments,
            host,
            port,
        };
        let requests = LOADS * arguments.workload.keyspace;
        benchmark.run("set", 64, 1, 16, requests).await?;
        Ok(benchmark)
    }

    /// Measures it; `None` if it has no such operation.
    pub async fn measure(&mut self, cell: &Cell) -> anyhow::Result<Option<Sample>> {
        let test = match cell.operation {
            Operation::Set => "set",
            Operation::Get => "get",
            Operation::Mixed => return Ok(None),
        };
        let depth = self.arguments.workload.pipeline;
        let run = |requests: f64| {
            // Each connection sends at least one pipeline.
            let requests = (requests as u64).max(cell.callers * depth);
            self.run(test, cell.callers, cell.threads, depth, requests)
        };
        let duration = self.arguments.duration;
        let mut rate = GUESS;
        for _ in 0..2 {
            rate = run(rate * duration * TRIAL).await?.0;
        }
        let (ops_per_s, client_cpu_us_per_op) = run(rate * duration).await?;
        Ok(Some(Sample {
            ops_per_s,
            client_cpu_us_per_op,
            ..Sample::default()
        }))
    }

    /// Its operations per second, and its processor time in microseconds per operation.
    async fn run(
        &self,
        test: &str,
        connections: u64,
        threads: u64,
        depth: u64,
        requests: u64,
    ) -> anyhow::Result<(f64, f64)> {
        let workload = &self.arguments.workload;
        let mut command = Command::new("redis-benchmark");
        command.args([
            "--cluster",
            "--csv",
            "-h",
            self.host,
            "-p",
            self.port,
            "-t",
            test,
        ]);
        for (option, value) in [
            ("-c", connections),
            ("--threads", threads),
            ("-P", depth),
            ("-n", requests),
            ("-r", workload.keyspace),
            ("-d", workload.value_size as u64),
        ] {
            command.arg(option).arg(value.to_string());
        }
        let before = machine::cpu_time_of_children()?;
        let patience = Duration::try_from_secs_f64(self.arguments.duration)? + PATIENCE;
        let output = output(command, patience).await?;
        let used = machine::cpu_time_of_children()?.saturating_sub(before);
        let (said, complaint) = (&output.stdout, &output.stderr);
        let [said, complaint] = [said, complaint].map(|said| String::from_utf8_lossy(said));
        ensure!(
            output.status.success(),
            "redis-benchmark ended with {}: {}",
            output.status,
            complaint.trim()
        );
        let rate = rate(&said, test).with_context(|| {
            format!(
                "redis-benchmark prints no rate: {} {complaint}",
                said.trim()
            )
        })?;
        Ok((rate, used.as_secs_f64() * 1e6 / requests as f64))
    }
}

/// The second column of the line of a test.
fn rate(csv: &str, test: &str) -> Option<f64> {
    let name = format!("\"{}\"", test.to_uppercase());
    let mut lines = csv.lines().map(|line| line.split(','));
    let mut line = lines.find_map(|mut line| (line.next()? == name).then_some(line))?;
    line.next()?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn the_rate_is_found_in_what_it_prints() {
        let printed = "Cluster has 5 master nodes:\n\nMaster 0: 7b2 127.0.0.1:7000\n\n\
                       \"test\",\"rps\",\"avg_latency_ms\"\n\
                       \"SET\",\"50251.26\",\"0.523\"\n\"GET\",\"60000.00\",\"0.4\"\n";
        assert_eq!(rate(printed, "set"), Some(50_251.26));
        assert_eq!(rate(printed, "get"), Some(60_000.0));
        assert_eq!(rate("ERR", "set"), None);
    }
}
