//! Exports metrics to Prometheus, by a registry of the crate `prometheus-client`. Takes the feature
//! `prometheus`.

use std::fmt;
use std::sync::Weak;

use embar_mux::Distribution;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::client::Client;
use crate::command::Class;
use crate::engine::Router;
use crate::metrics::{CacheMetrics, Metrics, NodeMetrics, RetryCause};

pub use prometheus_client;

/// log2 of the bounds of latency in nanoseconds, each twice the one before: from 16 µs to 4 s.
const LATENCY_LOG2: std::ops::RangeInclusive<u32> = 14..=32;
/// log2 of the bounds of how many commands or replies: from 1 to 4096.
const SIZE_LOG2: std::ops::RangeInclusive<u32> = 0..=12;

type Labels<const N: usize> = [(&'static str, String); N];

/// Exports the metrics of clients each time a registry is encoded, under names that begin with
/// `embar_redis_`. The label `client` names the client; a client that has ended is left out. Metrics of
/// nodes have the label `node`: one value for each node of the cluster, and `departed` for all nodes
/// together that have left.
///
/// ```
/// use embar_redis::prometheus::{Exporter, prometheus_client::registry::Registry};
///
/// # fn example(client: &embar_redis::Client) {
/// let mut registry = Registry::default();
/// Exporter::new().watch("cache", client).register(&mut registry);
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Exporter {
    clients: Vec<(String, Weak<Router>)>,
}

impl Exporter {
    /// An exporter without clients.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a client under a name of the caller's. The exporter does not keep it alive.
    #[must_use]
    pub fn watch(mut self, name: impl Into<String>, client: &Client) -> Self {
        let client = std::sync::Arc::downgrade(&client.router);
        self.clients.push((name.into(), client));
        self
    }

    /// Adds the metrics to a registry. Give all clients to one exporter: a registry does not notice
    /// when two exporters have the same names.
    pub fn register(self, registry: &mut Registry) {
        registry.register_collector(Box::new(self));
    }
}

impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |(name, client): &(String, Weak<Router>)| {
            let metrics = client.upgrade()?.metrics();
            Some((name.clone(), metrics))
        };
        let clients: Vec<_> = self.clients.iter().filter_map(read).collect();
        let mut families = Families(&mut encoder);
        of_clients(&clients, &mut families)?;
        of_nodes(&clients, &mut families)
    }
}

/// Writes families of metrics.
struct Families<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Families<'_, '_> {
    fn family<const N: usize, V>(
        &mut self,
        (name, help, unit): (&str, &str, Option<&Unit>),
        kind: MetricType,
        values: impl Iterator<Item = (Labels<N>, V)>,
        encode: impl Fn(V, MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let name = format!("embar_redis_{name}");
        let mut family = self.0.encode_descriptor(&name, help, unit, kind)?;
        for (labels, value) in values {
            encode(value, family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A number that only grows; the encoder appends `_total` to its name.
    fn counter<const N: usize>(
        &mut self,
        about: (&str, &str, Option<&Unit>),
        values: impl Iterator<Item = (Labels<N>, u64)>,
    ) -> fmt::Result {
        self.family(about, MetricType::Counter, values, |value, encoder| {
            ConstCounter::new(value).encode(encoder)
        })
    }

    fn gauge<const N: usize>(
        &mut self,
        about: (&str, &str, Option<&Unit>),
        values: impl Iterator<Item = (Labels<N>, u64)>,
    ) -> fmt::Result {
        self.family(about, MetricType::Gauge, values, |value, encoder| {
            ConstGauge::new(value as f64).encode(encoder)
        })
    }

    /// A histogram whose bounds are powers of two, divided by `scale`.
    fn histogram<'d, const N: usize>(
        &mut self,
        about: (&str, &str, Option<&Unit>),
        (bounds, scale): (std::ops::RangeInclusive<u32>, f64),
        values: impl Iterator<Item = (Labels<N>, &'d Distribution)>,
    ) -> fmt::Result {
        self.family(
            about,
            MetricType::Histogram,
            values,
            |value, mut encoder| {
                let mut below = 0;
                let mut bucket = |bound: u32| {
                    let at_most = value.at_most(1 << bound);
                    let count = at_most - std::mem::replace(&mut below, at_most);
                    ((1_u64 << bound) as f64 / scale, count)
                };
                let mut buckets: Vec<_> = bounds.clone().map(&mut bucket).collect();
                let count = value.count();
                // The encoder takes this for "no bound".
                buckets.push((f64::MAX, count - below));
                let sum = value.sum() as f64 / scale;
                encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
            },
        )
    }
}

/// Escapes a label's value for the text format, as the encoder does not: names come from users and
/// servers, and must not look like other series.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            character => escaped.push(character),
        }
    }
    escaped
}

fn of_clients(clients: &[(String, Metrics)], families: &mut Families<'_, '_>) -> fmt::Result {
    type Count = fn(&Metrics) -> u64;
    let label = |name: &String| ("client", escaped(name));
    let nodes = clients
        .iter()
        .map(|(name, metrics)| ([label(name)], metrics.nodes.len() as u64));
    families.gauge(("nodes", "Nodes that are known", None), nodes)?;
    let counters: [(&str, &str, Count); 3] = [
        (
            "unknown_outcomes",
            "Commands that may have been executed, without a reply",
            |m| m.unknown_outcomes,
        ),
        (
            "unavailable",
            "Commands that no server took until their time was over",
            |m| m.unavailable,
        ),
        (
            "failovers",
            "Replicas that were seen to have taken over",
            |m| m.failovers,
        ),
    ];
    for (name, help, get) in counters {
        let values = clients.iter().map(|(name, m)| ([label(name)], get(m)));
        families.counter((name, help, None), values)?;
    }
    let redirects = clients.iter().flat_map(|(name, m)| {
        let kinds = [("moved", m.moved), ("ask", m.asked)];
        kinds.map(|(kind, count)| ([label(name), ("kind", kind.to_owned())], count))
    });
    let help = "Commands that were sent to another node";
    families.counter(("redirects", help, None), redirects)?;
    let retries = clients.iter().flat_map(|(name, m)| {
        RetryCause::ALL.map(|cause| {
            let labels = [label(name), ("cause", cause.name().to_owned())];
            (labels, m.retries(cause))
        })
    });
    let help = "Commands that were sent again after a while";
    families.counter(("retries", help, None), retries)?;
    let refreshes = clients.iter().flat_map(|(name, m)| {
        let outcomes = [("ok", m.refreshes), ("failed", m.refreshes_failed)];
        outcomes.map(|(outcome, count)| ([label(name), ("outcome", outcome.to_owned())], count))
    });
    let help = "Readings of the cluster's topology";
    families.counter(("refreshes", help, None), refreshes)?;
    of_caches(clients, families)
}

/// Of those clients that have a cache.
fn of_caches(clients: &[(String, Metrics)], families: &mut Families<'_, '_>) -> fmt::Result {
    type Count = fn(&CacheMetrics) -> u64;
    let each = || {
        clients.iter().filter_map(|(name, metrics)| {
            let cache = metrics.cache.as_ref()?;
            Some((("client", escaped(name)), cache))
        })
    };
    if each().next().is_none() {
        return Ok(());
    }
    let reads = each().flat_map(|(client, cache)| {
        let outcomes = [
            ("hit", cache.hits),
            ("miss", cache.misses),
            ("shared", cache.shared),
            ("bypassed", cache.bypassed),
        ];
        outcomes.map(|(outcome, count)| ([client.clone(), ("outcome", outcome.to_owned())], count))
    });
    let help = "Reads through the cache, by where their reply came from";
    families.counter(("cache_reads", help, None), reads)?;
    let counters: [(&str, &str, Count); 2] = [
        (
            "cache_invalidations",
            "Entries removed because their key has changed, or may have",
            |cache| cache.invalidations,
        ),
        ("cache_evictions", "Entries removed to make room", |cache| {
            cache.evictions
        }),
    ];
    for (name, help, get) in counters {
        let values = each().map(|(client, cache)| ([client], get(cache)));
        families.counter((name, help, None), values)?;
    }
    let entries = each().map(|(client, cache)| ([client], cache.entries));
    families.gauge(("cache_entries", "Entries of the cache", None), entries)?;
    let bytes = each().map(|(client, cache)| ([client], cache.bytes));
    let help = "Memory of the cache's entries";
    families.gauge(("cache", help, Some(&Unit::Bytes)), bytes)
}

fn of_nodes(clients: &[(String, Metrics)], families: &mut Families<'_, '_>) -> fmt::Result {
    type Count = fn(&NodeMetrics) -> u64;
    let each = || {
        clients.iter().flat_map(|(name, metrics)| {
            let nodes = metrics.nodes.iter().chain(&metrics.departed);
            nodes.map(move |node| {
                let labels = [("client", escaped(name)), ("node", escaped(&node.node))];
                (labels, node)
            })
        })
    };
    let classes = || {
        each().flat_map(|([client, at], node)| {
            [(Class::Read, "read"), (Class::Write, "write")].map(|(class, name)| {
                let labels = [client.clone(), at.clone(), ("class", name.to_owned())];
                (labels, node.latency(class))
            })
        })
    };
    let in_flight = each().map(|(labels, node)| (labels, node.stats.in_flight));
    let help = "Commands that wait to be sent, or for a reply";
    families.gauge(("in_flight_commands", help, None), in_flight)?;
    let commands = classes().map(|(labels, latency)| (labels, latency.count()));
    let help = "Commands that were answered; each batch of a pipeline is one";
    families.counter(("commands", help, None), commands)?;
    let counters: [(&str, &str, Option<&Unit>, Count); 9] = [
        ("sent", "Bytes handed to sockets", Some(&Unit::Bytes), |n| {
            n.stats.bytes_sent
        }),
        (
            "received",
            "Bytes received from sockets",
            Some(&Unit::Bytes),
            |n| n.stats.bytes_received,
        ),
        ("writes", "Calls that sent something", None, |n| {
            n.stats.writes
        }),
        ("reads", "Calls that received something", None, |n| {
            n.stats.reads
        }),
        (
            "timeouts",
            "Commands given up because no reply came in time",
            None,
            |n| n.stats.timeouts,
        ),
        ("connects", "Connections that were made", None, |n| {
            n.connects
        }),
        (
            "reconnects",
            "Connections that were made in place of lost ones",
            None,
            |n| n.reconnects,
        ),
        (
            "connects_failed",
            "Attempts to connect that failed",
            None,
            |n| n.connects_failed,
        ),
        (
            "left",
            "Connections left for others because of what the server answered",
            None,
            |n| n.left,
        ),
    ];
    for (name, help, unit, get) in counters {
        let values = each().map(|(labels, node)| (labels, get(node)));
        families.counter((name, help, unit), values)?;
    }
    families.histogram(
        ("latency", "Time to a command's reply", Some(&Unit::Seconds)),
        (LATENCY_LOG2, 1e9),
        classes(),
    )?;
    families.histogram(
        ("commands_per_write", "Commands sent by one call", None),
        (SIZE_LOG2, 1.0),
        each().map(|(labels, node)| (labels, &node.commands_per_write)),
    )?;
    families.histogram(
        ("replies_per_read", "Replies received by one call", None),
        (SIZE_LOG2, 1.0),
        each().map(|(labels, node)| (labels, &node.replies_per_read)),
    )
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn a_label_cannot_end_its_quotes_or_its_line() {
        assert_eq!(escaped("cache-1"), "cache-1");
        assert_eq!(escaped("a\"} 1\nb\\"), "a\\\"} 1\\nb\\\\");
    }
}
