//! The clients' side of the simulated network: what their reactors would do with sockets.

use std::io;

use embar_transport::{RecvBuf, SendBuf};

use super::connection::{BrokerEndState, ClientEndState, ClientSend, Connection, Origin};
use super::pipe::End;
use super::{ClientEvent, Id, Network};

impl Network {
    /// A client connects to the broker of a row.
    pub fn connect(&mut self, from: Origin, row: u16, now: u64) -> Id {
        let id = self.next;
        self.next += 1;
        let at = self.soon(now);
        let window = self.conditions.window_bytes;
        let connection = Connection::new(from, row, at, window);
        self.connections.insert(id, connection);
        id
    }

    /// A client would connect, and has no descriptor for it.
    pub fn cannot_connect(&mut self, from: Origin, row: u16, now: u64) -> Id {
        let id = self.connect(from, row, now);
        if let Some(c) = self.connections.get_mut(&id) {
            c.client.state = ClientEndState::Hopeless(now);
        }
        id
    }

    /// A client wants bytes.
    pub fn client_recv(&mut self, id: Id, buf: RecvBuf) {
        if let Some(c) = self.connections.get_mut(&id) {
            assert!(c.client.recv.is_none(), "one receive at a time");
            c.client.recv = Some(buf);
        }
    }

    /// A client sends bytes.
    pub fn client_send(&mut self, id: Id, buf: SendBuf) {
        let (frames, all) = buf.with_unsent(|head, body| (head.len(), head.len() + body.len()));
        let damage = all > 0 && self.random.one_in(self.conditions.damage_one_in);
        let damage = damage.then(|| self.random.below(8 * all as u64) as usize);
        if let Some(c) = self.connections.get_mut(&id) {
            assert!(c.client.send.is_none(), "one send at a time");
            if let Some(bit) = damage {
                self.damaged.count(bit / 8 >= frames);
            }
            c.client.send = Some(ClientSend { buf, damage });
        }
    }

    /// A client sends nothing more.
    pub fn client_shutdown(&mut self, id: Id, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.connections.get_mut(&id) {
            c.up.finish(at);
        }
    }

    /// A client closes.
    pub fn client_close(&mut self, id: Id, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.connections.get_mut(&id)
            && c.client.state != ClientEndState::Closed
        {
            c.client.state = ClientEndState::Closing(at);
        }
    }

    /// A client is no more.
    pub fn client_died(&mut self, client: usize, now: u64) {
        for id in self.ids() {
            if self.owner(id).is_some_and(|(owner, _)| owner == client) {
                self.end_near(id, now);
            }
        }
    }

    /// The next event of a client's connection.
    pub fn client_event(&mut self, id: Id, now: u64) -> Option<ClientEvent> {
        let c = self
            .connections
            .get_mut(&id)
            .filter(|c| c.client_ready(now))?;
        match c.client.state {
            ClientEndState::Connecting(_) if self.listening.contains_key(&c.row) => {
                c.client.state = ClientEndState::Open;
                c.broker.state = BrokerEndState::Queued;
                if self.short.contains(&c.row) {
                    self.find_no_room(id, now);
                }
                Some(ClientEvent::Connected)
            }
            ClientEndState::Hopeless(_) => Some(self.ended(id, "no descriptor is free", now)),
            ClientEndState::Connecting(_) => Some(self.ended(id, "refused", now)),
            ClientEndState::Closing(_) => Some(self.ended(id, "closed", now)),
            ClientEndState::Closed => None,
            ClientEndState::Open => self.client_transfer(id, now),
        }
    }

    /// There is a descriptor for it at times and none for its rings: then it is closed without a word.
    /// Otherwise it waits in the backlog.
    fn find_no_room(&mut self, id: Id, now: u64) {
        self.unaccepted += 1;
        let at = self.soon(now);
        if self.random.one_in(3)
            && let Some(c) = self.connections.get_mut(&id)
        {
            c.broker.state = BrokerEndState::Gone;
            c.down.sever(at, &mut self.random);
        }
    }

    fn ended(&mut self, id: Id, cause: &str, now: u64) -> ClientEvent {
        self.end_near(id, now);
        ClientEvent::Ended(cause.into())
    }

    fn end_near(&mut self, id: Id, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.connections.get_mut(&id) {
            c.client.state = ClientEndState::Closed;
            (c.client.recv, c.client.send) = (None, None);
            if self.random.one_in(4) {
                c.up.sever(at, &mut self.random);
            } else {
                c.up.finish(at);
            }
        }
        self.sweep(id);
    }

    fn client_transfer(&mut self, id: Id, now: u64) -> Option<ClientEvent> {
        let send_first = self.random.one_in(2);
        let at = self.soon(now);
        let most = self.piece(usize::MAX);
        let c = self.connections.get_mut(&id)?;
        let readable = c.down.readable(now);
        let ended = c.down.ended(now);
        let can_receive = c.client.recv.is_some() && (readable > 0 || ended.is_some());
        let dead = c.is_dead_for_client(now);
        let can_send = c.client.send.is_some() && (dead || c.up.room() > 0);
        if can_receive && !(can_send && send_first) {
            let mut buf = c.client.recv.take()?;
            let result = match ended {
                _ if readable > 0 => {
                    let count = buf.fill(&c.down.peek(most, now));
                    c.down.read(count, now);
                    Ok(count)
                }
                Some(End::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
                _ => Ok(0),
            };
            return Some(ClientEvent::Received(buf, result));
        }
        if !can_send {
            return None;
        }
        let ClientSend { mut buf, damage } = c.client.send.take()?;
        if dead {
            let error = io::ErrorKind::BrokenPipe.into();
            return Some(ClientEvent::Sent(buf, Err(error)));
        }
        let (before, count) = (buf.sent(), most.min(c.up.room()).min(buf.remaining()));
        let mut piece = buf.with_unsent(|head, body| [head, body].concat());
        piece.truncate(count);
        if let Some(bit) = damage
            && let Some(hit) = (bit / 8).checked_sub(before)
            && let Some(byte) = piece.get_mut(hit)
        {
            *byte ^= 1 << (bit % 8);
        }
        buf.advance(count);
        c.up.write(piece, at);
        if buf.remaining() > 0 {
            c.client.send = Some(ClientSend { buf, damage });
            return None;
        }
        Some(ClientEvent::Sent(buf, Ok(())))
    }
}
