//! What our client counts of each node, by difference, and what has no counter: commands in flight, and silence.

use std::collections::BTreeMap;
use std::time::Instant;

use embar_diagnose::observed::Step;
use embar_diagnose::redis::observed::Traffic;
use embar_redis::Client;
use embar_redis::command::Class;
use embar_redis::metrics::NodeMetrics;

use crate::diagnose::over_time::Total;

/// A node that says nothing for less is not silent, seconds: callers and servers take turns on the processors.
const SILENT_S: f64 = 5e-3;

/// Watches a client.
pub struct Watching {
    started: Instant,
    before: BTreeMap<String, NodeMetrics>,
    gauges: BTreeMap<String, Gauges>,
    /// Commands that all connections to a node may have in flight.
    places: u64,
    replies: Total<String>,
}

/// What was seen of a client.
#[derive(Default)]
pub struct Watched {
    /// What was done with each node, by its name.
    pub traffic: BTreeMap<String, Traffic>,
    /// Replies, step by step.
    pub over_time: Vec<Step>,
}

/// Of one node, what looks found.
#[derive(Default)]
struct Gauges {
    looks: f64,
    in_flight: f64,
    full: f64,
    replies: u64,
    /// Since when no reply has come.
    since: Option<Instant>,
    /// How long that was at the last look, seconds.
    silence_s: f64,
    silent_s: f64,
    longest_s: f64,
}

impl Watching {
    /// Begins. A connection takes a power of two of commands.
    pub fn start(client: &Client) -> Self {
        let config = client.config();
        let each = config.max_in_flight.max(1).next_power_of_two() as u64;
        let before = client.metrics().nodes.into_iter();
        Self {
            started: Instant::now(),
            before: before.map(|it| (it.node.clone(), it)).collect(),
            gauges: BTreeMap::new(),
            places: each.saturating_mul(config.mux_per_node as u64),
            replies: Total::default(),
        }
    }

    /// Looks at what has no counter.
    pub fn look(&mut self, client: &Client) {
        let now = Instant::now();
        for (node, stats) in client.stats() {
            self.replies.count(&node, stats.replies);
            let gauges = self.gauges.entry(node).or_default();
            gauges.looks += 1.0;
            gauges.in_flight += stats.in_flight as f64;
            if stats.in_flight >= self.places {
                gauges.full += 1.0;
            }
            gauges.hear(stats.replies, stats.in_flight > 0, now);
        }
        self.replies.see(now);
    }

    /// Ends, and says what was done.
    pub fn end(mut self, client: &Client) -> Watched {
        self.look(client);
        let seconds = self.started.elapsed().as_secs_f64();
        let after = client.metrics().nodes.into_iter();
        let traffic = after.map(|after| {
            let before = self.before.get(&after.node);
            let gauges = self.gauges.remove(&after.node).unwrap_or_default();
            (after.node.clone(), traffic(before, &after, gauges, seconds))
        });
        Watched {
            traffic: traffic.collect(),
            over_time: self.replies.steps(),
        }
    }
}

impl Gauges {
    /// So many replies have come, and commands wait for others, or do not.
    fn hear(&mut self, replies: u64, waits: bool, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if replies != self.replies || !waits {
            self.end_silence();
            self.replies = replies;
            self.since = Some(now);
        } else {
            // Up to this look; what follows until a reply comes is not counted.
            self.silence_s = (now - since).as_secs_f64();
        }
    }

    fn end_silence(&mut self) {
        if self.silence_s >= SILENT_S {
            self.silent_s += self.silence_s;
            self.longest_s = self.longest_s.max(self.silence_s);
        }
        self.silence_s = 0.0;
    }
}

fn traffic(
    before: Option<&NodeMetrics>,
    after: &NodeMetrics,
    mut gauges: Gauges,
    seconds: f64,
) -> Traffic {
    gauges.end_silence();
    let stats = |of: fn(&NodeMetrics) -> u64| of(after).saturating_sub(before.map_or(0, of));
    let latency = |node: &NodeMetrics| {
        let both = [Class::Read, Class::Write].map(|class| {
            let times = node.latency(class);
            (times.sum(), times.count())
        });
        (both[0].0 + both[1].0, both[0].1 + both[1].1)
    };
    let (sum, count) = latency(after);
    let (sum_before, count_before) = before.map_or((0, 0), latency);
    let count = count.saturating_sub(count_before);
    let of_looks = |sum: f64| {
        if gauges.looks > 0.0 {
            sum / gauges.looks
        } else {
            0.0
        }
    };
    Traffic {
        replies: stats(|it| it.stats.replies),
        sent_bytes: stats(|it| it.stats.bytes_sent),
        received_bytes: stats(|it| it.stats.bytes_received),
        writes: stats(|it| it.stats.writes),
        reads: stats(|it| it.stats.reads),
        latency_s: match count {
            0 => 0.0,
            count => sum.saturating_sub(sum_before) as f64 / 1e9 / count as f64,
        },
        in_flight: of_looks(gauges.in_flight),
        full: of_looks(gauges.full),
        silent: if seconds > 0.0 {
            (gauges.silent_s / seconds).min(1.0)
        } else {
            0.0
        },
        silent_longest_s: gauges.longest_s,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_node_is_silent_while_commands_wait_and_no_reply_comes() {
        let mut gauges = Gauges::default();
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        gauges.hear(5, true, at(0));
        gauges.hear(9, true, at(10));
        gauges.hear(9, true, at(20));
        gauges.hear(9, true, at(30));
        gauges.hear(10, true, at(35));
        assert!((gauges.silent_s - 0.02).abs() < 1e-9, "{}", gauges.silent_s);
        assert!((gauges.longest_s - 0.02).abs() < 1e-9);
        // Nobody waits, and so nobody misses anything.
        gauges.hear(10, false, at(500));
        gauges.hear(10, true, at(501));
        gauges.hear(10, true, at(504));
        gauges.hear(11, true, at(505));
        assert!((gauges.silent_s - 0.02).abs() < 1e-9, "{}", gauges.silent_s);
    }
}
