//! Counts of methods, of all sessions together: any thread reads them without a lock.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{Code, Method};

/// The counts of all methods, by route.
pub(super) struct Counts {
    methods: Vec<(Method, Counters)>,
    /// Requests for methods that there are not.
    pub(super) unknown: AtomicU64,
}

impl Counts {
    pub(super) fn new(methods: Vec<Method>) -> Self {
        let methods = methods.into_iter();
        Self {
            methods: methods
                .map(|method| (method, Counters::default()))
                .collect(),
            unknown: AtomicU64::new(0),
        }
    }

    pub(super) fn method(&self, route: usize) -> Method {
        self.methods[route].0
    }

    pub(super) fn of(&self, route: usize) -> &Counters {
        &self.methods[route].1
    }

    /// All of them, in the order in which services were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Method, Counters)> {
        self.methods.iter()
    }
}

/// The counts of one method.
pub(super) struct Counters {
    began: AtomicU64,
    ended: [AtomicU64; Code::ALL.len()],
    nanos: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            began: AtomicU64::new(0),
            ended: array::from_fn(|_| AtomicU64::new(0)),
            nanos: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub(super) fn began(&self) {
        self.began.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, code: Code, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        if let Some(count) = self.ended.get(usize::from(code.number())) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Counters {
    /// Calls that began, those that ended by their code, and the time that they took.
    pub(super) fn read(&self) -> (u64, Vec<(Code, u64)>, Duration) {
        // The ends first: a call that ends meanwhile counts as in flight.
        let ended = (0..)
            .zip(&self.ended)
            .map(|(code, count)| (Code::from_number(code), count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let nanos = self.nanos.load(Ordering::Relaxed);
        let began = self.began.load(Ordering::Relaxed);
        (began, ended, Duration::from_nanos(nanos))
    }
}
