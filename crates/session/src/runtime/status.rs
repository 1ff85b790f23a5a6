//! STATUS frames: a peer asks for the figures of this process, and gets them if the policy allows
//! it.

use std::time::Duration;

use buffa::{DecodeOptions, Message as _};

use super::stats::{SessionStats, Totals};
use crate::proto;

/// A peer's answer to [`Session::request_status`](crate::Session::request_status).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatusAnswer {
    /// Its [`StatusPolicy`](crate::StatusPolicy) does not allow this end to see its figures.
    Refused,
    /// Its figures.
    Given(Box<PeerStatus>),
}

/// The figures of a peer, as it counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Of this session: what it received is what this end sent.
    pub session: SessionStats,
    /// Of all sessions of its server or client; up to a second old.
    pub totals: Totals,
}

/// The content of STATUS_REPLY: `figures` of the session and of its process, or a refusal.
pub(super) fn reply(figures: Option<(SessionStats, Totals)>) -> Vec<u8> {
    let mut reply = proto::StatusReply::default();
    if let Some((session, totals)) = figures {
        reply.outcome = proto::StatusOutcome::STATUS_OUTCOME_GIVEN.into();
        reply.session = session_figures(&session).into();
        reply.process = process_figures(&totals).into();
    }
    reply.encode_to_vec()
}

fn session_figures(stats: &SessionStats) -> proto::SessionFigures {
    proto::SessionFigures {
        messages_received: stats.messages_received,
        messages_sent: stats.messages_sent,
        bytes_received: stats.bytes_received,
        bytes_sent: stats.bytes_sent,
        reads: stats.reads,
        writes: stats.writes,
        times_full: stats.times_full,
        missed_broadcasts: stats.missed_broadcasts,
        waited_for_room_ns: nanos(stats.waited_for_room),
        queued_bytes: stats.queued_bytes as u64,
        kept_bytes: stats.kept_bytes as u64,
        round_trip_ns: stats.round_trip.map_or(0, nanos),
        age_ns: nanos(stats.age),
    }
}

fn process_figures(totals: &Totals) -> proto::ProcessFigures {
    proto::ProcessFigures {
        sessions: totals.sessions,
        opened: totals.opened,
        closed: totals.closed,
        refused: totals.refused,
        idle_kicks: totals.idle_kicks,
        malformed: totals.malformed,
        panics: totals.panics,
        messages_received: totals.messages_received,
        messages_sent: totals.messages_sent,
        bytes_received: totals.bytes_received,
        bytes_sent: totals.bytes_sent,
        arrivals: totals.arrivals,
        left_early: totals.left_early,
        listening: totals.listening,
        adopted: totals.adopted,
        redirected: totals.redirected,
        budget_used_bytes: totals.budget_used_bytes,
        budget_limit_bytes: totals.budget_limit_bytes,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl StatusAnswer {
    /// `None` for what is no such answer.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let options = DecodeOptions::new()
            .with_unknown_field_limit(64)
            .with_element_memory_limit(0)
            .with_recursion_limit(4);
        let reply: proto::StatusReply = options.decode_from_slice(body).ok()?;
        if reply.outcome != proto::StatusOutcome::STATUS_OUTCOME_GIVEN {
            return Some(Self::Refused);
        }
        let (its, all) = (&reply.session, &reply.process);
        let bytes = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let session = SessionStats {
            messages_received: its.messages_received,
            messages_sent: its.messages_sent,
            bytes_received: its.bytes_received,
            bytes_sent: its.bytes_sent,
            reads: its.reads,
            writes: its.writes,
            times_full: its.times_full,
            missed_broadcasts: its.missed_broadcasts,
            waited_for_room: Duration::from_nanos(its.waited_for_room_ns),
            queued_bytes: bytes(its.queued_bytes),
            kept_bytes: bytes(its.kept_bytes),
            round_trip: Some(its.round_trip_ns)
                .filter(|&nanos| nanos > 0)
                .map(Duration::from_nanos),
            age: Duration::from_nanos(its.age_ns),
        };
        let totals = Totals {
            sessions: all.sessions,
            opened: all.opened,
            closed: all.closed,
            refused: all.refused,
            idle_kicks: all.idle_kicks,
            malformed: all.malformed,
            panics: all.panics,
            messages_received: all.messages_received,
            messages_sent: all.messages_sent,
            bytes_received: all.bytes_received,
            bytes_sent: all.bytes_sent,
            arrivals: all.arrivals,
            left_early: all.left_early,
            listening: all.listening,
            adopted: all.adopted,
            redirected: all.redirected,
            budget_used_bytes: all.budget_used_bytes,
            budget_limit_bytes: all.budget_limit_bytes,
        };
        Some(Self::Given(Box::new(PeerStatus { session, totals })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_a_refusal_and_garbage_is_nothing() {
        assert_eq!(StatusAnswer::read(&[]), Some(StatusAnswer::Refused));
        assert_eq!(StatusAnswer::read(&[0xFF; 10]), None);
    }
}
