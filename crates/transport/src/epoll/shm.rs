//! Streams by shared memory in the reactor: which of them it looks at in each round, and which wake it.
//!
//! A stream is *hot* while something is outstanding on it and it was busy of late: then each round looks at it, by a load or
//! two. Before the reactor sleeps it asks the peers of all hot streams to wake it, looks once more, and lets them cool. So
//! streams that are idle cost nothing, however many there are, and a busy pair makes no system calls.

use std::io::ErrorKind;

use embar_memory::Mapped;
use embar_meter::clock::ticks;

use super::connection::Connection;
use super::{Entry, Epoll};
use crate::shm::{Shm, settle};
use crate::{Completion, IoCounters, Stream, Token};

/// Streams by shared memory. What they do is counted as calls, although there are none, but only if it gets anywhere.
impl Connection {
    /// Receives what is there, if a receive is outstanding.
    pub(super) fn shm_recv(
        &mut self,
        token: Token,
        counters: &mut IoCounters,
    ) -> Option<Completion<Mapped>> {
        let Stream::Shm(shm) = &*self.stream else {
            return None;
        };
        let pending = self.recv.as_mut()?;
        let before = ticks();
        if let Some((least, most)) = pending.buf.takes_lent()
            && let Some(bytes) = shm.try_recv_lent(least, most)
        {
            let count = bytes.len();
            pending.buf.become_lent(bytes);
            pending.ticks += ticks().saturating_sub(before);
            counters.recv_calls += 1;
            counters.recv_bytes += count as u64;
            counters.lent_bytes += count as u64;
            return Some(self.recv.take()?.received(token, Ok(count)));
        }
        let witness = pending.buf.witness();
        let (first, second) = pending.buf.spaces();
        let result = shm.try_recv(first, second, witness.as_deref());
        if matches!(&result, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            return None;
        }
        pending.ticks += ticks().saturating_sub(before);
        counters.recv_calls += 1;
        if let Ok(count) = result {
            counters.recv_bytes += count as u64;
            pending.buf.advance(count);
            if witness.is_some() {
                pending.buf.has_been_seen();
            }
        }
        Some(self.recv.take()?.received(token, result))
    }

    /// Sends as much as there is room for, if a send is outstanding. A peer that is to be woken for it is added to `to_wake`.
    pub(super) fn shm_send(
        &mut self,
        token: Token,
        counters: &mut IoCounters,
        to_wake: &mut Vec<Token>,
    ) -> Option<Completion<Mapped>> {
        let Stream::Shm(shm) = &*self.stream else {
            return None;
        };
        let pending = self.send.as_mut()?;
        let before = ticks();
        let result = shm.try_send(&mut pending.buf);
        if matches!(&result, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            return None;
        }
        pending.ticks += ticks().saturating_sub(before);
        counters.send_calls += 1;
        if let Ok((count, wakes)) = result {
            if wakes {
                to_wake.push(token);
            }
            counters.send_bytes += count as u64;
            if pending.buf.remaining() > 0 {
                let some = u64::from(count > 0);
                counters.send_partial += some;
                counters.send_eagain += 1 - some;
                if count == 0 || !pending.buf.goes_in_steps() {
                    return None;
                }
            }
        }
        Some(self.send.take()?.sent(token, result.map(drop)))
    }
}

impl Connection {
    fn doze(&mut self) {
        let (news, room) = (self.recv.is_some(), self.send.is_some());
        if let Some(shm) = self.shm() {
            shm.doze(news, room);
        }
        self.heat.dozes = true;
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.heat.dozes)
            && let Some(shm) = self.shm()
        {
            shm.wake();
        }
    }

    /// Whether an outstanding operation may get anywhere.
    #[inline]
    fn stirs(&self) -> bool {
        let (news, room) = (self.recv.is_some(), self.send.is_some());
        self.shm().is_some_and(|shm| shm.stirs(news, room))
    }

    fn has_work(&self) -> bool {
        self.recv.is_some() || self.send.is_some()
    }
}

impl Epoll {
    /// One round of a stream by shared memory: hears what woke it, goes on with the greeting, tries what is outstanding.
    pub(super) fn run_shm(&mut self, token: Token, out: &mut Vec<Completion<Mapped>>) {
        let Some(Entry::Stream(connection)) = self.entries.get_mut(token) else {
            return;
        };
        connection.wake();
        let Some(shm) = connection.shm() else { return };
        if connection.may_read && shm.is_linked() {
            let heard = shm.hear();
            // No other edge comes for the end.
            connection.may_read = heard && connection.eager;
            connection.eager &= heard;
        }
        if connection.connecting {
            self.finish_shm_connect(token, out);
            return;
        }
        let linked = connection.shm().is_some_and(Shm::is_linked);
        let before = out.len();
        out.extend(connection.shm_recv(token, &mut self.counters));
        out.extend(connection.shm_send(token, &mut self.counters, &mut self.to_wake));
        self.outstanding -= out.len() - before;
        let greets = connection.shm().is_some_and(|shm| !shm.is_linked());
        if greets {
            // The rest of the hello raises an edge.
            connection.may_read = false;
        } else if !linked {
            // What came behind the hello raised its edge before.
            connection.may_read = true;
        }
        connection.heat.idle = true;
        if connection.has_work() && !greets {
            self.heat(token);
        }
        self.queue(token);
    }

    fn finish_shm_connect(&mut self, token: Token, out: &mut Vec<Completion<Mapped>>) {
        let Some(Entry::Stream(connection)) = self.entries.get_mut(token) else {
            return;
        };
        let result = match connection.shm().map_or(Ok(true), Shm::greet) {
            Ok(false) => {
                connection.may_read = false;
                return;
            }
            Ok(true) => {
                connection.connecting = false;
                connection.may_read = true;
                Ok(())
            }
            Err(error) => Err(error),
        };
        let failed = result.is_err();
        out.push(Completion::Connected { token, result });
        if !failed {
            self.queue(token);
        } else if let Some(Entry::Stream(connection)) = self.entries.remove(token) {
            self.abort(token, connection);
        }
    }

    fn heat(&mut self, token: Token) {
        if let Some(Entry::Stream(connection)) = self.entries.get_mut(token)
            && !std::mem::replace(&mut connection.heat.hot, true)
        {
            self.hot.push(token);
        }
    }

    /// Looks at the hot streams, and tries those that stir.
    #[inline]
    pub(super) fn try_hot(&mut self, out: &mut Vec<Completion<Mapped>>) {
        let mut at = 0;
        while let Some(&token) = self.hot.get(at) {
            match self.entries.get_mut(token) {
                Some(Entry::Stream(connection)) if connection.has_work() => {
                    if connection.stirs() {
                        let before = out.len();
                        out.extend(connection.shm_recv(token, &mut self.counters));
                        out.extend(connection.shm_send(
                            token,
                            &mut self.counters,
                            &mut self.to_wake,
                        ));
                        self.outstanding -= out.len() - before;
                    }
                    at += 1;
                }
                Some(Entry::Stream(connection)) => {
                    connection.heat.hot = false;
                    self.hot.swap_remove(at);
                }
                // Closed since.
                _ => {
                    self.hot.swap_remove(at);
                }
            }
        }
        if !self.to_wake.is_empty() {
            self.wake_peers();
        }
    }

    /// Wakes those peers that sleep although this round published something for them. All that it published is seen by
    /// those that are awake before the first of these calls.
    #[cold]
    fn wake_peers(&mut self) {
        for token in self.to_wake.drain(..) {
            // One that was closed since has woken its peer by that.
            if let Some(Entry::Stream(connection)) = self.entries.get_mut(token)
                && let Some(shm) = connection.shm()
            {
                shm.ring();
            }
        }
    }

    /// Asks the peers of all hot streams to wake this side. False: something came meanwhile, and is to be tried first.
    pub(super) fn doze(&mut self) -> bool {
        if self.hot.is_empty() {
            return true;
        }
        for &token in &self.hot {
            if let Some(Entry::Stream(connection)) = self.entries.get_mut(token) {
                connection.doze();
            }
        }
        settle();
        let stirs = self.hot.iter().any(|&token| {
            let connection = self.entries.get(token);
            matches!(connection, Some(Entry::Stream(connection)) if connection.stirs())
        });
        for &token in &self.hot {
            if let Some(Entry::Stream(connection)) = self.entries.get_mut(token) {
                if stirs {
                    connection.wake();
                } else {
                    connection.heat.hot = false;
                }
            }
        }
        if !stirs {
            std::mem::swap(&mut self.hot, &mut self.cooled);
            self.hot.clear();
        }
        !stirs
    }

    /// Looks again at the streams that the latest sleep let cool, so that their peers need not ring.
    pub(super) fn heat_again(&mut self) {
        let mut cooled = std::mem::take(&mut self.cooled);
        for token in cooled.drain(..) {
            if let Some(Entry::Stream(connection)) = self.entries.get_mut(token)
                && connection.has_work()
            {
                connection.wake();
                self.heat(token);
            }
        }
        self.cooled = cooled;
    }
}
