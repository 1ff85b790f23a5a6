//! The configuration of a client.

use std::time::Duration;

use thiserror::Error;

pub use crate::address_map::{AddressMap, Destination};
pub use crate::cache_config::{CacheConfig, Tracking};
use crate::credentials::CredentialsProvider;
pub use crate::endpoint::{DEFAULT_PORT, Endpoint};
pub use crate::secret::Secret;
use crate::tls::{Tls, TlsConfigError};
pub use sentinel::{DEFAULT_SENTINEL_PORT, Sentinel};

mod sentinel;

/// How to reach a server or a cluster, and how the client behaves. [`Config::default`] is one server on
/// this machine; [`Config::from_url`] reads a URL. A program sets the fields that it wants otherwise:
///
/// ```
/// use std::time::Duration;
///
/// use embar_redis::{Config, Endpoint};
///
/// let mut config = Config::standalone(Endpoint::tcp("127.0.0.1", 6379));
/// config.timeout = Duration::from_millis(500);
/// config.client_name = Some("shop".to_owned());
/// # assert_eq!(config.check(), Ok(()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// One server, a cluster, or a primary with replicas.
    pub mode: Mode,
    /// The server, some nodes of the cluster, some of a primary and its replicas, or some of the sentinels. The client asks
    /// several of them at once, whichever they are, and learns the other nodes from them.
    pub seeds: Vec<Endpoint>,
    /// What the client asks sentinels for. Counts only with [`Mode::Sentinel`].
    pub sentinel: Sentinel,
    /// Encrypts connections and checks the server's certificate; see [`tls`](crate::tls). `None`: no
    /// encryption.
    pub tls: Option<Tls>,
    /// The user to authenticate as; `None`: the server's default user.
    pub username: Option<String>,
    /// The password. `None`: no authentication.
    pub password: Option<Secret>,
    /// Gives the user and the password instead of `username` and `password`, and others when they change; see
    /// [`credentials`](crate::credentials).
    pub credentials: Option<CredentialsProvider>,
    /// The database to select. Clusters have only database 0.
    pub database: u32,
    /// The name of the connections in the server's `CLIENT LIST`.
    pub client_name: Option<String>,
    /// The name and the version of the library that servers since 7.2 show in `CLIENT LIST` (`CLIENT SETINFO`): by default those of
    /// this crate. A library on top of it says its own. `None`: the client does not tell. A server that refuses to take
    /// them is of use all the same.
    pub lib_name: Option<String>,
    /// See `lib_name`.
    pub lib_version: Option<String>,
    /// Where to connect to nodes that this machine does not reach at the addresses that they announce. `None`: at
    /// these.
    pub address_map: Option<AddressMap>,
    /// The version of the protocol. By default RESP3, and RESP2 with servers that do not know RESP3.
    pub protocol: ProtocolVersion,
    /// How many connections to each node callers share. By default 1.
    pub mux_per_node: usize,
    /// How many commands one connection may have in flight; a dedicated one never more than 1024. By default 4096.
    pub max_in_flight: usize,
    /// How many connections to each node there are for commands that block, as
    /// [`BlockingCommands`](crate::commands::blocking::BlockingCommands) has them: one for each that waits at a time. Further
    /// ones wait in their order, within `timeout`. By default 64.
    pub max_blocking: usize,
    /// How long such a connection stays when no command uses it. By default 60 s.
    pub blocking_idle: Duration,
    /// What the client does with a command beyond `max_in_flight`. By default the command waits.
    pub on_full: OnFull,
    /// How long a command may take in all: waiting, sending, and its reply, however often the client
    /// sends it. By default 5 s.
    pub timeout: Duration,
    /// How long connecting may take, including TLS and authentication. By default 2 s.
    pub connect_timeout: Duration,
    /// The client closes a connection that owes replies and sends nothing for so long, but not before the time of
    /// the oldest command there is over: the server may be busy with it. In a cluster, it asks other nodes about a
    /// silent one after a quarter of this time. By default 5 s.
    pub dead_after: Duration,
    /// How many redirects the client follows, and how long it pauses before it sends a command again.
    pub retries: RetryPolicy,
    /// Whether the client sends a write again whose connection broke, although the server may have
    /// executed it. By default not: its caller gets [`Error::UnknownOutcome`](crate::Error). The client
    /// always sends reads again.
    pub retry_writes: bool,
    /// The errors, by their first words, that make the client leave the connection and connect again, with
    /// the server's name resolved anew, as behind a DNS name or a proxy another server has taken over. By
    /// default (`None`) `READONLY` with one server, and none with several, whose topology says who has
    /// taken over. Empty: never.
    ///
    /// Commands in flight on the old connection get their replies there; later ones go to the new one. A
    /// command with such an error is sent there, too, within its timeout, if the error says that nothing
    /// was executed (see [`Error::may_have_executed`](crate::Error::may_have_executed)); otherwise its
    /// caller gets the error. So do the callers of a transaction that was refused as a whole. The client
    /// leaves each connection at once for the first such answer, and for further ones after the growing pauses of
    /// [`retries`](Config::retries). Subscribers keep their connections: a server that has become a replica
    /// passes on what is published at its primary.
    pub reconnect_on: Option<Vec<String>>,
    /// Which nodes answer reads. By default primaries.
    pub read_from: ReadFrom,
    /// How often the client reads the topology (of a cluster which node serves which slot, otherwise who is
    /// the primary) when nothing else makes it do so: each time a
    /// quarter sooner or later, at random, so that many clients do not ask at once. By default 30 s.
    pub refresh_interval: Duration,
    /// Bytes of the longest reply; the client closes a connection that exceeds them. By default
    /// 513 MiB.
    pub max_reply_bytes: usize,
    /// Bytes of each connection's send ring, a power of two. By default 256 KiB.
    pub ring_bytes: usize,
    /// The cache of [`Client::cached`](crate::Client::cached), which takes RESP3. By default (`None`) there is none.
    pub cache: Option<CacheConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Standalone,
            seeds: vec![Endpoint::tcp("127.0.0.1", DEFAULT_PORT)],
            sentinel: Sentinel::default(),
            tls: None,
            username: None,
            password: None,
            credentials: None,
            database: 0,
            client_name: None,
            lib_name: Some(env!("CARGO_PKG_NAME").to_owned()),
            lib_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            address_map: None,
            protocol: ProtocolVersion::default(),
            mux_per_node: 1,
            max_in_flight: 4096,
            max_blocking: 64,
            blocking_idle: Duration::from_secs(60),
            on_full: OnFull::default(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            dead_after: Duration::from_secs(5),
            retries: RetryPolicy::default(),
            retry_writes: false,
            reconnect_on: None,
            read_from: ReadFrom::default(),
            refresh_interval: Duration::from_secs(30),
            max_reply_bytes: crate::resp::ReplyLimits::default().max_reply_bytes,
            ring_bytes: 256 << 10,
            cache: None,
        }
    }
}

impl Config {
    /// One server, and defaults for everything else.
    #[must_use]
    pub fn standalone(server: Endpoint) -> Self {
        Self {
            seeds: vec![server],
            ..Self::default()
        }
    }

    /// A cluster that has these nodes, and defaults for everything else.
    pub fn cluster(seeds: impl IntoIterator<Item = Endpoint>) -> Self {
        Self {
            mode: Mode::Cluster,
            seeds: seeds.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Whether a server's error makes the client connect again.
    pub(crate) fn reconnects_on(&self, error: &str) -> bool {
        let word = error.split(' ').next().unwrap_or_default();
        match &self.reconnect_on {
            None => self.mode == Mode::Standalone && word == "READONLY",
            Some(words) => words.iter().any(|known| known == word),
        }
    }

    /// Checks that the settings make sense together. [`Client::with`](crate::Client::with) does so, too.
    ///
    /// # Errors
    /// The first setting that does not.
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
        }
        let mut tls_of_seeds = &self.tls;
        if self.mode == Mode::Sentinel {
            self.sentinel.check()?;
            tls_of_seeds = &self.sentinel.tls;
        }
        let is_socket = |seed: &Endpoint| matches!(seed, Endpoint::Unix(_));
        if tls_of_seeds.is_some() && self.seeds.iter().any(is_socket) {
            return Err(ConfigError::TlsOverSocket);
        }
        if self.username.is_some() && self.password.is_none() {
            return Err(ConfigError::UserWithoutPassword);
        }
        if self.credentials.is_some() && (self.username.is_some() || self.password.is_some()) {
            return Err(ConfigError::CredentialsTwice);
        }
        let is_graphic = |text: &String| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.client_name.iter().all(is_graphic) {
            return Err(ConfigError::ClientName);
        }
        let library = [&self.lib_name, &self.lib_version];
        if !library.into_iter().flatten().all(is_graphic) {
            return Err(ConfigError::Library);
        }
        if let Some(cache) = &self.cache {
            if self.protocol == ProtocolVersion::Resp2 {
                return Err(ConfigError::CacheWithoutResp3);
            }
            if cache.tracking.overlaps() {
                return Err(ConfigError::CachePrefixes);
            }
        }
        let words = self.reconnect_on.as_deref().unwrap_or_default();
        if words.len() > MAX_RECONNECT_WORDS || !words.iter().all(|word| is_error_word(word)) {
            return Err(ConfigError::ReconnectOn);
        }
        for (option, is_zero) in [
            ("mux_per_node", self.mux_per_node == 0),
            ("max_in_flight", self.max_in_flight == 0),
            ("max_blocking", self.max_blocking == 0),
            ("blocking_idle", self.blocking_idle.is_zero()),
            ("timeout", self.timeout.is_zero()),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("dead_after", self.dead_after.is_zero()),
            ("refresh_interval", self.refresh_interval.is_zero()),
            ("max_reply_bytes", self.max_reply_bytes == 0),
            ("ring_bytes", self.ring_bytes == 0),
            (
                "max_bytes of the cache",
                self.cache
                    .as_ref()
                    .is_some_and(|cache| cache.max_bytes == 0),
            ),
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

/// Most words in [`Config::reconnect_on`]: the client compares them with each error.
const MAX_RECONNECT_WORDS: usize = 32;

/// Whether an error may begin with this word, and does not lead to another node.
fn is_error_word(word: &str) -> bool {
    let graphic = |byte: u8| byte.is_ascii_graphic() && byte != b',';
    !word.is_empty() && word.bytes().all(graphic) && !["MOVED", "ASK"].contains(&word)
}

/// A configuration that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no server to connect to.
    #[error("no server is named; give at least one as a seed")]
    NoSeed,
    /// One server is not several.
    #[error(
        "several servers are named; say whether they are a cluster (redis-cluster://), a primary with replicas (redis-replicated://) or sentinels (redis-sentinel://)"
    )]
    SeveralServers,
    /// Sentinels watch over several primaries, each with a name.
    #[error(
        "sentinels know primaries by name; give the one of their `sentinel monitor`, without spaces (master_name, or # and the name at the end of the URL)"
    )]
    MasterName,
    /// Clusters have one database.
    #[error("a cluster has only database 0; leave the database out")]
    DatabaseInCluster,
    /// Redis needs a password to authenticate a user.
    #[error("a user is named without a password; give both, or none of them")]
    UserWithoutPassword,
    /// There is one source of credentials.
    #[error(
        "credentials come from a provider, or are a username and a password; leave one of them out"
    )]
    CredentialsTwice,
    /// The settings of encryption make no sense.
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    /// Redis never encrypts Unix sockets.
    #[error("connections to Unix sockets cannot be encrypted; leave tls out")]
    TlsOverSocket,
    /// Redis takes only printable ASCII without spaces.
    #[error("the client name may have only printable ASCII characters and no spaces")]
    ClientName,
    /// As for the client name.
    #[error("lib_name and lib_version may have only printable ASCII characters and no spaces")]
    Library,
    /// Errors begin with a word, and redirects lead elsewhere.
    #[error(
        "reconnect_on takes at most 32 first words of errors, such as READONLY, but not MOVED and ASK, which the client follows"
    )]
    ReconnectOn,
    /// Only RESP3 has the reports of changes that a cache needs.
    #[error("a cache needs RESP3; leave protocol out, or the cache")]
    CacheWithoutResp3,
    /// Servers take no prefixes of which one begins with another.
    #[error("a prefix of the cache begins with another one; leave the longer one out")]
    CachePrefixes,
    /// A setting must be more than zero.
    #[error("{option} must be more than zero")]
    Zero {
        /// Its name.
        option: &'static str,
    },
    /// No pause is between the shortest and the longest one.
    #[error("backoff_min is longer than backoff_max; swap them or make one equal the other")]
    Backoff,
}

/// One server, a cluster, or a primary with replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One server that has all keys.
    #[default]
    Standalone,
    /// Nodes that share the slots.
    Cluster,
    /// A primary that has all keys, and its replicas. The servers themselves tell which of them is the primary.
    Replicated,
    /// As [`Mode::Replicated`], but sentinels tell which server is the primary.
    Sentinel,
}

impl Mode {
    /// Whether a primary with replicas has all keys.
    pub(crate) fn is_one_shard(self) -> bool {
        matches!(self, Self::Replicated | Self::Sentinel)
    }
}

/// A version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ProtocolVersion {
    /// RESP2, the only version before Redis 6.0.
    Resp2,
    /// RESP3, since Redis 6.0.
    #[default]
    Resp3,
}

/// What the client does with a command when its connection has no room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnFull {
    /// The command waits for room, within its timeout.
    #[default]
    Wait,
    /// The command fails at once with [`Error::Busy`](crate::Error::Busy).
    Refuse,
}

/// Which nodes of a shard answer reads. Replicas lag behind their primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ReadFrom {
    /// The primary.
    #[default]
    Primary,
    /// A reachable replica, or the primary of a shard that has none.
    PreferReplica,
    /// A reachable replica. Where a shard has none, reads fail when their time is over.
    Replica,
    /// All reachable nodes of the shard: each slot has one of them.
    Any,
}

/// How many redirects the client follows, and how long it pauses before it sends a command again.
///
/// Only redirects (`MOVED`, `ASK`) have a limit of their own. A command that the server did not execute
/// for another reason (a broken connection, `TRYAGAIN`, `LOADING`, and so on) has none: the client sends
/// it again until its timeout is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Most redirects of one command; then the caller gets the server's answer. The client follows the
    /// first three at once, and pauses before each further one. By default 16.
    pub max_redirects: u32,
    /// The longest first pause; each further one is twice as long. The client waits a random time
    /// between half of a pause and all of it. By default 5 ms.
    pub backoff_min: Duration,
    /// The longest pause. By default 500 ms.
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

impl RetryPolicy {
    /// How long to pause after so many failures: twice as long each time up to a limit, and at random
    /// between half of that and all of it, so that clients do not come back all at once.
    pub(crate) fn backoff(&self, failures: u32) -> Duration {
        let factor = 1u32 << failures.min(16);
        let pause = self
            .backoff_min
            .saturating_mul(factor)
            .min(self.backoff_max);
        (pause / 2).saturating_add((pause / 2).mul_f64(fastrand::f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_one_server_on_this_machine() {
        let config = Config::default();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.seeds[0].to_string(), "127.0.0.1:6379");
        assert_eq!(config.protocol, ProtocolVersion::Resp3);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::cluster([Endpoint::tcp("a", 1), Endpoint::tcp("b", 2)]);
            assert_eq!(config.check(), Ok(()));
            change(&mut config);
            config.check().expect_err("it makes no sense")
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
        assert_eq!(
            refused(|c| c.lib_version = Some("1\n".to_owned())),
            ConfigError::Library
        );
        for word in ["", "READONLY You", "A,B", "MOVED"] {
            let config = Config {
                reconnect_on: Some(vec![word.to_owned()]),
                ..Config::default()
            };
            assert_eq!(config.check(), Err(ConfigError::ReconnectOn), "{word}");
        }
        assert_eq!(
            refused(|c| c.reconnect_on = Some(vec!["X".to_owned(); 33])),
            ConfigError::ReconnectOn
        );
        let option = "timeout";
        assert_eq!(
            refused(|c| c.timeout = Duration::ZERO),
            ConfigError::Zero { option }
        );
        assert_eq!(
            refused(|c| c.cache = Some(CacheConfig::new(0))),
            ConfigError::Zero {
                option: "max_bytes of the cache"
            }
        );
        let mut config = Config {
            cache: Some(CacheConfig::new(1)),
            ..Config::default()
        };
        assert_eq!(config.check(), Ok(()));
        config.protocol = ProtocolVersion::Resp2;
        assert_eq!(config.check(), Err(ConfigError::CacheWithoutResp3));
        assert_eq!(
            refused(|c| {
                let prefixes = vec![b"a".to_vec(), b"ab".to_vec()];
                let cache = c.cache.insert(CacheConfig::new(1));
                cache.tracking = Tracking::Prefixes(prefixes);
            }),
            ConfigError::CachePrefixes
        );
        assert_eq!(
            refused(|c| c.retries.backoff_max = Duration::ZERO),
            ConfigError::Backoff
        );
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_settings_that_make_no_sense_are_refused() {
        let refused = |seed, tls| {
            let tls = Some(tls);
            let config = Config {
                tls,
                ..Config::standalone(seed)
            };
            config.check().expect_err("it makes no sense")
        };
        let server = || Endpoint::tcp("a", 1);
        let socket = Endpoint::Unix("/run/redis.sock".into());
        assert_eq!(refused(socket, Tls::default()), ConfigError::TlsOverSocket);
        let key_file = Some("key.pem".into());
        let key = Tls {
            key_file,
            ..Tls::default()
        };
        let no_certificate = TlsConfigError::CertificateWithoutKey;
        assert_eq!(refused(server(), key), no_certificate.into());
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
        assert_eq!(
            refused(server(), tls),
            TlsConfigError::RulesAndSettings.into()
        );
    }

    #[test]
    fn a_single_server_is_left_when_it_is_a_replica_and_otherwise_as_is_said() {
        let readonly = "READONLY You can't write against a read only replica.";
        let mut config = Config::default();
        assert!(config.reconnects_on(readonly));
        assert!(!config.reconnects_on("LOADING Redis is loading") && !config.reconnects_on(""));
        config.reconnect_on = Some(vec!["LOADING".to_owned(), "MYPROXY".to_owned()]);
        assert!(!config.reconnects_on(readonly));
        assert!(config.reconnects_on("LOADING") && config.reconnects_on("MYPROXY gone"));
        config.reconnect_on = Some(Vec::new());
        assert!(!config.reconnects_on(readonly));
        assert!(!Config::cluster([]).reconnects_on(readonly));
    }

    #[test]
    fn credentials_have_one_source() {
        use crate::credentials::Credentials;
        let provide = || async { Ok::<_, String>(Credentials::new(None::<&str>, "word")) };
        let mut config = Config {
            credentials: Some(CredentialsProvider::new(provide)),
            ..Config::default()
        };
        assert_eq!(config.check(), Ok(()));
        config.password = Some(Secret::new("word"));
        assert_eq!(config.check(), Err(ConfigError::CredentialsTwice));
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
}
