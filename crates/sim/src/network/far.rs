//! The broker's side of the network.

#[cfg(test)]
mod tests;

use std::io;

use embar_memory::Simulated;
use embar_transport::{RecvBuf, SendBuf, Token};

use super::connection::{Connection, FarState};
use super::pipe::End;
use super::{FarEvent, Id, Network};

impl Network {
    /// The broker of a row listens from now on.
    pub fn broker_up(&mut self, row: u16, incarnation: u32) {
        self.listening.insert(row, incarnation);
    }

    /// The broker of a row is dead; all of its buffers are dropped here.
    pub fn broker_died(&mut self, row: u16, now: u64) {
        self.listening.remove(&row);
        let ids: Vec<Id> = self
            .connections
            .iter()
            .filter(|(_, c)| c.row == row)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            // A peer may hear of it at once, or when the host is back.
            let at = self.soon(now) + self.random.below(300_000_000);
            let Some(c) = self.connections.get_mut(&id) else {
                continue;
            };
            (c.far.recv, c.far.send) = (None, None);
            if c.far.state != FarState::Absent {
                c.far.state = FarState::Gone;
                c.down.sever(at, &mut self.random);
            }
            self.sweep(id);
        }
    }

    fn of(&mut self, token: Token) -> Option<&mut Connection> {
        let c = self.connections.get_mut(&(token.index() as Id))?;
        (c.far.state == FarState::Open(token)).then_some(c)
    }

    /// The broker wants bytes.
    pub fn broker_recv(&mut self, token: Token, buf: RecvBuf<Simulated>) {
        let c = self.connections.get_mut(&(token.index() as Id));
        if let Some(c) = c {
            assert!(c.far.recv.is_none(), "one receive at a time");
            c.far.recv = Some(buf);
            c.far.recalled = false;
        }
    }

    /// The broker takes back what it receives into.
    pub fn broker_recall(&mut self, token: Token) {
        if let Some(c) = self.of(token) {
            c.far.recalled |= c.far.recv.is_some();
        }
    }

    /// The broker sends bytes.
    pub fn broker_send(&mut self, token: Token, buf: SendBuf<Simulated>) {
        let c = self.connections.get_mut(&(token.index() as Id));
        if let Some(c) = c {
            assert!(c.far.send.is_none(), "one send at a time");
            c.far.send = Some(buf);
        }
    }

    /// The broker sends nothing more.
    pub fn broker_shutdown(&mut self, token: Token, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.of(token) {
            c.down.finish(at);
        }
    }

    /// The broker closes.
    pub fn broker_close(&mut self, token: Token, now: u64) {
        let at = self.soon(now);
        let mut random = self.random.fork();
        if let Some(c) = self.of(token) {
            c.far.state = FarState::Closed(token);
            // Unread bytes make a kernel reset the connection.
            if c.up.next_at().is_some() && random.one_in(2) {
                c.down.sever(at, &mut random);
            } else {
                c.down.finish(at);
            }
        }
        self.sweep(token.index() as Id);
    }

    /// The next event of the broker's end of a connection.
    pub fn far_event(&mut self, id: Id, now: u64) -> Option<FarEvent> {
        let c = self.connections.get_mut(&id).filter(|c| c.far_ready(now))?;
        let incarnation = *self.listening.get(&c.row)?;
        let event = match c.far.state {
            FarState::Absent | FarState::Gone => None,
            FarState::Knocking => {
                let token = Token::new(id, incarnation);
                c.far.state = FarState::Open(token);
                Some(FarEvent::Accepted(token, c.from))
            }
            FarState::Closed(token) => match (c.far.recv.take(), c.far.send.take()) {
                (Some(buf), send) => {
                    c.far.send = send;
                    let error = io::ErrorKind::ConnectionAborted.into();
                    Some(FarEvent::Received(token, buf, Err(error)))
                }
                (None, Some(buf)) => {
                    let error = io::ErrorKind::ConnectionAborted.into();
                    Some(FarEvent::Sent(token, buf, Err(error)))
                }
                (None, None) => None,
            },
            FarState::Open(token) => self.far_transfer(id, token, now),
        };
        self.sweep(id);
        event
    }

    fn far_transfer(&mut self, id: Id, token: Token, now: u64) -> Option<FarEvent> {
        if let Some(buf) = self.connections.get_mut(&id)?.far.take_recalled() {
            let error = io::ErrorKind::Interrupted.into();
            return Some(FarEvent::Received(token, buf, Err(error)));
        }
        let send_first = self.random.one_in(2);
        let at = self.soon(now);
        let most = self.piece(usize::MAX);
        let damage = self.random.one_in(self.weather.damage_one_in);
        let c = self.connections.get_mut(&id)?;
        let readable = c.up.readable(now);
        let can_receive = c.far.recv.is_some() && (readable > 0 || c.up.ended(now).is_some());
        let dead = c.is_dead(now);
        let can_send = c.far.send.is_some() && (dead || c.down.room() > 0);
        if can_receive && !(can_send && send_first) {
            let mut buf = c.far.recv.take()?;
            if readable == 0 {
                let result = match c.up.ended(now) {
                    Some(End::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
                    _ => Ok(0),
                };
                return Some(FarEvent::Received(token, buf, result));
            }
            // As much as fits: both parts of a buffer that has two.
            let count = buf.fill(&c.up.peek(most, now));
            c.up.read(count, now);
            return Some(FarEvent::Received(token, buf, Ok(count)));
        }
        if !can_send {
            return None;
        }
        let mut buf = c.far.send.take()?;
        if dead {
            let error = io::ErrorKind::BrokenPipe.into();
            return Some(FarEvent::Sent(token, buf, Err(error)));
        }
        let count = most.min(c.down.room()).min(buf.remaining());
        let batches = buf.unsent_head().min(count)..count;
        // No byte is read before it goes: what is in memory may change between two pieces.
        let mut piece = Vec::with_capacity(count);
        while piece.len() < count {
            let left = count - piece.len();
            let taken = buf.with_next(left, |next| {
                piece.extend_from_slice(next);
                next.len()
            });
            buf.advance(taken);
        }
        if damage && count > 0 {
            let hit = self.random.below(count as u64) as usize;
            piece[hit] ^= 1 << self.random.below(8);
            self.damaged.count(batches.contains(&hit));
        }
        c.far.sent_batches |= !batches.is_empty();
        c.down.write(piece, at);
        if buf.remaining() > 0 && !buf.goes_in_steps() {
            c.far.send = Some(buf);
            return None;
        }
        Some(FarEvent::Sent(token, buf, Ok(())))
    }
}
