//! One call of a server, from its request until its end. No I/O.

use std::task::Waker;
use std::time::Instant;

use crate::Code;
use crate::protocol::Credit;

/// A call's slot. Its caller has the number, and uses it for one call at a time.
#[derive(Debug, Default)]
pub(super) struct Slot {
    generation: u32,
    running: Option<Running>,
    /// Ends that found no room in the ring.
    waiting_ends: u32,
}

/// A call that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) route: usize,
    pub(super) began: Instant,
    pub(super) deadline: Option<Instant>,
    /// Nobody waits for it any more, and why.
    pub(super) given_up: Option<Code>,
    /// Items that the caller takes.
    items: u64,
    /// Bytes that it takes; the last item may exceed them.
    bytes: i64,
    /// Of the task that runs it.
    pub(super) task: Option<Waker>,
    /// Who waits until the caller takes more.
    pub(super) credit_waker: Option<Waker>,
}

/// Who is to be woken.
pub(super) type Wakers = [Option<Waker>; 2];

impl Slot {
    /// Begins a call. None: the slot has one.
    pub(super) fn open(
        &mut self,
        generation: u32,
        route: usize,
        began: Instant,
        deadline: Option<Instant>,
        credit: Credit,
    ) -> Option<()> {
        if self.running.is_some() || self.waiting_ends > 0 {
            return None;
        }
        self.generation = generation;
        self.running = Some(Running {
            route,
            began,
            deadline,
            given_up: None,
            items: credit.items.into(),
            bytes: credit.bytes.into(),
            task: None,
            credit_waker: None,
        });
        Some(())
    }

    /// The call, if it runs.
    pub(super) fn running(&mut self, generation: u32) -> Option<&mut Running> {
        match self.generation == generation {
            true => self.running.as_mut(),
            false => None,
        }
    }

    /// Ends the call.
    pub(super) fn close(&mut self, generation: u32) -> Option<Running> {
        self.running(generation)?;
        self.running.take()
    }

    /// An end of a call in this slot waits for room in the ring. Until it has left, the slot takes no other call: so a
    /// peer that does not read has no more ends waiting than it has slots.
    pub(super) fn end_waits(&mut self) {
        self.waiting_ends += 1;
    }

    /// An end that waited is in the ring.
    pub(super) fn end_left(&mut self) {
        self.waiting_ends -= 1;
    }

    /// The call, whichever it is.
    pub(super) fn any(&mut self) -> Option<&mut Running> {
        self.running.as_mut()
    }
}

impl Running {
    /// Nobody waits for it any more.
    pub(super) fn give_up(&mut self, why: Code) -> Wakers {
        self.given_up.get_or_insert(why);
        self.deadline = None;
        [self.task.take(), self.credit_waker.take()]
    }

    /// The caller takes more; whatever it says, the numbers do not wrap.
    pub(super) fn add_credit(&mut self, credit: Credit) -> Option<Waker> {
        self.items = self.items.saturating_add(credit.items.into());
        self.bytes = self.bytes.saturating_add(credit.bytes.into());
        match self.has_credit() {
            true => self.credit_waker.take(),
            false => None,
        }
    }

    pub(super) fn has_credit(&self) -> bool {
        self.items > 0 && self.bytes > 0
    }

    /// Takes the credit of one item.
    pub(super) fn take_credit(&mut self) -> bool {
        let has = self.has_credit();
        if has {
            self.items -= 1;
        }
        has
    }

    /// The item that credit was taken for was not sent.
    pub(super) fn give_credit_back(&mut self) {
        self.items = self.items.saturating_add(1);
    }

    /// The item that credit was taken for had so many bytes.
    pub(super) fn count_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub_unsigned(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(slot: &mut Slot, generation: u32, credit: Credit) -> Option<()> {
        slot.open(generation, 0, Instant::now(), None, credit)
    }

    #[test]
    fn a_slot_has_one_call_at_a_time() {
        let mut slot = Slot::default();
        assert!(slot.close(0).is_none());
        open(&mut slot, 5, Credit::default()).unwrap();
        assert_eq!(open(&mut slot, 6, Credit::default()), None);
        assert!(slot.running(6).is_none() && slot.close(4).is_none());
        slot.running(5).unwrap().give_up(Code::Cancelled);
        let closed = slot.close(5).unwrap();
        assert_eq!(closed.given_up, Some(Code::Cancelled));
        assert!(slot.close(5).is_none());
        open(&mut slot, 5, Credit::default()).unwrap();
    }

    #[test]
    fn a_slot_is_free_when_its_end_has_left() {
        let mut slot = Slot::default();
        open(&mut slot, 1, Credit::default()).unwrap();
        slot.close(1).unwrap();
        slot.end_waits();
        assert_eq!(open(&mut slot, 2, Credit::default()), None);
        slot.end_left();
        open(&mut slot, 2, Credit::default()).unwrap();
    }

    #[test]
    fn credit_bounds_items_and_bytes_and_never_wraps() {
        let mut slot = Slot::default();
        let credit = Credit {
            items: 2,
            bytes: 10,
        };
        open(&mut slot, 1, credit).unwrap();
        let call = slot.running(1).unwrap();
        assert!(call.take_credit());
        call.count_bytes(30);
        assert!(!call.take_credit(), "its bytes are used up");
        call.add_credit(Credit {
            items: 0,
            bytes: 21,
        });
        assert!(call.take_credit());
        assert!(!call.take_credit(), "its items are used up");
        for _ in 0..5 {
            call.add_credit(Credit {
                items: u32::MAX,
                bytes: u32::MAX,
            });
        }
        (call.items, call.bytes) = (u64::MAX, i64::MAX);
        call.add_credit(credit);
        call.give_credit_back();
        assert!(call.has_credit());
        call.bytes = i64::MIN;
        call.count_bytes(usize::MAX);
        assert!(!call.has_credit());
    }
}
