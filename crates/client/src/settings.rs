//! What the builders of publishers and subscribers have in common.

use std::time::Duration;

use embar_transport::Address;
use embar_wire::topic::check_topic_name;

use crate::bootstrap;
use crate::connection::MAX_NAME_BYTES;
use crate::error::{AddressError, SettingError};
use crate::transport::{Transport, Ways};
use crate::wait::WaitProbe;

/// Settings of any client.
#[derive(Debug, Clone)]
pub(crate) struct ClientSettings {
    bootstrap: String,
    pub(crate) transport: Transport,
    pub(crate) name: String,
    pub(crate) topic: String,
    pub(crate) open_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) spin: Duration,
    pub(crate) metering: bool,
    pub(crate) wait_probe: WaitProbe,
}

impl ClientSettings {
    pub(crate) fn new(bootstrap: &str) -> Self {
        Self {
            bootstrap: bootstrap.to_string(),
            transport: Transport::Auto,
            name: format!("embar-client {}", env!("CARGO_PKG_VERSION")),
            topic: String::new(),
            open_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(10),
            spin: Duration::ZERO,
            metering: true,
            wait_probe: WaitProbe::new(),
        }
    }

    /// The bootstrap addresses. Names are looked up, which may block.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, AddressError> {
        bootstrap::resolve(&self.bootstrap)
    }

    /// By which ways it may connect.
    pub(crate) fn ways(&self) -> Ways {
        Ways::of(self.transport)
    }

    /// Checks the topic's and the client's name, and that these limits and those of any client leave some time.
    pub(crate) fn check(&self, limits: &[(&'static str, Duration)]) -> Result<(), SettingError> {
        check_topic_name(&self.topic)
            .map_err(|rule| SettingError::new("topic", &self.topic, rule.to_string()))?;
        if self.name.len() > MAX_NAME_BYTES {
            let rule = format!("must have at most {MAX_NAME_BYTES} bytes");
            return Err(SettingError::new("client_name", &self.name, rule));
        }
        let own = [
            ("open_timeout", self.open_timeout),
            ("idle_timeout", self.idle_timeout),
        ];
        match own.iter().chain(limits).find(|(_, limit)| limit.is_zero()) {
            None => Ok(()),
            Some((setting, _)) => Err(SettingError::new(
                setting,
                "0",
                "must be longer than nothing",
            )),
        }
    }
}

/// The setters of [`ClientSettings`], for a builder that has them in its field `client`.
macro_rules! client_setters {
    () => {
        /// The topic; required.
        pub fn topic(mut self, name: impl Into<String>) -> Self {
            self.client.topic = name.into();
            self
        }

        /// By which transport to connect to brokers. Default [`Transport::Auto`].
        pub fn transport(mut self, transport: Transport) -> Self {
            self.client.transport = transport;
            self
        }

        /// How long opening may take. Default 5 s. If some brokers answer by then it succeeds, and the others join later.
        pub fn open_timeout(mut self, limit: Duration) -> Self {
            self.client.open_timeout = limit;
            self
        }

        /// A connection on which nothing arrives for this long, not even the answer to a heartbeat, counts as dead: its
        /// broker hangs, or the network between lost it without a word. Default 10 s, at least 1 s. Heartbeats go out
        /// three times as often, and only where nothing else does. Time in which a subscriber is too slow to take more
        /// does not count.
        pub fn idle_timeout(mut self, limit: Duration) -> Self {
            self.client.idle_timeout = limit;
            self
        }

        /// How long a thread looks for what comes before it sleeps. Zero, the default: it sleeps at once. What comes within this
        /// time costs no wake-up, at the price of a busy core; then the thread sleeps, and an idle client costs nothing.
        ///
        /// It pays where each thread that spins has a core of its own, most of all by shared memory, and if the brokers do so, too.
        /// Threads that wait for an acknowledgement look for it, instead of the connection's thread.
        pub fn spin(mut self, limit: Duration) -> Self {
            self.client.spin = limit;
            self
        }

        /// Whether stages are timed from the start. Default true.
        pub fn metering(mut self, on: bool) -> Self {
            self.client.metering = on;
            self
        }

        /// Lets `probe` ask this client what it waits for, from the moment it begins to open.
        pub fn wait_probe(mut self, probe: &WaitProbe) -> Self {
            self.client.wait_probe = probe.clone();
            self
        }

        /// Name for the brokers' logs.
        pub fn client_name(mut self, name: impl Into<String>) -> Self {
            self.client.name = name.into();
            self
        }
    };
}

pub(crate) use client_setters;
