//! Clients that connect with their first command.

use super::{Client, mux_settings};
use crate::config::Config;
use crate::engine::Drivers;
use crate::error::Error;

impl Client {
    /// A client that has not connected yet, and so needs no server that runs: its first command connects.
    ///
    /// Until a server has accepted it, commands fail as connecting does with [`Client::connect`]: at once if all servers refuse
    /// for a reason that lasts, as with a wrong password, and else when their time is over. Subscriptions wait until their time
    /// is over. Then, as always, commands wait within their time for servers that are away.
    ///
    /// Within a Tokio runtime, tasks of that runtime serve the connections; otherwise a thread of the
    /// client's own does.
    ///
    /// # Errors
    /// For a malformed URL.
    pub fn connect_lazy(url: &str) -> Result<Self, Error> {
        let config = Config::from_url(url).map_err(|error| Error::Config(error.to_string()))?;
        Self::with_lazy(config)
    }

    /// As [`Client::connect_lazy`], with a configuration.
    ///
    /// # Errors
    /// When the configuration makes no sense.
    pub fn with_lazy(config: Config) -> Result<Self, Error> {
        let drivers = Drivers::on_current_runtime(&mux_settings(&config));
        Self::start(config, drivers)
    }
}
