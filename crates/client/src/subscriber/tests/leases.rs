//! Payload that a broker lends, by shared memory: while the consumer reads it, the broker may have no room to go on.

use std::time::Instant;

use embar_memory::{Coherence, Mapped, PayloadFile};
use embar_transport::shm::{WINDOW_BYTES, WINDOW_REFERENCES};
use embar_transport::{
    Body, Completion, Epoll, Payload, Pieces, Reactor, SendBuf, Shm, ShmOptions, Token,
};

use super::helpers::{pass, positions, send, shared, together};
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Readers may hold an eighth of it.
const PAYLOAD_BYTES: usize = 512 * MIB;

/// What a broker sends by shared memory on one channel.
struct Lender {
    channel: ChannelId,
    epoll: Epoll,
    payload: PayloadFile<Mapped>,
    owner: Token,
    reader: Token,
    done: Vec<Completion>,
    sending: bool,
}

impl Lender {
    fn new(channel: ChannelId) -> Self {
        let made = PayloadFile::anonymous_lent(PAYLOAD_BYTES as u64, Coherence::Coherent);
        let (payload, lent) = made.expect("memory");
        let borrowing = ShmOptions {
            borrows: true,
            ..ShmOptions::default()
        };
        let lending = ShmOptions {
            lends: Some(lent),
            ..ShmOptions::default()
        };
        let (reader, owner) = Shm::pair(&borrowing, &lending).expect("memory");
        let mut epoll = Epoll::new().expect("descriptors");
        Self {
            channel,
            owner: epoll.add(owner).expect("new"),
            reader: epoll.add(reader).expect("new"),
            epoll,
            payload,
            done: Vec::new(),
            sending: false,
        }
    }

    /// Stores a batch of one message, and sends as much of it as the window lets through.
    fn send(&mut self, base: u64, bytes: usize) {
        self.send_changed(base, bytes, |_| {});
    }

    /// As [`Self::send`], of a payload that changed where it lies.
    fn send_changed(&mut self, base: u64, bytes: usize, change: impl FnOnce(&mut [u8])) {
        assert!(!self.sending, "one send at a time");
        let frame = batch(base, TOPIC, &[&vec![1; bytes]]);
        let (header, payload) = frame.split_first_chunk().expect("a header");
        let mut extent = self.payload.allocate(payload.len() as u32).expect("room");
        let mut reservation = extent.reserve(payload.len() as u32).expect("fresh");
        reservation.as_mut_slice().copy_from_slice(payload);
        change(reservation.as_mut_slice());
        let mut pieces = Pieces::new();
        pieces.push(*header, Payload::Own(reservation.commit()));
        let body = Body::Pieces(Box::new(pieces));
        self.epoll.send(self.owner, SendBuf::new(Vec::new(), body));
        self.sending = true;
    }

    /// Moves bytes until it is so.
    fn carry(&mut self, script: &mut Script, is_so: impl Fn(&mut Script, &Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(script, self) {
            assert!(Instant::now() < deadline, "nothing comes");
            if let Some(buf) = script.sockets.channel(self.channel).receiving.take() {
                self.epoll.recv(self.reader, buf);
            }
            let timeout = Some(Duration::from_millis(100));
            self.epoll
                .poll(timeout, &mut self.done)
                .expect("the kernel serves");
            for completion in self.done.drain(..) {
                match completion {
                    Completion::Sent { result, .. } => {
                        result.expect("the reader lives");
                        self.sending = false;
                    }
                    Completion::Received { buf, result, .. } => {
                        script.core.received(self.channel, buf, &result, script.now);
                        script.drain();
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn carry_all(&mut self, script: &mut Script, batches: usize) {
        self.carry(script, |script, lender| {
            script.delivered.len() == batches && !lender.sending
        });
    }

    /// Sends batches that the consumer keeps, and one more, which has a buffer, and of which no more comes than its header.
    fn fill_window(&mut self, script: &mut Script, first: u64, batches: usize, bytes: usize) {
        assert!(batches * bytes >= WINDOW_BYTES || batches >= WINDOW_REFERENCES);
        let next = first + batches as u64;
        for (sent, base) in (first..next).enumerate() {
            self.send(base, bytes);
            self.carry_all(script, sent + 1);
        }
        assert!(script.delivered.iter().all(|it| it.payload.is_lent()));
        self.send(next, bytes);
        self.carry(script, |script, lender| {
            let wanted = script.sockets.channel(lender.channel).receiving.as_ref();
            wanted.is_some_and(|it| it.remaining() > bytes)
        });
        assert!(self.sending, "the window lets more through");
        assert!(!script.core.is_starved());
    }
}

fn idle(buffers: usize) -> SubscriberConfig {
    SubscriberConfig {
        idle_timeout: Duration::from_secs(9),
        buffers_per_broker: buffers,
        ..config()
    }
}

#[test]
fn a_broker_is_not_given_up_while_the_consumer_has_all_that_it_may_lend() {
    for (batches, bytes) in [(1, 9 * MIB), (4, 2 * MIB), (64, 8 * KIB)] {
        let mut script = Script::open(idle(batches + 1), 1);
        script.subscribe(A, StartAt::Earliest, 0, 0);
        let mut lender = Lender::new(A);
        lender.fill_window(&mut script, 0, batches, bytes);
        for second in 1..100 {
            script.tick_at(second * SECOND);
            assert!(!script.sockets.channel(A).closing, "second {second}");
        }
        let pings = script.sockets.channel(A).pings;
        assert!(pings >= 99 / 9, "{pings} signs of life for the broker");
        assert_eq!(script.taken().len(), batches);
        lender.carry_all(&mut script, 1);
        assert_eq!(script.taken(), [(batches as u64, 1, 0)]);
    }
}

#[test]
fn what_is_lent_is_compared_with_its_checksum_unless_the_broker_is_believed() {
    for (checksums, delivered) in [(Checksums::All, 1), (Checksums::Copied, 2)] {
        let config = SubscriberConfig {
            checksums,
            ..idle(2)
        };
        let mut script = Script::open(config, 1);
        script.subscribe(A, StartAt::Earliest, 0, 0);
        let mut lender = Lender::new(A);
        lender.send(0, MIB);
        lender.carry_all(&mut script, 1);
        lender.send_changed(1, MIB, |payload| payload[MIB / 2] ^= 1);
        lender.carry(&mut script, |script, _| {
            script.delivered.len() == 2 || script.sockets.channel(A).closing
        });
        assert_eq!(script.delivered.len(), delivered, "{checksums:?}");
        assert!(script.delivered[0].payload.is_lent());
    }
}

#[test]
fn of_what_is_lent_more_batches_come_than_there_are_buffers() {
    let mut script = Script::open(idle(2), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    let mut lender = Lender::new(A);
    for sent in 0..16 {
        assert!(!script.core.is_starved(), "{sent} batches");
        lender.send(sent, 128 * KIB);
        lender.carry_all(&mut script, sent as usize + 1);
    }
    assert!(script.core.is_starved(), "as many as come ahead");
    assert_eq!(script.taken().len(), 16);
    lender.send(16, 128 * KIB);
    lender.carry_all(&mut script, 1);
}

#[test]
fn a_broker_that_hangs_is_noticed_once_the_consumer_has_nothing_of_it() {
    let mut script = Script::open(idle(2), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    let mut lender = Lender::new(A);
    lender.fill_window(&mut script, 0, 1, 9 * MIB);
    pass(&mut script, 100 * SECOND);
    assert_eq!(script.taken(), [(0, 1, 0)]);
    pass(&mut script, 9 * SECOND - 1);
    assert!(!script.sockets.channel(A).closing, "it has its time again");
    pass(&mut script, 1);
    assert!(script.sockets.channel(A).closing, "nine seconds of silence");
}

/// Several brokers serve an order, and the next batch is one of a broker whose window the consumer holds.
fn held_up_by_the_consumer() -> (Script, Lender, ChannelId) {
    let config = SubscriberConfig {
        buffers_per_broker: 8,
        ..shared()
    };
    let (mut script, server, [helper, other]) = together(config);
    let mut lender = Lender::new(helper);
    lender.fill_window(&mut script, 4, 4, 2 * MIB);
    send(&mut script, server, 9);
    for second in 0..60 {
        pass(&mut script, SECOND);
        assert!(!script.sockets.channel(helper).closing, "second {second}");
        // This one has nothing to send.
        assert!(script.feed(other, &pong()).is_empty());
    }
    assert_eq!(positions(&mut script), [4, 5, 6, 7]);
    (script, lender, helper)
}

#[test]
fn a_helper_is_not_left_while_the_consumer_has_all_that_it_may_lend() {
    let (mut script, mut lender, _) = held_up_by_the_consumer();
    lender.carry_all(&mut script, 2);
    assert_eq!(positions(&mut script), [8, 9]);
    assert!(script.away().is_empty());
}

#[test]
fn a_helper_that_hangs_is_left_once_the_consumer_has_nothing_of_it() {
    let (mut script, _lender, helper) = held_up_by_the_consumer();
    pass(&mut script, 2 * SECOND - 1);
    assert!(!script.sockets.channel(helper).closing, "it has its time");
    pass(&mut script, 1);
    assert!(script.sockets.channel(helper).closing);
}
