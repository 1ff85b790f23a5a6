//! What a client is told before it connects.

use std::{fmt, path::PathBuf, time::Duration};

use thiserror::Error;

use crate::tls::Tls;

/// The port on which Redis listens when nothing else is said.
pub const DEFAULT_PORT: u16 = 6379;

/// How to reach a server or a cluster, and how to treat it. [`Config::default`] is one server on
/// this machine; [`Config::from_url`] reads a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// One server or a cluster.
    pub mode: Mode,
    /// Where to begin: the server, or some nodes of the cluster, tried in this order. The others
    /// are found through them.
    pub seeds: Vec<Endpoint>,
    /// Encrypt connections, and check who the server is. `None`: do not. See [`tls`](crate::tls).
    pub tls: Option<Tls>,
    /// The user to authenticate as; `None` is the server's default user.
    pub username: Option<String>,
    /// The password. `None`: do not authenticate.
    pub password: Option<Secret>,
    /// The database to select. Clusters have only number 0.
    pub database: u32,
    /// What connections call themselves in the server's `CLIENT LIST`.
    pub client_name: Option<String>,
    /// The version of the protocol to speak. By default RESP3.
    pub protocol: ProtocolVersion,
    /// Connections to each node that callers share. By default 1.
    pub mux_per_node: usize,
    /// Commands that may wait for their replies on one connection. By default 4096.
    pub max_in_flight: usize,
    /// What happens to a command beyond that. By default it waits.
    pub on_full: OnFull,
    /// How long a command may take in all: until it can be sent, and for its reply, however often
    /// that is tried. By default 5 s.
    pub timeout: Duration,
    /// How long connecting may take, with TLS and authentication. By default 2 s.
    pub connect_timeout: Duration,
    /// A connection is cut when replies are awaited on it and nothing came for so long. By default
    /// 5 s.
    pub dead_after: Duration,
    /// How often a command is sent again.
    pub retries: RetryPolicy,
    /// Whether a write is sent again after its connection broke, although it may have been
    /// executed. By default not: its caller gets an error. Reads are always sent again.
    pub retry_writes: bool,
    /// Which nodes reads are sent to. By default primaries.
    pub read_from: ReadFrom,
    /// How often the cluster's topology is read when nothing else is a reason to. By default 30 s.
    pub refresh_interval: Duration,
    /// Bytes of the longest reply; a connection that exceeds it is cut. By default 513 MiB.
    pub max_reply_bytes: usize,
    /// Bytes of the ring of each connection into which commands are written. By default 256 KiB.
    pub ring_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Standalone,
            seeds: vec![Endpoint::tcp("127.0.0.1", DEFAULT_PORT)],
            tls: None,
            username: None,
            password: None,
            database: 0,
            client_name: None,
            protocol: ProtocolVersion::default(),
            mux_per_node: 1,
            max_in_flight: 4096,
            on_full: OnFull::default(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            dead_after: Duration::from_secs(5),
            retries: RetryPolicy::default(),
            retry_writes: false,
            read_from: ReadFrom::default(),
            refresh_interval: Duration::from_secs(30),
            max_reply_bytes: crate::resp::ReplyLimits::default().max_reply_bytes,
            ring_bytes: 256 << 10,
        }
    }
}

impl Config {
    /// One server, with everything else as by default.
    #[must_use]
    pub fn standalone(server: Endpoint) -> Self {
        Self {
            seeds: vec![server],
            ..Self::default()
        }
    }

    /// A cluster of which these nodes are known, with everything else as by default.
    pub fn cluster(seeds: impl IntoIterator<Item = Endpoint>) -> Self {
        Self {
            mode: Mode::Cluster,
            seeds: seeds.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Whether everything in it can be meant.
    ///
    /// # Errors
    /// The first thing that cannot.
    pub fn check(&self) -> Result<(), ConfigError> {
        match (self.mode, self.seeds.len()) {
            (_, 0) => return Err(ConfigError::NoSeed),
            (Mode::Standalone, 2..) => return Err(ConfigError::SeveralServers),
            (Mode::Cluster, _) if self.database != 0 => {
                return Err(ConfigError::DatabaseInCluster);
            }
            _ => {}
        }
        if let Some(tls) = &self.tls {
            tls.check()?;
            if self
                .seeds
                .iter()
                .any(|seed| matches!(seed, Endpoint::Unix(_)))
            {
                return Err(ConfigError::TlsOverSocket);
            }
        }
        if self.username.is_some() && self.password.is_none() {
            return Err(ConfigError::UserWithoutPassword);
        }
        if let Some(name) = &self.client_name
            && !name.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(ConfigError::ClientName);
        }
        for (option, is_zero) in [
            ("mux_per_node", self.mux_per_node == 0),
            ("max_in_flight", self.max_in_flight == 0),
            ("timeout", self.timeout.is_zero()),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("dead_after", self.dead_after.is_zero()),
            ("refresh_interval", self.refresh_interval.is_zero()),
            ("max_reply_bytes", self.max_reply_bytes == 0),
            ("ring_bytes", self.ring_bytes == 0),
        ] {
            if is_zero {
                return Err(ConfigError::Zero { option });
            }
        }
        match self.retries.backoff_min > self.retries.backoff_max {
            true => Err(ConfigError::Backoff),
            false => Ok(()),
        }
    }
}

/// A configuration that cannot be meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is nobody to connect to.
    #[error("no server is named; give at least one as a seed")]
    NoSeed,
    /// Only a cluster has several.
    #[error("several servers are named; only a cluster has seeds (redis-cluster://)")]
    SeveralServers,
    /// Clusters have one database.
    #[error("a cluster has only database 0; leave the database out")]
    DatabaseInCluster,
    /// Redis authenticates nobody without a password.
    #[error("a user is named without a password; give both, or none of them")]
    UserWithoutPassword,
    /// It was built without encryption.
    #[error("encrypted connections take the feature `tls` of embar-redis, which is off")]
    TlsFeature,
    /// They are of no use without each other.
    #[error(
        "a client's certificate takes its key, and a key its certificate; give both (tls_cert_file and tls_key_file), or none of them"
    )]
    CertificateWithoutKey,
    /// Rules replace everything else.
    #[error(
        "rules of rustls decide about certificates; leave files and danger_accept_any_certificate out"
    )]
    TlsTwice,
    /// Redis never encrypts those.
    #[error("connections to Unix sockets cannot be encrypted; leave tls out")]
    TlsOverSocket,
    /// Redis takes printable ASCII without spaces.
    #[error("the client name may have only printable ASCII characters and no spaces")]
    ClientName,
    /// It must be more.
    #[error("{option} must be more than zero")]
    Zero {
        /// Which one.
        option: &'static str,
    },
    /// The range is empty.
    #[error("backoff_min is longer than backoff_max; swap them or make one equal the other")]
    Backoff,
}

/// One server or a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// One server that has all keys.
    #[default]
    Standalone,
    /// Nodes that share the slots.
    Cluster,
}

/// The versions of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProtocolVersion {
    /// The version of all servers before 6.0. No pushes: subscriptions need connections of their
    /// own.
    Resp2,
    /// Since Redis 6.0.
    #[default]
    Resp3,
}

/// What happens to a command when its connection has no room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnFull {
    /// It waits for room, within its timeout.
    #[default]
    Wait,
    /// It fails at once.
    Refuse,
}

/// Which nodes of a shard reads are sent to. Replicas lag behind their primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReadFrom {
    /// The primary only.
    #[default]
    Primary,
    /// A replica that is reached, and the primary of a shard that has none.
    PreferReplica,
    /// A replica only. Where none is reached, reads fail when their time is over.
    Replica,
    /// All that are reached, in turn.
    Any,
}

/// How often a command is sent again, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RetryPolicy {
    /// Redirects and retries of one command together. By default 16.
    pub max_redirects: u32,
    /// The first pause before the same is tried again. By default 5 ms.
    pub backoff_min: Duration,
    /// Pauses grow up to this. By default 500 ms.
    pub backoff_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_redirects: 16,
            backoff_min: Duration::from_millis(5),
            backoff_max: Duration::from_millis(500),
        }
    }
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// A port of a host.
    Tcp {
        /// A name or an IP address, IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket on this machine.
    Unix(PathBuf),
}

impl Endpoint {
    /// A port of a host; an IPv6 address without brackets.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        Self::Tcp { host, port }
    }

    /// Where a node is that `asked` told of, in a redirect or in its topology. An empty host means
    /// the one that was asked. `None` when the node that was asked does not know it itself: it
    /// says `?` then, or port 0.
    #[must_use]
    pub fn announced(host: &str, port: u16, asked: &Self) -> Option<Self> {
        match (host, asked) {
            (_, _) if port == 0 => None,
            ("?", _) => None,
            ("", Self::Tcp { host, .. }) => Some(Self::tcp(host, port)),
            // Who answers on a Unix socket runs on this machine.
            ("", Self::Unix(_)) => Some(Self::tcp("localhost", port)),
            (host, _) => Some(Self::tcp(host, port)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A text that is never shown: its `Debug` form says nothing about it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text. Keep it out of logs and errors.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_one_server_here_and_means_something() {
        let config = Config::default();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.seeds[0].to_string(), "127.0.0.1:6379");
        assert_eq!(config.protocol, ProtocolVersion::Resp3);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::cluster([Endpoint::tcp("a", 1), Endpoint::tcp("b", 2)]);
            assert_eq!(config.check(), Ok(()));
            change(&mut config);
            config.check().expect_err("this cannot be meant")
        };
        assert_eq!(refused(|c| c.seeds.clear()), ConfigError::NoSeed);
        assert_eq!(
            refused(|c| c.mode = Mode::Standalone),
            ConfigError::SeveralServers
        );
        assert_eq!(refused(|c| c.database = 1), ConfigError::DatabaseInCluster);
        assert_eq!(
            refused(|c| c.username = Some("u".to_owned())),
            ConfigError::UserWithoutPassword
        );
        assert_eq!(
            refused(|c| c.client_name = Some("a b".to_owned())),
            ConfigError::ClientName
        );
        let option = "timeout";
        assert_eq!(
            refused(|c| c.timeout = Duration::ZERO),
            ConfigError::Zero { option }
        );
        assert_eq!(
            refused(|c| c.retries.backoff_max = Duration::ZERO),
            ConfigError::Backoff
        );
    }

    #[cfg(feature = "tls")]
    #[test]
    fn what_cannot_be_meant_about_encryption_is_refused() {
        let refused = |seed, tls| {
            let tls = Some(tls);
            let config = Config {
                tls,
                ..Config::standalone(seed)
            };
            config.check().expect_err("this cannot be meant")
        };
        let server = || Endpoint::tcp("a", 1);
        let socket = Endpoint::Unix("/run/redis.sock".into());
        assert_eq!(refused(socket, Tls::default()), ConfigError::TlsOverSocket);
        let key_file = Some("key.pem".into());
        let key = Tls {
            key_file,
            ..Tls::default()
        };
        assert_eq!(refused(server(), key), ConfigError::CertificateWithoutKey);
        let rules = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let mut tls = Tls {
            server_name: Some("b".to_owned()),
            rules: Some(std::sync::Arc::new(rules).into()),
            ..Tls::default()
        };
        assert_eq!(tls.check(), Ok(()));
        tls.danger_accept_any_certificate = true;
        assert_eq!(refused(server(), tls), ConfigError::TlsTwice);
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = Config {
            password: Some(Secret::new("hunter2")),
            ..Config::default()
        };
        assert!(!format!("{config:?} {config:#?}").contains("hunter2"));
        assert_eq!(
            config.password.as_ref().map(Secret::reveal),
            Some("hunter2")
        );
    }

    #[test]
    fn an_announced_node_may_be_on_the_host_that_was_asked() {
        let asked = Endpoint::tcp("10.0.0.1", 7000);
        let announced = |host, port| Endpoint::announced(host, port, &asked);
        assert_eq!(announced("b", 1), Some(Endpoint::tcp("b", 1)));
        assert_eq!(announced("", 1), Some(Endpoint::tcp("10.0.0.1", 1)));
        assert_eq!(announced("?", 1), None);
        assert_eq!(announced("b", 0), None);
        let socket = Endpoint::Unix("/run/redis.sock".into());
        let here = Endpoint::announced("", 7, &socket);
        assert_eq!(here, Some(Endpoint::tcp("localhost", 7)));
    }

    #[test]
    fn endpoints_are_shown_as_they_are_written() {
        assert_eq!(Endpoint::tcp("::1", 7).to_string(), "[::1]:7");
        let socket = Endpoint::Unix("/run/redis.sock".into());
        assert_eq!(socket.to_string(), "unix:/run/redis.sock");
    }
}
