//! Configurations as URLs.
//!
//! ```text
//! redis://[[user]:password@]host[:port][/database][?option=value&...]
//! rediss://...                                         with TLS
//! redis-cluster://[[user]:password@]host[:port][,host[:port]...][?...]
//! rediss-cluster://...                                 with TLS
//! unix:/path[?...]    redis+unix://[[user]:password@]/path[?...]
//! ```
//!
//! What is special in a URL is written as `%` and two hexadecimal digits. IPv6 addresses stand in
//! brackets. [`OPTIONS`] names the options; durations have a unit (`us`, `ms`, `s`, `m`, `h`), sizes
//! may have one (`KiB`, `MiB`, `GiB`).

use std::{str::FromStr, time::Duration};

use thiserror::Error;

use crate::config::{
    Config, ConfigError, DEFAULT_PORT, Endpoint, Mode, OnFull, ProtocolVersion, ReadFrom, Secret,
};

/// What may stand behind the `?`. Each sets the field of [`Config`] of its name.
pub const OPTIONS: &str = "database (or db), username, password, client_name, \
    protocol=resp2|resp3, mux_per_node, max_in_flight, on_full=wait|refuse, timeout, \
    connect_timeout, dead_after, max_redirects, backoff_min, backoff_max, \
    retry_writes=true|false, read_from=primary|prefer-replica|replica|any, refresh_interval, \
    max_reply_bytes, ring_bytes";

/// Why a URL is no configuration. Never quotes what may be a part of a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UrlError {
    /// There is no scheme that is known.
    #[error("the URL must begin with one of {SCHEMES}")]
    Scheme,
    /// No host is named.
    #[error("the URL names no host; write for example redis://localhost:6379")]
    NoHost,
    /// A host or its port cannot be read.
    #[error(
        "a host of the URL is not host, host:port or [IPv6]:port with a port from 1 to 65535; if \
         this was part of a password, write its special characters as %XX"
    )]
    Host,
    /// The user stands before the host, and the host before the options.
    #[error("an @ stands behind the ?; write the special characters of a password as %XX")]
    At,
    /// No socket is named.
    #[error("the URL names no socket; write for example unix:/run/redis.sock")]
    NoPath,
    /// What follows the host is no database.
    #[error("behind the host there may be only the number of a database, as in redis://host/2")]
    Database,
    /// A `%` is not followed by two hexadecimal digits, or what they stand for is not UTF-8.
    #[error("a % of the URL is not followed by two hexadecimal digits that make UTF-8; write %25")]
    Percent,
    /// An option that there is not.
    #[error("there is no option '{option}'; there are {OPTIONS}")]
    Option {
        /// What was written before the `=`.
        option: String,
    },
    /// An option's value cannot be read.
    #[error("the value of the option {option} must be {wanted}")]
    Value {
        /// Which one.
        option: &'static str,
        /// What can be read.
        wanted: &'static str,
    },
    /// All of it can be read, but not meant.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

const SCHEMES: &str =
    "redis://, rediss://, redis-cluster://, rediss-cluster://, redis+unix://, unix:";

impl Config {
    /// Reads a URL as described in [`url`](crate::url). What it does not say is as by default.
    ///
    /// # Errors
    /// When it cannot be read, or [`Config::check`] finds that it cannot be meant.
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        let (rest, options) = match url.split_once('?') {
            Some((rest, options)) => (rest, options),
            None => (url, ""),
        };
        if options.contains('@') {
            return Err(UrlError::At);
        }
        let mut config = Self::default();
        let (scheme, rest) = rest.split_once(':').ok_or(UrlError::Scheme)?;
        match (scheme, rest.strip_prefix("//")) {
            ("redis", Some(rest)) => config.servers(rest)?,
            ("rediss", Some(rest)) => {
                config.tls = true;
                config.servers(rest)?;
            }
            ("redis-cluster", Some(rest)) => {
                config.mode = Mode::Cluster;
                config.servers(rest)?;
            }
            ("rediss-cluster", Some(rest)) => {
                config.mode = Mode::Cluster;
                config.tls = true;
                config.servers(rest)?;
            }
            ("unix" | "redis+unix", Some(rest)) => config.socket(rest)?,
            ("unix", None) => config.socket(rest)?,
            _ => return Err(UrlError::Scheme),
        }
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            config.option(name, &decode(value)?)?;
        }
        config.check()?;
        Ok(config)
    }

    /// `[user:password@]host[:port],.../database`
    fn servers(&mut self, text: &str) -> Result<(), UrlError> {
        let text = match text.rsplit_once('@') {
            Some((user, rest)) => {
                self.user(user)?;
                rest
            }
            None => text,
        };
        let (hosts, database) = text.split_once('/').unwrap_or((text, ""));
        if !database.is_empty() {
            self.database = database.parse().map_err(|_| UrlError::Database)?;
        }
        if hosts.is_empty() {
            return Err(UrlError::NoHost);
        }
        self.seeds = hosts.split(',').map(endpoint).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// `[user:password@]/path`
    fn socket(&mut self, text: &str) -> Result<(), UrlError> {
        let start = text.find('/').ok_or(UrlError::NoPath)?;
        let (before, path) = text.split_at(start);
        match before.strip_suffix('@') {
            Some(user) => self.user(user)?,
            None if before.is_empty() => {}
            None => return Err(UrlError::NoPath),
        }
        self.seeds = vec![Endpoint::Unix(decode(path)?.into())];
        Ok(())
    }

    /// `user:password`, either of which may be empty.
    fn user(&mut self, text: &str) -> Result<(), UrlError> {
        let (name, password) = text.split_once(':').unwrap_or((text, ""));
        if !name.is_empty() {
            self.username = Some(decode(name)?);
        }
        if !password.is_empty() {
            self.password = Some(Secret::new(decode(password)?));
        }
        Ok(())
    }

    fn option(&mut self, name: &str, value: &str) -> Result<(), UrlError> {
        match name {
            "database" | "db" => self.database = number("database", value)?,
            "username" => self.username = Some(value.to_owned()),
            "password" => self.password = Some(Secret::new(value)),
            "client_name" => self.client_name = Some(value.to_owned()),
            "protocol" => {
                use ProtocolVersion::{Resp2, Resp3};
                let known = [("resp2", Resp2), ("resp3", Resp3)];
                self.protocol = choice("protocol", "resp2 or resp3", value, known)?;
            }
            "mux_per_node" => self.mux_per_node = number("mux_per_node", value)?,
            "max_in_flight" => self.max_in_flight = number("max_in_flight", value)?,
            "on_full" => {
                let known = [("wait", OnFull::Wait), ("refuse", OnFull::Refuse)];
                self.on_full = choice("on_full", "wait or refuse", value, known)?;
            }
            "timeout" => self.timeout = duration("timeout", value)?,
            "connect_timeout" => self.connect_timeout = duration("connect_timeout", value)?,
            "dead_after" => self.dead_after = duration("dead_after", value)?,
            "max_redirects" => self.retries.max_redirects = number("max_redirects", value)?,
            "backoff_min" => self.retries.backoff_min = duration("backoff_min", value)?,
            "backoff_max" => self.retries.backoff_max = duration("backoff_max", value)?,
            "retry_writes" => {
                let known = [("true", true), ("false", false)];
                self.retry_writes = choice("retry_writes", "true or false", value, known)?;
            }
            "read_from" => {
                let wanted = "primary, prefer-replica, replica or any";
                let known = [
                    ("primary", ReadFrom::Primary),
                    ("prefer-replica", ReadFrom::PreferReplica),
                    ("replica", ReadFrom::Replica),
                    ("any", ReadFrom::Any),
                ];
                self.read_from = choice("read_from", wanted, value, known)?;
            }
            "refresh_interval" => self.refresh_interval = duration("refresh_interval", value)?,
            "max_reply_bytes" => self.max_reply_bytes = size("max_reply_bytes", value)?,
            "ring_bytes" => self.ring_bytes = size("ring_bytes", value)?,
            _ => {
                let option = name.to_owned();
                return Err(UrlError::Option { option });
            }
        }
        Ok(())
    }
}

impl FromStr for Config {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::from_url(url)
    }
}

/// `host`, `host:port`, `[IPv6]` or `[IPv6]:port`.
fn endpoint(text: &str) -> Result<Endpoint, UrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').ok_or(UrlError::Host)?;
            let port = match behind {
                "" => None,
                _ => Some(behind.strip_prefix(':').ok_or(UrlError::Host)?),
            };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| UrlError::Host)?,
        None => DEFAULT_PORT,
    };
    match host.is_empty() || port == 0 {
        true => Err(UrlError::Host),
        false => Ok(Endpoint::tcp(decode(host)?, port)),
    }
}

/// Replaces `%XX`.
fn decode(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        rest = match rest {
            [] => break,
            [b'%', high, low, rest @ ..] => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let (high, low) = (digit(high), digit(low));
                let (high, low) = (
                    high.ok_or(UrlError::Percent)?,
                    low.ok_or(UrlError::Percent)?,
                );
                bytes.push((high << 4 | low) as u8);
                rest
            }
            [b'%', ..] => return Err(UrlError::Percent),
            [byte, rest @ ..] => {
                bytes.push(*byte);
                rest
            }
        };
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Percent)
}

fn choice<T, const N: usize>(
    option: &'static str,
    wanted: &'static str,
    value: &str,
    known: [(&str, T); N],
) -> Result<T, UrlError> {
    known
        .into_iter()
        .find_map(|(name, meaning)| (name == value).then_some(meaning))
        .ok_or(UrlError::Value { option, wanted })
}

fn number<T: FromStr>(option: &'static str, value: &str) -> Result<T, UrlError> {
    let wanted = "a number";
    value
        .parse()
        .map_err(|_| UrlError::Value { option, wanted })
}

/// The number before a unit, times what the unit stands for.
fn measure(value: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = value
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*scale)
}

fn duration(option: &'static str, value: &str) -> Result<Duration, UrlError> {
    let units = [
        ("us", 1),
        ("ms", 1000),
        ("s", 1_000_000),
        ("m", 60_000_000),
        ("h", 3_600_000_000),
    ];
    let wanted = "a whole number with a unit (us, ms, s, m, h), for example 250ms";
    let micros = measure(value, &units).ok_or(UrlError::Value { option, wanted })?;
    Ok(Duration::from_micros(micros))
}

fn size(option: &'static str, value: &str) -> Result<usize, UrlError> {
    let units = [
        ("", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
    ];
    let wanted = "a number of bytes, or one with a unit (KiB, MiB, GiB), for example 64MiB";
    measure(value, &units)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or(UrlError::Value { option, wanted })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        Config::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn refused(url: &str) -> UrlError {
        Config::from_url(url).expect_err(url)
    }

    #[test]
    fn a_server_with_everything() {
        let read = config("redis://me:p%40ss@example.com:7000/3?protocol=resp2&timeout=250ms");
        let wanted = Config {
            username: Some("me".to_owned()),
            password: Some(Secret::new("p@ss")),
            database: 3,
            protocol: ProtocolVersion::Resp2,
            timeout: Duration::from_millis(250),
            ..Config::standalone(Endpoint::tcp("example.com", 7000))
        };
        assert_eq!(read, wanted);
    }

    #[test]
    fn what_is_left_out_is_as_by_default() {
        for url in [
            "redis://127.0.0.1",
            "redis://127.0.0.1/",
            "redis://127.0.0.1:6379?",
        ] {
            assert_eq!(config(url), Config::default(), "{url}");
        }
        let password = Some(Secret::new("x:y@z/"));
        let read = config("rediss://:x:y@z/@h");
        assert_eq!((read.username, read.password), (None, password));
        assert!(read.tls);
        assert_eq!("redis://127.0.0.1".parse(), Ok(Config::default()));
    }

    #[test]
    fn a_cluster_has_seeds() {
        let read = config("redis-cluster://u:p@a:1,[2001:db8::1]:2,[::1],b/?read_from=any");
        assert_eq!(read.mode, Mode::Cluster);
        assert_eq!(read.read_from, ReadFrom::Any);
        let seeds = ["a:1", "[2001:db8::1]:2", "[::1]:6379", "b:6379"];
        let shown = read.seeds.iter().map(Endpoint::to_string);
        assert_eq!(shown.collect::<Vec<_>>(), seeds);
        assert!(config("rediss-cluster://a").tls);
    }

    #[test]
    fn sockets_have_paths() {
        let socket = |path: &str| vec![Endpoint::Unix(path.into())];
        assert_eq!(config("unix:/run/r.sock").seeds, socket("/run/r.sock"));
        assert_eq!(config("unix:///run/r.sock").seeds, socket("/run/r.sock"));
        let read = config("redis+unix://u:p@/a%20b@c?db=4");
        assert_eq!(read.seeds, socket("/a b@c"));
        assert_eq!(read.database, 4);
        assert_eq!(read.username.as_deref(), Some("u"));
        let read = config("unix:/s?username=u&password=a%26b");
        assert_eq!(read.password, Some(Secret::new("a&b")));
    }

    #[test]
    fn every_option_sets_its_field() {
        let read = config(
            "redis://h?client_name=x&mux_per_node=2&max_in_flight=7&on_full=refuse&timeout=1m&\
             connect_timeout=3s&dead_after=1h&max_redirects=0&backoff_min=10us&backoff_max=1s&\
             retry_writes=true&read_from=prefer-replica&refresh_interval=9s&\
             max_reply_bytes=64MiB&ring_bytes=4096&database=5",
        );
        assert_eq!(read.client_name.as_deref(), Some("x"));
        assert_eq!((read.mux_per_node, read.max_in_flight), (2, 7));
        assert_eq!(read.on_full, OnFull::Refuse);
        assert_eq!(read.timeout, Duration::from_secs(60));
        assert_eq!(read.connect_timeout, Duration::from_secs(3));
        assert_eq!(read.dead_after, Duration::from_secs(3600));
        assert_eq!(read.retries.max_redirects, 0);
        assert_eq!(read.retries.backoff_min, Duration::from_micros(10));
        assert_eq!(read.retries.backoff_max, Duration::from_secs(1));
        assert!(read.retry_writes);
        assert_eq!(read.read_from, ReadFrom::PreferReplica);
        assert_eq!(read.refresh_interval, Duration::from_secs(9));
        assert_eq!((read.max_reply_bytes, read.ring_bytes), (64 << 20, 4096));
        assert_eq!(read.database, 5);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for url in [
            "",
            "localhost",
            "http://h",
            "redis:h",
            "user:pw@h",
            "redis+unix:/x",
        ] {
            assert_eq!(refused(url), UrlError::Scheme, "{url}");
        }
        for url in [
            "redis://h:0",
            "redis://h:x",
            "redis://:1",
            "redis://[::1",
            "redis://[::1]x",
        ] {
            assert_eq!(refused(url), UrlError::Host, "{url}");
        }
        assert_eq!(refused("redis://::1"), UrlError::Host);
        assert_eq!(refused("redis-cluster://a,,b"), UrlError::Host);
        assert_eq!(refused("redis://"), UrlError::NoHost);
        assert_eq!(refused("unix:run.sock"), UrlError::NoPath);
        assert_eq!(refused("redis://h/x"), UrlError::Database);
        assert_eq!(refused("redis://h/1/2"), UrlError::Database);
        for url in [
            "redis://:%4@h",
            "redis://:%zz@h",
            "redis://:%FF@h",
            "unix:/%",
        ] {
            assert_eq!(refused(url), UrlError::Percent, "{url}");
        }
        let error = refused("redis://h?tiemout=1s").to_string();
        assert!(
            error.contains("'tiemout'") && error.contains("connect_timeout"),
            "{error}"
        );
        for url in [
            "redis://h?timeout=5",
            "redis://h?timeout=s",
            "redis://h?timeout=-1s",
        ] {
            let error = refused(url).to_string();
            assert!(
                error.contains("timeout must be") && error.contains("ms"),
                "{error}"
            );
        }
        let error = refused("redis://h?protocol=3").to_string();
        assert!(error.contains("resp2 or resp3"), "{error}");
        assert!(refused("http://h").to_string().contains("redis-cluster://"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let refused = |url| match refused(url) {
            UrlError::Config(error) => error,
            error => panic!("{url}: {error}"),
        };
        assert_eq!(
            refused("redis-cluster://h/1"),
            ConfigError::DatabaseInCluster
        );
        assert_eq!(
            refused("redis-cluster://h?db=1"),
            ConfigError::DatabaseInCluster
        );
        assert_eq!(refused("redis://a,b"), ConfigError::SeveralServers);
        assert_eq!(refused("redis://u@h"), ConfigError::UserWithoutPassword);
        let option = "mux_per_node";
        assert_eq!(
            refused("redis://h?mux_per_node=0"),
            ConfigError::Zero { option }
        );
    }

    #[test]
    fn no_error_shows_a_password() {
        for url in [
            "redis://u:hunter2",
            "redis://u:hunter2@",
            "redis://u:hunter2@h:x",
            "redis://u:hunter2%@h",
            "u:hunter2@h",
            "redis://u:1?hunter2&x@h",
            "hunter2@h:1",
            "unix:/s?password=hunter2%",
            "unix:/s?password=hunter2&db=x",
        ] {
            let error = refused(url);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}");
        }
    }
}
