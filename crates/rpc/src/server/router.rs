//! A server, and what it is made of.

use std::sync::Arc;
use std::time::Duration;

use embar_session::{Address, Protocol, ServerBuilder, StartError};
use thiserror::Error;

use super::call::Call;
use super::request::Service;
use super::requests::Requests;
use super::routes::{Parts, Routes};
use super::settings::RouterSettings;
use super::stats::Stats;
use crate::Status;
use crate::protocol::{Role, Rpc};

/// Why a server does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RouterError {
    /// Two methods have the same number, or one is there twice.
    #[error("{first} and {second} have the same number {number:#010x}: rename one of them")]
    Collision {
        /// One of them.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// [`method_number`](crate::method_number) of both.
        number: u32,
    },
    /// The sessions' server does not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Services, and what all calls of them have in common.
#[derive(Default)]
pub struct Router {
    parts: Parts,
}

impl Router {
    /// Without services.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Has this service, too: one of generated code's `…Server` types.
    #[must_use]
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.parts.services.push(Box::new(service));
        self
    }

    /// Has `interceptor` look at each call, after those that were added before it and before the method:
    /// an error ends the call. It runs on the session's worker, and must not block.
    #[must_use]
    pub fn intercept(
        mut self,
        interceptor: impl Fn(&Call) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        self.parts.interceptors.push(Box::new(interceptor));
        self
    }

    /// Changes the settings.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut RouterSettings)) -> Self {
        change(&mut self.parts.settings);
        self
    }

    /// Serves the sessions of `sessions`, whose protocol becomes [`Rpc`]. Requests come only while the send ring has room for
    /// the longest reply, or half of it is free, whatever the settings say of [`reply_room`](embar_session::SessionConfig::reply_room): so none comes
    /// while replies wait.
    ///
    /// # Errors
    /// [`RouterError`].
    pub fn start<P>(self, sessions: ServerBuilder<P>) -> Result<Server, RouterError>
    where
        P: Protocol + Clone + Send + Sync + 'static,
    {
        let routes = Routes::new(self.parts).map_err(|collision| RouterError::Collision {
            first: collision.first.path(),
            second: collision.second.path(),
            number: collision.first.number(),
        })?;
        let stats = Stats::new(routes.counts());
        let routes = Arc::new(routes);
        let sessions = sessions
            .protocol(Rpc::new(Role::Server))
            .with(|settings| settings.session.reply_room = 0)
            .start(move |_| Requests::new(&routes))?;
        Ok(Server { sessions, stats })
    }
}

/// Serves calls until it is dropped.
pub struct Server {
    sessions: embar_session::Server,
    stats: Stats,
}

impl Server {
    /// The first address that it listens on, with the port that it has.
    #[must_use]
    pub fn address(&self) -> Address {
        self.sessions.address()
    }

    /// The server of the sessions.
    #[must_use]
    pub fn sessions(&self) -> &embar_session::Server {
        &self.sessions
    }

    /// The figures of the methods.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// Ends it politely; as [`embar_session::Server::shutdown`].
    pub fn shutdown(self, timeout: Duration) {
        self.sessions.shutdown(timeout);
    }
}
