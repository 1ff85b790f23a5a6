//! A primary with replicas, and the sentinels that watch over them.

use crate::cluster::wait;
use crate::control::Reply;
use crate::error::{CommandError, StartError, WaitError};
use crate::net::Host;
use crate::server::{Options, Server, TlsFiles};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// The name by which the sentinels know the primary.
pub const MASTER_NAME: &str = "mymaster";

/// How long it may take on a busy machine until all know each other.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Sentinels do in less than a second what they usually do in seconds, and a machine that stands still for a while
/// does not make them give up for half a minute ("tilt"). They promote no replica whose last answer is older than five
/// pings or three times `INFO`, so these are not shorter.
const HURRY: &str = "SENTINEL DEBUG INFO-PERIOD 500 PING-PERIOD 300 ASK-PERIOD 100 \
    PUBLISH-PERIOD 200 TILT-TRIGGER 3600000";

/// The options of a primary with replicas and sentinels.
#[derive(Clone, Debug)]
pub struct SentinelOptions {
    /// How many replicas the primary has.
    pub replicas: usize,
    /// How many sentinels there are. Most of them must agree on a failover.
    pub sentinels: usize,
    /// How long a server may be silent before a sentinel calls it down, milliseconds. A short one makes failovers quick;
    /// but a machine that is busy for longer causes a failover by mistake.
    pub down_after_ms: u32,
    /// The hosts of the servers and then of the sentinels; those beyond its end run on this machine.
    pub hosts: Vec<Host>,
    /// The password of the servers, none when `None`.
    pub password: Option<String>,
    /// The password of the sentinels, none when `None`.
    pub sentinel_password: Option<String>,
    /// Files for TLS, between all of them: they take no plain connection then.
    pub tls: Option<TlsFiles>,
}

impl Default for SentinelOptions {
    /// A replica, and three sentinels that call a server down after a second.
    fn default() -> Self {
        Self {
            replicas: 1,
            sentinels: 3,
            down_after_ms: 1000,
            hosts: Vec::new(),
            password: None,
            sentinel_password: None,
            tls: None,
        }
    }
}

/// A primary with replicas, and sentinels: processes that end when this value is dropped.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts them, and waits until all sentinels know each other and all replicas, and these have all data.
    ///
    /// # Errors
    /// A server does not start, or they do not find each other within a minute.
    pub fn start(options: &SentinelOptions) -> Result<Self, StartError> {
        let mut servers: Vec<Server> = Vec::new();
        for index in 0..=options.replicas {
            let of = servers.first().map(Server::address);
            let extra = of.map(|of| format!("--replicaof {} {}", of.ip(), of.port()));
            servers.push(Server::start(&Options {
                host: options.hosts.get(index).cloned(),
                password: options.password.clone(),
                tls: options.tls.clone(),
                extra: extra.into_iter().collect(),
                ..Options::default()
            })?);
        }
        let primary = servers[0].address();
        let mut sentinels = Vec::new();
        for index in servers.len()..servers.len() + options.sentinels {
            let sentinel = Server::start(&Options {
                host: options.hosts.get(index).cloned(),
                password: options.sentinel_password.clone(),
                tls: options.tls.clone(),
                sentinel: Some(configuration(options, primary)),
                ..Options::default()
            })?;
            sentinel.command(&HURRY.split_whitespace().collect::<Vec<_>>())?;
            sentinels.push(sentinel);
        }
        let all = Self { servers, sentinels };
        all.wait_ok(START_TIMEOUT)?;
        Ok(all)
    }

    /// The servers: the one that began as the primary comes first. The order stays when roles change.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// As [`Sentinels::servers`], to kill or restart.
    pub fn servers_mut(&mut self) -> &mut [Server] {
        &mut self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The sentinels, to kill them.
    pub fn sentinels_mut(&mut self) -> &mut [Server] {
        &mut self.sentinels
    }

    /// The addresses of the sentinels.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Server::address).collect()
    }

    /// Waits until all sentinels that run name the same primary, which says so itself, know all others that run, and all
    /// other servers that run are replicas with all data.
    ///
    /// # Errors
    /// What was wrong when the time was over.
    pub fn wait_ok(&self, timeout: Duration) -> Result<(), WaitError> {
        wait(timeout, || self.problem())
    }

    /// Has a sentinel make a replica the primary, which takes a while, and may fail: then ask it again. It refuses while it
    /// does so already.
    ///
    /// # Errors
    /// The sentinel does not answer.
    pub fn fail_over(&self, sentinel: usize) -> Result<(), CommandError> {
        let failover = ["SENTINEL", "FAILOVER", MASTER_NAME];
        match self.sentinels[sentinel].command(&failover) {
            Ok(_) | Err(CommandError::Server(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The server that this sentinel names as the primary.
    ///
    /// # Errors
    /// The sentinel does not answer.
    pub fn named_by(&self, sentinel: usize) -> Result<Option<usize>, CommandError> {
        let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
        let named = self.sentinels[sentinel].command(&address)?;
        let is_named = |server: &Server| {
            let address = server.address();
            named == format!("{}\n{}", address.ip(), address.port())
        };
        Ok(self.servers.iter().position(is_named))
    }

    fn problem(&self) -> Result<Option<String>, CommandError> {
        let running = |all: &[Server]| all.iter().filter(|server| server.is_running()).count();
        let (replicas, others) = (running(&self.servers) - 1, running(&self.sentinels) - 1);
        let mut agreed = None;
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            if !sentinel.is_running() {
                continue;
            }
            let named = self.named_by(index)?;
            let Some(primary) = named.filter(|_| *agreed.get_or_insert(named) == named) else {
                return Ok(Some(format!(
                    "sentinel {index} names another primary: {named:?}"
                )));
            };
            for (list, wanted) in [("REPLICAS", replicas), ("SENTINELS", others)] {
                let known = sentinel.call(&["SENTINEL", list, MASTER_NAME])?;
                let well = maps(known).filter(is_well).count();
                if well != wanted {
                    let problem = format!("sentinel {index} knows {well} {list} that are well");
                    return Ok(Some(format!("{problem}, and {wanted} run")));
                }
            }
            let said = self.servers[primary].command(&["INFO", "replication"])?;
            if !said.contains("role:master")
                || !said.contains(&format!("connected_slaves:{replicas}"))
            {
                return Ok(Some(format!(
                    "server {primary} is no primary of all others: {said}"
                )));
            }
        }
        Ok(None)
    }
}

/// The configuration of a sentinel.
fn configuration(options: &SentinelOptions, primary: SocketAddr) -> String {
    let quorum = options.sentinels / 2 + 1;
    let (ip, port) = (primary.ip(), primary.port());
    let mut lines = vec![
        format!("monitor {MASTER_NAME} {ip} {port} {quorum}"),
        format!(
            "down-after-milliseconds {MASTER_NAME} {}",
            options.down_after_ms
        ),
        // A failover that fails, as on a busy machine, is tried again after twice that.
        format!("failover-timeout {MASTER_NAME} 5000"),
    ];
    if let Some(password) = &options.password {
        lines.push(format!("auth-pass {MASTER_NAME} {password}"));
    }
    if let Some(password) = &options.sentinel_password {
        lines.push(format!("sentinel-pass {password}"));
    }
    lines
        .iter()
        .map(|line| format!("sentinel {line}\n"))
        .collect()
}

/// Each element of a list as names and values.
fn maps(list: Reply) -> impl Iterator<Item = BTreeMap<String, String>> {
    let elements = match list {
        Reply::Array(elements) => elements,
        _ => Vec::new(),
    };
    elements.into_iter().map(|element| {
        let text = element.text();
        let mut lines = text.lines().map(str::to_owned);
        let pairs = std::iter::from_fn(|| Some((lines.next()?, lines.next()?)));
        pairs.collect()
    })
}

/// Whether a sentinel reaches this replica or other sentinel, and a replica has all data.
fn is_well(instance: &BTreeMap<String, String>) -> bool {
    let is = |name: &str, value: &str| instance.get(name).is_some_and(|found| found == value);
    is("flags", "sentinel") || is("flags", "slave") && is("master-link-status", "ok")
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        for server in self.sentinels.iter().chain(&self.servers) {
            server.ask_to_end();
        }
    }
}
