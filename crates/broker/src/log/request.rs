//! What is asked of the sequencer besides places for batches.

use embar_fabric::records::{PbrKind, PbrRecord};

/// What a session asks of the sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRequest {
    /// To be opened, for the first time or by another connection of the same client.
    Open {
        /// Identity of the publisher.
        producer: u64,
        /// The client's instance.
        instance: u64,
        /// Whether this instance was answered before: then it takes the identity over from nobody.
        resumes: bool,
    },
    /// The next epoch.
    Renew {
        /// Identity of the publisher.
        producer: u64,
        /// The client's instance.
        instance: u64,
        /// The epoch that is over.
        gives_up: u32,
    },
    /// To be closed for good.
    Close {
        /// Identity of the publisher.
        producer: u64,
        /// The session's place.
        session: u32,
        /// Its epoch.
        epoch: u32,
    },
}

impl SessionRequest {
    /// The record that asks for it, but for whom it concerns.
    pub(super) fn record(self) -> PbrRecord {
        match self {
            Self::Open {
                producer,
                instance,
                resumes,
            } => PbrRecord {
                kind: PbrKind::Open as u8,
                producer,
                blog_at: instance,
                // No epoch is given up, and none taken over.
                sequence: if resumes { u64::MAX } else { 0 },
                ..PbrRecord::default()
            },
            Self::Renew {
                producer,
                instance,
                gives_up,
            } => PbrRecord {
                kind: PbrKind::Open as u8,
                producer,
                blog_at: instance,
                sequence: gives_up.into(),
                ..PbrRecord::default()
            },
            Self::Close {
                producer,
                session,
                epoch,
            } => PbrRecord {
                kind: PbrKind::Close as u8,
                producer,
                session,
                session_epoch: epoch,
                ..PbrRecord::default()
            },
        }
    }
}
