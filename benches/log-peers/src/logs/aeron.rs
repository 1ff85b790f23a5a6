//! Aeron over IPC: one thread that publishes and one that reads at the same time, in its own samples, and in a program
//! whose reader touches every byte, as a reader of a log does. In the samples it counts messages.

use super::{Log, Sample, Setup, Way, Workload};
use crate::install::Installed;
use crate::process::{self, data_directory};
use anyhow::Context;
use std::process::Command;

/// Seconds that are measured; the first ones, in which Java compiles, are not.
const MEASURED: usize = 3;
const WARM_UP: usize = 3;

pub fn setups(installed: &Installed) -> Vec<Setup> {
    let setup = |sample: Vec<String>, settings| {
        let class_path = installed.class_path("aeron");
        let measured = move |workload: &Workload| measure(&class_path, &sample, workload);
        Setup::new(Log::AeronIpc, settings, measured).by(Way::Shm)
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let touched = installed.source("aeron", "TouchedIpcThroughput.java");
    vec![
        setup(
            words(&["io.aeron.samples.EmbeddedIpcThroughput"]),
            "its sample, a driver with threads of its own",
        ),
        setup(
            words(&[
                "-Daeron.threading.mode=SHARED",
                "-Daeron.sample.idleStrategy=org.agrona.concurrent.YieldingIdleStrategy",
                "io.aeron.samples.EmbeddedExclusiveIpcThroughput",
            ]),
            "its sample with an exclusive publication, a driver with one thread, yielding",
        ),
        setup(
            words(&[
                "-Dagrona.disable.bounds.checks=true",
                &touched.display().to_string(),
            ]),
            "the same with a reader that touches every byte",
        ),
    ]
}

fn measure(class_path: &str, sample: &[String], workload: &Workload) -> anyhow::Result<Sample> {
    let data = data_directory()?;
    let mut java = Command::new("java");
    java.args(["--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"]);
    java.arg(format!(
        "-Daeron.dir={}",
        data.path().join("aeron").display()
    ));
    java.arg(format!(
        "-Daeron.sample.messageLength={}",
        workload.message_size
    ));
    java.args(["-cp", class_path]).args(sample);
    let lines = process::lines(&java, WARM_UP + MEASURED, |line| rate(line).is_some())?;
    let mut rates: Vec<_> = lines[WARM_UP..]
        .iter()
        .filter_map(|line| rate(line))
        .collect();
    rates.sort_unstable_by(f64::total_cmp);
    let median = *rates.get(MEASURED / 2).context("no rates")?;
    Ok(Sample {
        at_once: Some(median),
        ..Sample::default()
    })
}

/// Messages a second: `Duration 1004ms - 1,292,239 messages - 1,323,252,736 payload bytes`.
fn rate(line: &str) -> Option<f64> {
    let (millis, rest) = line.strip_prefix("Duration ")?.split_once("ms - ")?;
    let (messages, _) = rest.split_once(" messages")?;
    let messages: f64 = messages.replace(',', "").parse().ok()?;
    Some(messages * 1000.0 / millis.replace(',', "").parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn what_it_prints_is_read() {
        let line = "Duration 1,000ms - 1,292,239 messages - 1,323,252,736 payload bytes";
        assert_eq!(rate(line), Some(1_292_239.0));
        assert_eq!(rate("Shutting down..."), None);
    }
}
