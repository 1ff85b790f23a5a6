//! What the core knows of one session, and how that goes into the session's rows in shared memory and out of them.

use embar_fabric::{Secret, SessionOwner, SessionRow};

use crate::protocol::Progress;

/// A place in the session table: one cache line, so that a batch of a session that was not seen for
/// a while costs one miss.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(crate) struct Session {
    /// Identity of the publisher.
    pub producer: u64,
    /// How far it is.
    pub progress: Progress,
    /// When it last said something, on the lease clock.
    pub active: u64,
    /// Place of its chain.
    pub chain: u32,
    /// The current epoch. It stays when the session goes: the epochs of a place only grow, so that a
    /// record of an earlier session here can never be taken for one of a later session.
    pub epoch: u32,
    /// The epoch with which this session began here.
    pub first_epoch: u32,
    /// Batches held.
    pub held: u32,
    /// Whether there is a session here.
    pub in_use: bool,
    /// Whether the current epoch is over, without a next one.
    pub fenced: bool,
}

const _: () = assert!(size_of::<Session>() == 64);

/// The owner of a session: what the core does not need for batches.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owner {
    /// Whoever knows it may ask in the session's name.
    pub secret: Secret,
    /// The client's instance.
    pub instance: u64,
    /// Where it was opened from.
    pub peer: u32,
}

impl Session {
    /// The session's row, given the chain's number and order level.
    pub fn row(&self, owner: &Owner, chain: u32, order: u8) -> SessionRow {
        let mut row = SessionRow {
            producer: self.producer,
            instance: owner.instance,
            chain,
            epoch: self.epoch,
            first_epoch: self.first_epoch,
            in_use: self.in_use.into(),
            fenced: self.fenced.into(),
            order: order.into(),
            ..SessionRow::default()
        };
        set_progress(&mut row, &self.progress);
        row
    }

    /// The owner's row, which is stored beside the session's.
    pub fn owner_row(&self, owner: &Owner) -> SessionOwner {
        SessionOwner {
            secret: owner.secret,
            first_epoch: self.first_epoch,
            peer: owner.peer,
            ..SessionOwner::default()
        }
    }

    /// The row of a place without a session.
    pub fn free_row(&self) -> SessionRow {
        SessionRow {
            epoch: self.epoch,
            ..SessionRow::default()
        }
    }
}

/// How far a session was when its row was made.
pub(crate) fn progress(row: &SessionRow) -> Progress {
    let bits = u128::from_le_bytes(row.ordered);
    Progress {
        mark: row.expected,
        detail: [bits as u64, (bits >> 64) as u64],
    }
}

/// Makes a row say how far its session is.
pub(crate) fn set_progress(row: &mut SessionRow, progress: &Progress) {
    row.expected = progress.mark;
    let [low, high] = progress.detail.map(u64::to_le_bytes);
    row.ordered[..8].copy_from_slice(&low);
    row.ordered[8..].copy_from_slice(&high);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_how_far_a_session_is() {
        let session = Session {
            progress: Progress {
                mark: 7,
                detail: [1 << 63 | 1, 2],
            },
            in_use: true,
            ..Session::default()
        };
        let row = session.row(&Owner::default(), 3, 5);
        assert_eq!(progress(&row), session.progress);
        assert_eq!((row.chain, row.order, row.in_use), (3, 5, 1));
        assert_eq!(
            u128::from_le_bytes(row.ordered),
            2 << 64 | 1 << 63 | 1,
            "bits are counted from the lowest byte on"
        );
    }
}
