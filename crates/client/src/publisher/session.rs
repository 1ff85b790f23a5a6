//! The session of a publisher on a topic with one order over all brokers.
//!
//! A batch gets the session's next number when it is first handed to a connection, and keeps it however often it is
//! sent: the sequencer stores a number once. When it ends the session's epoch, because a number did not come for too
//! long, the next epoch begins at the number that it expects. What has a lower number is stored, and is sent again as it
//! was, to learn where; what has that number or a higher one is not, and is numbered anew.
//!
//! A cluster that loses its memory has another region afterwards, and in it the session as the disks know it: in an older
//! epoch perhaps, at another place, or not at all. It is opened there anew, and goes on at the mark that it has there.
//!
//! Invariants:
//! - A number is open from when it is given until its batch is resolved; at most `window` numbers from the lowest open
//!   one on are given.
//! - A number is given to another batch only after the sequencer said that it is not used, and while no connection
//!   carries it.

use std::collections::VecDeque;

use embar_wire::control::{PublisherOpened, SessionOpened};
use embar_wire::topic::Order;

/// The place of a batch in its session, as its header says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) epoch: u32,
    pub(super) number: u64,
}

/// The change to the next epoch.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// The channel, by index, that was asked for the epoch and has not answered.
    pub(super) asked: Option<usize>,
    pub(super) granted: Option<SessionOpened>,
}

#[derive(Debug)]
pub(super) struct Session {
    order: Order,
    slot: u32,
    /// With which it began there.
    first_epoch: u32,
    epoch: u32,
    window: u64,
    lowest: u64,
    /// From `lowest` on: whether the number is open. The first one is.
    open: VecDeque<bool>,
    renewal: Option<Renewal>,
    /// Nonce of the region in which it was opened last.
    region: u64,
    /// The lowest number that this publisher may have given. Those below were an earlier instance's.
    began: u64,
    /// It was opened anew in its region, with this mark, and has not gone on there.
    reopened_at: Option<u64>,
    /// A region in which another instance had it when this one came.
    held_in: Option<u64>,
    /// From this epoch on numbers mean the batches that they mean now. In earlier ones they were another instance's, or were
    /// given to other batches.
    numbered_in: u32,
    /// Of the region in which it was opened last: whether numbers there mean the same batches.
    means_the_same: bool,
}

impl Session {
    pub(super) fn new(opened: &PublisherOpened, region: u64) -> Self {
        Self {
            order: opened.order,
            slot: opened.session,
            first_epoch: opened.first_epoch,
            epoch: opened.session_epoch,
            window: u64::from(opened.window.max(1)),
            lowest: opened.mark,
            open: VecDeque::new(),
            renewal: None,
            region,
            began: opened.mark,
            reopened_at: None,
            held_in: None,
            numbered_in: opened.session_epoch,
            means_the_same: true,
        }
    }

    pub(super) fn region(&self) -> u64 {
        self.region
    }

    /// Another instance has the session in this region, until this one takes it over.
    pub(super) fn is_held_in(&mut self, region: u64) {
        self.held_in = Some(region);
    }

    /// It was opened in another region. Nothing is numbered before it goes on there.
    pub(super) fn reopen(&mut self, opened: &PublisherOpened, region: u64) {
        // The disks may know this instance in an epoch that it did not publish in: all that is there is another one's then.
        let is_earlier =
            self.first_epoch == opened.first_epoch && opened.session_epoch < self.numbered_in;
        self.means_the_same = !is_earlier;
        self.slot = opened.session;
        self.first_epoch = opened.first_epoch;
        self.epoch = opened.session_epoch;
        self.region = region;
        self.window = u64::from(opened.window.max(1));
        // What was asked, was asked of the region that is lost.
        self.renewal = Some(Renewal::default());
        self.reopened_at = Some(opened.mark);
    }

    pub(super) fn is_reopening(&self) -> bool {
        self.reopened_at.is_some()
    }

    /// The mark with which it was opened anew, before it has gone on there.
    pub(super) fn reopened_at(&self) -> Option<u64> {
        self.reopened_at
    }

    /// Whether another instance used numbers below this mark that are this one's. Who is on the disks as its owner has
    /// batches there, so where another one was, none of this publisher's are.
    pub(super) fn was_used_by_another(&self, mark: u64) -> bool {
        self.is_held_here() && mark > self.began && self.has_given()
    }

    /// Whether another instance had it in this region when this one came: then the disks have nothing of this one.
    pub(super) fn is_held_here(&self) -> bool {
        self.held_in == Some(self.region)
    }

    /// Whether what is stored in the region in which it was opened anew may be of this publisher, by its numbers.
    pub(super) fn means_the_same(&self) -> bool {
        self.means_the_same
    }

    /// Whether its numbers mean the same batches in the region in which it was opened anew, with this mark. Then each is
    /// stored there once if it is sent as it was, those that are stored ahead of the mark, too.
    pub(super) fn keeps_numbers(&self, mark: u64) -> bool {
        // Below the first number of its own nothing can be sent, and the mark would stay there.
        self.means_the_same && mark >= self.began
    }

    /// Of the acknowledged numbers those that are certainly not stored, where batches may be stored ahead of the mark: the
    /// mark itself, and what comes before the lowest open number.
    pub(super) fn acknowledged_at(&self, mark: u64) -> u64 {
        let in_turn = self.lowest.saturating_sub(mark.max(self.began));
        let index = mark.checked_sub(self.lowest);
        let open = index.and_then(|index| self.open.get(index as usize));
        in_turn.max((open == Some(&false)).into())
    }

    /// How many numbers from this one on were acknowledged to this publisher.
    pub(super) fn acknowledged_from(&self, mark: u64) -> u64 {
        let in_turn = self.lowest.saturating_sub(mark.max(self.began));
        let ahead = (self.lowest..).zip(&self.open);
        let ahead = ahead.filter(|(number, open)| *number >= mark && !**open);
        in_turn + ahead.count() as u64
    }

    /// Goes on at the mark with which it was opened anew; no number is open then.
    ///
    /// # Errors
    /// If the mark is above all numbers that were given.
    pub(super) fn go_on_at(&mut self, mark: u64) -> Result<(), String> {
        self.check_mark(mark)?;
        self.began = match self.has_given() {
            true => self.began.min(mark),
            false => mark,
        };
        self.open.clear();
        self.lowest = mark;
        self.numbered_in = self.epoch;
        self.renewal = None;
        self.reopened_at = None;
        Ok(())
    }

    /// Goes on with the numbers that it has, of which those below the mark are stored.
    ///
    /// # Errors
    /// If the mark is above all numbers that were given.
    pub(super) fn keep_numbers_from(&mut self, mark: u64) -> Result<(), String> {
        self.check_mark(mark)?;
        if !self.has_given() {
            (self.began, self.lowest) = (mark, mark);
        }
        while self.lowest < mark && self.open.pop_front().is_some() {
            self.lowest += 1;
        }
        self.renewal = None;
        self.reopened_at = None;
        Ok(())
    }

    /// Whether it gave any number. Without, it goes on wherever another instance was.
    fn has_given(&self) -> bool {
        !self.is_idle() || self.lowest > self.began
    }

    fn check_mark(&self, mark: u64) -> Result<(), String> {
        let given = self.open.len() as u64;
        match mark.saturating_sub(self.lowest) > given && self.has_given() {
            false => Ok(()),
            true => Err(format!(
                "slot {} was opened anew at number {mark}, where {given} numbers from {} on were given",
                self.slot, self.lowest
            )),
        }
    }

    /// The lowest number that is open, or the next one.
    pub(super) fn lowest(&self) -> u64 {
        self.lowest
    }

    /// Whether it is the session that began in this slot with this epoch.
    pub(super) fn is_in(&self, slot: u32, first_epoch: u32) -> bool {
        (self.slot, self.first_epoch) == (slot, first_epoch)
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether a number at or above the mark of a new epoch is certainly not stored. Otherwise batches may be stored
    /// ahead of their turn.
    pub(super) fn is_in_sequence(&self) -> bool {
        self.order == Order::TotalPerPublisher
    }

    /// True if no number is open.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// The next number; `None` while the window is used up, or the epoch is over.
    pub(super) fn give(&mut self) -> Option<Sequence> {
        let given = self.open.len() as u64;
        let number = self.lowest.checked_add(given)?;
        if given >= self.window || self.renewal.is_some() {
            return None;
        }
        self.open.push_back(true);
        let epoch = self.epoch;
        Some(Sequence { epoch, number })
    }

    /// The next number, for a batch that had one: however many the window takes, it is not sent sooner for having none.
    pub(super) fn give_again(&mut self) -> Sequence {
        let number = self.lowest.saturating_add(self.open.len() as u64);
        self.open.push_back(true);
        let epoch = self.epoch;
        Sequence { epoch, number }
    }

    /// The batch with this number is resolved.
    pub(super) fn settle(&mut self, number: u64) {
        let index = number.checked_sub(self.lowest);
        if let Some(open) = index.and_then(|index| self.open.get_mut(index as usize)) {
            *open = false;
        }
        while self.open.pop_front_if(|open| !*open).is_some() {
            self.lowest = self.lowest.saturating_add(1);
        }
    }

    /// The epoch is over: nothing is numbered before there is the next one.
    pub(super) fn end_epoch(&mut self) {
        self.renewal.get_or_insert_default();
    }

    /// The change to the next epoch, if there is one going on.
    pub(super) fn renewal(&mut self) -> Option<&mut Renewal> {
        self.renewal.as_mut()
    }

    pub(super) fn is_renewing(&self) -> bool {
        self.renewal.is_some()
    }

    /// Whether another publisher had the session between this epoch and the granted one, and may have used its numbers.
    /// However often this one asks for an epoch after its own, it is granted the same.
    pub(super) fn was_taken(&self, granted: &SessionOpened) -> bool {
        let is_unused = self.is_idle() && granted.mark == self.lowest;
        u64::from(granted.session_epoch) > u64::from(self.epoch) + 1 && !is_unused
    }

    /// Begins the epoch that was granted; numbers go on at its mark.
    ///
    /// # Errors
    /// If what was granted does not follow from what was acknowledged.
    pub(super) fn renew(&mut self, granted: &SessionOpened) -> Result<(), String> {
        let kept = granted.mark.checked_sub(self.lowest);
        match kept.filter(|kept| *kept <= self.open.len() as u64) {
            Some(kept) if granted.session == self.slot && granted.session_epoch > self.epoch => {
                // A usize was compared with it.
                self.open.truncate(kept as usize);
                self.epoch = granted.session_epoch;
                self.numbered_in = granted.session_epoch;
                self.renewal = None;
                Ok(())
            }
            _ => Err(format!(
                "epoch {} of slot {} was granted from number {} on, after epoch {} of slot {} with {} numbers from {} on",
                granted.session_epoch,
                granted.session,
                granted.mark,
                self.epoch,
                self.slot,
                self.open.len(),
                self.lowest
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(window: u32) -> Session {
        Session::new(&opened(1, 10, window), 77)
    }

    fn opened(session_epoch: u32, mark: u64, window: u32) -> PublisherOpened {
        PublisherOpened {
            order: Order::TotalPerPublisher,
            session: 3,
            session_epoch,
            first_epoch: 1,
            mark,
            window,
            ..PublisherOpened::default()
        }
    }

    fn granted(session_epoch: u32, mark: u64) -> SessionOpened {
        SessionOpened {
            session: 3,
            session_epoch,
            mark,
            first_epoch: 1,
        }
    }

    fn numbers(session: &mut Session) -> Vec<u64> {
        std::iter::from_fn(|| session.give())
            .map(|sequence| sequence.number)
            .collect()
    }

    #[test]
    fn the_lowest_open_number_holds_back_the_window() {
        let mut session = session(3);
        assert_eq!(numbers(&mut session), [10, 11, 12]);
        session.settle(11);
        session.settle(12);
        assert_eq!(session.give(), None, "10 is open");
        session.settle(10);
        assert!(session.is_idle());
        assert_eq!(numbers(&mut session), [13, 14, 15]);
    }

    #[test]
    fn a_new_epoch_goes_on_at_its_mark() {
        let mut session = session(4);
        assert_eq!(numbers(&mut session), [10, 11, 12, 13]);
        session.settle(10);
        session.settle(12);
        session.end_epoch();
        assert_eq!(session.give(), None, "not before the epoch is granted");
        session.renew(&granted(2, 13)).expect("it follows");
        let next = Sequence {
            epoch: 2,
            number: 13,
        };
        assert_eq!(session.give(), Some(next));
        session.settle(11);
        session.settle(13);
        assert!(session.is_idle());
    }

    #[test]
    fn a_new_epoch_above_what_is_resolved_leaves_nothing_open() {
        let mut session = session(4);
        assert_eq!(numbers(&mut session).len(), 4);
        session.settle(11);
        session.settle(10);
        session.end_epoch();
        session.renew(&granted(2, 12)).expect("it follows");
        assert!(session.is_idle());
        assert_eq!(session.give().map(|sequence| sequence.number), Some(12));
    }

    #[test]
    fn in_another_region_it_goes_on_at_the_mark_there_in_the_epoch_there() {
        let mut session = session(4);
        session.end_epoch();
        session.renew(&granted(5, 10)).expect("it follows");
        assert_eq!(numbers(&mut session).len(), 4);
        session.settle(10);
        session.reopen(&opened(2, 12, 4), 78);
        assert_eq!(session.give(), None, "not before it goes on");
        assert_eq!(session.acknowledged_from(12), 0);
        session.go_on_at(12).expect("it was given");
        let next = Sequence {
            epoch: 2,
            number: 12,
        };
        assert_eq!(session.give(), Some(next));
    }

    #[test]
    fn what_was_acknowledged_above_a_mark_is_counted_and_not_what_an_earlier_instance_stored() {
        let mut session = session(8);
        assert_eq!(numbers(&mut session).len(), 8);
        assert_eq!(
            session.acknowledged_from(4),
            0,
            "those below 10 are others'"
        );
        for number in [10, 11, 13] {
            session.settle(number);
        }
        let counted = [4, 11, 12, 14].map(|mark| session.acknowledged_from(mark));
        assert_eq!(counted, [3, 2, 1, 0]);
        assert!(session.go_on_at(19).is_err(), "18 was not given");
    }

    #[test]
    fn what_does_not_follow_is_refused() {
        let mut session = session(4);
        assert_eq!(numbers(&mut session).len(), 4);
        session.settle(10);
        session.end_epoch();
        for wrong in [granted(1, 12), granted(2, 10), granted(2, 15)] {
            assert!(session.renew(&wrong).is_err(), "{wrong:?}");
        }
        assert!(
            session.renew(&granted(2, 14)).is_ok(),
            "all of them are stored"
        );
    }
}
