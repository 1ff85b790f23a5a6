//! The methods that a server has, and the server itself.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use embar_session::{Address, Protocol, ServerBuilder, StartError};
use thiserror::Error;

use super::call::Call;
use super::request::Service;
use super::requests::Requests;
use super::stats::{Counters, Stats};
use crate::limits::MAX_IN_FLIGHT;
use crate::protocol::{Role, Rpc};
use crate::{Method, Status};

/// What can be set on a server, for each of its sessions.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RouterSettings {
    /// Most calls that one session may have in flight, at least 1. Clients learn it, and have more wait;
    /// a call beyond it fails with [`ResourceExhausted`](crate::Code::ResourceExhausted). Default
    /// 256.
    pub max_in_flight: u32,
    /// Most bytes of replies that wait because the send ring is full; beyond it the session ends.
    /// Default 1 MiB.
    pub max_queued_bytes: usize,
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 256,
            max_queued_bytes: 1 << 20,
        }
    }
}

/// Looks at calls before their methods do; see [`Router::intercept`].
type Interceptor = dyn Fn(&Call) -> Result<(), Status> + Send + Sync;

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
    services: Vec<Box<dyn Service>>,
    interceptors: Vec<Box<Interceptor>>,
    settings: RouterSettings,
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
        self.services.push(Box::new(service));
        self
    }

    /// Has `interceptor` look at each call, after those that were added before it and before the method:
    /// an error ends the call. It runs on the session's worker, and must not block.
    #[must_use]
    pub fn intercept(
        mut self,
        interceptor: impl Fn(&Call) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        self.interceptors.push(Box::new(interceptor));
        self
    }

    /// Changes the settings.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut RouterSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Serves the sessions of `sessions`, whose protocol becomes [`Rpc`].
    ///
    /// # Errors
    /// [`RouterError`].
    pub fn start<P>(self, sessions: ServerBuilder<P>) -> Result<Server, RouterError>
    where
        P: Protocol + Clone + Send + Sync + 'static,
    {
        let routes = Arc::new(Routes::new(self)?);
        let of_sessions = Arc::clone(&routes);
        let sessions = sessions
            .protocol(Rpc::new(Role::Server))
            .start(move |_| Requests::new(&of_sessions))?;
        Ok(Server { sessions, routes })
    }
}

/// Serves calls until it is dropped.
pub struct Server {
    sessions: embar_session::Server,
    routes: Arc<Routes>,
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
        Stats(Arc::clone(&self.routes))
    }

    /// Ends it politely; as [`embar_session::Server::shutdown`].
    pub fn shutdown(self, timeout: Duration) {
        self.sessions.shutdown(timeout);
    }
}

/// Where a method is.
struct Route {
    number: u32,
    service: usize,
    method: usize,
    counters: Counters,
}

/// What all sessions of a server share.
pub(super) struct Routes {
    services: Vec<Box<dyn Service>>,
    /// In the order of their numbers.
    routes: Vec<Route>,
    interceptors: Vec<Box<Interceptor>>,
    pub(super) settings: RouterSettings,
    pub(super) unknown: AtomicU64,
}

impl Routes {
    fn new(router: Router) -> Result<Self, RouterError> {
        let mut routes = Vec::new();
        for (index, service) in router.services.iter().enumerate() {
            for (method, what) in service.methods().iter().enumerate() {
                routes.push(Route {
                    number: what.number(),
                    service: index,
                    method,
                    counters: Counters::default(),
                });
            }
        }
        routes.sort_by_key(|route| route.number);
        let routes = Self {
            services: router.services,
            routes,
            interceptors: router.interceptors,
            settings: router.settings,
            unknown: AtomicU64::new(0),
        };
        for pair in routes.routes.windows(2) {
            if let [first, second] = pair
                && first.number == second.number
            {
                return Err(RouterError::Collision {
                    first: routes.what(first).path(),
                    second: routes.what(second).path(),
                    number: first.number,
                });
            }
        }
        Ok(routes)
    }

    fn what(&self, route: &Route) -> Method {
        self.services[route.service].methods()[route.method]
    }

    pub(super) fn max_in_flight(&self) -> u32 {
        self.settings.max_in_flight.clamp(1, MAX_IN_FLIGHT)
    }

    /// The route of the method with this number.
    pub(super) fn find(&self, number: u32) -> Option<usize> {
        self.routes
            .binary_search_by_key(&number, |route| route.number)
            .ok()
    }

    pub(super) fn method(&self, route: usize) -> Method {
        self.what(&self.routes[route])
    }

    pub(super) fn counters(&self, route: usize) -> &Counters {
        &self.routes[route].counters
    }

    /// The service that has a method, and which of its methods that is.
    pub(super) fn service(&self, route: usize) -> (&dyn Service, usize) {
        let route = &self.routes[route];
        (&*self.services[route.service], route.method)
    }

    pub(super) fn intercept(&self, call: &Call) -> Result<(), Status> {
        let mut interceptors = self.interceptors.iter();
        interceptors.try_for_each(|interceptor| interceptor(call))
    }

    /// All methods, in the order in which services were added.
    pub(super) fn methods(&self) -> impl Iterator<Item = (Method, &Counters)> {
        let mut routes: Vec<&Route> = self.routes.iter().collect();
        routes.sort_by_key(|route| (route.service, route.method));
        let routes = routes.into_iter();
        routes.map(|route| (self.what(route), &route.counters))
    }
}
