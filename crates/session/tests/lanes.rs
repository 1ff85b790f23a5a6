//! Bodies in lanes between two cores: what comes out is what went in, with messages between, and
//! what a hostile peer may not do.

mod common;
#[path = "common/lane_frames.rs"]
mod lane_frames;

use std::collections::VecDeque;
use std::sync::Arc;

use bolero::TypeGenerator;
use common::{End, Pair, Told, at, config, first_bytes, frame, rings, seconds};
use embar_frame::{FrameHeader, Now};
use embar_memory::Buffer;
use embar_session::{CloseReason, MIN_CHUNK_BYTES, Plain, SendError, SessionConfig, SessionCore};
use lane_frames::{BODY_BEGIN, BODY_CHUNK, begin, begin_with, cancelled, chunk, refused, taken};

const CHUNK: usize = 2 << 10;
const WINDOW: usize = 8 << 10;
const PING: u16 = 0xFF02;
const PONG: u16 = 0xFF03;

fn laned(lanes: u8) -> SessionConfig {
    config().with(|config| {
        config.body_lanes = lanes;
        config.chunk_bytes = CHUNK;
        config.lane_window_bytes = WINDOW as u32;
    })
}

fn pair(lanes: u8) -> Pair {
    Pair::open_with(&laned(lanes), &laned(lanes))
}

fn bytes(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64 * 7 + number) as u8).collect()
}

fn queue(end: &mut End, lane: u8, number: u64, len: usize) {
    let header = FrameHeader {
        length: 0,
        id: number as u16,
        flags: Plain::BODY,
    };
    let head = number.to_le_bytes();
    let sender = end.core.sender();
    let body = sender.begin_body((lane, number), header, &head, len);
    let buffer = Arc::new(Buffer::from(bytes(number, len)));
    end.core.queue_body(body.expect("it fits"), buffer);
}

fn say(end: &mut End, id: u16) {
    let said = end.core.send_with(id, 8, |out| out.fill(id as u8));
    said.expect("room");
}

fn body(number: u64, len: usize) -> Told {
    Told::Body {
        id: number as u16,
        head: number.to_le_bytes().to_vec(),
        body: bytes(number, len),
    }
}

fn over(end: &mut End) -> Vec<u64> {
    std::iter::from_fn(|| end.core.next_body_over()).collect()
}

#[derive(Debug, TypeGenerator)]
enum Act {
    Body { lane: u8, len: u16 },
    Message,
    Cancel { number: u8 },
    Move { piece: u16, times: u8 },
}

/// Whatever is sent in which lane, given up or cut, each body comes as it was, in the order of its
/// lane, and every message does.
#[test]
fn bodies_and_messages_come_out_as_they_went_in() {
    bolero::check!()
        .with_type::<(u8, Vec<Act>)>()
        .for_each(|(lanes, acts)| check(1 + lanes % 4, acts));
}

fn check(lanes: u8, acts: &[Act]) {
    let mut pair = pair(lanes);
    let mut queued: Vec<(u8, usize)> = Vec::new();
    let mut said = Vec::new();
    let mut finished = Vec::new();
    for act in acts.iter().take(60) {
        match *act {
            Act::Body { lane, len } => {
                let (lane, len) = (1 + lane % lanes, usize::from(len));
                queued.push((lane, len));
                queue(&mut pair.a, lane, queued.len() as u64, len);
            }
            Act::Message => {
                let id = 1000 + said.len() as u16;
                say(&mut pair.a, id);
                said.push(id);
            }
            Act::Cancel { number } => pair.a.core.cancel_body(number.into()),
            Act::Move { piece, times } => {
                for _ in 0..times {
                    pair.step(usize::from(piece).max(1));
                }
            }
        }
        finished.extend(over(&mut pair.a));
    }
    pair.run(usize::MAX);
    finished.extend(over(&mut pair.a));
    finished.sort_unstable();
    let all: Vec<u64> = (1..=queued.len() as u64).collect();
    assert_eq!(finished, all, "each is over once");
    assert!(!pair.a.core.has_lane_bodies());
    assert!(pair.b.lanes.is_empty(), "nothing is left under way");
    let heard: Vec<u16> = pair.b.messages().iter().map(|(id, _)| *id).collect();
    assert_eq!(heard, said);
    let mut latest = [0; 5];
    let mut cancelled = 0;
    for told in &pair.b.told {
        match told {
            Told::Body { id, .. } => {
                let (lane, len) = queued[usize::from(*id) - 1];
                assert_eq!(*told, body((*id).into(), len));
                assert!(latest[usize::from(lane)] < *id, "in the order of the lane");
                latest[usize::from(lane)] = *id;
            }
            Told::Cancelled(_) => cancelled += 1,
            Told::Message(..) | Told::Begun(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let cancels = acts.iter().filter(|act| matches!(act, Act::Cancel { .. }));
    assert!(cancelled <= cancels.count());
    assert!(pair.a.core.is_open() && pair.b.core.is_open());
}

/// The ids of the frames that a core sends, with how much follows each.
struct Wire {
    left: VecDeque<u8>,
}

impl Wire {
    fn new() -> Self {
        let left = VecDeque::new();
        Self { left }
    }

    /// The frames of what the core sends next; the send is over then.
    fn next(&mut self, end: &mut End) -> Vec<(u16, Vec<u8>)> {
        end.poll();
        let mut buf = end.send.take().expect("something to send");
        buf.with_unsent(|head, body| {
            self.left.extend(head);
            self.left.extend(body);
        });
        buf.advance(buf.remaining());
        end.core.sent(buf, &Ok(()), end.now);
        let mut frames = Vec::new();
        let mut whole: Vec<u8> = self.left.drain(..).collect();
        while !whole.is_empty() {
            let header = FrameHeader::parse(whole.first_chunk().expect("a header"));
            let rest = whole.split_off(header.frame_bytes());
            frames.push((header.id, whole.split_off(8)));
            whole = rest;
        }
        frames
    }
}

#[test]
fn a_message_waits_for_one_chunk_at_most() {
    let patient = laned(1).with(|config| config.lane_window_bytes = 90_000);
    let mut pair = Pair::open_with(&laned(1), &patient);
    queue(&mut pair.a, 1, 1, 90_000);
    let mut wire = Wire::new();
    let mut chunks = 0;
    for round in 0..20 {
        let frames = wire.next(&mut pair.a);
        let ids: Vec<u16> = frames.iter().map(|frame| frame.0).collect();
        match round {
            0 => assert_eq!(ids, [BODY_BEGIN, BODY_CHUNK]),
            _ if round % 2 == 1 => assert_eq!(ids, [700 + round, 800 + round], "at once"),
            _ => assert_eq!(ids, [BODY_CHUNK]),
        }
        let of_body = frames.iter().filter(|frame| frame.0 == BODY_CHUNK);
        for (_, content) in of_body {
            assert_eq!(content.len(), 4 + CHUNK);
            chunks += 1;
        }
        // A chunk is under way in the next round, or these go before it.
        if round % 2 == 0 {
            say(&mut pair.a, 701 + round);
            say(&mut pair.a, 801 + round);
        }
    }
    assert_eq!(chunks, 10);
}

#[test]
fn a_heartbeat_waits_for_one_chunk_at_most() {
    let patient = laned(1).with(|config| config.lane_window_bytes = 90_000);
    let mut pair = Pair::open_with(&laned(1), &patient);
    queue(&mut pair.a, 1, 1, 90_000);
    let mut wire = Wire::new();
    let ids = |frames: Vec<(u16, Vec<u8>)>| -> Vec<u16> { frames.iter().map(|it| it.0).collect() };
    assert_eq!(ids(wire.next(&mut pair.a)), [BODY_BEGIN, BODY_CHUNK]);
    // Its own, and the answer to the peer's.
    pair.a.core.ping();
    let ping = [&[9][..], &[7; 8]].concat();
    pair.a.inbox.extend(frame(PING, 0, &ping));
    assert_eq!(ids(wire.next(&mut pair.a)), [PING]);
    pair.a.feed(&[], usize::MAX);
    assert_eq!(ids(wire.next(&mut pair.a)), [BODY_CHUNK]);
    assert_eq!(ids(wire.next(&mut pair.a)), [PONG]);
    assert_eq!(ids(wire.next(&mut pair.a)), [BODY_CHUNK]);
}

#[test]
fn a_lane_has_twice_the_share_of_the_next() {
    let patient = laned(4).with(|config| config.lane_window_bytes = 90_000);
    let mut pair = Pair::open_with(&laned(4), &patient);
    for lane in 1..=4 {
        queue(&mut pair.a, lane, lane.into(), 90_000);
    }
    let mut wire = Wire::new();
    let mut counts = [0; 4];
    for _ in 0..15 {
        for (id, content) in wire.next(&mut pair.a) {
            if id == BODY_CHUNK {
                counts[usize::from(content[0]) - 1] += 1;
            }
        }
    }
    assert_eq!(counts, [8, 4, 2, 1]);
}

#[test]
fn a_body_without_a_place_holds_up_its_lane_alone() {
    let mut pair = pair(2);
    pair.b.holds_lanes = true;
    queue(&mut pair.a, 1, 1, 50_000);
    queue(&mut pair.a, 1, 2, 3_000);
    pair.run(usize::MAX);
    assert_eq!(pair.b.lanes[&1].2.len(), WINDOW, "no more than the window");
    assert_eq!(pair.b.told, [Told::Begun(1)]);
    pair.b.holds_lanes = false;
    queue(&mut pair.a, 2, 3, 60_000);
    say(&mut pair.a, 77);
    pair.run(usize::MAX);
    assert!(pair.b.told.contains(&body(3, 60_000)), "the other lane");
    assert_eq!(pair.b.messages().len(), 1);
    assert!(pair.a.core.has_lane_bodies());
    pair.b.take_lane(1);
    pair.run(usize::MAX);
    let ends = pair.b.told.len() - 3;
    assert_eq!(pair.b.told[ends], body(1, 50_000));
    assert_eq!(pair.b.told.last(), Some(&body(2, 3_000)));
    assert_eq!(over(&mut pair.a), [3, 1, 2]);
    // A short one, too, occupies its lane until it has a place.
    pair.b.told.clear();
    pair.b.holds_lanes = true;
    queue(&mut pair.a, 1, 4, 10);
    queue(&mut pair.a, 1, 5, 0);
    pair.run(usize::MAX);
    assert_eq!(pair.b.told, [Told::Begun(1)]);
    pair.b.take_lane(1);
    pair.run(usize::MAX);
    pair.b.take_lane(1);
    assert_eq!(
        pair.b.told,
        [Told::Begun(1), body(4, 10), Told::Begun(1), body(5, 0)]
    );
}

#[test]
fn a_refused_body_ends_alone() {
    let mut pair = pair(1);
    pair.b.holds_lanes = true;
    for (number, len) in [(1, 50_000), (2, 500), (3, 0)] {
        queue(&mut pair.a, 1, number, len);
        pair.run(usize::MAX);
        pair.b.lanes.clear();
        pair.b.core.refuse_body(1, "no room on the shelf");
        pair.run(usize::MAX);
        let refusal = Told::Refused(number, "no room on the shelf".into());
        assert_eq!(pair.a.told.pop(), Some(refusal));
    }
    assert_eq!(over(&mut pair.a), [1, 2, 3]);
    pair.b.holds_lanes = false;
    queue(&mut pair.a, 1, 4, 20_000);
    pair.run(usize::MAX);
    assert_eq!(pair.b.told.last(), Some(&body(4, 20_000)));
}

#[test]
fn a_cancelled_body_ends_alone() {
    let mut pair = pair(2);
    queue(&mut pair.a, 1, 1, 90_000);
    queue(&mut pair.a, 1, 2, 20_000);
    queue(&mut pair.a, 1, 3, 20_000);
    for _ in 0..12 {
        pair.step(3000);
    }
    pair.a.core.cancel_body(2);
    pair.a.core.cancel_body(1);
    pair.a.core.cancel_body(1);
    pair.run(3000);
    let told = [
        Told::Begun(1),
        Told::Cancelled(1),
        Told::Begun(1),
        body(3, 20_000),
    ];
    assert_eq!(pair.b.told, told);
    assert_eq!(over(&mut pair.a), [2, 1, 3]);
    // All of it is out: it is not cancelled any more.
    pair.a.core.cancel_body(3);
    pair.run(3000);
    assert!(pair.b.core.is_open());
}

/// An end with lanes whose peer is bytes that a test writes.
fn end() -> End {
    let core = SessionCore::accepting(Plain, &laned(2), &rings(), Now(0)).expect("a core");
    let mut end = End::new(core);
    let peer = SessionCore::connecting(Plain, &laned(4), &rings(), b"hello", Now(0));
    end.feed(&first_bytes(peer.expect("a core")), usize::MAX);
    assert!(end.core.is_open());
    assert_eq!(end.core.limits().map(|limits| limits.body_lanes), Some(2));
    end.transmit(usize::MAX, &mut VecDeque::new());
    end.told.clear();
    end
}

#[test]
fn what_breaks_the_rules_of_lanes_ends_the_session() {
    use CloseReason::{BadFrame, TooLarge, UnknownFrame};
    let part = vec![1; MIN_CHUNK_BYTES];
    let open = || begin(1, 1, 20_000, b"");
    let beyond = vec![2; 20_001];
    let huge = vec![2; (256 << 10) + 1];
    let cases: [(&str, Vec<Vec<u8>>, CloseReason); 24] = [
        ("a chunk without a body", vec![chunk(1, &part)], BadFrame),
        ("a chunk in lane 0", vec![open(), chunk(0, &part)], BadFrame),
        (
            "a chunk in a lane beyond",
            vec![open(), chunk(3, &part)],
            BadFrame,
        ),
        (
            "a chunk in the greatest lane",
            vec![open(), chunk(u32::MAX, &part)],
            BadFrame,
        ),
        (
            "more than was announced",
            vec![open(), chunk(1, &beyond)],
            BadFrame,
        ),
        ("no bytes", vec![open(), chunk(1, b"")], BadFrame),
        ("a tiny chunk", vec![open(), chunk(1, b"tiny")], BadFrame),
        (
            "a chunk above the limit",
            vec![open(), chunk(1, &huge)],
            TooLarge,
        ),
        (
            "a chunk of half a lane",
            vec![open(), frame(BODY_CHUNK, 0, &[1, 0])],
            BadFrame,
        ),
        ("two at once in a lane", vec![open(), open()], BadFrame),
        ("lane 0", vec![begin(0, 1, 9, b"")], BadFrame),
        ("a lane beyond", vec![begin(3, 1, 9, b"")], BadFrame),
        ("no number", vec![begin(1, 0, 9, b"")], BadFrame),
        (
            "a gigantic body",
            vec![begin(1, 1, u32::MAX.into(), b"")],
            TooLarge,
        ),
        (
            "a length beyond 32 bits",
            vec![begin(1, 1, u64::MAX, b"")],
            TooLarge,
        ),
        (
            "a reserved id",
            vec![begin_with(1, 1, (0xFF00, 1), 9, b"")],
            BadFrame,
        ),
        (
            "an id of 32 bits",
            vec![begin_with(1, 1, (1 << 16, 1), 9, b"")],
            BadFrame,
        ),
        (
            "a frame without a body",
            vec![begin_with(1, 1, (5, 0), 9, b"")],
            BadFrame,
        ),
        (
            "unknown flags",
            vec![begin_with(1, 1, (5, 8), 9, b"")],
            BadFrame,
        ),
        ("nothing to cancel", vec![cancelled(1)], BadFrame),
        ("an answer to nothing", vec![taken(1)], BadFrame),
        ("a refusal of nothing", vec![refused(7)], BadFrame),
        (
            "an answer to a body that has one",
            vec![taken(1), taken(1)],
            BadFrame,
        ),
        (
            "a refusal of a body that was taken",
            vec![taken(1), refused(1)],
            BadFrame,
        ),
    ];
    for (what, frames, reason) in cases {
        for piece in [1, 7, usize::MAX] {
            let mut end = end();
            end.holds_lanes = true;
            if what.contains("a body that") {
                queue(&mut end, 1, 1, 100);
                end.poll();
            }
            end.feed(&frames.concat(), piece);
            let closed = end
                .core
                .closed()
                .unwrap_or_else(|| panic!("{what}: nothing"));
            assert_eq!(closed.reason, reason, "{what}: {closed}");
        }
    }
    // Where there are no lanes, they are frames that nobody knows.
    let mut end = common::accepted(&config());
    end.feed(&open(), usize::MAX);
    assert_eq!(end.core.closed().map(|it| it.reason), Some(UnknownFrame));
}

/// A body that is given up needs no answer any more, and the next one begins at once.
#[test]
fn a_body_begins_behind_a_cancelled_one_whatever_was_answered() {
    for piece in [1, usize::MAX] {
        let mut end = end();
        let frames = [
            begin(1, 1, 20_000, b""),
            cancelled(1),
            begin(1, 2, 3, b""),
            chunk(1, b"abc"),
        ];
        end.feed(&frames.concat(), piece);
        assert!(end.core.is_open(), "{:?}", end.core.closed());
        assert!(matches!(end.told.last(), Some(Told::Body { body, .. }) if body == b"abc"));
    }
}

#[derive(Debug, TypeGenerator)]
enum Frame {
    Begin {
        lane: u8,
        number: u8,
        len: u16,
    },
    Chunk {
        lane: u8,
        len: u16,
    },
    Taken {
        number: u8,
    },
    Refused {
        number: u8,
    },
    Cancelled {
        lane: u8,
    },
    Message,
    /// The owner has a place for what waits, or does not want it.
    Take {
        lane: bool,
    },
    Refuse {
        lane: bool,
    },
}

/// Whatever frames come in whatever order: the session goes on or ends with a reason, and its owner
/// sees one body at a time in each lane.
#[test]
fn any_frames_of_lanes_are_taken_or_refused() {
    bolero::check!()
        .with_type::<(u8, bool, Vec<Frame>)>()
        .for_each(|(piece, holds, frames)| {
            let mut end = end();
            end.holds_lanes = *holds;
            queue(&mut end, 1, 1, 50_000);
            for it in frames {
                let few = |lane: u8| u32::from(lane % 4);
                let bytes = match *it {
                    Frame::Begin { lane, number, len } => {
                        begin(few(lane), number.into(), len.into(), b"head")
                    }
                    Frame::Chunk { lane, len } => chunk(few(lane), &vec![1; len.into()]),
                    Frame::Taken { number } => taken(u64::from(number % 3)),
                    Frame::Refused { number } => refused(u64::from(number % 3)),
                    Frame::Cancelled { lane } => cancelled(few(lane)),
                    Frame::Message => frame(1, 0, b"said"),
                    Frame::Take { lane } | Frame::Refuse { lane } => {
                        let lane = 1 + u8::from(lane);
                        if end.lanes.contains_key(&lane) && !end.has_taken(lane) {
                            if matches!(it, Frame::Take { .. }) {
                                end.take_lane(lane);
                            } else {
                                end.lanes.remove(&lane);
                                end.core.refuse_body(lane, "not wanted");
                            }
                        }
                        continue;
                    }
                };
                end.feed(&bytes, usize::from(*piece).max(1) * 64);
                while end.transmit(usize::MAX, &mut VecDeque::new()) {}
            }
            end.inbox_ended = true;
            while end.receive(usize::MAX) {
                while end.transmit(usize::MAX, &mut VecDeque::new()) {}
            }
            assert!(end.end().is_some(), "{:?}", end.told);
        });
}

#[test]
fn no_more_than_the_window_comes_before_a_body_has_a_place() {
    let mut end = end();
    end.holds_lanes = true;
    end.feed(&begin(1, 1, 20_000, b""), usize::MAX);
    end.feed(&chunk(1, &[1; WINDOW]), usize::MAX);
    assert!(end.core.is_open());
    end.feed(&chunk(1, &[1; MIN_CHUNK_BYTES]), usize::MAX);
    let closed = end.core.closed().expect("an end");
    assert!(closed.text.contains("window"), "{closed}");
}

/// Without lanes on either side, all is as it was.
#[test]
fn a_peer_without_lanes_gets_none() {
    for (a, b) in [(2, 0), (0, 2)] {
        let pair = Pair::open_with(&laned(a), &laned(b));
        let header = FrameHeader {
            length: 0,
            id: 3,
            flags: Plain::BODY,
        };
        let refused = pair.a.core.sender().begin_body((1, 1), header, b"", 10);
        assert_eq!(refused.err(), Some(SendError::Encoding));
    }
}

fn timed() -> SessionConfig {
    laned(2).with(|config| {
        config.frame_timeout = seconds(30);
        config.min_body_rate = 1024;
    })
}

fn timed_end() -> End {
    let core = SessionCore::accepting(Plain, &timed(), &rings(), Now(0)).expect("a core");
    let mut end = End::new(core);
    let peer = SessionCore::connecting(Plain, &laned(2), &rings(), b"hello", Now(0));
    end.feed(&first_bytes(peer.expect("a core")), usize::MAX);
    end
}

#[test]
fn a_body_that_does_not_go_on_ends_its_session() {
    let mut end = timed_end();
    end.feed(&begin(1, 1, 50_000, b""), usize::MAX);
    assert_eq!(end.core.next_tick(), Some(at(30)));
    end.tick(at(29));
    end.feed(&chunk(1, &[1; 2048]), usize::MAX);
    end.tick(at(31));
    assert!(end.core.is_open(), "it goes on");
    // The two seconds that they take at the least rate.
    end.tick(at(32));
    assert_eq!(
        end.core.closed().map(|it| it.reason),
        Some(CloseReason::FrameTimeout)
    );
}

#[test]
fn what_comes_in_other_lanes_counts_for_a_slow_peer() {
    let mut end = timed_end();
    end.feed(&begin(1, 1, 90_000, b""), usize::MAX);
    end.feed(&begin(2, 2, 90_000, b""), usize::MAX);
    // 2 KiB each two seconds, all in one lane: the other one waits for its share.
    for second in (2..60).step_by(2) {
        end.tick(at(second));
        end.feed(&chunk(1, &[1; 2048]), usize::MAX);
    }
    assert!(end.core.is_open(), "{:?}", end.core.closed());
    end.tick(at(95));
    assert_eq!(
        end.core.closed().map(|it| it.reason),
        Some(CloseReason::FrameTimeout)
    );
}

/// Time in which an end does not read counts for its peer, but not what the peer had used up before.
#[test]
fn a_body_has_no_new_time_whenever_its_session_is_held() {
    let mut end = timed_end();
    end.feed(&begin(1, 1, 50_000, b""), usize::MAX);
    // It is read for half of the time.
    for second in (0..60).step_by(4) {
        end.tick(at(second));
        end.core.hold(true, at(second));
        end.tick(at(second + 2));
        end.core.hold(false, at(second + 2));
        assert!(end.core.is_open(), "{:?}", end.core.closed());
    }
    end.tick(at(60));
    assert_eq!(
        end.core.closed().map(|it| it.reason),
        Some(CloseReason::FrameTimeout)
    );
}

#[test]
fn a_body_that_waits_for_its_place_has_no_deadline() {
    let mut end = timed_end();
    end.holds_lanes = true;
    end.feed(&begin(1, 1, 50_000, b""), usize::MAX);
    assert_eq!(end.core.next_tick(), None);
    end.now = at(500);
    end.take_lane(1);
    assert_eq!(end.core.next_tick(), Some(at(530)));
}

/// A peer that answers heartbeats and gives a body no place holds up no end for longer than `linger`.
#[test]
fn an_end_waits_for_no_answer_for_long() {
    let mut pair = pair(1);
    pair.b.holds_lanes = true;
    queue(&mut pair.a, 1, 1, 50_000);
    pair.run(usize::MAX);
    pair.a.core.leave(CloseReason::Finished, at(10));
    assert!(pair.a.core.has_lane_bodies());
    for tenth in 0..9 {
        pair.a.now = Now(at(10).0 + tenth * 100_000_000);
        pair.a.core.ping();
        pair.run(usize::MAX);
        assert!(pair.a.core.is_open());
    }
    pair.a.tick(at(11));
    assert_eq!(
        pair.a.core.closed().map(|it| it.reason),
        Some(CloseReason::Finished)
    );
}

/// The last chunk of a body has the time that it takes on a slow connection.
#[test]
fn an_end_waits_for_the_chunk_that_is_on_its_way() {
    let large = laned(1).with(|config| {
        config.max_body_bytes = 300_000;
        config.lane_window_bytes = 300_000;
        config.chunk_bytes = 256 << 10;
    });
    let mut pair = Pair::open_with(&large, &large);
    queue(&mut pair.a, 1, 1, 200_000);
    pair.a.poll();
    pair.a.core.leave(CloseReason::Finished, at(10));
    // A second for each 64 KiB of it.
    pair.tick(at(12));
    assert!(pair.a.core.is_open(), "{:?}", pair.a.core.closed());
    pair.run(usize::MAX);
    assert_eq!(pair.b.told.last(), Some(&body(1, 200_000)));
}

/// Who is about to end reads no more messages, but hears that a peer has a place for its body.
#[test]
fn an_end_that_stopped_to_receive_hears_answers_to_its_bodies() {
    let mut pair = pair(1);
    pair.a.core.stop_receiving();
    pair.a.core.leave(CloseReason::Finished, at(0));
    // The receive that was out is over by this one; the next one stays where it is.
    for id in [1, 2] {
        say(&mut pair.b, id);
        pair.run(usize::MAX);
    }
    assert_eq!(pair.a.messages().len(), 1);
    queue(&mut pair.a, 1, 1, 50_000);
    pair.run(usize::MAX);
    assert!(!pair.a.core.has_lane_bodies());
    assert_eq!(pair.b.told.last(), Some(&body(1, 50_000)));
}
