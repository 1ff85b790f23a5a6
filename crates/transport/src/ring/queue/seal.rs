//! The end of a queue: a state in which no range is anybody's, and none will ever be.

use super::{CORKED, Queue, SENDING, pack, unpack};
use crate::ring::sync::{Ordering, fence};

impl Queue {
    /// Closes the queue, and seals it as soon as no range is reserved and nobody sends: now, or by the
    /// [`Queue::gave_up`] of whoever was the last. Once true, it is so for ever: no range is given to anybody, and no
    /// run. True for one caller.
    pub(in crate::ring) fn seal(&self) -> bool {
        self.close();
        let mut wanted = self.seal_wanted.fetch_add(1, Ordering::Relaxed) + 1;
        // Partner of the fences below and in `gave_up`: whoever has the right to send, and lets the attempt fail, sees
        // the addition once it gave that up.
        fence(Ordering::SeqCst);
        loop {
            if self.try_seal() {
                return true;
            }
            // Whoever came in vain while we had the right is seen here.
            fence(Ordering::SeqCst);
            let now = self.seal_wanted.load(Ordering::Relaxed);
            if now == wanted {
                return false;
            }
            wanted = now;
        }
    }

    /// For whoever dropped a range, or gave the right to send up: true if that sealed the queue.
    pub(in crate::ring) fn gave_up(&self) -> bool {
        // Partner of the first fence in `seal`: either that call finds what was given up, or this one sees that it came.
        fence(Ordering::SeqCst);
        self.is_seal_wanted() && self.seal()
    }

    /// For whoever committed and found the right to send free: whether nobody is to send any more.
    #[inline]
    pub(in crate::ring) fn is_seal_wanted(&self) -> bool {
        // Relaxed: a commit that comes before the attempt to seal is found by that. A later one reads `state` as that
        // attempt left it, and so sees what came before.
        self.seal_wanted.load(Ordering::Relaxed) != 0
    }

    fn try_seal(&self) -> bool {
        // Acquire, by both: the bytes that the last sender read were read before.
        if !self.acquire(SENDING, u64::MAX) && !self.take_cork() {
            return false;
        }
        // The right to send is kept for ever, unless a range is reserved.
        while !self.refuse_all() {
            if self.release_right() {
                return false;
            }
            // Somebody committed or dropped a range meanwhile, and left the rest to us.
        }
        true
    }

    /// Takes the right that `cork` took, whose owner is gone.
    fn take_cork(&self) -> bool {
        let mut state = self.state.0.load(Ordering::Relaxed);
        while state & CORKED != 0 {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let taken =
                self.state
                    .0
                    .compare_exchange_weak(state, state & !CORKED, order.0, order.1);
            match taken {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// For the sender: has the queue look full for ever, if nothing is reserved.
    fn refuse_all(&self) -> bool {
        let (done, _) = unpack(self.tail.0.load(Ordering::Relaxed));
        let full = done.wrapping_add(self.slots.len() as u32);
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            // Acquire: partner of the release in `abandon`.
            let sealed = self.head.0.compare_exchange_weak(
                head,
                pack(full, unpack(head).1),
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match sealed {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let (next, end) = unpack(head);
        let mut ticket = done;
        while ticket != next {
            // It acquires what the owner of the range wrote.
            if self.outcome(ticket).is_none() {
                // Where the queue is full indeed, the newest range may have been undone meanwhile.
                let order = (Ordering::Release, Ordering::Relaxed);
                let back = self
                    .head
                    .0
                    .compare_exchange(pack(full, end), head, order.0, order.1);
                debug_assert!(back.is_ok() || full == next, "a full queue gives nothing");
                return false;
            }
            ticket = ticket.wrapping_add(1);
        }
        true
    }
}
