//! One call of a client, from before its request leaves until the server has ended it. No I/O: what
//! came goes in, and what is to be done comes out.
//!
//! A slot is free again when both ends have done with it: the server has said that the call is over,
//! and the caller has taken that, or is gone.

use std::collections::VecDeque;
use std::ops::Deref;
use std::task::Waker;
use std::time::Instant;

use embar_session::Kept;

use crate::Status;
use crate::protocol::Credit;

/// Most bytes of a buffer that a slot keeps for the next copy.
const SPARE_BYTES: usize = 4096;
/// Most places for items that a slot keeps for the next stream.
const SPARE_ITEMS: usize = 64;

/// A message that came.
#[derive(Debug)]
pub(super) enum Bytes {
    /// In the receive ring, from this byte of the frame on.
    Kept(Kept, usize),
    /// In a buffer, because too much of the ring was kept.
    Copied(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Kept(kept, start) => &kept[*start..],
            Self::Copied(bytes) => bytes,
        }
    }
}

/// What may be sent to the caller of a stream.
#[derive(Debug, Default)]
struct Window {
    size: Credit,
    /// Items that the server may still send.
    items: u64,
    /// Bytes that it may still send; the last item may exceed them.
    bytes: i64,
    /// What the caller took since the last grant.
    taken: Credit,
}

/// A call's slot.
#[derive(Debug, Default)]
pub(super) struct Slot {
    generation: u32,
    busy: bool,
    stream: bool,
    caller_gone: bool,
    server_done: bool,
    end: Option<Result<Bytes, Status>>,
    items: VecDeque<Bytes>,
    window: Window,
    /// For copies of messages.
    spare: Vec<u8>,
    pub(super) waker: Option<Waker>,
    /// When its caller, a task, is to be woken.
    pub(super) deadline: Option<Instant>,
    /// A CANCEL found no room.
    pub(super) cancel_due: bool,
    /// A CREDIT found no room.
    pub(super) credit_due: bool,
}

/// What follows from what came.
#[derive(Debug)]
pub(super) enum Arrived {
    /// Nobody waits for it: the server has a bug, or is hostile.
    Stray,
    /// The caller is to be woken, if it waits.
    Told(Option<Waker>),
    /// The caller is to be woken, and the server to be told that the call is given up: it broke the
    /// rules.
    Failed(Option<Waker>),
    /// The slot is free.
    Free,
}

/// What came of a look at a stream.
#[derive(Debug)]
pub(super) enum Next {
    /// An item; the credit is for the server.
    Item(Bytes, Option<Credit>),
    /// The end. The slot is free if the second is true.
    End(Result<Bytes, Status>, bool),
    /// Nothing yet.
    Pending,
}

impl Slot {
    /// Begins the next call; gives its generation.
    pub(super) fn open(&mut self, credit: Option<Credit>) -> u32 {
        debug_assert!(!self.busy, "the slot has a call");
        self.generation = self.generation.wrapping_add(1);
        self.busy = true;
        self.caller_gone = false;
        self.server_done = false;
        self.end = None;
        self.cancel_due = false;
        self.credit_due = false;
        self.stream = credit.is_some();
        let size = credit.unwrap_or_default();
        self.window = Window {
            size,
            items: u64::from(size.items),
            bytes: i64::from(size.bytes),
            taken: Credit::default(),
        };
        self.generation
    }

    /// The request did not leave: the slot is free. Gives who was to be woken, to be dropped without the lock of the slot.
    #[must_use]
    pub(super) fn unsent(&mut self) -> Option<Waker> {
        self.end = None;
        let waker = self.waker.take();
        self.close();
        waker
    }

    fn close(&mut self) {
        self.busy = false;
        self.deadline = None;
        self.items.clear();
        self.items.shrink_to(SPARE_ITEMS);
    }

    fn has(&self, generation: u32) -> bool {
        self.busy && !self.server_done && self.generation == generation
    }

    /// A message as it came: where it lies, or a copy in the slot's own buffer.
    pub(super) fn bytes(&mut self, kept: Option<Kept>, content: &[u8], start: usize) -> Bytes {
        match kept {
            Some(kept) => Bytes::Kept(kept, start),
            None => {
                let mut copy = std::mem::take(&mut self.spare);
                copy.clear();
                copy.extend_from_slice(&content[start..]);
                Bytes::Copied(copy)
            }
        }
    }

    /// Takes a buffer back for the next copy, unless it is a large one: each slot may keep one.
    pub(super) fn give_spare(&mut self, spare: Vec<u8>) {
        if (self.spare.capacity()..=SPARE_BYTES).contains(&spare.capacity()) {
            self.spare = spare;
        }
    }

    /// The server ended the call. `stream`: by the frame that ends a stream.
    pub(super) fn ended(
        &mut self,
        generation: u32,
        stream: bool,
        end: impl FnOnce(&mut Self) -> Result<Bytes, Status>,
    ) -> Arrived {
        if !self.has(generation) {
            return Arrived::Stray;
        }
        self.server_done = true;
        if self.caller_gone {
            self.close();
            return Arrived::Free;
        }
        if self.end.is_none() {
            let end = match stream == self.stream {
                true => end(self),
                false => Err(wrong_kind()),
            };
            self.end = Some(end);
        }
        Arrived::Told(self.waker.take())
    }

    /// An item came; `len` bytes count.
    pub(super) fn item(
        &mut self,
        generation: u32,
        len: usize,
        item: impl FnOnce(&mut Self) -> Bytes,
    ) -> Arrived {
        if !self.has(generation) {
            return Arrived::Stray;
        }
        if self.caller_gone || self.end.is_some() {
            // It was on its way when the call was given up.
            return Arrived::Told(None);
        }
        if !self.stream {
            return self.fail(wrong_kind());
        }
        if self.window.items == 0 || self.window.bytes <= 0 {
            return self.fail(Status::internal("the server sent more items than it may"));
        }
        self.window.items -= 1;
        self.window.bytes = self.window.bytes.saturating_sub_unsigned(len as u64);
        let item = item(self);
        self.items.push_back(item);
        Arrived::Told(self.waker.take())
    }

    fn fail(&mut self, status: Status) -> Arrived {
        self.end = Some(Err(status));
        Arrived::Failed(self.waker.take())
    }

    /// The session is over. True: the slot is free.
    pub(super) fn lost(&mut self, status: &Status) -> (bool, Option<Waker>) {
        if !self.busy || self.server_done {
            return (false, None);
        }
        self.server_done = true;
        if self.caller_gone {
            self.close();
            return (true, None);
        }
        self.end.get_or_insert_with(|| Err(status.clone()));
        (false, self.waker.take())
    }

    /// The caller gives up, and has taken its waker. True: the slot is free; else the server is to be told.
    pub(super) fn give_up(&mut self) -> bool {
        self.caller_gone = true;
        self.deadline = None;
        self.items.clear();
        self.end = None;
        if self.server_done {
            self.close();
        }
        self.server_done
    }

    /// The end of a call, once it is there, and whether the slot is free then.
    pub(super) fn take_end(&mut self) -> Option<(Result<Bytes, Status>, bool)> {
        let end = self.end.take()?;
        let free = self.give_up();
        Some((end, free))
    }

    /// The next item of a stream, or its end.
    pub(super) fn next(&mut self) -> Next {
        if let Some(item) = self.items.pop_front() {
            let credit = self.taken(crate::protocol::ITEM_START + item.len());
            return Next::Item(item, credit);
        }
        match self.take_end() {
            Some((end, free)) => Next::End(end, free),
            None => Next::Pending,
        }
    }

    /// The caller took an item: what the server is to be granted now, if anything.
    fn taken(&mut self, bytes: usize) -> Option<Credit> {
        if self.server_done || self.end.is_some() {
            return None;
        }
        let taken = &mut self.window.taken;
        taken.items += 1;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        taken.bytes = taken.bytes.saturating_add(bytes);
        let size = self.window.size;
        let half = |taken: u32, size: u32| taken >= size.div_ceil(2);
        if half(taken.items, size.items) || half(taken.bytes, size.bytes) {
            return Some(self.grant());
        }
        None
    }

    /// What the server is granted for what was taken.
    pub(super) fn grant(&mut self) -> Credit {
        self.credit_due = false;
        let credit = std::mem::take(&mut self.window.taken);
        self.window.items += u64::from(credit.items);
        self.window.bytes = self.window.bytes.saturating_add(i64::from(credit.bytes));
        credit
    }

    /// The grant did not leave.
    pub(super) fn not_granted(&mut self, generation: u32, credit: Credit) {
        if self.has(generation) {
            let window = &mut self.window;
            // Of a server that did not wait for its grant, less may be left.
            window.items = window.items.saturating_sub(credit.items.into());
            window.bytes = window.bytes.saturating_sub(i64::from(credit.bytes));
            window.taken.items += credit.items;
            window.taken.bytes = window.taken.bytes.saturating_add(credit.bytes);
            self.credit_due = true;
        }
    }

    /// The generation of the call that the server still has.
    pub(super) fn under_way(&self) -> Option<u32> {
        (self.busy && !self.server_done).then_some(self.generation)
    }

    /// Copies what lies in the ring and was not taken yet; true if there was something.
    pub(super) fn copy_kept(&mut self) -> bool {
        let mut copied = false;
        let end = self.end.iter_mut().filter_map(|end| end.as_mut().ok());
        for bytes in end.chain(&mut self.items) {
            if let Bytes::Kept(..) = bytes {
                *bytes = Bytes::Copied(bytes.to_vec());
                copied = true;
            }
        }
        copied
    }
}

fn wrong_kind() -> Status {
    Status::internal("the server answered with a frame of another kind")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    const CREDIT: Credit = Credit {
        items: 2,
        bytes: 100,
    };

    fn copied() -> Bytes {
        Bytes::Copied(vec![1; 10])
    }

    fn item(slot: &mut Slot, generation: u32, len: usize) -> Arrived {
        slot.item(generation, len, |_| copied())
    }

    fn end(slot: &mut Slot, generation: u32) -> Arrived {
        let stream = slot.stream;
        slot.ended(generation, stream, |_| Ok(copied()))
    }

    #[test]
    fn only_its_own_reply_ends_a_call_and_once() {
        let mut slot = Slot::default();
        assert!(matches!(end(&mut slot, 0), Arrived::Stray));
        let generation = slot.open(None);
        for other in [generation - 1, generation + 1] {
            assert!(matches!(end(&mut slot, other), Arrived::Stray));
        }
        assert!(matches!(end(&mut slot, generation), Arrived::Told(_)));
        assert!(matches!(end(&mut slot, generation), Arrived::Stray));
        let (reply, free) = slot.take_end().unwrap();
        assert!(reply.is_ok() && free);
        assert!(matches!(end(&mut slot, generation), Arrived::Stray));
        slot.generation = u32::MAX;
        assert_eq!(slot.open(None), 0, "generations wrap");
    }

    #[test]
    fn a_call_that_was_given_up_keeps_its_slot_until_the_server_ends_it() {
        let mut slot = Slot::default();
        let generation = slot.open(None);
        assert!(!slot.give_up());
        assert_eq!(slot.under_way(), Some(generation));
        assert!(matches!(end(&mut slot, generation), Arrived::Free));
        let generation = slot.open(None);
        assert!(matches!(end(&mut slot, generation), Arrived::Told(_)));
        assert!(slot.give_up(), "the reply was there already");
    }

    #[test]
    fn frames_of_the_other_kind_fail_the_call() {
        let mut slot = Slot::default();
        let generation = slot.open(None);
        assert!(matches!(item(&mut slot, generation, 1), Arrived::Failed(_)));
        let (end_, free) = slot.take_end().unwrap();
        assert_eq!(end_.unwrap_err().code(), Code::Internal);
        assert!(!free, "the server still has it");
        assert!(matches!(end(&mut slot, generation), Arrived::Free));
        let generation = slot.open(Some(CREDIT));
        let ended = slot.ended(generation, false, |_| Ok(copied()));
        assert!(matches!(ended, Arrived::Told(_)));
        assert!(slot.take_end().unwrap().0.is_err());
    }

    #[test]
    fn a_server_may_send_what_it_was_granted() {
        let mut slot = Slot::default();
        let generation = slot.open(Some(CREDIT));
        for _ in 0..2 {
            assert!(matches!(item(&mut slot, generation, 20), Arrived::Told(_)));
        }
        let Next::Item(_, Some(credit)) = slot.next() else {
            panic!("half of the window was taken");
        };
        assert_eq!(credit.items, 1);
        slot.not_granted(generation, credit);
        assert!(slot.credit_due);
        assert_eq!(slot.grant(), credit);
        assert!(matches!(item(&mut slot, generation, 20), Arrived::Told(_)));
        assert!(matches!(
            item(&mut slot, generation, 20),
            Arrived::Failed(_)
        ));
        // What came before is delivered.
        assert!(matches!(slot.next(), Next::Item(_, None)));
        assert!(matches!(slot.next(), Next::Item(_, None)));
        assert!(matches!(slot.next(), Next::End(Err(_), false)));
    }

    #[test]
    fn the_last_item_may_exceed_the_bytes_and_no_other() {
        let mut slot = Slot::default();
        let generation = slot.open(Some(CREDIT));
        assert!(matches!(
            item(&mut slot, generation, 5000),
            Arrived::Told(_)
        ));
        assert!(matches!(item(&mut slot, generation, 1), Arrived::Failed(_)));
    }

    #[test]
    fn what_a_slot_keeps_for_the_next_call_is_bounded() {
        let mut slot = Slot::default();
        for bytes in [100, SPARE_BYTES, SPARE_BYTES + 1, 10] {
            slot.give_spare(Vec::with_capacity(bytes));
        }
        assert_eq!(slot.spare.capacity(), SPARE_BYTES);
        let many = Credit {
            items: 10_000,
            bytes: u32::MAX,
        };
        let generation = slot.open(Some(many));
        for _ in 0..many.items {
            item(&mut slot, generation, 1);
        }
        end(&mut slot, generation);
        assert!(slot.give_up());
        assert!(slot.items.capacity() <= 2 * SPARE_ITEMS);
    }

    #[test]
    fn what_is_lost_with_the_session_ends_with_it() {
        let mut slot = Slot::default();
        let lost = Status::unavailable("lost");
        assert!(!slot.lost(&lost).0);
        slot.open(None);
        slot.lost(&lost);
        let (end, free) = slot.take_end().unwrap();
        assert_eq!((end.unwrap_err(), free), (lost.clone(), true));
        slot.open(None);
        slot.give_up();
        assert!(slot.lost(&lost).0, "free");
    }
}
