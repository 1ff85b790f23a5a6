//! STATUS packets: a peer asks for the figures of this process, and may be told them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use buffa::{DecodeOptions, Message as _};
use embar_frame::Now;
use embar_transport::Peer;

use super::group::Group;
use super::session::Session;
use super::stats::{SessionStats, Totals};
use crate::proto;

/// Which peers are told the figures of this process when they ask for them. The others get
/// [`StatusAnswer::Refused`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StatusPolicy {
    /// None.
    #[default]
    Off,
    /// Those on this machine: by Unix sockets, or from a loopback address.
    Local,
    /// All. The figures tell how many sessions there are and how busy they are.
    Everyone,
}

impl StatusPolicy {
    fn allows(self, peer: &Peer) -> bool {
        match self {
            Self::Off => false,
            Self::Local => is_local(peer),
            Self::Everyone => true,
        }
    }
}

/// Whether somebody is on this machine.
fn is_local(peer: &Peer) -> bool {
    match peer {
        Peer::Unix => true,
        Peer::Tcp(address) => address.ip().to_canonical().is_loopback(),
    }
}

/// What a peer says to [`Session::request_status`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatusAnswer {
    /// Its policy is not to tell.
    Refused,
    /// Its figures.
    Given(Box<PeerStatus>),
}

/// The figures of a peer, as it counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerStatus {
    /// Of this session: what it received is what this end sent.
    pub session: SessionStats,
    /// Of all sessions of its server or client; up to a second old.
    pub totals: Totals,
}

/// Totals that are not counted anew for each question, because counting looks at every session.
#[derive(Default)]
pub(super) struct RecentTotals(Mutex<Option<(Now, Totals)>>);

/// How old totals may be.
const RECENT: Duration = Duration::from_secs(1);

impl RecentTotals {
    fn of(group: &Group, now: Now) -> Totals {
        let recent = &group.recent_totals.0;
        let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
        match *recent {
            Some((at, totals)) if now.since(at) < RECENT => totals,
            _ => {
                let totals = group.totals();
                *recent = Some((now, totals));
                totals
            }
        }
    }
}

/// The content of STATUS_REPLY to the peer of `session`.
pub(super) fn reply(session: &Session, now: Now) -> Vec<u8> {
    let group = &session.0.group;
    let mut reply = proto::StatusReply::default();
    if group.settings.status.allows(session.peer()) {
        reply.outcome = proto::StatusOutcome::STATUS_OUTCOME_GIVEN.into();
        reply.session = session_figures(&session.stats()).into();
        reply.process = process_figures(&RecentTotals::of(group, now)).into();
    }
    reply.encode_to_vec()
}

fn session_figures(stats: &SessionStats) -> proto::SessionFigures {
    proto::SessionFigures {
        messages_received: stats.messages_received,
        messages_sent: stats.messages_sent,
        bytes_received: stats.bytes_received,
        bytes_sent: stats.bytes_sent,
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
        };
        Some(Self::Given(Box::new(PeerStatus { session, totals })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_is_this_machine() {
        let peer = |text: &str| Peer::Tcp(text.parse().unwrap());
        for local in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(StatusPolicy::Local.allows(&peer(local)), "{local}");
        }
        assert!(StatusPolicy::Local.allows(&Peer::Unix));
        for far in ["10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"] {
            assert!(!StatusPolicy::Local.allows(&peer(far)), "{far}");
        }
        assert!(!StatusPolicy::default().allows(&Peer::Unix));
    }

    #[test]
    fn nothing_is_a_refusal_and_garbage_is_nothing() {
        assert_eq!(StatusAnswer::read(&[]), Some(StatusAnswer::Refused));
        assert_eq!(StatusAnswer::read(&[0xFF; 10]), None);
    }
}
