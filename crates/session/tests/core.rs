//! Sessions between two cores: what comes out is what went in, however the bytes are cut.

mod common;

use common::{Pair, RING, Told, accepted, config, frame, proto};
use embar_frame::Now;
use embar_memory::Buffer;
use embar_session::{CloseReason, Incoming, SendError, Side};
use embar_transport::Body;
use std::sync::Arc;

#[test]
fn messages_come_out_as_they_went_in_however_they_are_cut() {
    for piece in [1, 2, 3, 7, 8, 9, 63, 1000, usize::MAX] {
        let mut pair = Pair::new(&config(), &config());
        pair.run(piece);
        let mut sent = Vec::new();
        for number in 0..40u16 {
            let payload = vec![number as u8; usize::from(number) * 25];
            pair.a
                .core
                .send_with(number, payload.len(), |out| out.copy_from_slice(&payload))
                .expect("room");
            sent.push((number, payload));
            if number % 7 == 0 {
                pair.run(piece);
            }
        }
        pair.run(piece);
        assert_eq!(pair.b.messages(), sent, "in pieces of {piece}");
        let stats = pair.b.core.stats();
        assert_eq!((stats.messages_in, stats.unread_bytes), (40, 0));
        assert_eq!(pair.a.core.stats().messages_out, 40);
        assert_eq!(pair.a.core.stats().bytes_out, stats.bytes_in);
    }
}

#[test]
fn protobuf_messages_are_read_as_views() {
    let mut pair = Pair::open();
    let packet = proto::Packet {
        number: 7,
        name: "seven".into(),
        data: vec![1, 2, 3],
        path: vec![proto::Point::default(); 3],
        ..Default::default()
    };
    pair.a.core.send(12, &packet).expect("room");
    pair.b.ignores = true;
    pair.run(usize::MAX);
    let Some(Incoming::Message(message)) = pair.b.core.next(Now(0)) else {
        panic!("no message");
    };
    assert_eq!(message.id(), 12);
    let view: proto::PacketView<'_> = message.decode().expect("what was sent");
    assert_eq!(
        (view.number, view.name, view.data),
        (7, "seven", &[1, 2, 3][..])
    );
    assert_eq!(view.path.len(), 3);
    let name = view.name.as_ptr() as usize;
    let payload = message.payload().as_ptr_range();
    assert!((payload.start as usize..payload.end as usize).contains(&name));
}

#[test]
fn invalid_protobuf_is_an_error_of_that_message_alone() {
    let mut end = accepted(&config());
    end.ignores = true;
    let bytes = [frame(1, 0, &[0xFF; 20]), frame(2, 0, b"")].concat();
    end.feed(&bytes, usize::MAX);
    let Some(Incoming::Message(message)) = end.core.next(Now(0)) else {
        panic!("no message");
    };
    assert!(message.decode::<proto::PacketView<'_>>().is_err());
    let Some(Incoming::Message(message)) = end.core.next(Now(0)) else {
        panic!("no second message");
    };
    assert!(message.decode::<proto::PacketView<'_>>().is_ok());
    assert!(end.core.is_open());
}

#[test]
fn zero_and_maximal_lengths_pass_and_one_more_does_not() {
    let mut pair = Pair::open();
    let max = common::MAX_FRAME as usize;
    for len in [0, 1, max] {
        pair.a
            .core
            .send_with(5, len, |out| out.fill(9))
            .expect("allowed");
    }
    assert_eq!(
        pair.a.core.send_with(5, max + 1, |_| ()),
        Err(SendError::TooLong {
            bytes: max + 1,
            max: max as u32
        })
    );
    pair.run(100);
    let lengths: Vec<usize> = pair.b.messages().iter().map(|(_, p)| p.len()).collect();
    assert_eq!(lengths, [0, 1, max]);

    // A peer that does not keep to it is told so after the header alone.
    let mut end = accepted(&config());
    end.feed(&frame(5, 0, &vec![0; max + 1])[..8], 1);
    let closed = end.end().expect("an end");
    assert_eq!(
        (closed.by, closed.reason),
        (Side::Local, CloseReason::TooLarge)
    );
}

#[test]
fn a_frame_as_long_as_the_ring_fits() {
    let mut large = config();
    large.max_frame_bytes = u32::MAX;
    large.reply_room = 1;
    let mut pair = Pair::open_with(&large, &large);
    let max = RING - 12;
    assert_eq!(
        pair.a.core.limits().map(|l| l.max_frame_bytes),
        Some(max as u32)
    );
    for _ in 0..3 {
        pair.a
            .core
            .send_with(1, max, |out| out.fill(3))
            .expect("an empty ring");
        pair.run(1000);
    }
    assert_eq!(pair.b.messages().len(), 3);
}

#[test]
fn reserved_ids_are_refused_on_both_sides() {
    let mut pair = Pair::open();
    assert_eq!(
        pair.a.core.send_with(0xFF00, 0, |_| ()),
        Err(SendError::ReservedId { id: 0xFF00 })
    );
    for (id, reason) in [
        (0xFF08, CloseReason::UnknownFrame),
        (0xFFFF, CloseReason::UnknownFrame),
        (0xFF00, CloseReason::BadFrame),
    ] {
        let mut end = accepted(&config());
        end.feed(&frame(id, 0, b""), 1);
        assert_eq!(
            end.end().map(|closed| closed.reason),
            Some(reason),
            "{id:#x}"
        );
    }
}

#[test]
fn nothing_is_sent_before_the_handshake_and_after_the_end() {
    let mut pair = Pair::new(&config(), &config());
    assert_eq!(pair.a.core.send_with(1, 0, |_| ()), Err(SendError::NotOpen));
    assert_eq!(pair.b.core.send_with(1, 0, |_| ()), Err(SendError::NotOpen));
    pair.run(usize::MAX);
    let sender = pair.a.core.sender().clone();
    assert!(sender.send_with(1, 0, |_| ()).is_ok());
    pair.a.core.finish(Now(0));
    assert_eq!(
        sender.send_with(1, 0, |_| ()).err(),
        Some(SendError::Closed)
    );
    pair.run(usize::MAX);
    assert_eq!(
        pair.b.messages().len(),
        1,
        "what was committed before is sent"
    );
    assert!(pair.a.core.is_over() && pair.b.core.is_over());
}

#[test]
fn bodies_go_between_frames_and_come_out_whole() {
    for piece in [1, 5, 64, 4096, usize::MAX] {
        for read_ahead in [0, 64, usize::MAX] {
            let mut config = config();
            config.read_ahead = read_ahead;
            let mut pair = Pair::open_with(&config, &config);
            let body: Arc<Buffer> = Arc::new(Buffer::from(
                (0..50_000u32).map(|i| i as u8).collect::<Vec<_>>(),
            ));
            let head = b"the head";
            let mut start = frame(9, 1, &(head.len() as u32).to_le_bytes());
            start.extend_from_slice(head);
            let length = (start.len() - 8 + body.len()) as u32;
            start[..4].copy_from_slice(&length.to_le_bytes());
            for round in 0..3u16 {
                pair.a
                    .core
                    .send_with(round, 30, |out| out.fill(1))
                    .expect("room");
                assert!(pair.a.core.may_send_body());
                pair.a
                    .core
                    .send_body(start.clone(), Body::Shared(Arc::clone(&body)));
                assert!(!pair.a.core.may_send_body());
                // Committed behind the body, before anything of it left or in the middle of it.
                pair.a
                    .core
                    .send_with(100 + round, 3, |out| out.fill(2))
                    .expect("room");
                pair.step(piece);
                pair.a
                    .core
                    .send_with(200 + round, 3, |out| out.fill(3))
                    .expect("room");
                pair.run(piece);
            }
            let bodies = pair.b.told.iter().filter(|told| {
                **told
                    == Told::Body {
                        id: 9,
                        head: head.to_vec(),
                        body: body.to_vec(),
                    }
            });
            assert_eq!(
                bodies.count(),
                3,
                "pieces of {piece}, read-ahead {read_ahead}"
            );
            assert_eq!(pair.b.messages().len(), 9);
        }
    }
}

#[test]
fn a_body_without_a_head_of_its_own_leaves_with_what_is_committed() {
    let mut pair = Pair::open();
    pair.a
        .core
        .send_with(1, 4, |out| out.fill(1))
        .expect("room");
    let frames = [frame(2, 0, b"two"), frame(3, 0, b"three")].concat();
    pair.a
        .core
        .send_body(Vec::new(), Body::Shared(Arc::new(frames.clone().into())));
    pair.a.poll();
    let buf = pair.a.send.as_ref().expect("a send");
    assert_eq!(buf.total(), 12 + frames.len());
    pair.run(usize::MAX);
    let ids: Vec<u16> = pair.b.messages().iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn a_read_ahead_of_64_never_takes_a_byte_of_a_body() {
    use embar_frame::FrameHeader;
    use embar_session::SessionCore;
    use embar_wire::frame::{FrameId, LogProtocol};
    let log = LogProtocol::default();
    let config = config().with(|config| config.read_ahead = 64);
    let rings = common::rings();
    let hello = SessionCore::connecting(log, &config, &rings, b"", Now(0)).expect("a core");
    let hello = common::first_bytes(hello);
    let control = FrameHeader::new(FrameId::ListTopics, 3).with_checksum();
    let mut control = [&control.to_bytes()[..], &[0; 7]].concat();
    embar_frame::write_checksum(&mut control);
    let batch = FrameHeader::new(FrameId::Batch, 56 + 640).to_bytes();
    let batch = [&batch[..], &[7; 56 + 640]].concat();
    for piece in [1, 13, usize::MAX] {
        let core = SessionCore::accepting(log, &config, &rings, Now(0)).expect("a core");
        let mut end = common::End::new(core);
        end.feed(&hello, piece);
        end.ignores = true;
        for _ in 0..3 {
            end.feed(&[&control[..], &batch].concat(), piece);
            let mut heads = 0;
            for _ in 0..1000 {
                let due = match end.core.next(Now(0)) {
                    Some(Incoming::Head(head)) => {
                        assert_eq!(head.early(), b"");
                        assert_eq!((head.head().len(), head.body_len()), (56, 640));
                        heads += 1;
                        true
                    }
                    Some(_) => false,
                    None if heads == 1 => break,
                    None => {
                        end.poll();
                        assert!(end.receive(piece));
                        false
                    }
                };
                if due {
                    let payload: Vec<u8> = end.inbox.drain(..640).collect();
                    assert!(payload.iter().all(|byte| *byte == 7));
                    end.core.body_received(640, Now(0));
                }
            }
            assert_eq!(heads, 1);
        }
    }
}

#[test]
fn a_receive_of_a_body_may_go_on_into_the_ring() {
    let mut config = config();
    config.read_ahead = 0;
    let mut end = accepted(&config);
    end.ignores = true;
    let mut bytes = frame(9, 1, &[&2u32.to_le_bytes()[..], b"hd", &[5; 300]].concat());
    bytes.extend(frame(4, 0, b"next"));
    end.inbox.extend(&bytes[..14]);
    while end.core.body_due() == 0 {
        end.poll();
        assert!(end.receive(usize::MAX));
        let _ = end.core.next(Now(0));
    }
    assert_eq!(end.core.body_due(), 300);
    assert!(end.core.poll().is_none(), "the owner receives");
    let mut space = end.core.lend_ahead(8).expect("the ring is empty");
    assert!(end.core.lend_ahead(8).is_none(), "lent already");
    space.as_mut_slice()[..8].copy_from_slice(&bytes[314..322]);
    end.core.body_received(300, Now(0));
    end.core.ahead_received(space, 8, Now(0));
    assert!(end.core.next(Now(0)).is_none());
    end.feed(&bytes[322..], usize::MAX);
    let Some(Incoming::Message(message)) = end.core.next(Now(0)) else {
        panic!("the frame behind the body is lost");
    };
    assert_eq!((message.id(), message.payload()), (4, &b"next"[..]));
}

#[test]
fn frames_behind_a_body_may_be_taken_from_where_the_owner_received_them() {
    let mut config = config();
    config.read_ahead = 0;
    let mut end = accepted(&config);
    end.ignores = true;
    let body = |len| {
        frame(
            9,
            1,
            &[&2u32.to_le_bytes()[..], b"hd", &vec![len as u8; len]].concat(),
        )
    };
    end.inbox.extend(&body(300)[..14]);
    while end.core.body_due() == 0 {
        end.poll();
        assert!(end.receive(usize::MAX));
        let _ = end.core.next(Now(0));
    }
    assert_eq!(end.core.ahead_room(), RING, "nothing is in it");
    let behind = [body(20), body(0), frame(4, 0, b"next"), body(7)].concat();
    assert!(
        end.core.next_ahead(&behind, Now(0)).is_none(),
        "the body comes first"
    );
    end.core.body_received(300, Now(0));
    let before = end.core.stats();
    let mut rest = &behind[..];
    for len in [20, 0] {
        let Some(head) = end.core.next_ahead(rest, Now(0)) else {
            panic!("a whole frame with a body of {len} bytes");
        };
        assert_eq!(
            (head.id(), head.head(), head.body_len()),
            (9, &b"hd"[..], len)
        );
        assert_eq!(head.early(), vec![len as u8; len]);
        rest = &rest[14 + len..];
        assert_eq!(end.core.body_due(), 0);
    }
    assert!(end.core.next_ahead(rest, Now(0)).is_none(), "no body");
    let last = body(7);
    assert!(
        end.core.next_ahead(&last[..20], Now(0)).is_none(),
        "not all of it is there"
    );
    end.core.keep_ahead(rest, Now(0));
    assert!(
        end.core.next_ahead(&last, Now(0)).is_none(),
        "what is in the ring comes first"
    );
    let Some(Incoming::Message(message)) = end.core.next(Now(0)) else {
        panic!("the frame behind the bodies is lost");
    };
    assert_eq!((message.id(), message.payload()), (4, &b"next"[..]));
    let Some(Incoming::Head(head)) = end.core.next(Now(0)) else {
        panic!("the body behind it is lost");
    };
    assert_eq!((head.body_len(), head.early()), (7, &[7; 7][..]));
    let stats = end.core.stats();
    assert_eq!(stats.messages_in, before.messages_in + 4);
    assert_eq!(stats.bytes_in, before.bytes_in + behind.len() as u64);
}

#[test]
fn a_body_may_be_discarded() {
    for piece in [1, 100, usize::MAX] {
        let mut end = accepted(&config());
        end.ignores = true;
        let content = [&0u32.to_le_bytes()[..], &vec![5; 60_000]].concat();
        let bytes = [frame(9, 1, &content), frame(4, 0, b"next")].concat();
        end.inbox.extend(&bytes);
        let mut seen = Vec::new();
        while seen.len() < 2 {
            match end.core.next(Now(0)) {
                Some(Incoming::Head(head)) => seen.push(head.id()),
                Some(Incoming::Message(message)) => seen.push(message.id()),
                Some(other) => panic!("{other:?}"),
                None => {
                    end.poll();
                    assert!(end.receive(piece), "stuck after {seen:?}");
                    continue;
                }
            }
            if end.core.body_due() > 0 {
                end.core.discard_body(Now(0));
            }
        }
        assert_eq!(seen, [9, 4]);
    }
}

#[test]
fn what_is_put_back_comes_again() {
    let mut end = accepted(&config());
    end.ignores = true;
    let content = [&2u32.to_le_bytes()[..], b"hdbody"].concat();
    let bytes = [
        frame(1, 0, b"one"),
        frame(9, 1, &content),
        frame(2, 0, b"two"),
    ]
    .concat();
    end.feed(&bytes, usize::MAX);
    for _ in 0..3 {
        let Some(Incoming::Message(message)) = end.core.next(Now(0)) else {
            panic!("no message");
        };
        assert_eq!(message.payload(), b"one");
        end.core.put_back();
        assert_eq!(end.core.stats().messages_in, 0);
        end.core.hold(true, Now(0));
        end.poll();
        assert!(end.recv.is_none());
        end.core.hold(false, Now(0));
    }
    assert!(matches!(end.core.next(Now(0)), Some(Incoming::Message(_))));
    for _ in 0..3 {
        let Some(Incoming::Head(head)) = end.core.next(Now(0)) else {
            panic!("no head");
        };
        assert_eq!((head.head(), head.early()), (&b"hd"[..], &b"body"[..]));
        assert_eq!(end.core.early(), b"body");
        end.core.put_back();
        assert_eq!((end.core.body_due(), end.core.early()), (0, &b""[..]));
        assert!(end.core.has_head());
        end.core.hold(true, Now(0));
        assert!(!end.core.has_head(), "nothing comes of a core that is held");
        end.core.hold(false, Now(0));
    }
    assert!(matches!(end.core.next(Now(0)), Some(Incoming::Head(_))));
    assert!(!end.core.has_head(), "a message is next");
    assert!(matches!(end.core.next(Now(0)), Some(Incoming::Message(_))));
    assert!(end.core.next(Now(0)).is_none());
    assert_eq!(end.core.stats().messages_in, 3);
}

#[test]
fn a_peer_that_never_reads_fills_the_ring_and_is_not_read() {
    let mut pair = Pair::open();
    pair.b.stuck_send = true;
    // It asks and asks; each answer takes room until none is left.
    let mut answers = 0;
    for _ in 0..1000 {
        let _ = pair.a.core.send_with(1, 100, |out| out.fill(1));
        pair.b.ignores = true;
        pair.run(usize::MAX);
        while let Some(Incoming::Message(_)) = pair.b.core.next(Now(0)) {
            pair.b
                .core
                .send_with(2, 900, |out| out.fill(2))
                .expect("a reply always fits");
            answers += 1;
        }
    }
    assert!((5..=RING / 900 + 1).contains(&answers), "{answers} answers");
    assert_eq!(pair.b.core.waits_for_room(), Some(1012));
    assert!(pair.b.recv.is_none() || pair.b.core.stats().unread_bytes < RING);
    assert!(pair.b.core.stats().queued_bytes <= RING);
    assert_eq!(
        pair.a.core.send_with(1, 1000, |_| ()),
        Err(SendError::Full),
        "the asking side notices as well"
    );
    // It reads after all: everything arrives.
    pair.b.stuck_send = false;
    let asked = pair.a.core.stats().messages_out;
    for _ in 0..1000 {
        pair.run(usize::MAX);
        while let Some(Incoming::Message(_)) = pair.b.core.next(Now(0)) {
            pair.b
                .core
                .send_with(2, 900, |out| out.fill(2))
                .expect("a reply always fits");
        }
    }
    assert_eq!(pair.a.messages().len() as u64, asked);
}

#[test]
fn a_reply_always_fits_however_short_the_messages_are() {
    let mut pair = Pair::open();
    pair.b.stuck_send = true;
    pair.b.ignores = true;
    let mut answers = 0;
    for _ in 0..RING {
        if pair.a.core.send_with(1, 0, |_| ()).is_err() {
            pair.run(usize::MAX);
        }
        while let Some(Incoming::Message(_)) = pair.b.core.next(Now(0)) {
            let reply = pair.b.core.send_with(2, 0, |_| ());
            reply.unwrap_or_else(|error| panic!("after {answers} answers: {error}"));
            answers += 1;
        }
    }
    assert!(answers > 100 && pair.b.core.waits_for_room().is_some());
}

#[test]
fn threads_may_send_on_one_session_and_each_keeps_its_order() {
    const EACH: u32 = 2000;
    let mut pair = Pair::open();
    let sender = pair.a.core.sender().clone();
    let threads: Vec<_> = (0..3u16)
        .map(|id| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    while sender
                        .send_with(id, 4, |out| out.copy_from_slice(&number.to_le_bytes()))
                        .is_err()
                    {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        pair.run(usize::MAX);
    }
    pair.run(usize::MAX);
    for (id, thread) in threads.into_iter().enumerate() {
        thread.join().expect("it sent all");
        let told = pair.b.messages().into_iter();
        let numbers = told.filter(|(from, _)| usize::from(*from) == id);
        let numbers: Vec<Vec<u8>> = numbers.map(|(_, payload)| payload).collect();
        let expected: Vec<Vec<u8>> = (0..EACH).map(|n| n.to_le_bytes().to_vec()).collect();
        assert_eq!(numbers, expected);
    }
}

#[test]
fn what_is_committed_under_a_cork_leaves_together() {
    use embar_session::Commit;
    let mut pair = Pair::open();
    assert!(pair.a.core.cork());
    let sender = pair.a.core.sender().clone();
    for _ in 0..5 {
        let commit = sender.send_with(1, 2, |out| out.fill(1)).expect("room");
        assert_eq!(commit, Commit::Left, "the core sees it");
    }
    pair.a.poll();
    assert_eq!(pair.a.send.as_ref().map(|buf| buf.total()), Some(50));
    assert!(!pair.a.core.cork(), "a send is out");
    pair.run(usize::MAX);
    assert_eq!(pair.b.messages().len(), 5);
    // A cork over nothing is given up.
    assert!(pair.a.core.cork());
    pair.a.poll();
    let commit = sender.send_with(1, 0, |_| ()).expect("room");
    assert_eq!(commit, Commit::First);
}

#[test]
fn a_link_that_needs_the_right_to_send_says_so_while_another_has_it() {
    for finishes in [true, false] {
        let mut pair = Pair::open();
        let sender = pair.a.core.sender().clone();
        let _ = sender.send_with(1, 8, |out| out.fill(1)).expect("room");
        let mut span = sender.ring().span().expect("nobody else sends");
        if finishes {
            pair.a.core.finish(Now(0));
        } else {
            let body = Arc::new(Buffer::from(frame(2, 0, b"body")));
            pair.a.core.send_body(Vec::new(), Body::Shared(body));
        }
        // In the middle of a frame, nothing may come between.
        pair.b.inbox.extend(&span.bytes()[..5]);
        span.advance(5);
        pair.a.poll();
        assert!(pair.a.send.is_none());
        assert!(sender.wants_right());
        assert!(span.finish(), "there is more");
        pair.run(3);
        assert!(!sender.wants_right());
        let ids: Vec<u16> = pair.b.messages().iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, if finishes { vec![1] } else { vec![1, 2] });
        assert_eq!(pair.b.end().is_some(), finishes);
    }
}

#[test]
fn a_reservation_that_is_dropped_leaves_no_trace() {
    let mut pair = Pair::open();
    let sender = pair.a.core.sender().clone();
    let mut first = sender.reserve(1, 3).expect("room");
    let dropped = sender.reserve(2, 500).expect("room");
    let mut last = sender.reserve(3, 3).expect("room");
    first.copy_from_slice(b"one");
    last.copy_from_slice(b"two");
    let _ = last.commit();
    pair.run(usize::MAX);
    assert_eq!(pair.b.messages(), [], "the first is not committed");
    let _ = first.commit();
    pair.run(usize::MAX);
    assert_eq!(pair.b.messages(), [(1, b"one".to_vec())]);
    drop(dropped);
    pair.run(usize::MAX);
    let expected = [(1, b"one".to_vec()), (3, b"two".to_vec())];
    assert_eq!(pair.b.messages(), expected);
}

#[test]
fn an_encoder_that_panics_sends_nothing() {
    let mut pair = Pair::open();
    let sender = pair.a.core.sender().clone();
    let panicked = std::panic::catch_unwind(|| sender.send_with(1, 10, |_| panic!("on purpose")));
    assert!(panicked.is_err());
    pair.a.core.send_with(2, 0, |_| ()).expect("room");
    pair.run(1);
    assert_eq!(pair.b.messages(), [(2, vec![])]);
}

#[test]
fn messages_may_be_kept_up_to_the_limit() {
    let mut config = config();
    config.max_kept_bytes = 600;
    let mut end = accepted(&config);
    end.ignores = true;
    let mut kept = Vec::new();
    let mut refused = 0;
    for number in 0..10u8 {
        end.feed(&frame(1, 0, &[number; 100]), usize::MAX);
        let Some(Incoming::Message(message)) = end.core.next(Now(0)) else {
            panic!("no message");
        };
        match message.keep() {
            Ok(guard) => kept.push(guard),
            Err(limit) => {
                assert!(limit.blocked > 600 && limit.limit == 600);
                refused += 1;
            }
        }
    }
    assert_eq!((kept.len(), refused), (5, 5));
    for (number, guard) in kept.iter().enumerate() {
        assert_eq!(**guard, [number as u8; 100]);
    }
    kept.clear();
    end.feed(&frame(1, 0, &[77; 100]), usize::MAX);
    let Some(Incoming::Message(message)) = end.core.next(Now(0)) else {
        panic!("no message");
    };
    assert!(message.keep().is_ok(), "there is room again");
}

#[test]
fn a_kept_message_that_blocks_the_ring_stops_reading_until_its_drop() {
    let mut end = accepted(&config());
    end.ignores = true;
    end.feed(&frame(1, 0, b"kept"), usize::MAX);
    let Some(Incoming::Message(message)) = end.core.next(Now(0)) else {
        panic!("no message");
    };
    let kept = message.keep().expect("within the limit");
    let flood: Vec<u8> = frame(2, 0, &[1; 500]).repeat(100);
    end.inbox.extend(&flood);
    let mut seen = 0;
    for _ in 0..1000 {
        end.poll();
        end.receive(usize::MAX);
        while let Some(Incoming::Message(_)) = end.core.next(Now(0)) {
            seen += 1;
        }
    }
    assert!(seen < 100 && end.core.waits_for_release(), "{seen} seen");
    assert_eq!(&*kept, b"kept");
    drop(kept);
    for _ in 0..1000 {
        end.poll();
        end.receive(usize::MAX);
        while let Some(Incoming::Message(_)) = end.core.next(Now(0)) {
            seen += 1;
        }
    }
    assert_eq!(seen, 100);
}

#[test]
fn goodbye_and_status_reach_the_other_end() {
    let mut pair = Pair::open();
    pair.a.core.goodbye("going");
    pair.a.core.request_status();
    pair.run(1);
    assert_eq!(pair.b.told, [Told::Status, Told::Goodbye("going".into())]);
    pair.b
        .core
        .reply_status(4, |out| out.copy_from_slice(b"fine"))
        .expect("room");
    pair.run(1);
    assert_eq!(pair.a.told, [Told::StatusReply(b"fine".to_vec())]);
    assert!(pair.a.core.is_open() && pair.b.core.is_open());
}

#[test]
fn links_travel_between_threads() {
    fn sent<T: Send>() {}
    sent::<embar_session::SessionCore<embar_session::Plain>>();
    fn shared<T: Send + Sync>() {}
    shared::<embar_session::Sender>();
    shared::<embar_session::Kept>();
}

/// Who is about to finish, and has messages left, is not kept from it by more of them.
#[test]
fn a_core_that_stops_receiving_has_what_has_come_and_no_more() {
    let mut pair = Pair::open();
    let say = |pair: &mut Pair, id: u16| {
        let sent = pair.a.core.send_with(id, 900, |out| out.fill(1));
        sent.expect("room");
    };
    pair.b.ignores = true;
    say(&mut pair, 1);
    pair.run(usize::MAX);
    pair.b.core.stop_receiving();
    for id in 2..5 {
        say(&mut pair, id);
        pair.run(usize::MAX);
    }
    pair.b.ignores = false;
    pair.run(usize::MAX);
    let ids = |pair: &Pair| -> Vec<u16> { pair.b.messages().iter().map(|it| it.0).collect() };
    assert_eq!(ids(&pair), [1]);
    // Not even after a pause.
    pair.b.core.hold(true, Now(0));
    pair.b.core.hold(false, Now(0));
    pair.run(usize::MAX);
    assert_eq!(ids(&pair), [1]);
    pair.b.core.finish(Now(0));
    pair.run(usize::MAX);
    assert_eq!(
        pair.a.end().map(|end| end.reason),
        Some(CloseReason::Finished)
    );
    assert!(pair.b.closed);
}
