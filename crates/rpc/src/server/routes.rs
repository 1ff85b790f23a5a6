//! The methods that a server has, and what it does before each of them.

use std::sync::Arc;

use super::call::Call;
use super::counts::Counts;
use super::request::Service;
use super::settings::RouterSettings;
use crate::{Method, Status};

/// Looks at calls before their methods do; see [`Router::intercept`](super::Router::intercept).
pub(super) type Interceptor = dyn Fn(&Call) -> Result<(), Status> + Send + Sync;

/// What routes are made of.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) services: Vec<Box<dyn Service>>,
    pub(super) interceptors: Vec<Box<Interceptor>>,
    pub(super) settings: RouterSettings,
}

/// Two methods that have the same number.
#[derive(Debug)]
pub(super) struct Collision {
    pub(super) first: Method,
    pub(super) second: Method,
}

/// What all sessions of a server share. A route is a method, counted over all services in the order in
/// which they were added.
pub(super) struct Routes {
    parts: Parts,
    /// By route: the service, and which of its methods it is.
    places: Vec<(usize, usize)>,
    /// Numbers and their routes, in the order of the numbers.
    numbers: Vec<(u32, usize)>,
    counts: Arc<Counts>,
}

impl Routes {
    pub(super) fn new(parts: Parts) -> Result<Self, Collision> {
        let (mut places, mut methods) = (Vec::new(), Vec::new());
        for (index, service) in parts.services.iter().enumerate() {
            for (at, method) in service.methods().iter().enumerate() {
                places.push((index, at));
                methods.push(*method);
            }
        }
        let mut numbers: Vec<(u32, usize)> = (0..)
            .zip(&methods)
            .map(|(route, method)| (method.number(), route))
            .collect();
        numbers.sort_unstable();
        for pair in numbers.windows(2) {
            if let [(number, first), (other, second)] = *pair
                && number == other
            {
                return Err(Collision {
                    first: methods[first],
                    second: methods[second],
                });
            }
        }
        Ok(Self {
            parts,
            places,
            numbers,
            counts: Arc::new(Counts::new(methods)),
        })
    }

    /// The route of the method with this number.
    pub(super) fn find(&self, number: u32) -> Option<usize> {
        let at = self
            .numbers
            .binary_search_by_key(&number, |(number, _)| *number);
        at.ok().map(|at| self.numbers[at].1)
    }

    /// The service that has a method, and which of its methods that is.
    pub(super) fn service(&self, route: usize) -> (&dyn Service, usize) {
        let (service, method) = self.places[route];
        (&*self.parts.services[service], method)
    }

    pub(super) fn intercept(&self, call: &Call) -> Result<(), Status> {
        let mut interceptors = self.parts.interceptors.iter();
        interceptors.try_for_each(|interceptor| interceptor(call))
    }

    pub(super) fn settings(&self) -> &RouterSettings {
        &self.parts.settings
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }
}
