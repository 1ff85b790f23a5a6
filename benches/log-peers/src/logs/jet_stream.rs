//! NATS JetStream: one server, measured by `nats bench`.

use super::{Log, Sample, Setup, Workload};
use crate::install::Installed;
use crate::process::{self, Server, data_directory, free_addresses};
use anyhow::Context;
use std::process::Command;

pub fn setups(installed: &Installed) -> Vec<Setup> {
    let setup = |options: &'static [&str], settings| {
        let installed = installed.clone();
        Setup::new(Log::JetStream, settings, move |workload| {
            measure(&installed, options, workload)
        })
    };
    vec![
        setup(
            &["fast", "--batch=1000", "--storage=file"],
            "file storage, fast batches of 1,000",
        ),
        setup(
            &["fast", "--batch=1000", "--storage=memory"],
            "memory storage, fast batches of 1,000",
        ),
    ]
}

fn measure(installed: &Installed, options: &[&str], workload: &Workload) -> anyhow::Result<Sample> {
    let data = data_directory()?;
    let [address] = free_addresses()?;
    let mut server = Command::new(installed.nats("nats-server"));
    server.args(["--jetstream", "--addr", &address.ip().to_string()]);
    server.args(["--port", &address.port().to_string(), "--store_dir"]);
    server.arg(data.path().join("store"));
    let _server = Server::start(&server, address, &data.path().join("said"))?;

    let bench = |what: &[&str], messages: u64| {
        let mut bench = Command::new(installed.nats("nats"));
        bench.args(["--no-context", "--server", &format!("nats://{address}")]);
        bench.args(["bench", "js"]).args(what).arg("--no-progress");
        bench.args(["--msgs", &messages.to_string()]);
        bench.args(["--size", &workload.message_size.to_string()]);
        bench
    };
    let all = workload.messages + workload.warm_up();
    let room = all * (workload.message_size + 256);
    let publish = |messages: u64| {
        let mut publish = bench(&[&["pub"], options].concat(), messages);
        publish.args(["--create", "--maxbytes", &room.to_string(), "peers"]);
        let printed = process::output(&publish)?;
        rate(&printed).with_context(|| format!("no rate in what the publisher printed: {printed}"))
    };
    let read = |messages: u64| {
        let printed = process::output(&bench(&["ordered", "--batch=5000"], messages))?;
        rate(&printed).with_context(|| format!("no rate in what the consumer printed: {printed}"))
    };
    publish(workload.warm_up())?;
    let published = publish(workload.messages)?;
    read(workload.warm_up())?;
    Ok(Sample {
        publish: Some(published),
        read: Some(read(workload.messages)?),
        at_once: None,
    })
}

/// Of the line that sums up: `NATS JetStream ... stats: 10,374 msgs/sec ~ 10 MiB/sec ~ ...`.
fn rate(printed: &str) -> Option<f64> {
    let (before, _) = printed.split_once(" msgs/sec")?;
    let (_, rate) = before.rsplit_once("stats: ")?;
    rate.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn what_it_prints_is_read() {
        let printed = "05:21:16 Starting JetStream ordered ephemeral consumer benchmark [clients=1]\n\n\
            NATS JetStream ordered ephemeral consumer stats: 50,750 msgs/sec ~ 6.2 MiB/sec\n";
        assert_eq!(rate(printed), Some(50_750.0));
        assert_eq!(rate("nats: error: no responders\n"), None);
    }
}
