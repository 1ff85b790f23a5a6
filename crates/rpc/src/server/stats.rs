//! The figures of methods: counters that any thread reads without a lock.

use std::array;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::router::Routes;
use crate::Code;

/// Counts of one method, of all sessions together.
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

/// What a method did so far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodStats {
    /// `package.Service/Method`.
    pub method: &'static str,
    /// Calls that began.
    pub calls: u64,
    /// Calls that have not ended.
    pub in_flight: u64,
    /// Calls that ended, by their code; those that there are.
    pub ended: Vec<(Code, u64)>,
    /// Time from the requests to the ends of those calls, all together.
    pub time: Duration,
}

/// The figures of a server's methods. Cheap to clone, and usable for as long as one likes.
#[derive(Clone)]
pub struct Stats(pub(super) Arc<Routes>);

impl Stats {
    /// Of each method, in the order in which services were added.
    #[must_use]
    pub fn methods(&self) -> Vec<MethodStats> {
        let methods = self.0.methods();
        methods
            .map(|(method, counters)| {
                // The ends first: a call that ends meanwhile counts as in flight.
                let ended: Vec<(Code, u64)> = (0..)
                    .zip(&counters.ended)
                    .map(|(code, count)| (Code::from_number(code), count.load(Ordering::Relaxed)))
                    .filter(|(_, count)| *count > 0)
                    .collect();
                let done = ended.iter().map(|(_, count)| count).sum();
                let calls = counters.began.load(Ordering::Relaxed);
                MethodStats {
                    method: method.path(),
                    calls,
                    in_flight: calls.saturating_sub(done),
                    ended,
                    time: Duration::from_nanos(counters.nanos.load(Ordering::Relaxed)),
                }
            })
            .collect()
    }

    /// Requests for methods that there are not.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.0.unknown.load(Ordering::Relaxed)
    }

    /// The figures as text for Prometheus, in the format OpenMetrics, without the `# EOF` at its end: to
    /// be served beside others.
    #[must_use]
    pub fn open_metrics(&self) -> String {
        let methods = self.methods();
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &str| {
            // Writing to a String does not fail.
            let _ = write!(
                text,
                "# TYPE embar_rpc_{name} {kind}\n# HELP embar_rpc_{name} {help}\n{samples}"
            );
        };
        let samples = |line: &dyn Fn(&MethodStats) -> String| -> String {
            methods.iter().map(line).collect()
        };
        let ended = samples(&|method| {
            let line = |(code, count): &(Code, u64)| {
                let name = method.method;
                format!("embar_rpc_calls_total{{method=\"{name}\",code=\"{code}\"}} {count}\n")
            };
            method.ended.iter().map(line).collect()
        });
        family("calls", "counter", "Calls that ended.", &ended);
        let in_flight = samples(&|method| {
            let (name, count) = (method.method, method.in_flight);
            format!("embar_rpc_in_flight{{method=\"{name}\"}} {count}\n")
        });
        family(
            "in_flight",
            "gauge",
            "Calls that have not ended.",
            &in_flight,
        );
        let seconds = samples(&|method| {
            let (name, seconds) = (method.method, method.time.as_secs_f64());
            format!("embar_rpc_seconds_total{{method=\"{name}\"}} {seconds}\n")
        });
        family("seconds", "counter", "Time of calls that ended.", &seconds);
        let unknown = format!("embar_rpc_unknown_total {}\n", self.unknown());
        family("unknown", "counter", "Requests for no method.", &unknown);
        text
    }
}
