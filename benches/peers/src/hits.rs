//! What a read costs that a cache in the client's process answers, beside one that it asks the server for.
//!
//! Each thread reads one key after the other, all of which are in the cache by then. Values are the client's usual ones,
//! and for embar also a buffer of the caller's. Allocations are those of the reading threads.

use anyhow::Context;
use clap::Args;
use embar_redis::config::CacheConfig;
use embar_redis::prelude::*;
use embar_redis::{Client, Config};
use embar_transport::alloc::{of_thread, set_counting};
use redis::AsyncCommands;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Reads between two looks at the clock.
const BATCH: usize = 1_000;

/// What to measure.
#[derive(Args)]
pub struct Hits {
    /// Threads that read at the same time: each number by itself
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    pub threads: Vec<usize>,
    /// How many different keys: each number by itself; 1 is one key that all threads want
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10_000])]
    pub keyspace: Vec<usize>,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    pub value_size: usize,
    /// How often each is measured, in turn
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Measured time of each, in seconds
    #[arg(long, default_value_t = 1.0)]
    pub duration: f64,
    /// Some nodes of the cluster
    #[arg(long, default_value = "127.0.0.1:7000", value_delimiter = ',')]
    pub cluster: Vec<String>,
    /// Print JSON, a line for each
    #[arg(long)]
    pub json: bool,
}

/// What came of it.
#[derive(Serialize)]
struct Report {
    what: &'static str,
    threads: usize,
    keys: usize,
    /// Of a thread, on average.
    ns_per_read: f64,
    allocations_per_read: f64,
}

/// How a thread reads.
trait Reader: Clone + Send {
    /// The length of the value.
    async fn read(&mut self, key: &str) -> anyhow::Result<usize>;
}

const AGE: Duration = Duration::from_secs(3600);

#[derive(Clone)]
struct IntoBuffer(Client, Vec<u8>);

impl Reader for IntoBuffer {
    async fn read(&mut self, key: &str) -> anyhow::Result<usize> {
        let len = self.0.cached(AGE).get_into(key, &mut self.1).await?;
        len.context("no value")
    }
}

#[derive(Clone)]
struct Cached(Client);

impl Reader for Cached {
    async fn read(&mut self, key: &str) -> anyhow::Result<usize> {
        let value: Vec<u8> = self.0.cached(AGE).get(key).await?;
        Ok(value.len())
    }
}

#[derive(Clone)]
struct Plain(Client);

impl Reader for Plain {
    async fn read(&mut self, key: &str) -> anyhow::Result<usize> {
        let value: Vec<u8> = self.0.get(key).await?;
        Ok(value.len())
    }
}

#[derive(Clone)]
struct RedisRs(ClusterConnection);

impl Reader for RedisRs {
    async fn read(&mut self, key: &str) -> anyhow::Result<usize> {
        let value: Vec<u8> = self.0.get(key).await?;
        Ok(value.len())
    }
}

/// Measures all, and prints what came of it.
pub fn run(arguments: &Hits) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let url = format!("redis-cluster://{}", arguments.cluster.join(","));
    let mut config = Config::from_url(&url)?;
    config.cache = Some(CacheConfig::new(256 << 20));
    let client = runtime.block_on(Client::with(config))?;
    let peer = runtime.block_on(redis_rs(arguments))?;
    let most = arguments.keyspace.iter().copied().max().unwrap_or(1);
    let keys: Vec<String> = (0..most)
        .map(|number| format!("hit:{number:012}"))
        .collect();
    let value = vec![b'v'; arguments.value_size];
    runtime.block_on(client.set_all(keys.iter().map(|key| (key, &value))))?;
    if !arguments.json {
        println!("what                       threads     keys   ns/read  allocations/read");
    }
    for _ in 0..arguments.rounds {
        for &keyspace in &arguments.keyspace {
            for &threads in &arguments.threads {
                let keys = &keys[..keyspace.clamp(1, most)];
                let measure = Measure {
                    runtime: &runtime,
                    arguments,
                    keys,
                    threads,
                };
                measure.of(
                    "embar cached get_into",
                    &IntoBuffer(client.clone(), Vec::new()),
                )?;
                measure.of("embar cached get", &Cached(client.clone()))?;
                measure.of("embar get", &Plain(client.clone()))?;
                measure.of("redis-rs cached get", &RedisRs(peer.clone()))?;
            }
        }
    }
    runtime.shutdown_background();
    Ok(())
}

async fn redis_rs(arguments: &Hits) -> anyhow::Result<ClusterConnection> {
    let urls = arguments
        .cluster
        .iter()
        .map(|seed| format!("redis://{seed}/"));
    // Its bound is a number of entries, of each node's connection.
    let size = NonZeroUsize::new(1_000_000).context("not 0")?;
    let cache = redis::caching::CacheConfig::new().set_size(size);
    let client = ClusterClient::builder(urls)
        .tcp_settings(TcpSettings::default().set_nodelay(true))
        .use_protocol(redis::ProtocolVersion::RESP3)
        .cache_config(cache)
        .build()?;
    Ok(client.get_async_connection().await?)
}

struct Measure<'a> {
    runtime: &'a Runtime,
    arguments: &'a Hits,
    keys: &'a [String],
    threads: usize,
}

impl Measure<'_> {
    fn of(&self, what: &'static str, reader: &impl Reader) -> anyhow::Result<()> {
        let duration = Duration::try_from_secs_f64(self.arguments.duration)?;
        set_counting(true);
        let outcomes: Vec<anyhow::Result<_>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|number| {
                    let reader = reader.clone();
                    scope.spawn(move || self.reads(reader, number, duration))
                })
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
            threads.into_iter().map(join).collect()
        });
        set_counting(false);
        let mut sum = (0.0, 0.0);
        for outcome in outcomes {
            let (ns, allocations) = outcome?;
            sum = (sum.0 + ns, sum.1 + allocations);
        }
        let report = Report {
            what,
            threads: self.threads,
            keys: self.keys.len(),
            ns_per_read: sum.0 / self.threads as f64,
            allocations_per_read: sum.1 / self.threads as f64,
        };
        match self.arguments.json {
            true => println!("{}", serde_json::to_string(&report)?),
            false => println!(
                "{what:<26} {:>7} {:>8} {:>9.1} {:>17.3}",
                report.threads, report.keys, report.ns_per_read, report.allocations_per_read
            ),
        }
        Ok(())
    }

    /// Nanoseconds and allocations of a read, in this thread.
    fn reads(
        &self,
        mut reader: impl Reader,
        number: usize,
        duration: Duration,
    ) -> anyhow::Result<(f64, f64)> {
        self.runtime.block_on(async move {
            for key in self.keys {
                let len = reader.read(key).await?;
                anyhow::ensure!(
                    len == self.arguments.value_size,
                    "a value of another length"
                );
            }
            // Threads begin at other keys, and go on in the same order.
            let mut keys = self
                .keys
                .iter()
                .cycle()
                .skip(number * self.keys.len() / self.threads);
            let (before, begin) = (of_thread().times, Instant::now());
            let mut count = 0_usize;
            while begin.elapsed() < duration {
                for key in keys.by_ref().take(BATCH) {
                    std::hint::black_box(reader.read(key).await?);
                }
                count += BATCH;
            }
            let took = begin.elapsed().as_secs_f64() * 1e9;
            let allocations = of_thread().times.wrapping_sub(before) as f64;
            Ok((took / count as f64, allocations / count as f64))
        })
    }
}
