//! Primaries with replicas: which sentinels know them, and how to reach those.

use super::{Config, ConfigError, Mode, Secret};
use crate::endpoint::Endpoint;
use crate::tls::Tls;

/// The port on which sentinels listen by default.
pub const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// What a client asks sentinels for, and how it reaches them. The sentinels themselves are the
/// [`seeds`](Config::seeds) of a configuration with [`Mode::Sentinel`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Sentinel {
    /// The name by which sentinels know the primary and its replicas, as in their `sentinel monitor <name>`.
    pub master_name: String,
    /// The user to authenticate as with sentinels; `None`: their default user.
    pub username: Option<String>,
    /// The password for sentinels. `None`: no authentication. That of servers
    /// ([`Config::password`]) is another one.
    pub password: Option<Secret>,
    /// Encrypts connections to sentinels. `None`: no encryption, whatever [`Config::tls`] says of
    /// servers. In a URL `rediss-sentinel://` encrypts both alike.
    pub tls: Option<Tls>,
}

impl Config {
    /// The primary that these sentinels know by this name, its replicas, and defaults for everything else.
    pub fn sentinels(
        master_name: impl Into<String>,
        sentinels: impl IntoIterator<Item = Endpoint>,
    ) -> Self {
        Self {
            mode: Mode::Sentinel,
            seeds: sentinels.into_iter().collect(),
            sentinel: Sentinel {
                master_name: master_name.into(),
                ..Sentinel::default()
            },
            ..Self::default()
        }
    }

    /// A primary and its replicas, of which these are some, and defaults for everything else.
    pub fn replicated(seeds: impl IntoIterator<Item = Endpoint>) -> Self {
        Self {
            mode: Mode::Replicated,
            seeds: seeds.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The configuration of connections to sentinels.
    pub(crate) fn of_sentinels(&self) -> Self {
        Self {
            mode: Mode::Standalone,
            tls: self.sentinel.tls.clone(),
            username: self.sentinel.username.clone(),
            password: self.sentinel.password.clone(),
            // A provider gives those of servers.
            credentials: None,
            cache: None,
            // Sentinels have none to select.
            database: 0,
            mux_per_node: 1,
            ..self.clone()
        }
    }
}

impl Sentinel {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.master_name.is_empty() || self.master_name.contains(char::is_whitespace) {
            return Err(ConfigError::MasterName);
        }
        if let Some(tls) = &self.tls {
            tls.check()?;
        }
        match self.username.is_some() && self.password.is_none() {
            true => Err(ConfigError::UserWithoutPassword),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_need_the_name_of_a_primary() {
        let sentinels = || [Endpoint::tcp("a", 1), Endpoint::tcp("b", 2)];
        let mut config = Config::sentinels("mymaster", sentinels());
        config.database = 3;
        assert_eq!(config.check(), Ok(()));
        config.sentinel.username = Some("u".to_owned());
        assert_eq!(config.check(), Err(ConfigError::UserWithoutPassword));
        for name in ["", "my master"] {
            let config = Config::sentinels(name, sentinels());
            assert_eq!(config.check(), Err(ConfigError::MasterName), "{name}");
        }
        assert_eq!(Config::sentinels("a", []).check(), Err(ConfigError::NoSeed));
    }

    #[test]
    fn a_primary_with_replicas_has_several_seeds_and_databases() {
        let seeds = [Endpoint::tcp("a", 1), Endpoint::tcp("b", 2)];
        let config = Config {
            database: 3,
            ..Config::replicated(seeds)
        };
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn sentinels_have_their_own_user_and_no_database() {
        let mut config = Config::sentinels("mymaster", [Endpoint::tcp("a", 1)]);
        config.database = 3;
        (config.username, config.password) = (Some("me".to_owned()), Some(Secret::new("p")));
        let of_sentinels = config.of_sentinels();
        assert_eq!((of_sentinels.username, of_sentinels.password), (None, None));
        assert_eq!(of_sentinels.database, 0);
        config.sentinel.username = Some("watcher".to_owned());
        config.sentinel.password = Some(Secret::new("q"));
        let of_sentinels = config.of_sentinels();
        assert_eq!(of_sentinels.username, Some("watcher".to_owned()));
        assert_eq!(of_sentinels.password, Some(Secret::new("q")));
    }
}
