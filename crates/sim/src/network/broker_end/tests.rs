//! Bodies that lie in several hosts' memory, on their way through the network.

use std::sync::Arc;

use embar_client::sim_api::ChannelId;
use embar_fabric::{Geometry, Region};
use embar_memory::{Device, Reservation, Simulated};
use embar_transport::{Body, Payload, Pieces, RecvBuf, SendBuf, Token};

use super::super::{BrokerEvent, ClientEvent, Id, Network, NetworkConditions, Origin};
use crate::random::Random;

const PAYLOAD_BYTES: u64 = 64 << 10;
const OWN: u16 = 1;
const OTHER: u16 = 2;
const LEN: usize = 20_000;
const HERE: Origin = Origin {
    client: 0,
    channel: ChannelId(0),
    address: None,
};

/// One region as two brokers see it.
fn regions() -> [Region<Simulated>; 2] {
    let geometry = Geometry {
        brokers: 3,
        topics: 1,
        lanes: 1,
        lane_slots: 2,
        index_pages: 1,
        payload_bytes: PAYLOAD_BYTES,
        ..Geometry::default()
    };
    let [control, own, other] = [32 << 20, PAYLOAD_BYTES, PAYLOAD_BYTES].map(Device::blank);
    let host = |device: &Device, seed| Arc::new(device.host(seed));
    let payload_files = |seed| vec![host(&own, seed), host(&other, seed)];
    let here = Region::format(host(&control, 1), payload_files(2), &geometry, 7, 0);
    let there = Region::from_parts(host(&control, 3), payload_files(4));
    [here.expect("a region"), there.expect("the same region")]
}

fn reserve(region: &Region<Simulated>, row: u16) -> Reservation<Simulated> {
    let payload_file = region.payload_file(&region.claim_unlocked(row));
    let mut extent = payload_file.allocate(LEN as u32).expect("all free");
    extent.reserve(LEN as u32).expect("fresh")
}

/// A network with one connection, and what its client received.
struct Line {
    network: Network,
    id: Id,
    token: Token,
    now: u64,
    got: Vec<u8>,
}

impl Line {
    fn new(seed: u64) -> Self {
        let network = NetworkConditions {
            delay_ns: 1,
            piece_bytes: 700,
            window_bytes: 96 << 10,
            damage_one_in: 0,
        };
        let mut network = Network::new(network, Random::new(seed));
        network.broker_up(0, 1);
        let id = network.connect(HERE, 0, 0);
        let now = 1_000_000;
        let connected = network.client_event(id, now);
        assert!(matches!(connected, Some(ClientEvent::Connected)));
        let Some(BrokerEvent::Accepted(token, None)) = network.broker_event(id, now) else {
            panic!("the broker hears of nobody");
        };
        let mut line = Self {
            network,
            id,
            token,
            now,
            got: Vec::new(),
        };
        line.listen();
        line
    }

    fn listen(&mut self) {
        let buf = RecvBuf::heap(vec![0; 5000], 0..5000);
        self.network.client_recv(self.id, buf);
    }

    /// Time passes; the broker's send, if it or a step of it is over.
    fn step(&mut self) -> Option<SendBuf<Simulated>> {
        self.now += 1_000_000;
        if let Some(ClientEvent::Received(buf, result)) =
            self.network.client_event(self.id, self.now)
        {
            result.expect("it stands");
            buf.with_filled(buf.filled(), |bytes| self.got.extend(bytes));
            self.listen();
        }
        match self.network.broker_event(self.id, self.now)? {
            BrokerEvent::Sent(_, buf, result) => {
                result.expect("it stands");
                Some(buf)
            }
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, buf: SendBuf<Simulated>) -> SendBuf<Simulated> {
        self.network.broker_send(self.token, buf);
        (0..1000)
            .find_map(|_| self.step())
            .expect("nothing of it is ever sent")
    }
}

#[test]
fn foreign_bytes_are_read_when_they_go_and_come_back_after_each_step() {
    for seed in 0..20 {
        let [here, there] = regions();
        let mut own = reserve(&here, OWN);
        own.write(0, &[1; LEN]);
        let mut other = reserve(&there, OTHER);
        other.write(0, &[2; LEN]);
        let at = other.at();
        drop(other.commit());
        let mut pieces = Box::new(Pieces::new());
        pieces.push([8; 64], Payload::Own(own.commit()));
        let foreign = here.foreign(OTHER, at, LEN as u32).expect("it is there");
        pieces.push([9; 64], Payload::Foreign(foreign));

        let mut line = Line::new(seed);
        let mut buf = SendBuf::new(b"hi!".to_vec(), Body::Pieces(pieces));
        let mut overwritten_at = None;
        while buf.remaining() > 0 {
            let before = buf.sent();
            buf = line.send(buf);
            assert!((1..=700).contains(&(buf.sent() - before)), "seed {seed}");
            if overwritten_at.is_none() && buf.sent() > LEN + 64 + 64 + 3 + 3000 {
                // Its owner has given it up and uses it again.
                overwritten_at = Some(buf.sent());
                let mut again = reserve(&there, OTHER);
                assert_eq!(again.at(), at);
                again.write(0, &[3; LEN]);
                drop(again.commit());
            }
        }
        (0..1000).for_each(|_| assert!(line.step().is_none()));
        let got = line.got;
        assert_eq!(got.len(), buf.sent());
        let foreign_at = 3 + 64 + LEN + 64;
        let expected = [&b"hi!"[..], &[8; 64], &[1; LEN], &[9; 64]].concat();
        assert!(got[..foreign_at] == expected, "seed {seed}");
        let overwritten_at = overwritten_at.expect("it went in steps");
        assert!(
            got[foreign_at..overwritten_at]
                .iter()
                .all(|&byte| byte == 2)
        );
        // The line that was cut may be the old one.
        let after = &got[overwritten_at + 64..];
        assert!(after.iter().all(|&byte| byte == 3), "seed {seed}");
    }
}
