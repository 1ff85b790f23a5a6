//! How messages get into the outbox, and from there into the ring of a connection.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use embar_session::{OnFull, SendError, Side};

use super::{Ack, Gate, Inner, Link, Stall};
use crate::outbox::{MESSAGE_HEADER_BYTES, OutboxError};
use crate::schedule::must_not_block;
use crate::state::End;
use crate::wire::{Control, RESERVED_ID, code};

/// How long a sender waits before it looks itself: others give bytes back without a word.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Link {
    /// Waits by the policy until a message of `len` bytes is taken.
    pub(crate) fn make_room<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        id: u16,
        len: usize,
    ) -> Result<MutexGuard<'a, Inner>, SendError> {
        if id >= RESERVED_ID {
            return Err(SendError::ReservedId { id });
        }
        loop {
            if inner.gate != Gate::Open || inner.kill.is_some() {
                return Err(SendError::Closed);
            }
            match inner.reserve(len) {
                Ok(()) => {
                    inner.stall.take_if(|stall| stall.left == 0);
                    return Ok(inner);
                }
                Err(OutboxError::TooLong { max }) => {
                    let max = u32::try_from(max).unwrap_or(u32::MAX);
                    return Err(SendError::TooLong { bytes: len, max });
                }
                Err(_) => inner = self.at_full(inner, len)?,
            }
        }
    }

    #[cold]
    fn at_full<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        len: usize,
    ) -> Result<MutexGuard<'a, Inner>, SendError> {
        let timeout = match self.replay.on_full {
            OnFull::Wait { timeout } if !must_not_block() => timeout,
            OnFull::Close => {
                self.kill_in(&mut inner, End::Full);
                return Err(SendError::Full);
            }
            _ => return Err(SendError::Full),
        };
        let now = Instant::now();
        let half = inner.outbox.len() / 2;
        let stall = inner.stall.get_or_insert(Stall {
            since: now,
            left: half,
        });
        let left = timeout.saturating_sub(now - stall.since);
        if left.is_zero() {
            return Err(SendError::Full);
        }
        let wait = match inner.outbox.has_room(len) {
            // It is the budget, or the sessions without a connection, that have no room.
            true => left.min(LOOK_AGAIN),
            false => left,
        };
        inner.waiting += 1;
        let waited = self.room.wait_timeout(inner, wait);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inner.waiting -= 1;
        Ok(inner)
    }

    /// Takes a message for which there is room, and sends it if it can leave.
    pub(crate) fn put(
        &self,
        inner: &mut Inner,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendError> {
        let taken = inner.outbox.append(id, len, fill);
        taken.map_err(|_| SendError::Encoding)?;
        self.count(inner, MESSAGE_HEADER_BYTES + len);
        match self.flush(inner) {
            // The peer takes none of this length: it is as if it had never been sent.
            Err(error) if inner.outbox.unwritten() == 1 => {
                inner.outbox.take_back();
                Err(error)
            }
            Err(error) => {
                self.end_unsendable(inner, error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Gives the connection what it takes.
    ///
    /// # Errors
    /// The next message can never leave by this connection.
    fn flush(&self, inner: &mut Inner) -> Result<(), SendError> {
        let Inner {
            outbox,
            connection,
            held,
            due,
            gate,
            ..
        } = inner;
        let Some(connection) = connection else {
            return Ok(());
        };
        while connection.room.is_none() && !*held {
            let Some((id, content)) = outbox.next_unwritten() else {
                break;
            };
            match connection.give(id, content) {
                Ok(()) => outbox.wrote(),
                Err(SendError::Full) => break,
                Err(SendError::Closed | SendError::NotOpen) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let all_written = outbox.unwritten() == 0;
        let is_closing = *gate == Gate::Closing;
        if is_closing && all_written && !outbox.is_empty() && !connection.asked {
            connection.asked = true;
            due.answer = true;
        }
        // No message comes behind what is said now.
        let is_last = all_written || *held;
        let may = |ack: &Ack| is_last || outbox.has_written(ack.behind);
        let left = due.left && all_written;
        let beside = is_last && (due.answer || due.leaving || left);
        let latest = self.ack_behind(outbox.next_number());
        let ack = due.ack.filter(may).or(beside.then_some(latest));
        if let Some(ack) = ack {
            let said = connection.say(Control {
                received: if is_last { latest } else { ack }.received,
                answer: beside && due.answer,
                leaving: beside && due.leaving,
                left,
            });
            if said {
                let more = due.more && !is_last;
                due.ack = more.then_some(latest);
                due.more = false;
                due.answer &= !beside;
                due.leaving &= !beside;
                due.left &= !left;
            }
        }
        if is_closing && outbox.is_empty() {
            connection.session.close();
        }
        Ok(())
    }

    /// As [`Link::flush`], where nobody waits for an error: the session ends.
    pub(super) fn flush_or_end(&self, inner: &mut Inner) {
        if let Err(error) = self.flush(inner) {
            self.end_unsendable(inner, error);
        }
    }

    /// A message was taken while there was no connection, and the peer of this one does not take it.
    #[cold]
    pub(super) fn end_unsendable(&self, inner: &mut Inner, error: SendError) {
        let end = End::Refused {
            by: Side::Local,
            code: code::UNSENDABLE,
            text: error.to_string(),
        };
        self.kill_in(inner, end);
    }

    /// So many messages wait no more.
    pub(super) fn acknowledged(&self, inner: &mut Inner, count: u64) {
        if count == 0 {
            return;
        }
        if let Some(stall) = &mut inner.stall {
            stall.left = stall.left.saturating_sub(count);
            if stall.left == 0 {
                inner.stall = None;
            }
        }
        self.wake_waiting(inner);
    }

    /// To notify nobody is a system call, too.
    pub(super) fn wake_waiting(&self, inner: &Inner) {
        if inner.waiting > 0 {
            self.room.notify_all();
        }
    }
}

impl Inner {
    fn reserve(&mut self, len: usize) -> Result<(), OutboxError> {
        self.outbox.reserve(len)?;
        match &self.suspended {
            Some(suspended) if !suspended.has_room(MESSAGE_HEADER_BYTES + len) => {
                Err(OutboxError::Full)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::settings::Replay;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_waits_for_a_peer_that_leaves_waits_no_more() {
        let replay = Replay::default().with(|it| {
            it.max_messages = 1;
            it.on_full = OnFull::Wait { timeout: LONG * 60 };
        });
        let link = Arc::new(Link::new(1, replay, Arc::default()));
        let send = |link: &Link| {
            let mut inner = link.make_room(link.lock(), 1, 0)?;
            link.put(&mut inner, 1, 0, |_| ())
        };
        send(&link).unwrap();
        let waiting = Arc::clone(&link);
        let (result, sent) = channel();
        thread::spawn(move || result.send(send(&waiting)));
        while link.lock().waiting == 0 {
            thread::yield_now();
        }
        let leaving = Control {
            leaving: true,
            ..Control::default()
        };
        assert!(link.control(0, leaving).is_ok());
        assert_eq!(sent.recv_timeout(LONG), Ok(Err(SendError::Closed)));
    }
}
