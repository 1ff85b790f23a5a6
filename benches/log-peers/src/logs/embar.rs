//! Ours, by `embar bench`: a head and three data brokers.

use super::{Log, Sample, Setup, Way, Workload};
use crate::process;
use anyhow::Context;
use std::path::Path;
use std::process::Command;

/// How many times as many messages it publishes as the others.
const LONGER: u64 = 8;

pub fn setups(program: &Path) -> Vec<Setup> {
    let setup = |way: Way, order: &'static str, settings| {
        let program = program.to_owned();
        let measured = move |workload: &Workload| measure(&program, way, order, workload);
        Setup::new(Log::Embar, settings, measured).by(way)
    };
    vec![
        setup(
            Way::Tcp,
            "0",
            "order 0, acks 1, batches of 2 MiB, 3 data brokers",
        ),
        setup(
            Way::Tcp,
            "5",
            "order 5, acks 1, batches of 2 MiB, 3 data brokers",
        ),
        setup(Way::Unix, "0", "order 0, the same by Unix sockets"),
        setup(
            Way::Shm,
            "0",
            "order 0, the same by shared memory, batches of 256 KiB, a reader that touches every byte",
        ),
        setup(
            Way::Shm,
            "5",
            "order 5, the same by shared memory, batches of 256 KiB, a reader that touches every byte",
        ),
    ]
}

fn measure(program: &Path, way: Way, order: &str, workload: &Workload) -> anyhow::Result<Sample> {
    let transport = match way {
        Way::Tcp => "tcp",
        Way::Unix => "unix",
        Way::Shm => "shm",
    };
    // Each trial has a cluster of its own, which nothing has warmed up. So what is over in a tenth of a second goes on for
    // longer; what is read has to be retained.
    let rate = |what: &str, times: u64| {
        let bytes = times * workload.messages * workload.message_size;
        let mut bench = Command::new(program);
        bench.args(["bench", what, "--json", "--trials", "1", "--warmup", "1"]);
        bench.args(["--order", order, "--size", &bytes.to_string()]);
        bench.args(["--transport", transport]);
        bench.args(["--message-size", &workload.message_size.to_string()]);
        if way == Way::Shm {
            bench.args(["--batch-size", "256KiB"]);
            if what != "publish" {
                // As the reader of Aeron that is compared with it.
                bench.args(["--reader", "touches"]);
            }
        }
        rate(&process::output(&bench)?).map(Some)
    };
    Ok(Sample {
        publish: rate("publish", LONGER)?,
        read: rate("read", 1)?,
        at_once: rate("e2e", LONGER)?,
    })
}

fn rate(printed: &str) -> anyhow::Result<f64> {
    let line = printed.lines().find(|line| line.starts_with('{'));
    let line = line.context("no JSON in what embar printed")?;
    let result: serde_json::Value = serde_json::from_str(line)?;
    let rate = result["messages_per_s"].as_f64();
    rate.with_context(|| format!("no rate in what embar printed: {line}"))
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn what_it_prints_is_read() {
        let printed = "trial 1\n{\"bench\":\"read\",\"messages_per_s\":12.5}\n";
        assert_eq!(rate(printed).unwrap(), 12.5);
        assert!(rate("{}\n").is_err());
        assert!(rate("error: no memory\n").is_err());
    }
}
