//! What a message costs: no allocation and no copy of its payload, on the way out and on the way
//! in.

mod common;

use common::foreign::{Logs, piece};
use common::proto;
use embar_frame::Now;
use embar_session::{Incoming, Plain, SessionConfig, SessionCore, Step};
use embar_transport::alloc::{Counting, of_thread, set_counting};
use embar_transport::{Body, Payload, RecvBuf, SendBuf};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations<R>(f: impl FnOnce() -> R) -> (u64, R) {
    set_counting(true);
    drop(std::hint::black_box(Box::new(0)));
    let before = of_thread().times;
    assert!(before > 0, "the box was counted");
    let result = f();
    (of_thread().times - before, result)
}

struct Side {
    core: SessionCore<Plain>,
    recv: Option<RecvBuf>,
    send: Option<SendBuf>,
}

impl Side {
    fn poll(&mut self) {
        while let Some(step) = self.core.poll() {
            match step {
                Step::Recv(buf) => self.recv = Some(buf),
                Step::Send(buf) => self.send = Some(buf),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Carries what it sends over to the other side, as a kernel does: this is the only copy.
    fn carry(&mut self, other: &mut Side) {
        self.poll();
        other.poll();
        while let Some(mut send) = self.send.take() {
            while send.remaining() > 0 {
                let mut recv = other.recv.take().expect("the other side receives");
                let count = send.with_unsent(|head, body| {
                    assert!(body.is_empty());
                    recv.fill(head)
                });
                send.advance(count);
                other.core.received(recv, &Ok(count), Now(0));
                other.read();
                other.poll();
            }
            self.core.sent(send, &Ok(()), Now(0));
            self.poll();
        }
    }

    /// Reads all that is there as views.
    fn read(&mut self) -> u64 {
        let mut sum = 0;
        loop {
            match self.core.next(Now(0)) {
                None => return sum,
                Some(Incoming::Opened { .. }) => {
                    let _ = self.core.welcome(b"", Now(0));
                }
                Some(Incoming::Message(message)) => {
                    let packet: proto::PacketView<'_> = message.decode().expect("valid");
                    assert_eq!(packet.data.len(), 40);
                    sum += packet.number;
                }
                Some(other) => panic!("{other:?}"),
            }
        }
    }
}

fn pair() -> (Side, Side) {
    let rings = common::rings();
    let config = SessionConfig::default();
    let side = |core| Side {
        core,
        recv: None,
        send: None,
    };
    let a = SessionCore::connecting(Plain, &config, &rings, b"", Now(0)).expect("a core");
    let b = SessionCore::accepting(Plain, &config, &rings, Now(0)).expect("a core");
    let (mut a, mut b) = (side(a), side(b));
    a.carry(&mut b);
    b.carry(&mut a);
    assert!(a.core.is_open() && b.core.is_open());
    (a, b)
}

fn packet(depth: usize) -> proto::Packet {
    proto::Packet {
        number: 1,
        name: "eight by".into(),
        data: vec![7; 40],
        // What is sent may be deep, even beyond what the encoder has room for itself.
        path: vec![proto::Point::default(); depth],
        ..Default::default()
    }
}

#[test]
fn messages_cost_no_allocation_in_either_direction() {
    let (mut a, mut b) = pair();
    let packet = packet(0);
    let (name, data) = (packet.name.as_str(), packet.data.as_slice());
    let mut rounds = |rounds: u64| {
        for number in 0..rounds {
            for _ in 0..20 {
                a.core.send(3, &packet).expect("room");
            }
            a.carry(&mut b);
            let view = proto::PacketView {
                number,
                name,
                data,
                ..Default::default()
            };
            for _ in 0..20 {
                b.core.send_view(3, &view).expect("room");
            }
            b.carry(&mut a);
        }
    };
    rounds(50);
    let (count, ()) = allocations(|| rounds(1000));
    assert_eq!(count, 0, "40,000 messages allocated");
    assert_eq!(b.core.stats().messages_in, 21_000);
    assert_eq!(a.core.stats().messages_in, 21_000);
}

#[test]
fn deep_messages_are_sent_without_an_allocation_once_one_was() {
    let (mut a, mut b) = pair();
    let packet = packet(100);
    a.core.send(3, &packet).expect("room");
    a.carry(&mut b);
    for _ in 0..100 {
        let (count, sent) = allocations(|| a.core.send(3, &packet));
        sent.expect("room");
        assert_eq!(count, 0);
        a.carry(&mut b);
    }
}

#[test]
fn bodies_of_pieces_use_the_room_of_those_before() {
    let (mut a, _b) = pair();
    let logs = Logs::new();
    let (own, foreign) = (logs.own(&[1; 4096]), logs.foreign(&[2; 4096]));
    let mut round = || {
        let mut pieces = a.core.pieces();
        while !pieces.is_full() {
            let payload = match pieces.count() % 2 {
                0 => Payload::Own(own.clone()),
                _ => Payload::Foreign(foreign.clone()),
            };
            pieces.push(piece(4096), payload);
        }
        a.core.send_body(Vec::new(), Body::Pieces(pieces));
        while a.core.is_sending_body() {
            a.poll();
            let mut send = a.send.take().expect("a send");
            send.advance(send.remaining().min(100_000));
            a.core.sent(send, &Ok(()), Now(0));
        }
    };
    round();
    let (count, ()) = allocations(|| (0..100).for_each(|_| round()));
    assert_eq!(count, 0, "400 steps of 100 bodies allocated");
}

#[test]
fn an_encoder_writes_to_where_the_reactor_sends_from() {
    let (mut a, _b) = pair();
    let mut target = None;
    let fill = |out: &mut [u8]| {
        out.copy_from_slice(b"straight");
        target = Some(out.as_ptr() as usize);
    };
    a.core.send_with(3, 8, fill).expect("room");
    a.poll();
    let buf = a.send.take().expect("a send");
    buf.with_unsent(|head, _| {
        let payload = &head[head.len() - 8..];
        assert_eq!(payload, b"straight");
        assert_eq!(Some(payload.as_ptr() as usize), target);
    });
}

#[test]
fn a_view_points_to_where_the_reactor_received() {
    let (mut a, mut b) = pair();
    a.core.send(3, &packet(0)).expect("room");
    a.poll();
    b.poll();
    let mut recv = b.recv.take().expect("a receive");
    let (space, _) = recv.spaces();
    let space = space.as_ptr_range();
    let space = space.start as usize..space.end as usize;
    let send = a.send.take().expect("a send");
    let count = send.with_unsent(|head, _| recv.fill(head));
    b.core.received(recv, &Ok(count), Now(0));
    let Some(Incoming::Message(message)) = b.core.next(Now(0)) else {
        panic!("no message");
    };
    let packet: proto::PacketView<'_> = message.decode().expect("valid");
    for field in [packet.name.as_ptr(), packet.data.as_ptr()] {
        assert!(space.contains(&(field as usize)));
    }
    let kept = message.keep().expect("within the limit");
    assert_eq!(kept.as_ptr(), message.payload().as_ptr());
}
