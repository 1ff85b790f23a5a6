//! Reply slots: which caller waits for which reply.
//!
//! Replies come in the order of the commands, and the driver sends commands in the order of their
//! tickets in the send ring; so a ticket names the reply, too. A ticket's slot is the ticket modulo
//! the number of slots. At most as many commands are in flight as there are slots, so two of them
//! never share one. A caller may be slow to take its reply: then the next command that needs the slot
//! moves that reply aside. So a slow caller delays no other, and there is no list of free slots.
//!
//! A slot has memory only from its command to the reply's taking; `spare_buffers` passes that on.
//!
//! Each slot has a lock that at most two threads ever want at the same time.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::CallError;
use crate::spare_buffers;

/// Most bytes that a slot reserves before it knows a reply's length.
const MAX_EXPECTED_BYTES: usize = 64 << 10;

/// What a slot waits for.
enum Phase {
    Free,
    /// The reply is to come, and its caller wants it.
    Waiting(Option<Waker>),
    /// The reply is to come, and its caller has dropped the call.
    Unwanted,
    /// The outcome waits for its caller.
    Over(Result<(), CallError>),
}

struct Slot {
    ticket: u32,
    /// How many commands have used the slot, this one included.
    turn: u64,
    phase: Phase,
    /// Frames of the reply that are to come.
    frames: u32,
    divisible: bool,
    class: u8,
    /// Bytes of the command.
    len: u64,
    /// When the caller submitted it, in nanoseconds of `clock::now`.
    since: u64,
    /// When the caller gives up, likewise.
    deadline: u64,
    reply: Vec<u8>,
    /// Length of the last reply, or the most that is reserved for the next one.
    last_len: usize,
}

/// What a slot needs to know of a command.
pub(crate) struct Command {
    pub ticket: u32,
    pub frames: u32,
    pub class: u8,
    pub len: u64,
    pub since: u64,
    pub deadline: u64,
}

/// Identifies a command for ever. A ticket alone does not: tickets begin anew after 2^32 of them, and
/// a caller may look at its reply that late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CommandId {
    pub ticket: u32,
    turn: u64,
}

/// A command in flight, as [`ReplySlots::in_flight`] finds it.
pub(crate) struct InFlight {
    pub since: u64,
    pub deadline: u64,
    pub len: u64,
    /// Its caller waits for the reply.
    pub wanted: bool,
    /// It is several commands in one, of which the peer may execute the first ones alone.
    pub divisible: bool,
}

/// A reply whose slot another command needed before its caller took it.
struct AsideReply {
    outcome: Result<(), CallError>,
    reply: Vec<u8>,
}

/// The reply slots of one connection.
pub(crate) struct ReplySlots {
    slots: Box<[Mutex<Slot>]>,
    aside: Mutex<HashMap<CommandId, AsideReply>>,
}

/// The reply that comes next, locked: the driver adds frames to it without taking the lock for each.
pub(crate) struct DueReply<'a> {
    slot: MutexGuard<'a, Slot>,
    max_reply: usize,
}

impl ReplySlots {
    /// Slots for `in_flight` commands at most, a power of two.
    pub fn new(in_flight: usize) -> Self {
        assert!(in_flight.is_power_of_two());
        let slot = |_| {
            Mutex::new(Slot {
                ticket: 0,
                turn: 0,
                phase: Phase::Free,
                frames: 0,
                divisible: false,
                class: 0,
                len: 0,
                since: 0,
                deadline: 0,
                reply: Vec::new(),
                last_len: 0,
            })
        };
        Self {
            slots: (0..in_flight).map(slot).collect(),
            aside: Mutex::default(),
        }
    }

    fn slot(&self, ticket: u32) -> MutexGuard<'_, Slot> {
        lock(&self.slots[ticket as usize & (self.slots.len() - 1)])
    }

    /// Prepares the slot of a command that its caller is about to commit. Its reply wakes `waker`.
    pub fn prepare(&self, command: &Command, waker: Option<Waker>) -> CommandId {
        let mut slot = self.slot(command.ticket);
        if let Phase::Over(outcome) = mem::replace(&mut slot.phase, Phase::Waiting(waker)) {
            let reply = mem::take(&mut slot.reply);
            lock(&self.aside).insert(slot.id(), AsideReply { outcome, reply });
        }
        slot.ticket = command.ticket;
        slot.turn += 1;
        slot.frames = command.frames;
        slot.divisible = command.frames > 1;
        slot.class = command.class;
        slot.len = command.len;
        slot.since = command.since;
        slot.deadline = command.deadline;
        slot.reply.clear();
        if slot.reply.capacity() == 0 {
            slot.reply = spare_buffers::take();
        }
        slot.id()
    }

    /// The outcome of a command, if there is one: `read` sees it and the reply, or what came of it.
    /// Otherwise the outcome will wake the task.
    pub fn poll<R>(
        &self,
        id: CommandId,
        cx: &mut Context<'_>,
        read: impl FnOnce(Result<(), CallError>, &mut Vec<u8>) -> R,
    ) -> Poll<R> {
        let mut slot = self.slot(id.ticket);
        if slot.id() != id {
            drop(slot);
            let AsideReply { outcome, mut reply } = lock(&self.aside)
                .remove(&id)
                .expect("a reply is taken once");
            let result = read(outcome, &mut reply);
            spare_buffers::give(reply);
            return Poll::Ready(result);
        }
        match &mut slot.phase {
            Phase::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                    let before = waker.replace(cx.waker().clone());
                    // Dropping it may end a task, so that happens without the lock.
                    drop(slot);
                    drop(before);
                }
                return Poll::Pending;
            }
            Phase::Over(_) => {}
            Phase::Free | Phase::Unwanted => unreachable!("a reply is taken once"),
        }
        let Phase::Over(outcome) = mem::replace(&mut slot.phase, Phase::Free) else {
            unreachable!("matched above");
        };
        let mut reply = mem::take(&mut slot.reply);
        slot.last_len = reply.len().min(MAX_EXPECTED_BYTES);
        // Reading may take long, so it happens without the lock.
        drop(slot);
        let result = read(outcome, &mut reply);
        spare_buffers::give(reply);
        Poll::Ready(result)
    }

    /// The caller has dropped its call: its reply is thrown away.
    pub fn forget(&self, id: CommandId) {
        let mut slot = self.slot(id.ticket);
        if slot.id() != id {
            drop(slot);
            lock(&self.aside).remove(&id);
            return;
        }
        let before = mem::replace(&mut slot.phase, Phase::Free);
        match before {
            Phase::Waiting(_) | Phase::Unwanted => slot.phase = Phase::Unwanted,
            Phase::Over(_) | Phase::Free => slot.reply = Vec::new(),
        }
        // It may hold a waker, and dropping that may end a task: without the lock.
        drop(slot);
        drop(before);
    }

    /// The slot of the command whose reply is due; `None` if no such command is in flight.
    pub fn due(&self, ticket: u32, max_reply: usize) -> Option<DueReply<'_>> {
        let slot = self.slot(ticket);
        let waits = matches!(slot.phase, Phase::Waiting(_) | Phase::Unwanted)
            // It timed out, and its reply is still to come.
            || (slot.frames > 0 && matches!(slot.phase, Phase::Over(_) | Phase::Free));
        (slot.ticket == ticket && waits).then_some(DueReply { slot, max_reply })
    }

    /// The command with this ticket, if it is in flight.
    pub fn in_flight(&self, ticket: u32) -> Option<InFlight> {
        let slot = self.slot(ticket);
        (slot.ticket == ticket && slot.frames > 0).then(|| InFlight {
            since: slot.since,
            deadline: slot.deadline,
            len: slot.len,
            wanted: matches!(slot.phase, Phase::Waiting(_)),
            divisible: slot.divisible,
        })
    }

    /// Gives a command in flight its error: the waker of its caller, if it waits. `gone` says that
    /// no reply will come any more.
    pub fn fail(&self, ticket: u32, error: CallError, gone: bool) -> Option<Waker> {
        let mut slot = self.slot(ticket);
        if slot.ticket != ticket || slot.frames == 0 {
            return None;
        }
        if gone {
            slot.frames = 0;
        }
        match mem::replace(&mut slot.phase, Phase::Free) {
            Phase::Waiting(waker) => {
                // Frames that came answer the first ones of several commands in one.
                if !slot.divisible {
                    slot.reply.clear();
                }
                slot.phase = Phase::Over(Err(error));
                waker
            }
            Phase::Unwanted if !gone => {
                slot.phase = Phase::Unwanted;
                None
            }
            Phase::Unwanted | Phase::Free => None,
            over @ Phase::Over(_) => {
                slot.phase = over;
                None
            }
        }
    }
}

impl DueReply<'_> {
    /// Adds bytes to the reply; `complete` says that a frame ends with them. True when the reply is
    /// complete. It adds the waker of the caller to `wakers` if that is not to wait for the rest.
    pub fn add(&mut self, bytes: &[u8], complete: bool, wakers: &mut Vec<Waker>) -> bool {
        let slot = &mut *self.slot;
        let complete_alone = complete && slot.frames == 1;
        if let Phase::Waiting(waker) = &mut slot.phase {
            if slot.reply.len() + bytes.len() > self.max_reply {
                wakers.extend(waker.take());
                if !slot.divisible {
                    slot.reply = Vec::new();
                }
                slot.phase = Phase::Over(Err(CallError::TooLarge {
                    max: self.max_reply,
                }));
            } else {
                if slot.reply.is_empty() && !complete_alone {
                    // The reply is likely as long as the last one, so it need not grow step by step.
                    slot.reply.reserve(slot.last_len.max(bytes.len()));
                }
                slot.reply.extend_from_slice(bytes);
            }
        }
        slot.frames -= u32::from(complete);
        slot.frames == 0
    }

    /// Hands the complete reply to its caller: the waker of the caller, if it waits.
    pub fn end(mut self) -> Option<Waker> {
        debug_assert_eq!(self.slot.frames, 0);
        match mem::replace(&mut self.slot.phase, Phase::Free) {
            Phase::Waiting(waker) => {
                self.slot.phase = Phase::Over(Ok(()));
                waker
            }
            over @ Phase::Over(_) => {
                self.slot.phase = over;
                None
            }
            Phase::Unwanted | Phase::Free => {
                self.slot.reply = Vec::new();
                None
            }
        }
    }

    /// Whether the command is several in one.
    #[inline]
    pub fn is_of_several(&self) -> bool {
        self.slot.divisible
    }

    /// Whether the frame that is to come, or the rest of it, is the last one of the reply.
    pub fn is_at_last_frame(&self) -> bool {
        self.slot.frames == 1
    }

    /// The class of the command, and when its caller submitted it.
    pub fn command_class(&self) -> (u8, u64) {
        (self.slot.class, self.slot.since)
    }

    /// Bytes of the command.
    pub fn command_len(&self) -> u64 {
        self.slot.len
    }
}

impl Slot {
    fn id(&self) -> CommandId {
        CommandId {
            ticket: self.ticket,
            turn: self.turn,
        }
    }
}

/// Locks. What the locks guard is whole after a panic, too.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends one more command, whose ticket is this.
    fn submit(slots: &ReplySlots, ticket: u32) -> CommandId {
        let command = Command {
            ticket,
            frames: 1,
            class: 0,
            len: 1,
            since: 0,
            deadline: u64::MAX,
        };
        slots.prepare(&command, None)
    }

    fn answer(slots: &ReplySlots, ticket: u32, reply: &[u8]) {
        let mut due = slots.due(ticket, usize::MAX).expect("in flight");
        assert!(due.add(reply, true, &mut Vec::new()));
        assert!(due.end().is_none());
    }

    fn take(slots: &ReplySlots, id: CommandId) -> usize {
        let mut cx = Context::from_waker(Waker::noop());
        match slots.poll(id, &mut cx, |outcome, reply| (outcome, reply.len())) {
            Poll::Ready((Ok(()), len)) => len,
            other => panic!("there is a reply: {other:?}"),
        }
    }

    /// Bytes of memory for replies: of all slots, and of this thread.
    fn kept_bytes(slots: &ReplySlots) -> (usize, usize) {
        let of_slots = slots.slots.iter().map(|slot| lock(slot).reply.capacity());
        (of_slots.sum(), spare_buffers::bytes_of_thread())
    }

    #[test]
    fn memory_for_replies_follows_the_commands_in_flight() {
        const SLOTS: u32 = 4096;
        let (slots, reply) = (ReplySlots::new(SLOTS as usize), [b'v'; 4096]);
        let one_by_one = |from: u32, count: u32| {
            for ticket in from..from + count {
                let id = submit(&slots, ticket);
                answer(&slots, ticket, &reply);
                assert_eq!(take(&slots, id), reply.len());
            }
        };
        one_by_one(0, 100_000);
        assert_eq!(kept_bytes(&slots), (0, reply.len()));
        // All at once.
        let burst = 100_000..100_000 + SLOTS;
        let ids: Vec<_> = burst.clone().map(|ticket| submit(&slots, ticket)).collect();
        burst.for_each(|ticket| answer(&slots, ticket, &reply));
        let all = SLOTS as usize * reply.len();
        assert_eq!(kept_bytes(&slots), (all, 0));
        ids.into_iter().for_each(|id| {
            take(&slots, id);
        });
        assert_eq!(kept_bytes(&slots), (0, spare_buffers::MAX_THREAD_BYTES));
        // Two windows: in the first one the burst ended.
        one_by_one(200_000, 2 * spare_buffers::WINDOW);
        assert_eq!(kept_bytes(&slots), (0, reply.len()));
    }

    #[test]
    fn what_nobody_takes_keeps_no_memory() {
        let slots = ReplySlots::new(4);
        let (before, after) = (submit(&slots, 0), submit(&slots, 1));
        slots.forget(before);
        answer(&slots, 0, b"late");
        answer(&slots, 1, b"unread");
        slots.forget(after);
        assert_eq!(kept_bytes(&slots).0, 0);
    }

    #[test]
    fn each_caller_gets_its_own_reply_when_tickets_begin_anew() {
        let slots = ReplySlots::new(4);
        let answered = |reply: &[u8]| {
            let command = Command {
                ticket: 5,
                frames: 1,
                class: 0,
                len: 1,
                since: 0,
                deadline: u64::MAX,
            };
            let id = slots.prepare(&command, None);
            let mut due = slots.due(5, 100).expect("in flight");
            assert!(due.add(reply, true, &mut Vec::new()));
            assert!(due.end().is_none());
            id
        };
        let first = answered(b"first");
        // 2^32 commands later.
        let second = answered(b"second");
        let third = answered(b"third");
        let read = |id| {
            let mut cx = Context::from_waker(Waker::noop());
            slots.poll(id, &mut cx, |outcome, reply| {
                outcome.map(|()| String::from_utf8_lossy(reply).into_owned())
            })
        };
        assert_eq!(read(third), Poll::Ready(Ok("third".to_owned())));
        assert_eq!(read(first), Poll::Ready(Ok("first".to_owned())));
        slots.forget(second);
        assert!(lock(&slots.aside).is_empty());
    }
}
