//! What goes into the core: records that the sequencer took from lanes. And what comes out: actions, each of which the
//! core's driver has to do.

use embar_fabric::{NoticeKind, PbrRecord, SessionOwner, SessionRow};

/// Where a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    /// The broker's row.
    pub row: u16,
    /// Its lane.
    pub lane: u16,
    /// Incarnation of the broker.
    pub incarnation: u32,
    /// The record's number in the lane.
    pub number: u64,
}

/// A record that the sequencer took from a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Where it came from.
    pub source: Source,
    /// What it says.
    pub record: PbrRecord,
}

/// What the driver of the core has to do. It does all actions in the order in which the core gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Append a batch to its chain, at its place in the order.
    Place {
        /// The batch.
        arrival: Arrival,
        /// Position of its first message.
        base: u64,
    },
    /// Store the owner of a session that begins, before the session's row. The next action for this place saves
    /// that row.
    SaveOwner {
        /// The session's place in the table.
        session: u32,
        /// The owner.
        owner: SessionOwner,
    },
    /// Store a session's row before doing anything that follows. The row counts batches that were placed before
    /// it, so their records must be visible to a successor before the row is.
    SaveSession {
        /// The session's place in the table.
        session: u32,
        /// The row, as it is at this point of the order.
        row: SessionRow,
    },
    /// Notify the broker of a record that has no place of the record's outcome.
    Notify {
        /// The record.
        source: Source,
        /// What became of it.
        outcome: Outcome,
    },
}

/// What became of a record that has no place in the order: the content of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// What.
    pub kind: NoticeKind,
    /// Number of the batch that the session expects next, when the session opened or its epoch is over;
    /// else 0.
    pub mark: u64,
    /// The session's epoch, when it opened, or another instance has it; else 0.
    pub session_epoch: u32,
    /// The epoch with which the session began at its place, when it opened; else 0.
    pub first_epoch: u32,
    /// The session's place, when it opened; else 0.
    pub session: u32,
}

impl Outcome {
    /// An outcome that consists of its kind alone.
    pub(crate) fn only(kind: NoticeKind) -> Self {
        Self {
            kind,
            mark: 0,
            session_epoch: 0,
            first_epoch: 0,
            session: 0,
        }
    }

    /// The epoch is over; the next one expects `mark`.
    pub(crate) fn fenced(mark: u64) -> Self {
        Self {
            mark,
            ..Self::only(NoticeKind::Fenced)
        }
    }
}
