//! Configurations as URLs.
//!
//! ```text
//! redis://[[user]:password@]host[:port][/database][?option=value&...]
//! rediss://...                                         with TLS
//! redis-cluster://[[user]:password@]host[:port][,host[:port]...][?...]
//! rediss-cluster://...                                 with TLS
//! redis-replicated://[[user]:password@]host[:port][,host[:port]...][/database][?...]
//! rediss-replicated://...                              with TLS
//! redis-sentinel://[[user]:password@]sentinel[:port][,sentinel[:port]...][/database][?...]#name
//! rediss-sentinel://...                                with TLS
//! unix:/path[?...]    redis+unix://[[user]:password@]/path[?...]
//! ```
//!
//! `redis-replicated` names some of a primary and its replicas, and `redis-sentinel` some of the sentinels that watch over
//! them (their default port is 26379) and the name by which these know the primary; `?master_name=name` says the same as `#name`, and so does
//! `?sentinelMasterId=name`, as other clients have it. The user and password are those of the servers; sentinels
//! have `sentinel_username` and `sentinel_password`.
//!
//! `valkey` in place of `redis` means the same: `valkey://`, `valkeys://`, `valkey-cluster://`, `valkeys-cluster://`, `valkey+unix://`.
//! A scheme may have capital letters. The crate `redis` takes some of these options by other names, which this crate
//! takes, too: `db`, `user`, `pass`, `protocol=2` and `protocol=3`. But a `+` is a plus here, and never a space.
//!
//! TLS takes the feature `tls`; see [`tls`](crate::tls). `#insecure` at the end of a URL with TLS means
//! `tls_insecure=true`, but not with sentinels. `rediss-sentinel` encrypts connections to sentinels in the same
//! way as those to servers, unless `sentinel_tls=false`.
//!
//! Write characters that are special in a URL as `%` and two hexadecimal digits, and IPv6 addresses in
//! brackets. [`OPTIONS`] names the options; durations need a unit (`us`, `ms`, `s`, `m`, `h`), sizes may
//! have one (`KiB`, `MiB`, `GiB`).

use std::{str::FromStr, time::Duration};

use thiserror::Error;

use crate::config::{
    AddressMap, CacheConfig, Config, ConfigError, DEFAULT_SENTINEL_PORT, Mode, OnFull,
    ProtocolVersion, ReadFrom, Secret, Tracking,
};
use crate::endpoint::{DEFAULT_PORT, Endpoint};
use crate::tls::Tls;

#[cfg(test)]
mod tests;

/// The options behind the `?`. Each sets the field of [`Config`] of its name, or of [`Config::sentinel`].
pub const OPTIONS: &str = "database (or db), username (or user), password (or pass), client_name, \
    lib_name, lib_version (empty: not told), address_map=announced-host:port=host:port,..., \
    protocol=resp2|resp3, mux_per_node, max_in_flight, max_blocking, blocking_idle, \
    on_full=wait|refuse, timeout, connect_timeout, dead_after, max_redirects, backoff_min, backoff_max, \
    retry_writes=true|false, reconnect_on=READONLY,LOADING,... (empty: never), read_from=primary|prefer-replica|replica|any, refresh_interval, \
    max_reply_bytes, ring_bytes, cache=64MiB, cache_tracking=opt-in|all|prefixes, cache_prefix (may be given several times); with TLS also tls_ca_file (may be given several times), \
    tls_cert_file, tls_key_file, tls_server_name, tls_insecure=true|false; with sentinels also \
    master_name, sentinel_username, sentinel_password, and with TLS sentinel_tls=true|false";

/// Why a URL is no configuration. The messages never quote what may be a part of a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The URL begins with no known scheme.
    #[error("the URL must begin with one of {SCHEMES}")]
    Scheme,
    /// The URL names no host.
    #[error("the URL names no host; write for example redis://localhost:6379")]
    NoHost,
    /// The crate cannot read a host or its port.
    #[error(
        "a host of the URL is not host, host:port or [IPv6]:port with a port from 1 to 65535; if \
         this was part of a password, write its special characters as %XX"
    )]
    Host,
    /// The user comes before the host, and the host before the options.
    #[error("an @ stands behind the ?; write the special characters of a password as %XX")]
    At,
    /// The URL names no socket.
    #[error("the URL names no socket; write for example unix:/run/redis.sock")]
    NoPath,
    /// The part behind the host is no number of a database.
    #[error("behind the host there may be only the number of a database, as in redis://host/2")]
    Database,
    /// No two hexadecimal digits follow a `%`, or the bytes that they stand for are not UTF-8.
    #[error("a % of the URL is not followed by two hexadecimal digits that make UTF-8; write %25")]
    Percent,
    /// There is no such option.
    #[error("there is no option '{option}'; there are {OPTIONS}")]
    Option {
        /// The text before the `=`.
        option: String,
    },
    /// An option about encryption in a URL without encryption.
    #[error(
        "the option {option} is about encryption; begin the URL with rediss:// or rediss-cluster:// or the like"
    )]
    NotEncrypted {
        /// Its name.
        option: String,
    },
    /// The crate cannot read an entry of the address map.
    #[error(
        "address_map must be host:port=host:port, from an announced address to the one to connect to; further ones behind commas"
    )]
    AddressMap,
    /// An option about sentinels in a URL without sentinels.
    #[error("the option {option} is about sentinels; begin the URL with redis-sentinel://")]
    NoSentinels {
        /// Its name.
        option: String,
    },
    /// The crate cannot read an option's value.
    #[error("the value of the option {option} must be {wanted}")]
    Value {
        /// Its name.
        option: &'static str,
        /// What the value must be.
        wanted: &'static str,
    },
    /// The settings make no sense together.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

const SCHEMES: &str = "redis://, rediss://, redis-cluster://, rediss-cluster://, \
    redis-replicated://, rediss-replicated://, redis-sentinel://, rediss-sentinel://, redis+unix:, unix:, \
    or the same with valkey";

impl Config {
    /// Reads a URL as described in [`url`](crate::url). Settings that it does not have get their defaults.
    ///
    /// # Errors
    /// When the URL is malformed, or [`Config::check`] refuses the settings.
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        let has_sentinels = scheme_of(url).ends_with("-sentinel");
        let (url, insecure) = match url.strip_suffix("#insecure") {
            Some(rest) if is_encrypted(url) && !has_sentinels => (rest, true),
            _ => (url, false),
        };
        let (url, master_name) = match url.rsplit_once('#') {
            // A # before these is a part of a password.
            Some((rest, name)) if has_sentinels && !name.contains(['@', '/', '?']) => (rest, name),
            _ => (url, ""),
        };
        let (rest, options) = url.split_once('?').unwrap_or((url, ""));
        if options.contains('@') {
            return Err(UrlError::At);
        }
        let mut config = Self::default();
        let (scheme, rest) = rest.split_once(':').ok_or(UrlError::Scheme)?;
        match (&*plain_scheme(scheme), rest.strip_prefix("//")) {
            ("unix" | "redis+unix", Some(rest)) => config.socket(rest)?,
            ("unix" | "redis+unix", None) => config.socket(rest)?,
            (scheme, Some(rest)) => {
                let (mode, encrypted) = servers_of(scheme).ok_or(UrlError::Scheme)?;
                config.mode = mode;
                config.tls = encrypted.then(|| Tls {
                    danger_accept_any_certificate: insecure,
                    ..Tls::default()
                });
                config.servers(rest)?;
            }
            _ => return Err(UrlError::Scheme),
        }
        if has_sentinels {
            config.sentinel.master_name = decode(master_name)?;
            // Until the options say how.
            config.sentinel.tls = config.tls.clone();
        }
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            config.option(name, &decode(value)?)?;
        }
        if config.sentinel.tls.is_some() {
            config.sentinel.tls = config.tls.clone();
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
        let database = database.strip_suffix('/').unwrap_or(database);
        if !database.is_empty() {
            self.database = database.parse().map_err(|_| UrlError::Database)?;
        }
        if hosts.is_empty() {
            return Err(UrlError::NoHost);
        }
        let port = match self.mode {
            Mode::Sentinel => DEFAULT_SENTINEL_PORT,
            _ => DEFAULT_PORT,
        };
        let seeds = hosts.split(',').map(|host| endpoint(host, port));
        self.seeds = seeds.collect::<Result<_, _>>()?;
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

    /// `user:password`; either may be empty.
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
            "username" | "user" => self.username = Some(value.to_owned()),
            "password" | "pass" => self.password = Some(Secret::new(value)),
            "lib_name" => self.lib_name = Some(value.to_owned()).filter(|name| !name.is_empty()),
            "lib_version" => {
                self.lib_version = Some(value.to_owned()).filter(|version| !version.is_empty());
            }
            "address_map" => self.address_map = Some(address_map(value)?),
            "client_name" => self.client_name = Some(value.to_owned()),
            "protocol" => {
                use ProtocolVersion::{Resp2, Resp3};
                let known = [
                    ("resp2", Resp2),
                    ("resp3", Resp3),
                    ("2", Resp2),
                    ("3", Resp3),
                ];
                self.protocol = choice("protocol", "resp2 or resp3", value, known)?;
            }
            "mux_per_node" => self.mux_per_node = number("mux_per_node", value)?,
            "max_in_flight" => self.max_in_flight = number("max_in_flight", value)?,
            "max_blocking" => self.max_blocking = number("max_blocking", value)?,
            "blocking_idle" => self.blocking_idle = duration("blocking_idle", value)?,
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
            "reconnect_on" => {
                let words = value.split(',').filter(|word| !word.is_empty());
                self.reconnect_on = Some(words.map(str::to_owned).collect());
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
            "cache" => self.cache_option().max_bytes = size("cache", value)?,
            "cache_tracking" => {
                let known = [
                    ("opt-in", Tracking::OptIn),
                    ("all", Tracking::All),
                    ("prefixes", Tracking::Prefixes(Vec::new())),
                ];
                let wanted = "opt-in, all or prefixes";
                let chosen = choice("cache_tracking", wanted, value, known)?;
                self.cache_option().tracking = chosen;
            }
            "cache_prefix" => {
                let prefix = value.as_bytes().to_vec();
                match &mut self.cache_option().tracking {
                    Tracking::Prefixes(prefixes) => prefixes.push(prefix),
                    other => *other = Tracking::Prefixes(vec![prefix]),
                }
            }
            "master_name" | "sentinelMasterId" | "sentinel_username" | "sentinel_password"
            | "sentinel_tls" => self.sentinel_option(name, value)?,
            _ => self.tls_option(name, value)?,
        }
        Ok(())
    }

    /// The settings of the cache, whose size must be given, too: [`Config::check`] refuses 0.
    fn cache_option(&mut self) -> &mut CacheConfig {
        self.cache.get_or_insert_with(|| CacheConfig::new(0))
    }

    fn sentinel_option(&mut self, name: &str, value: &str) -> Result<(), UrlError> {
        let option = name.to_owned();
        if self.mode != Mode::Sentinel {
            return Err(UrlError::NoSentinels { option });
        }
        match name {
            "sentinel_username" => self.sentinel.username = Some(value.to_owned()),
            "sentinel_password" => self.sentinel.password = Some(Secret::new(value)),
            "sentinel_tls" => {
                let known = [("true", true), ("false", false)];
                let encrypted = choice("sentinel_tls", "true or false", value, known)?;
                if self.tls.is_none() {
                    return Err(UrlError::NotEncrypted { option });
                }
                self.sentinel.tls = encrypted.then(Tls::default);
            }
            _ => value.clone_into(&mut self.sentinel.master_name),
        }
        Ok(())
    }

    fn tls_option(&mut self, name: &str, value: &str) -> Result<(), UrlError> {
        let option = name.to_owned();
        let Some(tls) = &mut self.tls else {
            return Err(match name {
                "tls_ca_file" | "tls_cert_file" | "tls_key_file" | "tls_server_name"
                | "tls_insecure" => UrlError::NotEncrypted { option },
                _ => UrlError::Option { option },
            });
        };
        match name {
            "tls_ca_file" => tls.ca_files.push(value.into()),
            "tls_cert_file" => tls.cert_file = Some(value.into()),
            "tls_key_file" => tls.key_file = Some(value.into()),
            "tls_server_name" => tls.server_name = Some(value.to_owned()),
            "tls_insecure" => {
                let known = [("true", true), ("false", false)];
                let chosen = choice("tls_insecure", "true or false", value, known)?;
                tls.danger_accept_any_certificate = chosen;
            }
            _ => return Err(UrlError::Option { option }),
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

/// A scheme as if it were one of Redis, in small letters.
fn plain_scheme(scheme: &str) -> String {
    let scheme = scheme.to_ascii_lowercase();
    match scheme.strip_prefix("valkey") {
        Some(rest) => format!("redis{rest}"),
        None => scheme,
    }
}

/// The scheme of a URL, as if it were one of Redis.
fn scheme_of(url: &str) -> String {
    plain_scheme(url.split(':').next().unwrap_or_default())
}

fn is_encrypted(url: &str) -> bool {
    scheme_of(url).starts_with("rediss")
}

/// `announced=actual,...`
fn address_map(text: &str) -> Result<AddressMap, UrlError> {
    let entries = text.split(',').filter(|entry| !entry.is_empty());
    let read = |entry: &str| {
        let (announced, actual) = entry.split_once('=').ok_or(UrlError::AddressMap)?;
        let read = |text| endpoint(text, DEFAULT_PORT).map_err(|_| UrlError::AddressMap);
        Ok((read(announced)?, read(actual)?))
    };
    let entries: Result<Vec<_>, UrlError> = entries.map(read).collect();
    Ok(AddressMap::table(entries?))
}

/// What the servers of a URL are, and whether connections to them are encrypted.
fn servers_of(scheme: &str) -> Option<(Mode, bool)> {
    let (plain, encrypted) = match scheme.strip_prefix("rediss") {
        Some(rest) => (rest, true),
        None => (scheme.strip_prefix("redis")?, false),
    };
    let mode = match plain {
        "" => Mode::Standalone,
        "-cluster" => Mode::Cluster,
        "-replicated" => Mode::Replicated,
        "-sentinel" => Mode::Sentinel,
        _ => return None,
    };
    Some((mode, encrypted))
}

/// `host`, `host:port`, `[IPv6]` or `[IPv6]:port`.
fn endpoint(text: &str, default_port: u16) -> Result<Endpoint, UrlError> {
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
        None => default_port,
    };
    match host.is_empty() || port == 0 {
        true => Err(UrlError::Host),
        false => Ok(Endpoint::tcp(decode(host)?, port)),
    }
}

/// Replaces `%XX` by the bytes that they stand for.
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

/// The number before a unit, times the unit's value.
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
