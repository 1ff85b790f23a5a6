//! One round of the reactor: it tries each connection and listener that is ready once, and hands
//! the operations that are over to its user.

use embar_memory::Mapped;
use rustix::event::epoll::{self, EventData};

use super::{Entry, Epoll};
use crate::{Completion, Token};

impl Epoll {
    pub(super) fn deliver_done(&mut self, out: &mut Vec<Completion<Mapped>>) {
        self.outstanding -= self.done.iter().filter(|it| it.carries_buffer()).count();
        out.append(&mut self.done);
    }

    /// Tries everything that is ready, once.
    pub(super) fn run_round(&mut self, out: &mut Vec<Completion<Mapped>>) {
        std::mem::swap(&mut self.ready, &mut self.round);
        let mut round = std::mem::take(&mut self.round);
        for token in round.drain(..) {
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
                        let before = out.len();
                        out.extend(connection.try_recv(token, &mut self.counters));
                        out.extend(connection.try_send(token, &mut self.counters));
                        self.outstanding -= out.len() - before;
                        if connection.changes_interest() {
                            // The kernel looks at once whether there is room by now.
                            let data = EventData::new_u64(token.bits());
                            let interest = connection.interest();
                            let _ = epoll::modify(&self.epoll, &*connection.stream, data, interest);
                        }
                    }
                }
            }
        }
        self.round = round;
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
        let (ready, queued) = match self.entries.get_mut(token) {
            None => return,
            Some(Entry::Listener(listener)) => (listener.is_ready(), &mut listener.queued),
            Some(Entry::Stream(connection)) => (connection.is_ready(), &mut connection.queued),
        };
        if ready && !*queued {
            *queued = true;
            self.ready.push(token);
        }
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
