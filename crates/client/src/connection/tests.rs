use embar_frame::write_checksum;
use embar_session::Side;
use embar_wire::control::{ErrorCode, ErrorReply, ListTopics, Metadata};

use super::*;
use crate::testing::{SECOND, all_sent, control_frames, far_end, frame, goodbye, welcome};

const NOW: Now = Now(0);

fn settings() -> LinkSettings {
    LinkSettings::control("test")
}

/// Feeds bytes as a driver does, and drains what comes of them.
fn feed(
    link: &mut Link,
    mut bytes: &[u8],
    mut each: impl FnMut(Incoming<'_>),
) -> Result<(), Violation> {
    while !bytes.is_empty() {
        let mut buf = match link.poll() {
            Some(LinkAction::Receive(buf)) => buf,
            Some(LinkAction::Send(buf)) => {
                link.sent(all_sent(buf), &Ok(()), NOW);
                continue;
            }
            _ => return Ok(()),
        };
        let count = buf.fill(bytes);
        bytes = &bytes[count..];
        link.received(buf, &Ok(count), NOW);
        while let Some(incoming) = link.next(NOW)? {
            each(incoming);
        }
    }
    Ok(())
}

/// Takes a send from the link, with its bytes.
fn take_send(link: &mut Link) -> Option<(SendBuf, Vec<u8>)> {
    while let Some(action) = link.poll() {
        if let LinkAction::Send(buf) = action {
            let bytes = buf.with_unsent(|head, body| [head, body].concat());
            return Some((buf, bytes));
        }
    }
    None
}

fn connecting() -> Link {
    let mut link = Link::new(settings());
    link.connect("127.0.0.1:1".parse().expect("an address"));
    assert!(matches!(link.poll(), Some(LinkAction::Connect(_))));
    link
}

/// Its Hello is to be sent.
fn connected() -> Link {
    let mut link = connecting();
    link.connected(NOW).expect("memory");
    link
}

fn up() -> Link {
    let mut link = connected();
    let (Some(LinkAction::Receive(mut buf)), Some(LinkAction::Send(hello))) =
        (link.poll(), link.poll())
    else {
        panic!("it listens and says Hello");
    };
    link.sent(all_sent(hello), &Ok(()), NOW);
    let count = buf.fill(&welcome(3));
    link.received(buf, &Ok(count), NOW);
    let first = link.next(NOW);
    assert!(matches!(first, Ok(Some(Incoming::Welcome(_)))));
    assert!(link.is_up());
    link
}

#[test]
fn frames_come_out_whole_however_they_come_in() {
    let bytes = [
        welcome(3),
        frame(&Control::Done),
        goodbye(),
        frame(&Control::Done),
    ]
    .concat();
    for size in [1, 3, 1000] {
        let mut link = connected();
        let mut seen = Vec::new();
        for piece in bytes.chunks(size) {
            feed(&mut link, piece, |incoming| {
                seen.push(match incoming {
                    Incoming::Welcome(welcome) => welcome.broker_id,
                    Incoming::Control(Control::Done) => 100,
                    Incoming::Goodbye => 200,
                    other => panic!("{other:?}"),
                });
            })
            .expect("good");
        }
        assert_eq!(seen, [3, 100, 200, 100], "pieces of {size}");
        assert!(link.is_up());
    }
}

#[test]
fn the_other_end_hears_who_came_and_what_is_asked() {
    let mut link = connected();
    let (hello, bytes) = take_send(&mut link).expect("Hello");
    let (mut far, heard) = far_end(&bytes);
    let hello_heard = Hello::from_greeting(&heard).expect("a greeting");
    assert_eq!(
        (hello_heard.role, hello_heard.name.as_str()),
        (Role::Client, "test")
    );
    link.sent(all_sent(hello), &Ok(()), NOW);
    assert!(!link.is_up() && !link.may_send_batch());
    // Nothing may be asked yet, and what is asked too early is not sent later.
    link.send(&Control::Status).expect("dropped");
    assert!(take_send(&mut link).is_none());
    far.welcome(
        &Welcome {
            broker_id: 1,
            incarnation: 1,
            max_control_bytes: 0,
            max_batch_bytes: 0,
            server: String::new(),
        }
        .to_greeting(),
        NOW,
    )
    .expect("decided now");
    assert!(far.is_open());
}

#[test]
fn one_send_at_a_time_and_what_waits_goes_together() {
    let mut link = up();
    let request = Control::Metadata(Metadata::default());
    link.send(&request).expect("small");
    let (first, bytes) = take_send(&mut link).expect("a request");
    assert_eq!(control_frames(&bytes), [request]);
    link.send(&Control::ListTopics(ListTopics::default()))
        .expect("small");
    link.send(&Control::Status).expect("small");
    assert!(!link.may_send_batch());
    assert!(!link.has_action() && link.poll().is_none());
    link.sent(all_sent(first), &Ok(()), NOW);
    let (_, bytes) = take_send(&mut link).expect("two requests");
    assert_eq!(
        control_frames(&bytes),
        [Control::ListTopics(ListTopics::default()), Control::Status]
    );
}

#[test]
fn a_batch_leaves_as_it_is_and_without_a_copy() {
    let mut link = up();
    let batch = Arc::new(vec![7; 256]);
    link.send_batch(batch.clone());
    assert!(!link.may_send_batch());
    let Some((buf, _)) = take_send(&mut link) else {
        panic!("the batch");
    };
    buf.with_unsent(|head, body| {
        assert!(head.is_empty());
        assert_eq!(body.as_ptr(), batch.as_ptr());
    });
    link.sent(all_sent(buf), &Ok(()), NOW);
    assert_eq!(Arc::strong_count(&batch), 1, "handed over and given up");
    assert!(link.may_send_batch());
}

#[test]
fn anything_but_welcome_first_ends_the_link() {
    let mut ack = Vec::new();
    embar_wire::ack::encode_ack(0, None, &[1], &mut ack);
    for bytes in [frame(&Control::Done), ack, b"HTTP/1.1 400 Bad".to_vec()] {
        let mut link = connected();
        let mut end = None;
        feed(&mut link, &bytes, |incoming| match incoming {
            Incoming::Closed(closed) => end = Some((closed.by, closed.reason)),
            other => panic!("{other:?}"),
        })
        .expect("told as the end");
        assert_eq!(end, Some((Side::Local, CloseReason::NotSession)));
        assert!(link.is_closing());
    }
    let mut link = up();
    let mut ends = 0;
    feed(&mut link, &welcome(3), |incoming| {
        assert!(matches!(incoming, Incoming::Closed(_)));
        ends += 1;
    })
    .expect("told as the end");
    assert_eq!(ends, 1, "a second Welcome");
}

#[test]
fn a_message_that_cannot_be_read_is_a_violation() {
    let mut bytes = frame(&Control::Error(ErrorReply {
        code: ErrorCode::Internal,
        message: "text".into(),
        retryable: false,
        topic: None,
        first_available: None,
    }));
    let last = bytes.len() - CHECKSUM_BYTES - 1;
    bytes[FRAME_HEADER_BYTES..last].fill(0xFF);
    write_checksum(&mut bytes);
    let mut link = up();
    feed(&mut link, &bytes, |_| ()).expect_err("nonsense");
    link.fail("nonsense", NOW);
    assert!(link.is_closing());
}

#[test]
fn a_link_that_finishes_says_so_and_is_down_only_when_the_driver_says_so() {
    let mut link = up();
    link.finish(NOW);
    assert!(link.is_closing() && !link.is_up());
    let (close, _) = take_send(&mut link).expect("CLOSE");
    link.sent(all_sent(close), &Ok(()), NOW);
    let mut actions = Vec::new();
    while let Some(action) = link.poll() {
        actions.push(action);
    }
    let [LinkAction::ShutdownWrite, ..] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(link.next_tick(), Some(Now(SECOND)), "the peer has its time");
    link.tick(Now(SECOND));
    assert!(matches!(link.poll(), Some(LinkAction::Close)));
    assert!(!link.is_down() && link.poll().is_none());
    link.disconnected();
    assert!(link.is_down() && !link.has_action());
}

#[test]
fn a_link_that_is_cut_hears_nothing_any_more() {
    let mut link = connecting();
    link.cut();
    assert!(matches!(link.poll(), Some(LinkAction::Close)));
    link.connected(NOW).expect("ignored");
    assert!(!link.is_down() && link.poll().is_none());
    link.disconnected();
    assert!(link.is_down());

    let mut link = up();
    link.cut();
    let mut actions = std::iter::from_fn(|| link.poll());
    assert!(actions.any(|action| matches!(action, LinkAction::Close)));
    assert!(actions.next().is_none());
}

#[test]
fn a_link_closed_before_the_driver_saw_it_is_down_at_once() {
    let mut link = Link::new(settings());
    link.connect("127.0.0.1:1".parse().expect("an address"));
    link.cut();
    assert!(link.is_down() && link.poll().is_none());
}

#[test]
fn hostile_bytes_give_errors_and_never_panic() {
    let mut random = crate::backoff::Random::new(11);
    let good = [welcome(1), frame(&Control::Done)].concat();
    for round in 0..2_000u64 {
        let mut link = connected();
        let mut bytes = good.clone();
        for _ in 0..=round % 4 {
            let at = (random.next_bits() % good.len() as u64) as usize;
            bytes[at] = random.next_bits() as u8;
        }
        // Either outcome is right; a panic is not.
        let _ = feed(&mut link, &bytes, |_| ());
    }
}
