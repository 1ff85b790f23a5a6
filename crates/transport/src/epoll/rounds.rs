//! One round of the reactor: it tries each connection and listener that is ready once, and hands
//! the operations that are over to its user.

use embar_memory::Mapped;
use rustix::event::epoll::{self, EventData};

use super::{Entry, Epoll};
use crate::{Completion, Token};

/// After so many bytes of sockets, those that flood wait for the next round. Copying them takes the kernel about 0.1 ms.
const BYTES_PER_ROUND: u64 = 512 * 1024;

impl Epoll {
    pub(super) fn deliver_done(&mut self, out: &mut Vec<Completion<Mapped>>) {
        self.outstanding -= self.done.iter().filter(|it| it.carries_buffer()).count();
        out.append(&mut self.done);
    }

    /// Tries what is ready, each once: all that do not flood or that the kernel told of since the last round, and of the
    /// others so many as move [`BYTES_PER_ROUND`]. The rest is first in the next round, and there is
    /// a rest only if something is over: who hears of nothing knows that all was tried.
    pub(super) fn run_round(&mut self, out: &mut Vec<Completion<Mapped>>) {
        let before = out.len();
        std::mem::swap(&mut self.ready, &mut self.round);
        let mut moved = 0;
        let mut told = std::mem::take(&mut self.told);
        for token in told.drain(..) {
            moved += self.try_once(token, out);
        }
        self.told = told;

        let mut round = std::mem::take(&mut self.round);
        let mut tried = 0;
        // One at least, however much the others moved.
        while tried < round.len() && (tried == 0 || moved < BYTES_PER_ROUND || out.len() == before)
        {
            moved += self.try_once(round[tried], out);
            tried += 1;
        }
        round.drain(..tried);
        if !round.is_empty() {
            round.append(&mut self.ready);
            std::mem::swap(&mut self.ready, &mut round);
        }
        self.round = round;
    }

    /// How many bytes a socket moved by it.
    fn try_once(&mut self, token: Token, out: &mut Vec<Completion<Mapped>>) -> u64 {
        match self.entries.get_mut(token) {
            // Closed since it was queued.
            None => {}
            Some(Entry::Listener(_)) => self.run_listener(token, out),
            Some(Entry::Stream(connection)) => {
                connection.queued = false;
                if connection.shm().is_some() {
                    self.run_shm(token, out);
                } else if connection.connecting {
                    self.finish_connect(token, out);
                } else {
                    let (before, moved) = (out.len(), self.counters.bytes_moved());
                    out.extend(connection.try_recv(token, &mut self.counters));
                    out.extend(connection.try_send(token, &mut self.counters));
                    self.outstanding -= out.len() - before;
                    if connection.changes_interest() {
                        // The kernel looks at once whether there is room by now.
                        let data = EventData::new_u64(token.bits());
                        let interest = connection.interest();
                        let _ = epoll::modify(&self.epoll, &*connection.stream, data, interest);
                    }
                    return self.counters.bytes_moved() - moved;
                }
            }
        }
        0
    }

    fn run_listener(&mut self, token: Token, out: &mut Vec<Completion<Mapped>>) {
        let Some(Entry::Listener(listener)) = self.entries.get_mut(token) else {
            return;
        };
        listener.queued = false;
        if listener.is_ready() {
            listener.accept_some(token, &mut self.counters, &mut self.rests, out);
        }
        self.queue(token);
    }

    fn finish_connect(&mut self, token: Token, out: &mut Vec<Completion<Mapped>>) {
        let Some(Entry::Stream(connection)) = self.entries.get_mut(token) else {
            return;
        };
        let Some(result) = connection.try_finish_connect() else {
            return;
        };
        let failed = result.is_err();
        out.push(Completion::Connected { token, result });
        if !failed {
            self.queue(token);
        } else if let Some(Entry::Stream(connection)) = self.entries.remove(token) {
            self.abort(token, connection);
        }
    }

    /// Puts `token` into the next round, if trying it may get anywhere.
    pub(super) fn queue(&mut self, token: Token) {
        if self.begins_to_wait(token) {
            self.ready.push(token);
        }
    }

    /// The same for one of which something was asked: unless it floods, it comes before those that do.
    pub(super) fn queue_asked(&mut self, token: Token) {
        match self.entries.get_mut(token) {
            Some(Entry::Stream(connection)) if !connection.floods() => self.queue_told(token),
            _ => self.queue(token),
        }
    }

    /// The same for one that the kernel told of: it comes before those that have had something to do all the time.
    pub(super) fn queue_told(&mut self, token: Token) {
        if self.begins_to_wait(token) {
            self.told.push(token);
        }
    }

    fn begins_to_wait(&mut self, token: Token) -> bool {
        let (ready, queued) = match self.entries.get_mut(token) {
            None => return false,
            Some(Entry::Listener(listener)) => (listener.is_ready(), &mut listener.queued),
            Some(Entry::Stream(connection)) => (connection.is_ready(), &mut connection.queued),
        };
        ready && !std::mem::replace(queued, true)
    }

    /// Lets listeners try again whose rest is over, or all of them.
    pub(super) fn end_rests(&mut self, all: bool) {
        while let Some(token) = self.rests.next_over(all) {
            if let Some(Entry::Listener(listener)) = self.entries.get_mut(token) {
                listener.end_rest();
            }
            self.queue(token);
        }
    }
}
