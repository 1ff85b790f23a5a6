//! A report as OpenMetrics text.
//!
//! Families of a group are apart from those of single sessions (`embar_session_peer_…`), so that a
//! sum over one family counts nothing twice.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::report::{GroupReport, Report, SessionReport};

/// All families begin with this.
const PREFIX: &str = "embar_session";

/// The report as a scraper reads it.
pub(super) fn text(report: Report) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(report));
    let mut text = String::new();
    let encoded = encode(&mut text, &registry);
    assert!(encoded.is_ok(), "a String takes everything");
    text
}

impl Collector for Report {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_groups(&mut Families(&mut encoder))?;
        self.encode_sessions(&mut Families(&mut encoder))
    }
}

/// Writes families of one kind of label set.
struct Families<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Families<'_, '_> {
    /// A number that only grows; `_total` is appended to its name.
    fn counter<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl Iterator<Item = ([(&'static str, String); N], u64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, unit, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauge<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl Iterator<Item = ([(&'static str, String); N], f64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn label(group: &GroupReport) -> [(&'static str, String); 1] {
    [("group", group.name.clone())]
}

impl Report {
    fn encode_groups(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        type Count = fn(&GroupReport) -> u64;
        let gauges: [(&str, &str, Option<&Unit>, Count); 7] = [
            (
                "open",
                "Sessions there are, those that just open or close included",
                None,
                |g| g.totals.sessions,
            ),
            (
                "arrivals",
                "Connections there are that have not become sessions",
                None,
                |g| g.totals.arrivals,
            ),
            ("listening", "Listeners that are accepted from", None, |g| {
                g.totals.listening
            }),
            (
                "budget_used",
                "Bytes of the memory budget in use",
                Some(&Unit::Bytes),
                |g| g.totals.budget_used_bytes,
            ),
            (
                "budget_limit",
                "The memory budget",
                Some(&Unit::Bytes),
                |g| g.totals.budget_limit_bytes,
            ),
            (
                "queued",
                "Bytes committed and not yet handed to the socket",
                Some(&Unit::Bytes),
                |g| g.queued_bytes,
            ),
            (
                "without_details",
                "Sessions that have no figures of their own here",
                None,
                |g| g.left_out as u64,
            ),
        ];
        for (name, help, unit, get) in gauges {
            let values = self
                .groups
                .iter()
                .map(|group| (label(group), get(group) as f64));
            families.gauge(name, help, unit, values)?;
        }
        let counters: [(&str, &str, Option<&Unit>, Count); 11] = [
            ("opened", "Sessions that opened", None, |g| g.totals.opened),
            (
                "left_early",
                "Peers that closed their connection before they had greeted",
                None,
                |g| g.totals.left_early,
            ),
            (
                "adopted",
                "Connections that somebody else accepted",
                None,
                |g| g.totals.adopted,
            ),
            (
                "redirected",
                "Sessions that were asked to connect elsewhere",
                None,
                |g| g.totals.redirected,
            ),
            (
                "idle_kicks",
                "Sessions closed because nothing was heard for too long",
                None,
                |g| g.totals.idle_kicks,
            ),
            (
                "malformed",
                "Sessions closed because the peer broke the rules of the frames",
                None,
                |g| g.totals.malformed,
            ),
            (
                "handler_panics",
                "Sessions closed because their handler panicked",
                None,
                |g| g.totals.panics,
            ),
            (
                "received_messages",
                "Messages handed to handlers",
                None,
                |g| g.totals.messages_received,
            ),
            ("sent_messages", "Messages committed", None, |g| {
                g.totals.messages_sent
            }),
            (
                "received",
                "Bytes received from sockets",
                Some(&Unit::Bytes),
                |g| g.totals.bytes_received,
            ),
            ("sent", "Bytes handed to sockets", Some(&Unit::Bytes), |g| {
                g.totals.bytes_sent
            }),
        ];
        for (name, help, unit, get) in counters {
            let values = self.groups.iter().map(|group| (label(group), get(group)));
            families.counter(name, help, unit, values)?;
        }
        let closed = self.groups.iter().flat_map(|group| {
            group.closed.iter().map(|(reason, count)| {
                let labels = [("group", group.name.clone()), ("reason", snake(reason))];
                (labels, *count)
            })
        });
        families.counter("closed", "Sessions that ended, by reason", None, closed)?;
        let refused = self.groups.iter().flat_map(|group| {
            group.refused.iter().map(|(refusal, count)| {
                let reason = snake(refusal.name());
                let labels = [("group", group.name.clone()), ("reason", reason)];
                (labels, *count)
            })
        });
        let help = "Connections that became no sessions, by reason";
        families.counter("refused", help, None, refused)?;
        let limited = self.groups.iter().flat_map(|group| {
            group.limited.iter().map(|(limit, count)| {
                let limit = snake(limit.name());
                let labels = [("group", group.name.clone()), ("limit", limit)];
                (labels, *count)
            })
        });
        let help = "Times that sessions went beyond a rate, by limit";
        families.counter("rate_limited", help, None, limited)
    }

    fn encode_sessions(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        type Count = fn(&SessionReport) -> u64;
        let each = || {
            let sessions = |group: &'_ GroupReport| group.sessions.len();
            self.groups
                .iter()
                .flat_map(move |group| (0..sessions(group)).map(move |index| (group, index)))
                .map(|(group, index)| {
                    let session = &group.sessions[index];
                    let labels = [
                        ("group", group.name.clone()),
                        ("session", session.id.to_string()),
                        ("peer", session.peer.clone()),
                    ];
                    (labels, session)
                })
        };
        let counters: [(&str, &str, Option<&Unit>, Count); 8] = [
            ("peer_reads", "Times that bytes were received", None, |s| {
                s.stats.reads
            }),
            (
                "peer_writes",
                "Times that bytes were handed to the socket",
                None,
                |s| s.stats.writes,
            ),
            (
                "peer_full",
                "Messages that found the send ring full",
                None,
                |s| s.stats.times_full,
            ),
            (
                "peer_missed_broadcasts",
                "Messages of broadcasts that the peer did not get",
                None,
                |s| s.stats.missed_broadcasts,
            ),
            (
                "peer_received_messages",
                "Messages handed to the handler",
                None,
                |s| s.stats.messages_received,
            ),
            ("peer_sent_messages", "Messages committed", None, |s| {
                s.stats.messages_sent
            }),
            ("peer_received", "Bytes received", Some(&Unit::Bytes), |s| {
                s.stats.bytes_received
            }),
            (
                "peer_sent",
                "Bytes handed to the socket",
                Some(&Unit::Bytes),
                |s| s.stats.bytes_sent,
            ),
        ];
        for (name, help, unit, get) in counters {
            let values = each().map(|(labels, session)| (labels, get(session)));
            families.counter(name, help, unit, values)?;
        }
        let gauges: [(&str, &str, Option<&Unit>, Count); 2] = [
            (
                "peer_queued",
                "Bytes committed and not yet handed to the socket",
                Some(&Unit::Bytes),
                |s| s.stats.queued_bytes as u64,
            ),
            (
                "peer_kept",
                "Bytes of the receive ring that kept messages block",
                Some(&Unit::Bytes),
                |s| s.stats.kept_bytes as u64,
            ),
        ];
        for (name, help, unit, get) in gauges {
            let values = each().map(|(labels, session)| (labels, get(session) as f64));
            families.gauge(name, help, unit, values)?;
        }
        let trips = each().filter_map(|(labels, session)| {
            let time = session.stats.round_trip?;
            Some((labels, time.as_secs_f64()))
        });
        let help = "The latest round trip of a ping";
        families.gauge("peer_round_trip", help, Some(&Unit::Seconds), trips)
    }
}

/// `HelloTimeout` as `hello_timeout`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
