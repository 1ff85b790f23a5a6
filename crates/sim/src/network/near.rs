//! The clients' side of the network.

use std::ops::Range;

use embar_client::sim_api::Lane;

use super::connection::{ClientSend, Connection, FarState, NearState, Outgoing};
use super::{Id, NearEvent, Network};

impl Network {
    /// A client connects.
    pub fn connect(&mut self, client: usize, lane: Lane, now: u64) -> Id {
        let id = self.next;
        self.next += 1;
        let at = self.soon(now);
        self.connections
            .insert(id, Connection::new(client, lane, at));
        id
    }

    /// A client wants bytes.
    pub fn client_recv(&mut self, id: Id, buffer: Vec<u8>, space: Range<usize>) {
        if let Some(c) = self.connections.get_mut(&id) {
            assert!(c.near.recv.is_none(), "one receive at a time");
            c.near.recv = Some((buffer, space));
        }
    }

    /// A client sends bytes.
    pub fn client_send(&mut self, id: Id, bytes: Outgoing) {
        let damage =
            matches!(bytes, Outgoing::Batch(_)) && self.random.one_in(self.weather.damage_one_in);
        let damage = damage.then(|| self.random.below(8 * bytes.bytes().len() as u64) as usize);
        if let Some(c) = self.connections.get_mut(&id) {
            assert!(c.near.send.is_none(), "one send at a time");
            self.damaged += u64::from(damage.is_some());
            c.near.send = Some(ClientSend {
                bytes,
                sent: 0,
                damage,
            });
        }
    }

    /// A client closes.
    pub fn client_close(&mut self, id: Id, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.connections.get_mut(&id)
            && c.near.state != NearState::Closed
        {
            c.near.state = NearState::Closing(at);
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
    pub fn near_event(&mut self, id: Id, now: u64) -> Option<NearEvent> {
        let c = self
            .connections
            .get_mut(&id)
            .filter(|c| c.near_ready(now))?;
        match c.near.state {
            NearState::Connecting(_) if self.listening.is_some() => {
                c.near.state = NearState::Open;
                c.far.state = FarState::Knocking;
                Some(NearEvent::Connected)
            }
            NearState::Connecting(_) => Some(self.ended(id, "refused", now)),
            NearState::Closing(_) => Some(self.ended(id, "closed", now)),
            NearState::Closed => None,
            NearState::Open => self.near_transfer(id, now),
        }
    }

    fn ended(&mut self, id: Id, cause: &str, now: u64) -> NearEvent {
        self.end_near(id, now);
        NearEvent::Ended(cause.into())
    }

    fn end_near(&mut self, id: Id, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.connections.get_mut(&id) {
            c.near.state = NearState::Closed;
            (c.near.recv, c.near.send) = (None, None);
            if self.random.one_in(4) {
                c.up.sever(at, &mut self.random);
            } else {
                c.up.finish(at);
            }
        }
        self.sweep(id);
    }

    fn near_transfer(&mut self, id: Id, now: u64) -> Option<NearEvent> {
        let send_first = self.random.one_in(2);
        let at = self.soon(now);
        let most = self.piece(usize::MAX);
        let c = self.connections.get_mut(&id)?;
        let readable = c.down.readable(now);
        if readable == 0 && c.down.is_reset(now) {
            return Some(self.ended(id, "reset", now));
        }
        let can_receive = c.near.recv.is_some() && readable > 0;
        let room = c.up.room();
        if room > 0
            && (send_first || !can_receive)
            && let Some(send) = &mut c.near.send
        {
            let all = send.bytes.bytes();
            let count = most.min(room).min(all.len() - send.sent);
            let mut piece = all[send.sent..send.sent + count].to_vec();
            if let Some(bit) = send.damage
                && let Some(at) = (bit / 8).checked_sub(send.sent).filter(|at| *at < count)
            {
                piece[at] ^= 1 << (bit % 8);
            }
            send.sent += count;
            let done = send.sent == all.len();
            c.up.write(piece, at);
            if done {
                c.near.send = None;
                return Some(NearEvent::Sent);
            }
            return None;
        }
        if can_receive {
            let (mut buffer, space) = c.near.recv.take()?;
            let bytes = c.down.read(most.min(space.len()), now);
            buffer[space.start..space.start + bytes.len()].copy_from_slice(&bytes);
            return Some(NearEvent::Received(buffer, bytes.len()));
        }
        let ended = c.near.recv.is_some() && c.down.ended(now).is_some();
        ended.then(|| self.ended(id, "the broker closed the connection", now))
    }
}
