//! Servers of our own, and what is done to them on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::Mode;
use embar_redis::tls::Tls;
use embar_redis::{Client, Config, Endpoint, cmd};
use embar_redis_servers::{Cluster, ClusterOptions, Options, Server, TlsFiles};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::inject::Fault;
use super::plan::RedisLoad;
use crate::diagnose::hog::Hog;
use crate::diagnose::stalls::Stalls;

/// The name in the certificate of our servers, wherever they listen.
const SERVER_NAME: &str = "localhost";
/// The key of the value that is large on purpose; no key of the callers has letters.
const BIG_KEY: &str = "embar:big";
/// Scripts that run beside the callers at a time.
const HEAVY_AT_A_TIME: usize = 4;
/// What a turn of such a script's loop takes, nanoseconds, about.
const TURN_NS: u128 = 8;
/// Adds up numbers to the one that it is given.
const HEAVY: &str = "local sum = 0 for i = 1, tonumber(ARGV[1]) do sum = sum + i end return sum";

/// Servers that were started for one run. Dropping them ends them.
pub struct OwnServers {
    // Dropped in this order: the servers' certificate last.
    all: Started,
    certificate: Option<TempDir>,
}

enum Started {
    One(Server),
    Many(Cluster),
}

impl OwnServers {
    /// Starts them.
    pub fn start(count: usize, plan: &RedisLoad) -> Result<Self> {
        let (certificate, tls) = match plan.by_tls {
            true => {
                let dir = tempfile::tempdir().context("cannot make a folder for a certificate")?;
                let files = certificate(dir.path())?;
                (Some(dir), Some(files))
            }
            false => (None, None),
        };
        let sleeps = |it: &Fault| matches!(it, Fault::BlockedServer(_));
        let extra = match plan.faults.iter().any(sleeps) {
            true => vec!["--enable-debug-command yes".to_owned()],
            false => Vec::new(),
        };
        let all = if count == 1 {
            let options = Options {
                tls,
                extra,
                ..Options::default()
            };
            Started::One(Server::start(&options)?)
        } else {
            let options = ClusterOptions {
                masters: count,
                tls,
                // One that stands still on purpose has not failed.
                node_timeout_ms: 15_000,
                extra,
                ..ClusterOptions::default()
            };
            Started::Many(Cluster::start(&options)?)
        };
        Ok(Self { all, certificate })
    }

    fn each(&self) -> &[Server] {
        match &self.all {
            Started::One(server) => std::slice::from_ref(server),
            Started::Many(cluster) => cluster.masters(),
        }
    }

    /// How a client reaches them.
    pub fn config(&self) -> Config {
        let endpoint = |it: &Server| {
            let address = it.address();
            Endpoint::tcp(address.ip().to_string(), address.port())
        };
        let mut config = Config::cluster(self.each().iter().map(endpoint));
        if matches!(self.all, Started::One(_)) {
            config.mode = Mode::Standalone;
        }
        if let Some(dir) = &self.certificate {
            let mut tls = Tls::default();
            tls.ca_files = vec![dir.path().join("cert.pem")];
            tls.server_name = Some(SERVER_NAME.to_owned());
            config.tls = Some(tls);
        }
        config
    }

    /// Their processes, by their addresses.
    pub fn processes(&self) -> BTreeMap<SocketAddr, u32> {
        let known = |it: &Server| Some((it.address(), it.pid()?));
        self.each().iter().filter_map(known).collect()
    }

    /// The last one, for what is done to one of them.
    fn victim(&self) -> Result<&Server> {
        self.each().last().context("there is no server")
    }
}

/// A certificate that signs itself, which is its own authority.
fn certificate(dir: &Path) -> Result<TlsFiles> {
    let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]);
    let made = made.context("cannot make a certificate")?;
    let files = TlsFiles {
        cert: dir.join("cert.pem"),
        key: dir.join("key.pem"),
        ca: dir.join("cert.pem"),
    };
    fs::write(&files.cert, made.cert.pem()).context("cannot write a certificate")?;
    let key = made.signing_key.serialize_pem();
    fs::write(&files.key, key).context("cannot write a certificate's key")?;
    Ok(files)
}

/// What goes on beside the callers until it is dropped.
#[derive(Default)]
pub struct Beside {
    stalls: Vec<Stalls>,
    hogs: Vec<Hog>,
    sleeps: Vec<Sleeps>,
    tasks: JoinSet<()>,
    /// Who wrote the large value, and takes it away again.
    big: Option<(Client, Handle)>,
}

impl Beside {
    /// Starts what the plan's faults do to servers and beside the callers, who share `client`.
    pub fn start(
        plan: &RedisLoad,
        own: Option<&OwnServers>,
        client: &Client,
        runtime: &Handle,
        program: &Path,
    ) -> Result<Self> {
        let mut beside = Self::default();
        let own = || own.context("this fault needs servers of our own");
        for fault in &plan.faults {
            match *fault {
                Fault::SlowNode(percent) => {
                    let pid = own()?.victim()?.pid().context("the server has ended")?;
                    beside.stalls.push(Stalls::start(pid, percent)?);
                }
                Fault::BlockedServer(time) => beside.sleeps.push(Sleeps::start(own()?, time)?),
                Fault::CpuHog(threads) => beside.hogs.push(Hog::start(program, threads)?),
                Fault::BigValue(size) => {
                    let value = vec![b'x'; usize::try_from(size.0)?];
                    runtime
                        .block_on(async { client.set(BIG_KEY, value).await })
                        .context("cannot write a large value")?;
                    beside.big = Some((client.clone(), runtime.clone()));
                    beside.tasks.spawn_on(read_again(client.clone()), runtime);
                }
                Fault::HeavyCommands(time) => {
                    let turns = (time.as_nanos() / TURN_NS).to_string();
                    for _ in 0..HEAVY_AT_A_TIME {
                        let run = run_again(client.clone(), turns.clone());
                        beside.tasks.spawn_on(run, runtime);
                    }
                }
                _ => {}
            }
        }
        Ok(beside)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.tasks.abort_all();
        if let Some((client, runtime)) = self.big.take() {
            let delete = client.send(cmd("DEL").arg(BIG_KEY));
            // A server that is gone has it no more, or its owner hears of the key by its name.
            let _deleted: Result<u64, _> = runtime.block_on(delete);
        }
    }
}

/// Reads the large value until nobody wants it any more. What fails is tried again: that it stops is for others to notice.
async fn read_again(client: Client) {
    let mut buffer = Vec::new();
    loop {
        let _read = client.get_into(BIG_KEY, &mut buffer).await;
        tokio::task::yield_now().await;
    }
}

/// Runs a script that takes its time.
async fn run_again(client: Client, turns: String) {
    loop {
        let script = cmd("EVAL").arg(HEAVY).arg("0").arg(&turns);
        let _sum: Result<u64, _> = client.send(script).await;
        tokio::task::yield_now().await;
    }
}

/// Has a server sleep in a command again and again until it is dropped.
struct Sleeps {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeps {
    fn start(own: &OwnServers, time: Duration) -> Result<Self> {
        let address = own.victim()?.address();
        let mut config = own.config();
        config.mode = Mode::Standalone;
        config.seeds = vec![Endpoint::tcp(address.ip().to_string(), address.port())];
        let client = Client::with_blocking(config)?;
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("sleeps".into())
            .spawn(move || sleep_again(&client, time, &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

fn sleep_again(client: &Client, time: Duration, stopped: &Receiver<()>) {
    let seconds = time.as_secs_f64().to_string();
    while stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
        let sleep = cmd("DEBUG").arg("SLEEP").arg(&seconds);
        let slept: Result<(), _> = client.send(sleep).wait();
        if slept.is_err() {
            return;
        }
    }
}

impl Drop for Sleeps {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _joined = thread.join();
        }
    }
}
