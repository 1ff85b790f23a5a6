//! What the connections, subscriptions and requests of one client share: its configuration, its
//! credentials and dialer, the work for the manager's thread, and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::cache::Cache;
use super::credential_store::CredentialStore;
use super::dialer::Dialer;
use super::pool::Pool;
use super::schedule::Schedule;
use crate::command::NodeId;
use crate::config::Config;
use crate::credentials::Credentials;
use crate::metrics::ClientCounters;
use crate::tls::Encryption;

/// What connections, subscriptions and requests of one client share.
pub(crate) struct Shared {
    pub config: Arc<Config>,
    pub dialer: Dialer,
    pub schedule: Arc<Schedule>,
    pub counters: Arc<ClientCounters>,
    /// Where there is a provider of credentials.
    pub credentials: Option<Arc<CredentialStore>>,
    /// Those of the configuration.
    fixed_credentials: Option<Arc<Credentials>>,
    /// A server has accepted the client, and in a cluster told the topology.
    is_settled: AtomicBool,
    /// Connections for commands that block.
    pub pool: Arc<Pool>,
    pub cache: Option<Arc<Cache>>,
    nodes: AtomicU32,
}

impl Shared {
    pub fn new(config: Config, dialer: Dialer) -> Arc<Self> {
        let config = Arc::new(config);
        let schedule = Arc::new(Schedule::new(Arc::clone(&config)));
        Self::with_schedule(config, dialer, schedule)
    }

    /// What connections to sentinels share: a configuration, encryption and counters of their own, and the client's
    /// schedule and drivers.
    pub fn of_sentinels(&self, encryption: Option<Encryption>) -> Arc<Self> {
        let config = Arc::new(self.config.of_sentinels());
        let dialer = self.dialer.with_encryption(encryption);
        Self::with_schedule(config, dialer, Arc::clone(&self.schedule))
    }

    fn with_schedule(config: Arc<Config>, dialer: Dialer, schedule: Arc<Schedule>) -> Arc<Self> {
        let password = config.password.as_ref();
        let fixed =
            password.map(|password| Credentials::new(config.username.as_ref(), password.reveal()));
        let provider = config.credentials.clone();
        let cache = config.cache.as_ref();
        Arc::new(Self {
            credentials: provider.map(CredentialStore::new),
            fixed_credentials: fixed.map(Arc::new),
            is_settled: AtomicBool::new(false),
            pool: Pool::new(config.max_blocking, config.blocking_idle, &schedule),
            cache: cache.map(|cache| Cache::new(cache, &schedule)),
            schedule,
            dialer,
            counters: Arc::default(),
            nodes: AtomicU32::new(0),
            config,
        })
    }

    /// What to authenticate with, and its version.
    ///
    /// # Errors
    /// Why the provider has given nothing yet.
    pub fn current_credentials(&self) -> Result<(Option<Arc<Credentials>>, u64), String> {
        match &self.credentials {
            None => Ok((self.fixed_credentials.clone(), 0)),
            Some(store) => {
                let (credentials, version) = store.current()?;
                Ok((Some(credentials), version))
            }
        }
    }

    /// See [`Router::first_refusal`](super::router::Router::first_refusal).
    pub fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Relaxed)
    }

    pub fn settle(&self) {
        self.is_settled.store(true, Ordering::Relaxed);
    }

    /// A number that no node of the client has had.
    pub fn next_node_id(&self) -> NodeId {
        NodeId(self.nodes.fetch_add(1, Ordering::Relaxed))
    }
}
