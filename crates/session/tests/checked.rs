//! A protocol whose frames end with a checksum: no bit of one may flip unnoticed.

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use common::{End, Told, config, first_bytes, frame, rings, seconds};
use embar_frame::{FrameHeader, Now, write_checksum};
use embar_session::{CloseReason, Plain, SessionConfig, SessionCore, Side};
use embar_wire::ack::encode_ack;
use embar_wire::control::{
    Control, ErrorCode, ErrorReply, ListTopics, PublisherOpened, SessionOpened, encode,
};
use embar_wire::frame::LogProtocol;

const HEADER: usize = 8;
const CHECKSUM: usize = 4;

fn impatient() -> SessionConfig {
    config().with(|config| config.frame_timeout = seconds(30))
}

fn connecting() -> SessionCore<LogProtocol> {
    SessionCore::connecting(LogProtocol::default(), &config(), &rings(), b"hi", Now(0))
        .expect("a core")
}

fn accepting() -> End<LogProtocol> {
    let core = SessionCore::accepting(LogProtocol::default(), &impatient(), &rings(), Now(0));
    End::new(core.expect("a core"))
}

/// An end that has taken its peer in.
fn open() -> End<LogProtocol> {
    let mut end = accepting();
    end.feed(&first_bytes(connecting()), usize::MAX);
    assert_eq!(end.told, [Told::Opened(b"hi".to_vec())]);
    end.told.clear();
    end.transmit(usize::MAX, &mut VecDeque::new());
    end
}

fn control(message: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("small");
    bytes
}

fn ack(refused: Option<ErrorCode>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_ack(3, refused, &[70, 80], &mut bytes);
    bytes
}

/// What an open end says when it is asked to.
fn said(ask: impl FnOnce(&mut SessionCore<LogProtocol>)) -> Vec<u8> {
    let mut end = open();
    ask(&mut end.core);
    end.poll();
    let mut bytes = VecDeque::new();
    end.transmit(usize::MAX, &mut bytes);
    bytes.into()
}

/// Acks, control messages, and frames of the session itself.
fn frames() -> Vec<Vec<u8>> {
    let error = ErrorReply {
        code: ErrorCode::Fenced,
        message: "no".into(),
        retryable: true,
        topic: None,
        first_available: Some(9),
    };
    let mut all = vec![ack(None), ack(Some(ErrorCode::Fenced))];
    all.extend(
        [
            Control::Error(error),
            Control::PublisherOpened(PublisherOpened {
                topic_id: 1,
                max_batch_bytes: 4096,
                ..PublisherOpened::default()
            }),
            Control::SessionOpened(SessionOpened::default()),
            Control::Done,
            Control::ListTopics(ListTopics::default()),
        ]
        .iter()
        .map(control),
    );
    all.extend([
        said(SessionCore::ping),
        said(|core| core.goodbye("soon")),
        said(SessionCore::request_status),
        said(|core| core.refuse(11, "no", Now(0))),
    ]);
    all
}

fn has_ended<P: embar_frame::Protocol>(end: &End<P>) -> bool {
    end.core.is_ending()
}

#[test]
fn whole_frames_arrive_as_they_were_sent() {
    let mut end = open();
    let sent = frames();
    for frame in &sent[..7] {
        end.feed(frame, 3);
    }
    let contents = sent[..7].iter().map(|frame| {
        let id = u16::from_le_bytes([frame[4], frame[5]]);
        (id, frame[HEADER..frame.len() - CHECKSUM].to_vec())
    });
    assert_eq!(end.messages(), contents.collect::<Vec<_>>());
    // The rest is the session's own: an end comes last.
    for frame in &sent[7..] {
        end.feed(frame, 3);
    }
    let closed = end.end().expect("it was refused");
    assert_eq!((closed.by, closed.code), (Side::Peer, 11));
}

#[test]
fn a_flipped_bit_in_any_frame_ends_the_session_before_anybody_sees_it() {
    // If a length grew, more must come before that shows.
    let more = control(&Control::Done).repeat(200);
    for frame in frames() {
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut end = open();
            end.feed(&damaged, usize::MAX);
            if !has_ended(&end) {
                end.feed(&more, usize::MAX);
            }
            let what = format!("bit {bit} of {frame:?}");
            assert!(has_ended(&end), "{what}: {:?}", end.told);
            let [Told::Closed(closed)] = &end.told[..] else {
                panic!("{what}: {:?}", end.told);
            };
            assert_eq!(closed.by, Side::Local, "{what}");
            let in_header = bit < HEADER * 8;
            let typed = match closed.reason {
                CloseReason::Damaged => true,
                CloseReason::TooLarge | CloseReason::BadFrame | CloseReason::UnknownFrame => {
                    in_header
                }
                _ => false,
            };
            assert!(typed, "{what}: {closed}");
        }
    }
}

#[test]
fn a_frame_that_seems_longer_than_what_comes_is_given_up_in_time() {
    let mut frame = ack(None);
    frame[1] ^= 1;
    let mut end = open();
    end.feed(&frame, usize::MAX);
    assert!(!has_ended(&end));
    end.tick(Now(0).after(Duration::from_secs(30)));
    let closed = end.core.closed().expect("it is over");
    assert_eq!(closed.reason, CloseReason::FrameTimeout);
    assert!(end.messages().is_empty());
}

#[test]
fn a_flipped_bit_in_a_greeting_opens_nothing() {
    let hello = first_bytes(connecting());
    for bit in 0..hello.len() * 8 {
        let mut damaged = hello.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let mut end = accepting();
        end.feed(&damaged, usize::MAX);
        assert!(!end.core.is_open(), "bit {bit}: {:?}", end.told);
        let opened = end.told.iter().any(|it| matches!(it, Told::Opened(_)));
        assert!(!opened, "bit {bit}");
    }
}

#[test]
fn a_body_has_no_checksum_of_this_kind() {
    let header = FrameHeader {
        length: 56 + 64,
        id: 1,
        flags: 0,
    };
    let mut batch = header.with_checksum().to_bytes().to_vec();
    batch.extend([7; 56 + 64 + CHECKSUM]);
    write_checksum(&mut batch);
    let mut end = open();
    end.feed(&batch, usize::MAX);
    let closed = end.end().expect("it was refused");
    assert_eq!(closed.reason, CloseReason::BadFrame);
}

/// They are told what differs, and not that something was damaged.
#[test]
fn who_speaks_something_without_checksums_is_told_so() {
    let plain = SessionCore::connecting(Plain, &config(), &rings(), b"hi", Now(0)).expect("a core");
    let mut end = accepting();
    end.feed(&first_bytes(plain), usize::MAX);
    let closed = end.end().expect("it was refused").clone();
    assert_eq!(closed.reason, CloseReason::Protocol);
    let mut answer = VecDeque::new();
    end.transmit(usize::MAX, &mut answer);
    let plain = SessionCore::connecting(Plain, &config(), &rings(), b"hi", Now(0)).expect("a core");
    let mut other = End::new(plain);
    other.feed(&Vec::from(answer), usize::MAX);
    let told = other.end().expect("it can read that");
    assert_eq!((told.by, &told.text), (Side::Peer, &closed.text));

    let core = SessionCore::accepting(Plain, &config(), &rings(), Now(0)).expect("a core");
    let mut end = End::new(core);
    end.feed(&first_bytes(connecting()), usize::MAX);
    let closed = end.end().expect("it was refused");
    assert_eq!(closed.reason, CloseReason::Protocol);
    // And where there are none, nobody may say that there are.
    let mut end = common::accepted(&config());
    end.feed(&frame(1, 0x8000, b"12345678"), usize::MAX);
    let closed = end.end().expect("it was refused");
    assert_eq!(closed.reason, CloseReason::BadFrame);
}
