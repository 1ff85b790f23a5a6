use embar_frame::write_checksum;
use embar_session::Side;
use embar_wire::control::{ErrorCode, ErrorReply, ListTopics, Metadata};

use super::*;
use crate::testing::{SECOND, all_sent, control_frames, far_end, frame, goodbye, welcome};

const NOW: Now = Now(0);

fn settings() -> ConnectionSettings {
    ConnectionSettings::control("test")
}

/// Feeds bytes as a driver does, and drains what comes of them.
fn feed(
    connection: &mut Connection,
    mut bytes: &[u8],
    mut each: impl FnMut(Incoming<'_>),
) -> Result<(), Violation> {
    while !bytes.is_empty() {
        let mut buf = match connection.poll() {
            Some(ConnectionAction::Receive(buf)) => buf,
            Some(ConnectionAction::Send(buf)) => {
                connection.sent(all_sent(buf), &Ok(()), NOW);
                continue;
            }
            _ => return Ok(()),
        };
        let count = buf.fill(bytes);
        bytes = &bytes[count..];
        connection.received(buf, &Ok(count), NOW);
        while let Some(incoming) = connection.next(NOW)? {
            each(incoming);
        }
    }
    Ok(())
}

/// Takes a send from the connection, with its bytes.
fn take_send(connection: &mut Connection) -> Option<(SendBuf, Vec<u8>)> {
    while let Some(action) = connection.poll() {
        if let ConnectionAction::Send(buf) = action {
            let bytes = buf.with_unsent(|head, body| [head, body].concat());
            return Some((buf, bytes));
        }
    }
    None
}

fn connecting() -> Connection {
    let mut connection = Connection::new(settings());
    connection.connect("127.0.0.1:1".parse().expect("an address"));
    assert!(matches!(
        connection.poll(),
        Some(ConnectionAction::Connect(_))
    ));
    connection
}

/// Its Hello is to be sent.
fn connected() -> Connection {
    let mut connection = connecting();
    connection.connected(NOW).expect("memory");
    connection
}

fn up() -> Connection {
    let mut connection = connected();
    let (Some(ConnectionAction::Receive(mut buf)), Some(ConnectionAction::Send(hello))) =
        (connection.poll(), connection.poll())
    else {
        panic!("it listens and says Hello");
    };
    connection.sent(all_sent(hello), &Ok(()), NOW);
    let count = buf.fill(&welcome(3));
    connection.received(buf, &Ok(count), NOW);
    let first = connection.next(NOW);
    assert!(matches!(first, Ok(Some(Incoming::Welcome(_)))));
    assert!(connection.is_up());
    connection
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
        let mut connection = connected();
        let mut seen = Vec::new();
        for piece in bytes.chunks(size) {
            feed(&mut connection, piece, |incoming| {
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
        assert!(connection.is_up());
    }
}

#[test]
fn the_other_end_hears_who_came_and_what_is_asked() {
    let mut connection = connected();
    let (hello, bytes) = take_send(&mut connection).expect("Hello");
    let (mut far, heard) = far_end(&bytes);
    let hello_heard = Hello::from_greeting(&heard).expect("a greeting");
    assert_eq!(
        (hello_heard.role, hello_heard.name.as_str()),
        (Role::Client, "test")
    );
    connection.sent(all_sent(hello), &Ok(()), NOW);
    assert!(!connection.is_up() && !connection.may_send_batch());
    // Nothing may be asked yet, and what is asked too early is not sent later.
    connection.send(&Control::Status).expect("dropped");
    assert!(take_send(&mut connection).is_none());
    far.welcome(
        &Welcome {
            broker_id: 1,
            incarnation: 1,
            max_control_bytes: 0,
            max_batch_bytes: 0,
            server: String::new(),
            region: 0,
        }
        .to_greeting(),
        NOW,
    )
    .expect("decided now");
    assert!(far.is_open());
}

#[test]
fn one_send_at_a_time_and_what_waits_goes_together() {
    let mut connection = up();
    let request = Control::Metadata(Metadata::default());
    connection.send(&request).expect("small");
    let (first, bytes) = take_send(&mut connection).expect("a request");
    assert_eq!(control_frames(&bytes), [request]);
    connection
        .send(&Control::ListTopics(ListTopics::default()))
        .expect("small");
    connection.send(&Control::Status).expect("small");
    assert!(!connection.may_send_batch());
    assert!(!connection.has_action() && connection.poll().is_none());
    connection.sent(all_sent(first), &Ok(()), NOW);
    let (_, bytes) = take_send(&mut connection).expect("two requests");
    assert_eq!(
        control_frames(&bytes),
        [Control::ListTopics(ListTopics::default()), Control::Status]
    );
}

#[test]
fn a_batch_leaves_as_it_is_and_without_a_copy() {
    let mut connection = up();
    let batch = Arc::new(embar_memory::Buffer::from(vec![7; 256]));
    connection.send_batches([batch.clone()].into_iter());
    assert!(!connection.may_send_batch());
    let Some((buf, _)) = take_send(&mut connection) else {
        panic!("the batch");
    };
    buf.with_unsent(|head, body| {
        assert!(head.is_empty());
        assert_eq!(body.as_ptr(), batch.as_ptr());
    });
    connection.sent(all_sent(buf), &Ok(()), NOW);
    assert_eq!(Arc::strong_count(&batch), 1, "handed over and given up");
    assert!(connection.may_send_batch());
}

#[test]
fn anything_but_welcome_first_ends_the_link() {
    let mut ack = Vec::new();
    embar_wire::ack::encode_ack(0, None, &[1], &mut ack);
    for bytes in [frame(&Control::Done), ack, b"HTTP/1.1 400 Bad".to_vec()] {
        let mut connection = connected();
        let mut end = None;
        feed(&mut connection, &bytes, |incoming| match incoming {
            Incoming::Closed(closed) => end = Some((closed.by, closed.reason)),
            other => panic!("{other:?}"),
        })
        .expect("told as the end");
        assert_eq!(end, Some((Side::Local, CloseReason::NotSession)));
        assert!(connection.is_closing());
    }
    let mut connection = up();
    let mut ends = 0;
    feed(&mut connection, &welcome(3), |incoming| {
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
    let mut connection = up();
    feed(&mut connection, &bytes, |_| ()).expect_err("nonsense");
    connection.fail(&"nonsense".into(), NOW);
    assert!(connection.is_closing());
}

#[test]
fn a_link_that_finishes_is_down_only_when_the_driver_says_so() {
    let mut connection = up();
    connection.finish(NOW);
    assert!(connection.is_closing() && !connection.is_up());
    let (close, _) = take_send(&mut connection).expect("CLOSE");
    connection.sent(all_sent(close), &Ok(()), NOW);
    let mut actions = Vec::new();
    while let Some(action) = connection.poll() {
        actions.push(action);
    }
    let [ConnectionAction::ShutdownWrite, ..] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(
        connection.next_tick(),
        Some(Now(SECOND)),
        "the peer has its time"
    );
    connection.tick(Now(SECOND));
    assert!(matches!(connection.poll(), Some(ConnectionAction::Close)));
    assert!(!connection.is_down() && connection.poll().is_none());
    connection.disconnected();
    assert!(connection.is_down() && !connection.has_action());
}

#[test]
fn a_link_that_is_cut_hears_nothing_any_more() {
    let mut connection = connecting();
    connection.cut();
    assert!(matches!(connection.poll(), Some(ConnectionAction::Close)));
    connection.connected(NOW).expect("ignored");
    assert!(!connection.is_down() && connection.poll().is_none());
    connection.disconnected();
    assert!(connection.is_down());

    let mut connection = up();
    connection.cut();
    let mut actions = std::iter::from_fn(|| connection.poll());
    assert!(actions.any(|action| matches!(action, ConnectionAction::Close)));
    assert!(actions.next().is_none());
}

#[test]
fn a_link_closed_before_the_driver_saw_it_is_down_at_once() {
    let mut connection = Connection::new(settings());
    connection.connect("127.0.0.1:1".parse().expect("an address"));
    connection.cut();
    assert!(connection.is_down() && connection.poll().is_none());
}

#[test]
fn hostile_bytes_give_errors_and_never_panic() {
    let mut random = embar_meter::random::SplitMix64::new(11);
    let good = [welcome(1), frame(&Control::Done)].concat();
    for round in 0..2_000u64 {
        let mut connection = connected();
        let mut bytes = good.clone();
        for _ in 0..=round % 4 {
            let at = (random.next_u64() % good.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        // Either outcome is right; a panic is not.
        let _ = feed(&mut connection, &bytes, |_| ());
    }
}
