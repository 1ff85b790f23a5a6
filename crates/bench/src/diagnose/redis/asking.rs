//! Asks servers what they say of themselves, and how soon they answer, each by a connection of its own.
//!
//! All of it runs on a thread of its own, so that callers that keep theirs busy do not make a server look slow.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_diagnose::observed::Missing;
use embar_diagnose::redis::observed::Probe;
use embar_redis::commands::server::ServerCommands;
use embar_redis::config::Mode;
use embar_redis::resp::{FromReply, Value, View, WrongType};
use embar_redis::topology::{Topology, TopologyError};
use embar_redis::{Client, Config, Endpoint, Error, cmd};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::info::{Info, SlowEntry, slow_log};

/// How long a server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Questions are this far apart.
const ASK_EVERY: Duration = Duration::from_millis(25);
/// Bytes of an answer, at most.
const ANSWER_MAX: usize = 4 << 20;
/// Servers that are looked at, at most.
const NODES_MAX: usize = 64;
/// The name of our connections in the servers' `CLIENT LIST`.
const NAME: &str = "embar-diagnose";
/// Entries of the slow log that are asked for.
const SLOW_ENTRIES: &str = "128";

/// A server that is looked at.
pub struct Asked {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Slots that it serves, if it is of a cluster.
    pub slots: Option<u64>,
    /// A connection to it, if there is one.
    client: Option<Client>,
}

/// What a server said at one moment.
#[derive(Default)]
pub struct Said {
    /// `INFO`.
    pub info: Option<Info>,
    /// `SLOWLOG GET`.
    pub slow: Option<Vec<SlowEntry>>,
}

/// Asks servers.
pub struct Asker {
    // Before the runtime, so that connections end while there still is one.
    nodes: Vec<Asked>,
    runtime: Runtime,
}

/// Questions that go on until they are stopped.
pub struct Probing {
    stop: Arc<AtomicBool>,
    tasks: Vec<Option<JoinHandle<Probe>>>,
}

/// The topology in a reply of `CLUSTER SLOTS`, with an empty host for the server that was asked.
struct Slots(Result<Topology, TopologyError>);

impl FromReply for Slots {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        Ok(Self(Topology::from_slots(view, &Endpoint::tcp("", 0))))
    }
}

impl Asker {
    /// Finds all servers that `config` leads to, and connects to each. Servers that do not answer are `missing`.
    ///
    /// # Errors
    /// None of those that it names answers.
    pub fn open(config: &Config, missing: &mut Vec<Missing>) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("asker")
            .enable_all()
            .build()
            .context("cannot start a thread that asks servers")?;
        let found = runtime.block_on(find(config, missing))?;
        let connecting = found.into_iter().map(|(endpoint, slots)| {
            let (config, to) = (config.clone(), endpoint.clone());
            let task = runtime.spawn(async move { connect(&config, &to).await });
            (endpoint, slots, task)
        });
        // All at once: one that is dead takes its time.
        let connecting: Vec<_> = connecting.collect();
        let mut nodes = Vec::new();
        for (endpoint, slots, task) in connecting {
            let client = runtime
                .block_on(task)
                .context("a task that connects panicked")?;
            let client = client.map_err(|error| absent(missing, &endpoint, "anything", &error));
            nodes.push(Asked {
                endpoint,
                slots,
                client: client.ok(),
            });
        }
        Ok(Self { nodes, runtime })
    }

    /// The servers, in the order of their slots.
    pub fn nodes(&self) -> &[Asked] {
        &self.nodes
    }

    /// What all of them say now, in this order.
    pub fn ask(&self, missing: &mut Vec<Missing>) -> Vec<Said> {
        let asked = self.nodes.iter().map(|node| {
            let client = node.client.clone()?;
            Some(self.runtime.spawn(async move { ask(&client).await }))
        });
        let asked: Vec<_> = asked.collect();
        let answers = asked.into_iter().zip(&self.nodes).map(|(task, node)| {
            let Some((info, slow)) = task.and_then(|task| self.runtime.block_on(task).ok()) else {
                return Said::default();
            };
            let mut lacks = |what: &str, why: &dyn std::fmt::Display| {
                absent(missing, &node.endpoint, what, why);
            };
            let info = info.map_err(|error| lacks("INFO", &error)).ok();
            for name in info.iter().flat_map(Info::lacks) {
                lacks(name, &"its INFO does not have it");
            }
            let slow = match slow {
                Ok(reply) => slow_log(&reply).or_else(|| {
                    lacks("SLOWLOG", &"its reply is no slow log");
                    None
                }),
                Err(error) => {
                    lacks("SLOWLOG", &error);
                    None
                }
            };
            Said { info, slow }
        });
        answers.collect()
    }

    /// Begins to ask all of them for a PING again and again.
    pub fn probe(&self) -> Probing {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = self.nodes.iter().map(|node| {
            let (client, stop) = (node.client.clone()?, Arc::clone(&stop));
            Some(self.runtime.spawn(probe(client, stop)))
        });
        Probing {
            tasks: tasks.collect(),
            stop,
        }
    }

    /// Ends such questions, and says how soon each server answered.
    pub fn end(&self, probing: Probing) -> Vec<Option<Probe>> {
        probing.stop.store(true, Relaxed);
        let end = |task: Option<JoinHandle<Probe>>| self.runtime.block_on(task?).ok();
        probing.tasks.into_iter().map(end).collect()
    }
}

impl Asked {
    /// Its address, if it has one of TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        let Endpoint::Tcp { host, port } = &self.endpoint else {
            return None;
        };
        (host.as_str(), *port).to_socket_addrs().ok()?.next()
    }
}

async fn find(config: &Config, missing: &mut Vec<Missing>) -> Result<Vec<(Endpoint, Option<u64>)>> {
    let mut why = None;
    for seed in &config.seeds {
        let client = match connect(config, seed).await {
            Ok(client) => client,
            Err(error) => {
                absent(missing, seed, "anything", &error);
                why = Some(error);
                continue;
            }
        };
        let slots: Result<Slots, Error> =
            client.send(cmd("CLUSTER").arg("SLOTS").read_only()).await;
        let is_cluster = config.mode == Mode::Cluster;
        let topology = match slots {
            Ok(Slots(Ok(topology))) => topology,
            // One that is no cluster says so, with an error.
            Ok(Slots(Err(error))) if is_cluster => {
                absent(missing, seed, "the other nodes", &error);
                return Ok(vec![(seed.clone(), None)]);
            }
            Err(error) if is_cluster => {
                absent(missing, seed, "the other nodes", &error);
                return Ok(vec![(seed.clone(), None)]);
            }
            _ => return Ok(vec![(seed.clone(), None)]),
        };
        let shards = topology.shards();
        if shards.len() > NODES_MAX {
            let left_out = format!("{} of {} nodes", shards.len() - NODES_MAX, shards.len());
            let why = format!("at most {NODES_MAX} are looked at");
            missing.push(Missing {
                what: left_out,
                why,
            });
        }
        let nodes = shards.iter().take(NODES_MAX).map(|shard| {
            let slots = shard.ranges.iter().map(|it| it.clone().count() as u64);
            (announced(&shard.primary, seed), Some(slots.sum()))
        });
        return Ok(nodes.collect());
    }
    match why {
        Some(error) => Err(error).context("no server answers"),
        None => bail!("no server is named"),
    }
}

/// A node of a topology: one without a host is on that of the server that was asked.
fn announced(node: &Endpoint, asked: &Endpoint) -> Endpoint {
    match (node, asked) {
        (Endpoint::Tcp { host, port }, Endpoint::Tcp { host: own, .. }) if host.is_empty() => {
            Endpoint::tcp(own.clone(), *port)
        }
        (Endpoint::Tcp { host, port }, Endpoint::Unix(_)) if host.is_empty() => {
            Endpoint::tcp("localhost", *port)
        }
        _ => node.clone(),
    }
}

/// A client for one server alone, on the runtime of the caller.
async fn connect(config: &Config, endpoint: &Endpoint) -> Result<Client, Error> {
    let mut own = config.clone();
    own.mode = Mode::Standalone;
    own.seeds = vec![endpoint.clone()];
    own.client_name = Some(NAME.to_owned());
    own.mux_per_node = 1;
    own.max_in_flight = 64;
    own.timeout = PATIENCE;
    own.connect_timeout = PATIENCE;
    own.max_reply_bytes = ANSWER_MAX;
    Client::with(own).await
}

async fn ask(client: &Client) -> (Result<Info, Error>, Result<Value, Error>) {
    let info = client.info_of(["all"]).await;
    let slow = cmd("SLOWLOG").arg("GET").arg(SLOW_ENTRIES);
    let slow = client.send(slow.read_only()).await;
    (info.map(|text| Info::parse(&text)), slow)
}

async fn probe(client: Client, stop: Arc<AtomicBool>) -> Probe {
    let mut probe = Probe::default();
    let mut all_s = 0.0;
    while !stop.load(Relaxed) {
        let asked = Instant::now();
        match client.ping().await {
            Ok(()) => {
                let took = asked.elapsed().as_secs_f64();
                probe.answered += 1;
                all_s += took;
                probe.longest_s = probe.longest_s.max(took);
            }
            // A server that refuses PING answers, too.
            Err(Error::Server(_)) => {}
            Err(_) => probe.unanswered += 1,
        }
        sleep(ASK_EVERY).await;
    }
    if probe.answered > 0 {
        probe.mean_s = all_s / probe.answered as f64;
    }
    probe
}

/// Says once what a server did not tell.
fn absent(
    missing: &mut Vec<Missing>,
    node: &Endpoint,
    what: &str,
    why: &(impl std::fmt::Display + ?Sized),
) {
    let what = format!("{what} of {node}");
    if missing.iter().all(|it| it.what != what) {
        missing.push(Missing {
            what,
            why: why.to_string(),
        });
    }
}
