//! Hostile bytes for a core and for views: whatever comes, no panic, no memory beyond the rings,
//! and an end that has its reason.
//!
//! Under plain `cargo test` each target runs a second or less; `cargo xtask fuzz` runs them on.

mod common;

use std::collections::VecDeque;

use common::{End, RING, Told, config, frame, hello, proto, rings};
use embar_frame::Now;
use embar_session::{Arrival, CloseReason, Incoming, Plain, SessionConfig, SessionCore, Step};

fn small() -> SessionConfig {
    config().with(|config| config.max_body_bytes = 5000)
}

/// Feeds an accepting core until it ends or the bytes do, then ends the stream.
fn feed(bytes: &[u8], piece: u8, read_ahead: u16, end_early: bool) -> End {
    let config = small().with(|config| {
        config.read_ahead = match read_ahead {
            u16::MAX => usize::MAX,
            bytes => usize::from(bytes),
        };
    });
    let core = SessionCore::accepting(Plain, &config, &rings(), Now(0)).expect("a core");
    let mut end = End::new(core);
    let mut said = VecDeque::new();
    end.inbox.extend(bytes);
    end.poll();
    while end.receive(1 + usize::from(piece)) {
        assert!(end.core.stats().unread_bytes <= RING);
        assert!(end.core.stats().queued_bytes <= RING);
        // The peer reads.
        while end.transmit(usize::MAX, &mut said) {
            said.clear();
        }
        end.now.0 += 1;
    }
    if end_early {
        end.core.finish(end.now);
        end.listen();
        end.poll();
    }
    end.inbox_ended = true;
    for _ in 0..100 {
        end.receive(1 + usize::from(piece));
        while end.transmit(usize::MAX, &mut said) {
            said.clear();
        }
    }
    let ends = end
        .told
        .iter()
        .filter(|told| matches!(told, Told::Closed(_)));
    assert_eq!(ends.count(), 1, "{:?}", end.told);
    let closed = end.end().expect("the end comes last");
    assert!(!matches!(closed.reason, CloseReason::Io(_)));
    assert!(end.closed && end.core.is_over());
    end
}

#[test]
fn link_as_it_comes() {
    bolero::check!()
        .with_type::<(u8, u16, bool, Vec<u8>)>()
        .for_each(|(piece, read_ahead, early, bytes)| {
            feed(bytes, *piece, *read_ahead, *early);
        });
}

#[test]
fn link_after_a_good_hello() {
    let hello = hello();
    bolero::check!()
        .with_type::<(u8, u16, bool, Vec<u8>)>()
        .for_each(|(piece, read_ahead, early, bytes)| {
            feed(&[&hello[..], bytes].concat(), *piece, *read_ahead, *early);
        });
}

#[test]
fn link_with_valid_headers() {
    let hello = hello();
    bolero::check!()
        .with_type::<(u8, u16, bool, Vec<(u8, u8, u16, Vec<u8>)>)>()
        .for_each(|(piece, read_ahead, early, frames)| {
            let mut bytes = hello.clone();
            let mut good = 0;
            for (kind, id, head, content) in frames {
                let id = match kind % 4 {
                    // A message; a frame of the session layer; one with a head and a body.
                    0 | 3 => u16::from(*id),
                    1 => 0xFF00 + u16::from(id % 10),
                    _ => {
                        let mut body = u32::from(*head).to_le_bytes().to_vec();
                        body.extend(content);
                        bytes.extend(frame(u16::from(*id), Plain::BODY, &body));
                        continue;
                    }
                };
                good += usize::from(id < 0xFF00);
                bytes.extend(frame(id, 0, content));
            }
            let end = feed(&bytes, *piece, *read_ahead, *early);
            assert!(end.messages().len() <= good);
        });
}

#[test]
fn hello_with_flipped_bits() {
    let hello = hello();
    bolero::check!()
        .with_type::<(u8, Vec<(u16, u8)>)>()
        .for_each(|(piece, flips)| {
            let mut bytes = hello.clone();
            for (at, bits) in flips {
                let at = usize::from(*at) % bytes.len();
                bytes[at] ^= bits;
            }
            feed(&bytes, *piece, u16::MAX, false);
        });
}

#[test]
fn views() {
    let hello = hello();
    bolero::check!().for_each(|bytes: &[u8]| {
        if bytes.len() > common::MAX_FRAME as usize {
            return;
        }
        let core = SessionCore::accepting(Plain, &small(), &rings(), Now(0)).expect("a core");
        let mut end = End::new(core);
        end.feed(&hello, usize::MAX);
        end.ignores = true;
        end.feed(&frame(1, 0, bytes), usize::MAX);
        let Some(embar_session::Incoming::Message(message)) = end.core.next(Now(0)) else {
            panic!("a good frame is told");
        };
        let payload = message.payload().as_ptr_range();
        if let Ok(view) = message.decode::<proto::PacketView<'_>>() {
            // Every byte of it lies within the message.
            for part in [view.name.as_bytes(), view.data] {
                assert!(part.is_empty() || payload.contains(&part.as_ptr()));
            }
        }
        let _ = message.decode::<proto::PointView<'_>>();
    });
}

/// What an arrival takes for a HELLO, a core takes for one, too; and it asks for no more memory than
/// a HELLO needs.
#[test]
fn arrival() {
    let hello = hello();
    bolero::check!()
        .with_type::<(u8, bool, Vec<(u16, u8)>, Vec<u8>)>()
        .for_each(|(piece, begins, flips, more)| {
            let mut bytes = if *begins { hello.clone() } else { Vec::new() };
            bytes.extend(more);
            for (at, bits) in flips {
                let at = usize::from(*at) % bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= bits;
                }
            }
            let mut arrival = Arrival::<Plain>::new(&small(), Now(0));
            let mut left = &bytes[..];
            while let Some(step) = arrival.poll::<embar_session::buffer::Mapped>() {
                match step {
                    Step::Recv(mut buf) => {
                        assert!(buf.remaining() <= 3072 + 12);
                        let count = left.len().min(1 + usize::from(*piece));
                        let count = buf.fill(&left[..count]);
                        left = &left[count..];
                        arrival.received(buf, &Ok(count), Now(0));
                    }
                    Step::Send(buf) => arrival.sent(buf, &Ok(())),
                    Step::ShutdownWrite => {}
                    Step::Close => break,
                }
            }
            if arrival.has_greeted() {
                let core = arrival.session(Plain, &small(), &rings(), Now(0));
                let mut core: SessionCore<Plain> = core.expect("a core");
                let first = core.next(Now(0));
                assert!(matches!(first, Some(Incoming::Opened { .. })), "{first:?}");
            } else {
                assert!(arrival.closed().is_some());
            }
        });
}
