//! What goes into the core, and what comes out.

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

/// A record that was taken from a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Where it came from.
    pub source: Source,
    /// What it says.
    pub record: PbrRecord,
}

/// What is to be done. Whoever drives the core does it in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A batch has its place.
    Place {
        /// The batch.
        arrival: Arrival,
        /// Position of its first message.
        base: u64,
    },
    /// Whose the session is that begins with the row saved next: it is to be written back before that.
    Own {
        /// The session's place in the table.
        session: u32,
        /// Whose it is.
        owner: SessionOwner,
    },
    /// A session's row is to be written back before anything that follows. It counts batches that
    /// were placed before it, so their records must be visible to a successor before the row is.
    Save {
        /// The session's place in the table.
        session: u32,
        /// The row, as it is at this point of the order.
        row: SessionRow,
    },
    /// A record has no place, and its broker is to be told why, or that its session is open.
    Tell {
        /// The record.
        source: Source,
        /// What became of it.
        told: Told,
    },
}

/// What became of a record that has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// What.
    pub kind: NoticeKind,
    /// The session's place, when it opened; else 0.
    pub session: u32,
    /// The session's epoch, when it opened, or another instance has it; else 0.
    pub session_epoch: u32,
    /// The epoch with which the session began at its place, when it opened; else 0.
    pub first_epoch: u32,
    /// Number of the batch that is expected next, when the session opened or its epoch is over;
    /// else 0.
    pub mark: u64,
}

impl Told {
    /// A notice that says nothing but what became of the record.
    pub(crate) fn only(kind: NoticeKind) -> Self {
        Self {
            kind,
            session: 0,
            session_epoch: 0,
            first_epoch: 0,
            mark: 0,
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
