//! The figures of all servers and clients that an admin watches, collected at one time, and as
//! JSON.

use std::cmp::Reverse;

use serde_json::{Map, Value, json};

use crate::runtime::registry::Monitor;
use crate::{RateLimit, Refusal, Session, SessionStats, Totals};

/// The figures of all that an admin watches, at one time.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) groups: Vec<GroupReport>,
}

/// One server or client.
#[derive(Debug)]
pub(super) struct GroupReport {
    pub(super) name: String,
    pub(super) totals: Totals,
    /// Over all sessions, bytes that wait to be sent.
    pub(super) queued_bytes: u64,
    pub(super) closed: Vec<(&'static str, u64)>,
    pub(super) refused: Vec<(Refusal, u64)>,
    pub(super) limited: Vec<(RateLimit, u64)>,
    /// The busiest sessions, in the order in which they were made.
    pub(super) sessions: Vec<SessionReport>,
    /// How many others there are.
    pub(super) left_out: usize,
}

/// One session.
#[derive(Debug)]
pub(super) struct SessionReport {
    pub(super) id: u64,
    pub(super) peer: String,
    pub(super) stats: SessionStats,
}

impl Report {
    /// With the `detailed` busiest sessions of all.
    pub(super) fn new(watched: &[(String, Monitor)], detailed: usize) -> Self {
        let mut busiest = Vec::new();
        let mut groups = Vec::new();
        for (index, (name, monitor)) in watched.iter().enumerate() {
            let totals = monitor.totals();
            let sessions = monitor.sessions();
            let mut queued_bytes = 0;
            for session in &sessions {
                let stats = session.stats();
                queued_bytes += stats.queued_bytes as u64;
                let bytes = stats.bytes_received + stats.bytes_sent;
                busiest.push((Reverse(bytes), index, session.clone(), stats));
            }
            groups.push(GroupReport {
                name: name.clone(),
                totals,
                queued_bytes,
                closed: monitor.closed_by_reason(),
                refused: monitor.refused_by_reason(),
                limited: monitor.limited_by_rate(),
                left_out: sessions.len(),
                sessions: Vec::new(),
            });
        }
        let key = |entry: &(Reverse<u64>, usize, Session, SessionStats)| (entry.0, entry.2.id());
        if detailed < busiest.len() {
            if detailed > 0 {
                busiest.select_nth_unstable_by_key(detailed, key);
            }
            busiest.truncate(detailed);
        }
        busiest.sort_by_key(|(_, _, session, _)| session.id());
        for (_, index, session, stats) in busiest {
            let group = &mut groups[index];
            group.left_out -= 1;
            group.sessions.push(SessionReport {
                id: session.id().get(),
                peer: session.peer().to_string(),
                stats,
            });
        }
        Self { groups }
    }

    /// For people and scripts.
    pub(super) fn json(&self) -> String {
        let groups: Vec<Value> = self.groups.iter().map(GroupReport::json).collect();
        format!("{:#}\n", json!({ "groups": groups }))
    }
}

impl GroupReport {
    fn json(&self) -> Value {
        let totals = &self.totals;
        let closed: Map<String, Value> = self
            .closed
            .iter()
            .map(|(reason, count)| ((*reason).to_owned(), json!(count)))
            .collect();
        let refused: Map<String, Value> = self
            .refused
            .iter()
            .map(|(refusal, count)| (refusal.name().to_owned(), json!(count)))
            .collect();
        let limited: Map<String, Value> = self
            .limited
            .iter()
            .map(|(limit, count)| (limit.name().to_owned(), json!(count)))
            .collect();
        let sessions: Vec<Value> = self.sessions.iter().map(SessionReport::json).collect();
        json!({
            "name": self.name,
            "open": totals.sessions,
            "opened": totals.opened,
            "closed": totals.closed,
            "closed_by_reason": closed,
            "arrivals": totals.arrivals,
            "refused": totals.refused,
            "refused_by_reason": refused,
            "limited_by_rate": limited,
            "left_early": totals.left_early,
            "listening": totals.listening,
            "adopted": totals.adopted,
            "redirected": totals.redirected,
            "idle_kicks": totals.idle_kicks,
            "malformed": totals.malformed,
            "handler_panics": totals.panics,
            "received_messages": totals.messages_received,
            "sent_messages": totals.messages_sent,
            "received_bytes": totals.bytes_received,
            "sent_bytes": totals.bytes_sent,
            "queued_bytes": self.queued_bytes,
            "budget_used_bytes": totals.budget_used_bytes,
            "budget_limit_bytes": totals.budget_limit_bytes,
            "sessions": sessions,
            "sessions_left_out": self.left_out,
        })
    }
}

impl SessionReport {
    fn json(&self) -> Value {
        let stats = &self.stats;
        json!({
            "id": self.id,
            "peer": self.peer,
            "age_seconds": stats.age.as_secs_f64(),
            "round_trip_seconds": stats.round_trip.map(|time| time.as_secs_f64()),
            "received_messages": stats.messages_received,
            "sent_messages": stats.messages_sent,
            "received_bytes": stats.bytes_received,
            "sent_bytes": stats.bytes_sent,
            "reads": stats.reads,
            "writes": stats.writes,
            "times_full": stats.times_full,
            "missed_broadcasts": stats.missed_broadcasts,
            "waited_for_room_seconds": stats.waited_for_room.as_secs_f64(),
            "queued_bytes": stats.queued_bytes,
            "kept_bytes": stats.kept_bytes,
        })
    }
}
