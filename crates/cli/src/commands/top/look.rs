//! What `embar top` shows: one look at a cluster, as rows of numbers. Made of what a look from outside saw; nothing here asks anybody.

use std::collections::BTreeMap;
use std::time::Instant;

use embar_bench::diagnose::attach;
use embar_bench::diagnose::attach::asking::Topics;
use embar_diagnose::finding::Finding;
use embar_diagnose::observed::{Connection, Missing};
use embar_diagnose::{Diagnosis, diagnose};
use embar_wire::control::{BrokerState, BrokerStatus, Partition, TopicDescription};
use serde::Serialize;

use crate::commands::status::{role, state};

/// One look.
#[derive(Debug, Serialize)]
pub struct Look {
    /// When it was over.
    #[serde(skip)]
    pub ended: Instant,
    /// How long it took, seconds.
    pub seconds: f64,
    /// The head's row.
    pub head: u32,
    /// The row of the process that sequences.
    pub sequencer: Option<u32>,
    /// All brokers that have not left.
    pub brokers: Vec<BrokerRow>,
    /// Topics, the busiest first.
    pub topics: Vec<TopicRow>,
    /// Why nobody lists them. It is among what is missing, too.
    #[serde(skip)]
    pub unlisted: Option<String>,
    /// TCP connections that carried batches, as far as one of their ends is here.
    pub connections: Vec<ConnectionRow>,
    /// Stages of clients and brokers.
    pub stages: Vec<StageRow>,
    /// What limits.
    pub diagnosis: Diagnosis,
    /// Processors of this machine.
    pub cores: u32,
    /// Part of them that was busy, 0 to 1.
    pub busy: f64,
}

/// A broker. Rates are over the look.
#[derive(Clone, Debug, Serialize)]
pub struct BrokerRow {
    pub id: u32,
    pub role: &'static str,
    pub state: &'static str,
    pub address: String,
    /// None of the following is known of one that does not answer.
    pub rates: Option<BrokerRates>,
}

/// What a broker did.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BrokerRates {
    pub connections: u64,
    /// Connections that it does not read now, for want of room.
    pub paused_connections: u64,
    pub bytes_in_per_s: f64,
    pub bytes_out_per_s: f64,
    pub messages_per_s: f64,
    pub batches_per_s: f64,
    pub refused_per_s: f64,
    /// Part of its log that holds something, 0 to 1; `None` of one without a log.
    pub log_used: Option<f64>,
    /// Processors that it used.
    pub cpus: f64,
    pub uptime_s: f64,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopicRow {
    pub name: String,
    pub order: u8,
    /// Brokers that retain something of it.
    pub brokers: usize,
    /// First position, or sum of first offsets, that is retained.
    pub first: u64,
    /// The one that comes next.
    pub next: u64,
    /// What each broker has next: one that does not tell this time has taken nothing back.
    #[serde(skip)]
    pub next_of: BTreeMap<u32, u64>,
    /// Bytes retained.
    pub bytes: u64,
    /// Messages that came in a second; `None` at the first look.
    pub messages_per_s: Option<f64>,
}

/// A connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionRow {
    pub broker: u32,
    /// `publishes` or `reads`.
    pub client: &'static str,
    pub bytes_per_s: Option<f64>,
    pub round_trip_us: Option<f64>,
    /// Parts of the time, 0 to 1.
    pub window_full: Option<f64>,
    pub send_buffer_full: Option<f64>,
    pub resent: Option<f64>,
}

/// A stage.
#[derive(Clone, Debug, Serialize)]
pub struct StageRow {
    /// `publishers`, `broker 1` or `subscribers`.
    pub of: String,
    pub stage: String,
    /// Part of one processor's time, or of one waiting thread's; more than 1 if several were in it at once.
    pub share: f64,
    pub times_per_s: f64,
    pub avg_ns: f64,
}

impl Look {
    /// From what was seen. `before` has the topics of the look before.
    pub fn of(mut seen: attach::Look, topics: Topics, before: Option<&Self>) -> Self {
        if let Some(why) = &topics.unlisted {
            seen.observed.missing.push(Missing {
                what: "the list of topics".to_owned(),
                why: why.clone(),
            });
        }
        let observed = &seen.observed;
        let seconds = observed.seconds.max(f64::EPSILON);
        let here = seen.cluster.brokers.iter();
        let here = here.filter(|it| it.state != BrokerState::Left);
        let brokers = here.map(|info| BrokerRow {
            id: info.id,
            role: role(info),
            state: state(info.state),
            address: info.address.clone(),
            rates: seen
                .statuses
                .get(&info.id)
                .map(|(before, after)| BrokerRates::of(before, after)),
        });
        let connections = observed.connections.iter();
        Self {
            ended: Instant::now(),
            seconds,
            head: seen.cluster.head,
            sequencer: seen.cluster.sequencer,
            brokers: brokers.collect(),
            topics: topic_rows(&topics.described, before, seconds),
            unlisted: topics.unlisted,
            connections: connections
                .map(|it| ConnectionRow::of(it, seconds))
                .collect(),
            stages: stages(observed, seconds),
            cores: observed.machine.cores,
            busy: observed.machine.busy,
            diagnosis: diagnose(observed),
        }
    }

    /// The sums of all brokers: bytes in, bytes out, and messages in, a second.
    pub fn totals(&self) -> [f64; 3] {
        let rates = self.brokers.iter().filter_map(|it| it.rates);
        rates.fold([0.0; 3], |sum, it| {
            [
                sum[0] + it.bytes_in_per_s,
                sum[1] + it.bytes_out_per_s,
                sum[2] + it.messages_per_s,
            ]
        })
    }

    /// Brokers that answered, and all.
    pub fn answering(&self) -> (usize, usize) {
        let up = self.brokers.iter().filter(|it| it.rates.is_some());
        (up.count(), self.brokers.len())
    }

    /// What was found, the first first.
    pub fn findings(&self) -> &[Finding] {
        &self.diagnosis.findings
    }

    /// What could not be read.
    pub fn missing(&self) -> &[Missing] {
        &self.diagnosis.missing
    }
}

impl BrokerRates {
    /// Counters of a broker that was started anew begin anew.
    fn of(before: &BrokerStatus, after: &BrokerStatus) -> Self {
        let is_same = after.uptime_ns > before.uptime_ns;
        let elapsed_ns = match is_same {
            true => after.uptime_ns - before.uptime_ns,
            false => after.uptime_ns,
        };
        let seconds = (elapsed_ns as f64 / 1e9).max(f64::EPSILON);
        let rate = |of: fn(&BrokerStatus) -> u64| {
            let then = if is_same { of(before) } else { 0 };
            of(after).saturating_sub(then) as f64 / seconds
        };
        let log = after.payload_total_bytes;
        Self {
            connections: after.connections,
            paused_connections: after.backpressured_connections,
            bytes_in_per_s: rate(|it| it.bytes_in),
            bytes_out_per_s: rate(|it| it.bytes_out),
            messages_per_s: rate(|it| it.messages),
            batches_per_s: rate(|it| it.batches),
            refused_per_s: rate(|it| it.refused_batches),
            log_used: (log > 0).then(|| 1.0 - after.payload_free_bytes as f64 / log as f64),
            cpus: rate(|it| it.cpu_ns) / 1e9,
            uptime_s: after.uptime_ns as f64 / 1e9,
        }
    }
}

impl ConnectionRow {
    fn of(connection: &Connection, seconds: f64) -> Self {
        let sender = connection.sender.as_ref();
        Self {
            broker: connection.broker,
            client: match connection.to_subscriber {
                true => "reads",
                false => "publishes",
            },
            bytes_per_s: sender.map(|it| it.sent_bytes as f64 / seconds),
            round_trip_us: sender.map(|it| it.round_trip_s * 1e6),
            window_full: sender.map(|it| it.window_full),
            send_buffer_full: sender.map(|it| it.send_buffer_full),
            resent: sender
                .filter(|it| it.sent_bytes > 0)
                .map(|it| it.resent_bytes as f64 / it.sent_bytes as f64),
        }
    }
}

fn topic_rows(topics: &[TopicDescription], before: Option<&Look>, seconds: f64) -> Vec<TopicRow> {
    let row = |it: &TopicDescription| {
        let is_ordered = it.topic.order.is_total();
        let parts = &it.partitions;
        let sum = |of: fn(&Partition) -> u64| -> u64 {
            parts.iter().map(of).fold(0, u64::saturating_add)
        };
        // All brokers count the same positions of an order.
        let most = |of: fn(&Partition) -> u64| parts.iter().map(of).max().unwrap_or(0);
        let (first, next) = match is_ordered {
            true => (
                parts.iter().map(|it| it.first).min().unwrap_or(0),
                most(|it| it.next),
            ),
            false => (sum(|it| it.first), sum(|it| it.next)),
        };
        let then = before.and_then(|look| look.topics.iter().find(|t| t.name == it.topic.name));
        let next_of: BTreeMap<u32, u64> = parts.iter().map(|it| (it.broker, it.next)).collect();
        let came = |then: &TopicRow| -> u64 {
            let each = next_of.iter().filter_map(|(broker, now)| {
                let then = then.next_of.get(broker)?;
                Some(now.saturating_sub(*then))
            });
            match is_ordered {
                true => next.saturating_sub(then.next),
                false => each.fold(0, u64::saturating_add),
            }
        };
        TopicRow {
            name: it.topic.name.clone(),
            order: it.topic.order.level(),
            brokers: parts.iter().filter(|it| it.batches > 0).count(),
            first,
            next,
            bytes: sum(|it| it.payload_bytes),
            // A topic that was deleted and created anew counts anew.
            messages_per_s: then.map(|then| came(then) as f64 / seconds),
            next_of,
        }
    };
    let mut rows: Vec<TopicRow> = topics.iter().map(row).collect();
    let busy = |it: &TopicRow| it.messages_per_s.unwrap_or(0.0);
    rows.sort_by(|a, b| {
        let by_rate = busy(b).total_cmp(&busy(a));
        by_rate.then_with(|| a.name.cmp(&b.name))
    });
    rows
}

fn stages(observed: &embar_diagnose::Observed, seconds: f64) -> Vec<StageRow> {
    let publishers = observed
        .publisher
        .iter()
        .filter_map(|it| it.profile.as_ref());
    let subscribers = observed
        .subscriber
        .iter()
        .filter_map(|it| it.profile.as_ref());
    let brokers = observed.brokers.iter().filter_map(|it| {
        let profile = it.profile.as_ref()?;
        Some((format!("broker {}", it.id), profile))
    });
    let all = publishers
        .map(|it| ("publishers".to_owned(), it))
        .chain(brokers)
        .chain(subscribers.map(|it| ("subscribers".to_owned(), it)));
    let mut rows = Vec::new();
    for (of, profile) in all {
        for stage in profile.stages.iter().filter(|it| it.count > 0) {
            rows.push(StageRow {
                of: of.clone(),
                stage: stage.name.clone(),
                share: stage.total_ns as f64 / 1e9 / seconds,
                times_per_s: stage.count as f64 / seconds,
                avg_ns: stage.total_ns as f64 / stage.count as f64,
            });
        }
    }
    rows
}

#[cfg(test)]
impl Look {
    /// Of no cluster.
    pub fn for_tests() -> Self {
        Self {
            ended: Instant::now(),
            seconds: 1.0,
            head: 0,
            sequencer: Some(0),
            brokers: Vec::new(),
            topics: Vec::new(),
            unlisted: None,
            connections: Vec::new(),
            stages: Vec::new(),
            diagnosis: diagnose(&embar_diagnose::Observed::default()),
            cores: 2,
            busy: 0.4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uptime_s: u64, bytes_in: u64) -> BrokerStatus {
        BrokerStatus {
            uptime_ns: uptime_s * 1_000_000_000,
            bytes_in,
            payload_total_bytes: 1000,
            payload_free_bytes: 250,
            ..BrokerStatus::default()
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let rates = BrokerRates::of(&status(10, 1000), &status(12, 5000));
        assert!((rates.bytes_in_per_s - 2000.0).abs() < 1e-9);
        assert_eq!(rates.log_used, Some(0.75));
        let none = BrokerRates::of(&status(10, 1000), &status(10, 1000));
        assert!(none.bytes_in_per_s.is_finite());
    }

    #[test]
    fn a_broker_that_tells_again_has_not_taken_all_at_once() {
        let part = |broker, next| Partition {
            broker,
            next,
            ..Partition::default()
        };
        let topic = |partitions| TopicDescription {
            partitions,
            ..TopicDescription::default()
        };
        let look = |partitions, before: Option<&Look>| Look {
            topics: topic_rows(&[topic(partitions)], before, 1.0),
            ..Look::for_tests()
        };
        let all = look(vec![part(0, 1000), part(1, 5000)], None);
        let one = look(vec![part(0, 1010)], Some(&all));
        assert_eq!(one.topics[0].messages_per_s, Some(10.0));
        let again = look(vec![part(0, 1020), part(1, 5000)], Some(&one));
        assert_eq!(again.topics[0].messages_per_s, Some(10.0));
    }

    #[test]
    fn a_broker_that_was_started_anew_counts_anew() {
        let rates = BrokerRates::of(&status(1000, 1 << 40), &status(4, 400));
        assert!((rates.bytes_in_per_s - 100.0).abs() < 1e-9, "{rates:?}");
    }
}
