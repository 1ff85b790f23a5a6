//! Rebuilds the core of a new sequencer from the rows and records that its predecessor left. Also drops what belongs to
//! older incarnations of brokers and to deleted chains.

use embar_fabric::{GoiRecord, NoticeKind, SessionOwner, SessionRow};

use super::Core;
use crate::action::{Action, Outcome};
use crate::chains::NoChain;
use crate::protocol;
use crate::session::{self, Owner, Session};

/// Why a row or a chain that a predecessor left cannot be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// There is no such place in the session table.
    #[error(
        "the session table has no place {session}: start with at least as many sessions as before"
    )]
    NoPlace {
        /// The place.
        session: u32,
    },
    /// A session without an epoch.
    #[error(
        "the session at place {session} has no epoch: the region is damaged; discard it with --fresh"
    )]
    NoEpoch {
        /// The place.
        session: u32,
    },
    /// There is no such order level, or the chain has another.
    #[error(
        "chain {chain} cannot have order {order}: the region is damaged; discard it with --fresh"
    )]
    Order {
        /// The chain.
        chain: u32,
        /// The order level.
        order: u16,
    },
    /// There are more chains than the limit says.
    #[error(
        "too many chains, {chain} is one more: start with a limit that is at least as high as before"
    )]
    Chains {
        /// The chain.
        chain: u32,
    },
}

impl Core {
    /// The place `session` of the table was as `row` says, and `owner` owned the session in it. An owner of another
    /// session means that the row's session was given up, and its place is free. To be called once for each place,
    /// by place, before anything is replayed or arrives. No row counts as saved by that: the successor stores all
    /// rows in a table of its own, also those of free places with an epoch.
    ///
    /// # Panics
    /// When there is a session at the place.
    pub fn restore_session(
        &mut self,
        session: u32,
        row: &SessionRow,
        owner: &SessionOwner,
    ) -> Result<(), RestoreError> {
        let it = self.sessions.get_mut(session);
        let it = it.ok_or(RestoreError::NoPlace { session })?;
        assert!(!it.in_use, "a place is restored once");
        it.epoch = row.epoch;
        if row.in_use == 0 {
            return Ok(());
        }
        if row.epoch == 0 {
            return Err(RestoreError::NoEpoch { session });
        }
        if row.first_epoch != owner.first_epoch {
            return Ok(());
        }
        // A deposed predecessor that goes on while its rows are read may close a session whose row was read
        // already, and open it at another place. It could notify no broker of that.
        if self.sessions.find(row.chain, row.producer).is_some() {
            return Ok(());
        }
        let it = Session {
            producer: row.producer,
            progress: session::progress(row),
            active: self.clock.now(),
            chain: self.restored_chain(row.chain, row.order)?,
            epoch: row.epoch,
            first_epoch: row.first_epoch,
            held: 0,
            in_use: true,
            fenced: row.fenced != 0,
        };
        let owner = Owner {
            secret: owner.secret,
            instance: row.instance,
            peer: owner.peer,
        };
        self.sessions.put(session, row.chain, it, owner);
        Ok(())
    }

    /// The chain goes on at position `next`, or above it when it is known to.
    pub fn restore_chain(&mut self, chain: u32, order: u8, next: u64) -> Result<(), RestoreError> {
        let place = self.restored_chain(chain, order.into())?;
        if let Some(chain) = self.chains.at_mut(place) {
            chain.next = chain.next.max(next);
        }
        Ok(())
    }

    fn restored_chain(&mut self, chain: u32, order: u16) -> Result<u32, RestoreError> {
        let level = u8::try_from(order).map_err(|_| RestoreError::Order { chain, order })?;
        self.chains.place(chain, level).map_err(|no| match no {
            NoChain::Order => RestoreError::Order { chain, order },
            NoChain::Full => RestoreError::Chains { chain },
        })
    }

    /// The predecessor placed a batch of a chain that was restored. To be called for all records of the chain that
    /// are there, by position, after all sessions were restored. A record that a session's row counts already
    /// changes nothing.
    pub fn replay(&mut self, chain: u32, record: &GoiRecord) {
        let place = self.chains.find(chain);
        let chain = place.and_then(|place| self.chains.at_mut(place));
        let (Some(place), Some(chain)) = (place, chain) else {
            return;
        };
        chain.next = chain.next.max(record.end());
        let Some(session) = self.sessions.get_mut(record.session) else {
            return;
        };
        // A row is saved before its epoch is announced: a batch of another epoch is of an older one.
        let same = session.in_use
            && session.chain == place
            && session.producer == record.producer
            && session.epoch == record.session_epoch;
        if same && !chain.protocol.is_placed(&session.progress, record.sequence) {
            chain.protocol.place(&mut session.progress, record.sequence);
        }
    }

    /// The driver wrote a row back: one of [`Core::session_row`] or of a [`Action::SaveSession`].
    pub fn saved(&mut self, session: u32, row: &SessionRow) {
        self.sessions.set_saved(session, row);
    }

    /// Whether a successor that sees the last saved row of this record's session, but not the record, knows all
    /// that it needs of it.
    pub fn is_covered(&self, record: &GoiRecord) -> bool {
        let Some(row) = self.sessions.saved(record.session) else {
            return true;
        };
        if row.epoch != record.session_epoch || row.in_use == 0 {
            return row.epoch >= record.session_epoch;
        }
        let protocol = u8::try_from(row.order).ok().and_then(protocol::of_order);
        protocol.is_none_or(|it| it.is_placed(&session::progress(row), record.sequence))
    }

    /// A broker came back: the core forgets the batches of its incarnations below `older_than` that wait for a
    /// predecessor, and answers none. They were never acknowledged, and their publishers send them again.
    pub fn drop_incarnation(&mut self, row: u16, older_than: u32) {
        let (sessions, gaps, now) = (&mut self.sessions, &mut self.gaps, self.clock.now());
        self.held.retain(|arrival| {
            let source = &arrival.source;
            if source.row != row || source.incarnation >= older_than {
                return true;
            }
            let session = sessions.at(arrival.record.session);
            session.held -= 1;
            if session.held == 0 {
                session.active = now;
                gaps.end(arrival.record.session);
            }
            false
        });
    }

    /// A chain was deleted: the core drops it with its sessions, and refuses what they hold.
    pub fn drop_chain(&mut self, chain: u32, out: &mut Vec<Action>) {
        self.shrink_chain(chain, usize::MAX, out);
    }

    /// As [`Core::drop_chain`], but drops at most `most` sessions, and the chain with the last of them. Returns how
    /// many it dropped.
    pub fn shrink_chain(&mut self, chain: u32, most: usize, out: &mut Vec<Action>) -> usize {
        let going = self.sessions.of_chain(chain, most);
        for session in &going {
            self.notify_held(*session, Outcome::only(NoticeKind::UnknownSession), out);
            self.sessions.remove(*session, chain);
            self.save(*session, out);
        }
        if self.sessions.of_chain(chain, 1).is_empty() {
            self.chains.remove(chain);
        }
        going.len()
    }
}
