//! Who waits for which reply.
//!
//! Replies come in the order of the commands, and commands are sent in the order of their tickets
//! in the send ring; so a ticket names the reply, too. A ticket's slot is its number modulo the
//! number of slots. As at most so many commands are in flight, two of them never share one; but a
//! caller may be slow to take its reply, and then the next one to need the slot puts that reply
//! aside. So a slow caller holds up nobody, and no list of free slots is needed.
//!
//! A slot is behind a lock that two threads at most ever want at the same time.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::CallError;

/// Memory that a slot keeps for its next reply, bytes.
const KEPT_BYTES: usize = 4 << 10;

/// Memory that is asked for before a reply's length is known, at most.
const MOST_EXPECTED: usize = 64 << 10;

/// What a slot is there for at the moment.
enum Phase {
    Free,
    /// The reply is to come.
    Waiting(Option<Waker>),
    /// It is to come, and nobody wants it.
    Unwanted,
    Over(Result<(), CallError>),
}

struct Slot {
    ticket: u32,
    /// How many commands had the slot, the one that has it now included.
    turn: u64,
    phase: Phase,
    /// Frames of the reply that are to come.
    frames: u32,
    divisible: bool,
    class: u8,
    /// Bytes of the command.
    len: u64,
    /// When it was submitted.
    since: u64,
    /// When the caller gives up.
    deadline: u64,
    reply: Vec<u8>,
    /// How long the last reply was whose memory its caller took along.
    taken: usize,
}

/// A command, for its slot.
pub(crate) struct Command {
    pub ticket: u32,
    pub frames: u32,
    pub class: u8,
    pub len: u64,
    pub since: u64,
    pub deadline: u64,
}

/// Names a command for its caller, for ever: tickets begin anew after 2^32 of them, and there may be
/// callers that look at a reply only then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Seat {
    pub ticket: u32,
    turn: u64,
}

/// What is known of the oldest command in flight.
pub(crate) struct Oldest {
    pub since: u64,
    pub deadline: u64,
    pub len: u64,
    /// Somebody waits for it.
    pub wanted: bool,
    /// It is several commands in one, of which the peer may execute the first ones alone.
    pub divisible: bool,
}

/// The reply of a caller that was slow to take it.
struct Aside {
    outcome: Result<(), CallError>,
    reply: Vec<u8>,
}

/// See the module.
pub(crate) struct Slots {
    slots: Box<[Mutex<Slot>]>,
    aside: Mutex<HashMap<Seat, Aside>>,
}

/// Lets the driver add bytes to the reply that is due, without taking the lock for each frame.
pub(crate) struct Due<'a> {
    slot: MutexGuard<'a, Slot>,
    max_reply: usize,
}

impl Slots {
    /// For at most `in_flight` commands, a power of two.
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
                taken: 0,
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

    /// A command is about to be committed; `waker` is told about its reply.
    pub fn expect(&self, command: &Command, waker: Option<Waker>) -> Seat {
        let mut slot = self.slot(command.ticket);
        if let Phase::Over(outcome) = mem::replace(&mut slot.phase, Phase::Waiting(waker)) {
            let reply = mem::take(&mut slot.reply);
            lock(&self.aside).insert(slot.seat(), Aside { outcome, reply });
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
        slot.seat()
    }

    /// Looks for the outcome of a command; `read` sees its reply. Otherwise the task is woken when
    /// there is one.
    pub fn poll<R>(
        &self,
        seat: Seat,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> Poll<Result<R, CallError>> {
        let mut slot = self.slot(seat.ticket);
        if slot.seat() != seat {
            drop(slot);
            let Aside { outcome, mut reply } = lock(&self.aside)
                .remove(&seat)
                .expect("a reply is taken once");
            return Poll::Ready(outcome.map(|()| read(&mut reply)));
        }
        match &mut slot.phase {
            Phase::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                return Poll::Pending;
            }
            Phase::Over(_) => {}
            Phase::Free | Phase::Unwanted => unreachable!("a reply is taken once"),
        }
        let Phase::Over(outcome) = mem::replace(&mut slot.phase, Phase::Free) else {
            unreachable!("matched above");
        };
        if slot.reply.capacity() > KEPT_BYTES {
            // What takes long, or takes the memory along, happens without the lock.
            let mut reply = mem::take(&mut slot.reply);
            slot.taken = reply.len().min(MOST_EXPECTED);
            drop(slot);
            return Poll::Ready(outcome.map(|()| read(&mut reply)));
        }
        let len = slot.reply.len();
        let result = outcome.map(|()| read(&mut slot.reply));
        if slot.reply.capacity() == 0 {
            slot.taken = len;
        }
        Poll::Ready(result)
    }

    /// The caller wants no reply any more.
    pub fn forget(&self, seat: Seat) {
        let mut slot = self.slot(seat.ticket);
        if slot.seat() != seat {
            drop(slot);
            lock(&self.aside).remove(&seat);
            return;
        }
        slot.phase = match mem::replace(&mut slot.phase, Phase::Free) {
            Phase::Waiting(_) | Phase::Unwanted => Phase::Unwanted,
            Phase::Over(_) | Phase::Free => {
                slot.drop_large();
                Phase::Free
            }
        };
    }

    /// The slot of the command whose reply is due; `None` if no such command is in flight.
    pub fn due(&self, ticket: u32, max_reply: usize) -> Option<Due<'_>> {
        let slot = self.slot(ticket);
        let waits = matches!(slot.phase, Phase::Waiting(_) | Phase::Unwanted)
            // Timed out, and its reply still has to come.
            || (slot.frames > 0 && matches!(slot.phase, Phase::Over(_) | Phase::Free));
        (slot.ticket == ticket && waits).then_some(Due { slot, max_reply })
    }

    /// The command whose reply is due, if it is in flight.
    pub fn oldest(&self, ticket: u32) -> Option<Oldest> {
        let slot = self.slot(ticket);
        (slot.ticket == ticket && slot.frames > 0).then(|| Oldest {
            since: slot.since,
            deadline: slot.deadline,
            len: slot.len,
            wanted: matches!(slot.phase, Phase::Waiting(_)),
            divisible: slot.divisible,
        })
    }

    /// A command in flight gets no reply: its caller is told why. With `gone`, none will come.
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
                slot.reply.clear();
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

impl Due<'_> {
    /// More of the reply, which is one frame less to come if these are its last bytes. True: that
    /// was all of it.
    pub fn add(&mut self, bytes: &[u8], complete: bool) -> bool {
        let slot = &mut *self.slot;
        let complete_alone = complete && slot.frames == 1;
        if let Phase::Waiting(waker) = &mut slot.phase {
            if slot.reply.len() + bytes.len() > self.max_reply {
                let waker = waker.take();
                slot.reply = Vec::new();
                slot.phase = Phase::Over(Err(CallError::TooLarge {
                    max: self.max_reply,
                }));
                if let Some(waker) = waker {
                    waker.wake();
                }
            } else {
                if slot.reply.capacity() == 0 && !complete_alone {
                    // Likely as long as the last one: so it need not grow step by step.
                    slot.reply.reserve(slot.taken.max(bytes.len()));
                }
                slot.reply.extend_from_slice(bytes);
            }
        }
        slot.frames -= u32::from(complete);
        slot.frames == 0
    }

    /// All of the reply is there: whom to wake.
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
                self.slot.drop_large();
                None
            }
        }
    }

    /// The class of the command, and when it was submitted.
    pub fn command_class(&self) -> (u8, u64) {
        (self.slot.class, self.slot.since)
    }

    /// Bytes of the command.
    pub fn command_len(&self) -> u64 {
        self.slot.len
    }
}

impl Slot {
    fn seat(&self) -> Seat {
        Seat {
            ticket: self.ticket,
            turn: self.turn,
        }
    }

    fn drop_large(&mut self) {
        if self.reply.capacity() > KEPT_BYTES {
            self.reply = Vec::new();
        }
    }
}

/// What the locks guard is whole after a panic, too.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_its_callers_also_when_tickets_begin_anew() {
        let slots = Slots::new(4);
        let answered = |reply: &[u8]| {
            let command = Command {
                ticket: 5,
                frames: 1,
                class: 0,
                len: 1,
                since: 0,
                deadline: u64::MAX,
            };
            let seat = slots.expect(&command, None);
            let mut due = slots.due(5, 100).expect("in flight");
            assert!(due.add(reply, true));
            assert!(due.end().is_none());
            seat
        };
        let first = answered(b"first");
        // 2^32 commands later.
        let second = answered(b"second");
        let third = answered(b"third");
        let read = |seat| {
            let mut cx = Context::from_waker(Waker::noop());
            slots.poll(seat, &mut cx, |reply| {
                String::from_utf8_lossy(reply).into_owned()
            })
        };
        assert_eq!(read(third), Poll::Ready(Ok("third".to_owned())));
        assert_eq!(read(first), Poll::Ready(Ok("first".to_owned())));
        slots.forget(second);
        assert!(lock(&slots.aside).is_empty());
    }
}
