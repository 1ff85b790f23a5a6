//! The brokers' side of the simulated network: what their reactors would do with sockets.

#[cfg(test)]
mod tests;

use std::io;

use embar_memory::Simulated;
use embar_transport::{RecvBuf, SendBuf, Token};

use super::connection::{BrokerEndState, Connection};
use super::pipe::End;
use super::{BrokerEvent, Id, Network};

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
            (c.broker.recv, c.broker.send) = (None, None);
            if c.broker.state != BrokerEndState::Absent {
                c.broker.state = BrokerEndState::Gone;
                c.down.sever(at, &mut self.random);
            }
            self.sweep(id);
        }
    }

    fn of(&mut self, token: Token) -> Option<&mut Connection> {
        let c = self.connections.get_mut(&(token.index() as Id))?;
        (c.broker.state == BrokerEndState::Open(token)).then_some(c)
    }

    /// The broker wants bytes.
    pub fn broker_recv(&mut self, token: Token, buf: RecvBuf<Simulated>) {
        let c = self.connections.get_mut(&(token.index() as Id));
        if let Some(c) = c {
            assert!(c.broker.recv.is_none(), "one receive at a time");
            c.broker.recv = Some(buf);
            c.broker.recalled = false;
        }
    }

    /// The broker takes back what it receives into.
    pub fn broker_recall(&mut self, token: Token) {
        if let Some(c) = self.of(token) {
            c.broker.recalled |= c.broker.recv.is_some();
        }
    }

    /// The broker sends bytes.
    pub fn broker_send(&mut self, token: Token, buf: SendBuf<Simulated>) {
        let c = self.connections.get_mut(&(token.index() as Id));
        if let Some(c) = c {
            assert!(c.broker.send.is_none(), "one send at a time");
            c.broker.send = Some(buf);
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
            c.broker.state = BrokerEndState::Closed(token);
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
    pub fn broker_event(&mut self, id: Id, now: u64) -> Option<BrokerEvent> {
        let c = self
            .connections
            .get_mut(&id)
            .filter(|c| c.broker_ready(now))?;
        let incarnation = *self.listening.get(&c.row)?;
        let event = match c.broker.state {
            BrokerEndState::Absent | BrokerEndState::Gone => None,
            BrokerEndState::Queued => {
                let token = Token::new(id, incarnation);
                c.broker.state = BrokerEndState::Open(token);
                Some(BrokerEvent::Accepted(token, c.from))
            }
            BrokerEndState::Closed(token) => match (c.broker.recv.take(), c.broker.send.take()) {
                (Some(buf), send) => {
                    c.broker.send = send;
                    let error = io::ErrorKind::ConnectionAborted.into();
                    Some(BrokerEvent::Received(token, buf, Err(error)))
                }
                (None, Some(buf)) => {
                    let error = io::ErrorKind::ConnectionAborted.into();
                    Some(BrokerEvent::Sent(token, buf, Err(error)))
                }
                (None, None) => None,
            },
            BrokerEndState::Open(token) => self.broker_transfer(id, token, now),
        };
        self.sweep(id);
        event
    }

    fn broker_transfer(&mut self, id: Id, token: Token, now: u64) -> Option<BrokerEvent> {
        if let Some(buf) = self.connections.get_mut(&id)?.broker.take_recalled() {
            let error = io::ErrorKind::Interrupted.into();
            return Some(BrokerEvent::Received(token, buf, Err(error)));
        }
        let send_first = self.random.one_in(2);
        let at = self.soon(now);
        let most = self.piece(usize::MAX);
        let damage = self.random.one_in(self.conditions.damage_one_in);
        let c = self.connections.get_mut(&id)?;
        let readable = c.up.readable(now);
        let can_receive = c.broker.recv.is_some() && (readable > 0 || c.up.ended(now).is_some());
        let dead = c.is_dead(now);
        let can_send = c.broker.send.is_some() && (dead || c.down.room() > 0);
        if can_receive && !(can_send && send_first) {
            let mut buf = c.broker.recv.take()?;
            let result = match (readable, c.up.ended(now)) {
                (0, Some(End::Reset)) => Err(io::ErrorKind::ConnectionReset.into()),
                (0, _) => Ok(0),
                _ => {
                    // As much as fits: both parts of a buffer that has two.
                    let count = buf.fill(&c.up.peek(most, now));
                    c.up.read(count, now);
                    Ok(count)
                }
            };
            return Some(BrokerEvent::Received(token, buf, result));
        }
        if !can_send {
            return None;
        }
        let mut buf = c.broker.send.take()?;
        if dead {
            let error = io::ErrorKind::BrokenPipe.into();
            return Some(BrokerEvent::Sent(token, buf, Err(error)));
        }
        let count = most.min(c.down.room()).min(buf.remaining());
        let batches = buf.unsent_head().min(count)..count;
        let mut piece = take_piece(&mut buf, count);
        if damage && count > 0 {
            let hit = self.random.below(count as u64) as usize;
            piece[hit] ^= 1 << self.random.below(8);
            self.damaged.count(batches.contains(&hit));
        }
        c.broker.sent_batches |= !batches.is_empty();
        c.down.write(piece, at);
        if buf.remaining() > 0 && !buf.goes_in_steps() {
            c.broker.send = Some(buf);
            return None;
        }
        Some(BrokerEvent::Sent(token, buf, Ok(())))
    }
}

/// The next `count` bytes of a send. No byte is read before it goes: what is in memory may change between two pieces.
fn take_piece(buf: &mut SendBuf<Simulated>, count: usize) -> Vec<u8> {
    let mut piece = Vec::with_capacity(count);
    while piece.len() < count {
        let left = count - piece.len();
        let taken = buf.with_next(left, |next| {
            piece.extend_from_slice(next);
            next.len()
        });
        buf.advance(taken);
    }
    piece
}
