//! The figures of methods, as users see them.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::counts::{Counters, Counts};
use crate::{Code, Method};

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
pub struct Stats(Arc<Counts>);

impl Stats {
    pub(super) fn new(counts: &Arc<Counts>) -> Self {
        Self(Arc::clone(counts))
    }

    /// Of each method, in the order in which services were added.
    #[must_use]
    pub fn methods(&self) -> Vec<MethodStats> {
        let of_one = |(method, counters): &(Method, Counters)| {
            let (calls, ended, time) = counters.read();
            let done = ended.iter().map(|(_, count)| count).sum();
            MethodStats {
                method: method.path(),
                calls,
                in_flight: calls.saturating_sub(done),
                ended,
                time,
            }
        };
        self.0.iter().map(of_one).collect()
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
