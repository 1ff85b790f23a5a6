//! Kafka: one broker that is its own controller, measured by its own performance tools.

use super::{Log, Sample, Setup, Workload};
use crate::install::Installed;
use crate::process::{self, Server, data_directory, free_addresses};
use anyhow::Context;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Any identifier will do: 16 bytes in base 64.
const CLUSTER: &str = "bG9nLXBlZXJzLWthZmthIQ";

/// How often the consumer says how far it is, in milliseconds.
const REPORT: &str = "100";

pub fn setups(installed: &Installed) -> Vec<Setup> {
    let setup = |batch: u64, settings| {
        let class_path = installed.class_path("kafka");
        Setup::new(Log::Kafka, settings, move |workload| {
            measure(&class_path, batch, workload)
        })
    };
    vec![
        setup(
            16 << 10,
            "acks=1, batch.size=16384, linger.ms=5 (its defaults), 3 partitions",
        ),
        setup(
            1 << 20,
            "acks=1, batch.size=1048576, linger.ms=5, 3 partitions",
        ),
    ]
}

fn measure(class_path: &str, batch: u64, workload: &Workload) -> anyhow::Result<Sample> {
    let java = |class: &str| {
        let mut java = Command::new("java");
        java.args(["-Xms1g", "-Xmx1g", "-cp", class_path, class]);
        java
    };
    let data = data_directory()?;
    let [broker, controller] = free_addresses()?;
    let properties = data.path().join("server.properties");
    let logs = data.path().join("logs");
    fs::write(
        &properties,
        server_properties(&broker.to_string(), &controller.to_string(), &logs),
    )?;
    let mut format = java("kafka.tools.StorageTool");
    format.args(["format", "--standalone", "-t", CLUSTER, "-c"]);
    process::output(format.arg(&properties))?;
    let mut server = java("kafka.Kafka");
    let said = data.path().join("said");
    let _server = Server::start(server.arg(&properties), broker, &said)?;

    let all = workload.messages + workload.warm_up();
    let mut produce = java("org.apache.kafka.tools.ProducerPerformance");
    produce.args(["--topic", "peers", "--throughput", "-1"]);
    produce.args(["--num-records", &all.to_string()]);
    produce.args(["--warmup-records", &workload.warm_up().to_string()]);
    produce.args(["--record-size", &workload.message_size.to_string()]);
    produce.args(["--command-property", &format!("bootstrap.servers={broker}")]);
    produce.args(["acks=1", "linger.ms=5", "max.request.size=8388608"]);
    produce.args([
        format!("batch.size={batch}"),
        "buffer.memory=134217728".to_owned(),
    ]);
    let published = process::output(&produce)?;

    let mut consume = java("org.apache.kafka.tools.ConsumerPerformance");
    consume.args(["--bootstrap-server", &broker.to_string()]);
    consume.args(["--topic", "peers", "--num-records", &all.to_string()]);
    consume.args(["--show-detailed-stats", "--reporting-interval", REPORT]);
    let read = process::output(&consume)?;
    let published = producer_rate(&published).context("no rate in what the producer printed")?;
    let read =
        consumer_rate(&read, workload.warm_up()).context("no rate in what the consumer printed")?;
    Ok(Sample {
        publish: Some(published),
        read: Some(read),
        at_once: None,
    })
}

/// One broker that is its own controller. All else is as Kafka has it, but for batches that may be larger.
fn server_properties(broker: &str, controller: &str, logs: &Path) -> String {
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         listeners=PLAINTEXT://{broker},CONTROLLER://{controller}\n\
         controller.quorum.bootstrap.servers={controller}\n\
         controller.listener.names=CONTROLLER\n\
         log.dirs={}\n\
         num.partitions=3\n\
         offsets.topic.num.partitions=1\n\
         offsets.topic.replication.factor=1\n\
         group.initial.rebalance.delay.ms=0\n\
         message.max.bytes=8388608\n",
        logs.display()
    )
}

/// Of the line that sums up what came after the warm-up.
fn producer_rate(printed: &str) -> Option<f64> {
    let last = printed.lines().rev().find(|line| line.contains("99.9th"))?;
    let (rate, _) = last.split_once(" records/sec")?;
    rate.rsplit(' ').next()?.parse().ok()
}

/// Of lines with commas, one for each interval: after the one in which `warm_up` messages were read, to the last one. The
/// columns count messages so far (the fifth) and the milliseconds of this interval (the seventh and the eighth).
fn consumer_rate(printed: &str, warm_up: u64) -> Option<f64> {
    let interval = |line: &str| {
        let columns: Vec<_> = line.split(", ").collect();
        let number = |column: usize| columns.get(column)?.parse::<u64>().ok();
        Some((number(4)?, number(6)? + number(7)?))
    };
    let intervals = printed.lines().filter_map(interval);
    let mut counted = intervals.skip_while(|(messages, _)| *messages < warm_up);
    let (first, _) = counted.next()?;
    let (last, millis) = counted.fold((first, 0), |(_, sum), (messages, millis)| {
        (messages, sum + millis)
    });
    (millis > 0).then(|| (last - first) as f64 * 1000.0 / millis as f64)
}

#[cfg(test)]
mod tests {
    use super::{consumer_rate, producer_rate};

    #[test]
    fn what_the_producer_prints_is_read() {
        let printed = "SLF4J: no logger\n\
            55731 records sent, 11137.3 records/sec (10.88 MB/sec), 1184.7 ms avg latency, 1939.0 ms max latency.\n\
            500000 records sent, 17584.581839 records/sec (17.17 MB/sec), 5892.68 ms avg latency, 8012.00 ms max latency, \
            6462 ms 50th, 7667 ms 95th, 7829 ms 99th, 7957 ms 99.9th.\n\
            300000 steady state records sent, 16938.625713 records/sec (16.54 MB/sec), 5601.98 ms avg latency, 7849.00 ms \
            max latency, 5918 ms 50th, 7730 ms 95th, 7824 ms 99th, 7840 ms 99.9th.\n";
        assert_eq!(producer_rate(printed), Some(16_938.625_713));
        assert_eq!(producer_rate("SLF4J: no logger\n"), None);
    }

    #[test]
    fn what_the_consumer_prints_is_read() {
        let printed = "SLF4J: no logger\n\
            time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
            fetch.MB.sec, fetch.nMsg.sec\n\
            2026-11-23 09:04:47:950, 0, 0.0010, 0.0012, 1, 1.2330, 695, 116, 0.0084, 8.6207\n\
            2026-11-23 09:04:48:478, 0, 36.6602, 69.4303, 37540, 71096.5909, 0, 528, 69.4303, 71096.5909\n\
            2026-11-23 09:04:48:984, 0, 143.6045, 211.3524, 147540, 216424.9012, 0, 500, 211.3524, 216424.9012\n\
            2026-11-23 09:04:49:484, 0, 239.6367, 192.0645, 247540, 196674.0000, 0, 500, 192.0645, 196674.0000\n";
        assert_eq!(consumer_rate(printed, 20_000), Some(210_000.0));
        assert_eq!(
            consumer_rate(printed, 200_000),
            None,
            "no interval after it"
        );
        assert_eq!(consumer_rate("", 0), None);
    }
}
