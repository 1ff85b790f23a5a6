//! Redis Streams: one server, written by `redis-benchmark`, and read by `XREAD` in its own order, which that cannot do.

use super::{Log, Sample, Setup, Workload};
use crate::process::{self, Server, data_directory, free_addresses};
use anyhow::{Context, bail};
use redis::{Connection, Value, cmd};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

/// Messages that one `XREAD` asks for.
const COUNT: u64 = 1000;

pub fn setups() -> Vec<Setup> {
    let setup = |connections: &'static str, pipeline: &'static str, settings| {
        Setup::new(Log::RedisStreams, settings, move |workload| {
            measure(connections, pipeline, workload)
        })
    };
    vec![
        setup("8", "16", "no persistence, 8 connections, pipelines of 16"),
        setup(
            "2",
            "128",
            "no persistence, 2 connections, pipelines of 128",
        ),
    ]
}

fn measure(connections: &str, pipeline: &str, workload: &Workload) -> anyhow::Result<Sample> {
    let data = data_directory()?;
    let [address] = free_addresses()?;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut server = Command::new("redis-server");
    server.args([
        "--bind",
        &host,
        "--port",
        &port,
        "--save",
        "",
        "--appendonly",
        "no",
    ]);
    server.arg("--dir").arg(data.path());
    let _server = Server::start(&server, address, &data.path().join("said"))?;

    let write = |messages: u64| {
        let mut write = Command::new("redis-benchmark");
        write.args([
            "-h",
            &host,
            "-p",
            &port,
            "-c",
            connections,
            "-P",
            pipeline,
            "--csv",
        ]);
        write.args(["-n", &messages.to_string(), "XADD", "peers", "*", "m"]);
        write.arg("x".repeat(workload.message_size as usize));
        rate(&process::output(&write)?).context("no rate in what redis-benchmark printed")
    };
    write(workload.warm_up())?;
    let published = write(workload.messages)?;
    read(address, workload.warm_up())?;
    Ok(Sample {
        publish: Some(published),
        read: Some(read(address, workload.messages)?),
        at_once: None,
    })
}

/// Reads so many messages from the first one on; how many per second.
fn read(address: SocketAddr, messages: u64) -> anyhow::Result<f64> {
    let mut connection = redis::Client::open(format!("redis://{address}"))?.get_connection()?;
    let (mut last, mut seen) = (b"0".to_vec(), 0);
    let begin = Instant::now();
    while seen < messages {
        let (read, until) = read_some(&mut connection, &last)
            .with_context(|| format!("after {seen} messages of the stream"))?;
        seen += read;
        last = until;
    }
    Ok(seen as f64 / begin.elapsed().as_secs_f64())
}

/// Reads the next messages after `last`: how many there are, and the identifier of the last one.
fn read_some(connection: &mut Connection, last: &[u8]) -> anyhow::Result<(u64, Vec<u8>)> {
    let mut next = cmd("XREAD");
    next.arg("COUNT")
        .arg(COUNT)
        .arg("STREAMS")
        .arg("peers")
        .arg(last);
    // One stream: its name, and the messages, each with its identifier.
    if let Value::Array(mut streams) = next.query(connection)?
        && let Some(Value::Array(mut stream)) = streams.pop()
        && let Some(Value::Array(mut messages)) = stream.pop()
    {
        let read = messages.len() as u64;
        if let Some(Value::Array(message)) = messages.pop()
            && let Some(Value::BulkString(id)) = message.into_iter().next()
        {
            return Ok((read, id));
        }
    }
    bail!("XREAD answers without a message")
}

/// Of the last line: `"XADD peers * m xxx","94215.74","5.248",...`.
fn rate(printed: &str) -> Option<f64> {
    let line = printed
        .lines()
        .rev()
        .find(|line| line.starts_with("\"XADD"))?;
    line.split("\",\"").nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn what_it_prints_is_read() {
        let printed =
            "\"test\",\"rps\",\"avg_latency_ms\"\n\"XADD peers * m xxx\",\"94215.74\",\"5.248\"\n";
        assert_eq!(rate(printed), Some(94_215.74));
        assert_eq!(rate("Could not connect\n"), None);
    }
}
