//! Servers, waiting, and a load that several tests use.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::Endpoint;
use embar_redis::{Client, Config};
use embar_redis_servers::{Cluster, ClusterOptions, Options, Server};
use tokio::task::JoinHandle;

/// Nothing takes so long, on no machine: what does hangs.
pub const LONG: Duration = Duration::from_secs(60);

pub fn server() -> Server {
    Server::start(&Options::default()).expect("redis-server runs")
}

pub fn cluster(masters: usize, replicas: usize) -> Cluster {
    let options = ClusterOptions {
        masters,
        replicas,
        ..ClusterOptions::default()
    };
    Cluster::start(&options).expect("redis-server runs")
}

pub fn endpoint(address: std::net::SocketAddr) -> Endpoint {
    Endpoint::tcp(address.ip().to_string(), address.port())
}

pub fn to(server: &Server) -> Config {
    Config::standalone(endpoint(server.address()))
}

pub fn to_cluster(cluster: &Cluster) -> Config {
    Config::cluster(cluster.seeds().into_iter().map(endpoint))
}

/// Runs async code on two threads, as an application would.
pub fn run<R>(test: impl Future<Output = R>) -> R {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(test)
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition().await {
        assert!(Instant::now() < deadline, "it never happens: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The outcomes of the increments of one key.
#[derive(Debug, Default, Clone, Copy)]
pub struct Account {
    pub done: u64,
    pub not_done: u64,
    pub unknown: u64,
    /// The highest value of a reply.
    pub highest: i64,
}

/// Callers that increment keys of their own, and read back values that carry their key.
pub struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    callers: Vec<JoinHandle<(String, Account)>>,
}

impl Load {
    pub fn start(client: &Client, callers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let callers = (0..callers)
            .map(|number| {
                let (client, stop, rounds) = (client.clone(), stop.clone(), rounds.clone());
                tokio::spawn(async move {
                    let key = format!("counter-{number}");
                    let mut account = Account::default();
                    let mut turn = 0_u64;
                    // Callers begin at different steps, so that a fault always meets some increment.
                    for _ in 0..number % 3 {
                        let _value = client.get::<Option<u64>, _>(&key).await;
                    }
                    while !stop.load(Ordering::Relaxed) {
                        increment(&client, &key, &mut account).await;
                        turn += 1;
                        own_value(&client, number, turn).await;
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    (key, account)
                })
            })
            .collect();
        Self {
            stop,
            rounds,
            callers,
        }
    }

    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Waits until so many more rounds are complete.
    pub async fn goes_on(&self, rounds: u64) {
        let goal = self.rounds() + rounds;
        until("the load goes on", async || self.rounds() >= goal).await;
    }

    /// Ends the load, and compares each counter with the replies that its caller got. At most `lost`
    /// executed increments may be missing in all: those that a primary had not passed on when it was
    /// killed.
    pub async fn settle(self, client: &Client, lost: u64) -> Account {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Account::default();
        let mut missing = 0;
        for caller in self.callers {
            let (key, account) = caller.await.expect("a caller does not panic");
            let value: Option<u64> = client.get(&key).await.expect("the value can be read");
            let value = value.unwrap_or(0);
            assert!(
                value <= account.done + account.unknown,
                "{key} is {value}: something was done twice: {account:?}"
            );
            missing += account.done.saturating_sub(value);
            sum.done += account.done;
            sum.not_done += account.not_done;
            sum.unknown += account.unknown;
        }
        assert!(missing <= lost, "{missing} increments were lost: {sum:?}");
        assert!(sum.done > 0);
        sum
    }
}

async fn increment(client: &Client, key: &str, account: &mut Account) {
    match client.incr(key).await {
        Ok(value) => {
            account.done += 1;
            account.highest = account.highest.max(value);
        }
        Err(error) if error.may_have_executed() => account.unknown += 1,
        Err(_) => account.not_done += 1,
    }
}

/// Writes and reads a value that carries its key, so that a reply to the wrong caller is noticed.
async fn own_value(client: &Client, number: usize, turn: u64) {
    let key = format!("own-{number}-{}", turn % 50);
    let value = format!("{key}={}", "x".repeat((turn % 700) as usize));
    let _outcome = client.set(&key, &value).await;
    if let Ok(Some(found)) = client.get::<Option<String>, _>(&key).await {
        assert!(
            found.starts_with(&format!("{key}=")),
            "asked for {key}, got {found}"
        );
    }
}
