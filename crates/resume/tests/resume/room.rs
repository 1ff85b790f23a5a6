//! Room in rings and buffers: what takes it, and who hears that there is some.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use embar_resume::core::{MESSAGE_HEADER_BYTES, SEGMENT_BYTES};
use embar_resume::{End, KeeperSettings, Replay, Resumable};
use embar_session::{MemoryBudget, OnFull, SendError};

use crate::support::{
    LONG, Site, connect, connector, ended, expect, is_open, loopback, opened, quick, send,
    small_rings, suspended, tcp, until,
};
use crate::wire::{self, Wire};

/// Waits for longer than any test.
fn patient(replay: &mut Replay) {
    let timeout = LONG * 60;
    replay.on_full = OnFull::Wait { timeout };
}

/// Has a thread send, and returns where its result comes.
fn sends(session: &Resumable, number: u64) -> Receiver<Result<(), SendError>> {
    let session = session.clone();
    let (result, sent) = channel();
    thread::spawn(move || result.send(send(&session, number)));
    sent
}

const LEN: usize = 4000;

fn long(number: u64) -> Vec<u8> {
    let mut content = number.to_le_bytes().to_vec();
    content.resize(LEN, 0);
    content
}

/// A server whose sockets take little, with room for all of a test's messages.
fn narrow(echoes: bool) -> Site {
    let keeping = KeeperSettings::default().with(|it| {
        it.replay.max_bytes = 32 << 20;
        it.replay.ack_delay = Duration::ZERO;
    });
    let narrow = small_rings().with(|it| it.sockets.send_buffer_bytes = Some(4096));
    Site::start_with(keeping, narrow, loopback(), echoes)
}

#[test]
fn a_peer_that_reads_nothing_is_heard_however_much_it_says() {
    const MUCH: u64 = 2000;
    let site = narrow(false);
    let mut wire = Wire::connect(tcp(&site.address()));
    wire.hello(&[], 0);
    let session = opened(&site.seen);
    let connection = site.server.as_ref().unwrap().sessions().remove(0);
    let as_much_as_leaves = connection.reply_room() + LEN + 200;
    for number in 0..MUCH {
        // The ring is full of messages, and none waits for it: acknowledgements are all that comes.
        while connection.has_room(as_much_as_leaves) {
            session.send_with(1, LEN, |_| ()).unwrap();
        }
        wire.message(&long(number));
        if number % 100 == 99 {
            expect(&site.seen, number - 99..number + 1);
        }
    }
}

#[test]
fn acknowledgements_come_behind_the_answers_to_what_they_acknowledge() {
    const MUCH: u64 = 2000;
    let site = narrow(true);
    let mut wire = Wire::connect(tcp(&site.address()));
    wire.hello(&[], 0);
    for number in 0..MUCH {
        wire.message(&long(number));
    }
    expect(&site.seen, 0..MUCH);
    let (mut answers, mut acknowledged) = (0, 0);
    while acknowledged < MUCH {
        acknowledged += wire.until_frame(|frame| {
            if let Some((received, _)) = wire::control_of(frame) {
                assert!(received <= answers, "{received} with {answers} answers");
                return Some(received - acknowledged);
            }
            answers += u64::from(frame.0 == 1);
            None
        });
    }
    assert_eq!(answers, MUCH);
}

#[test]
fn answers_find_room_for_a_client_that_sends_all_it_may_and_reads_only_to_send_more() {
    const MUCH: u64 = 6000;
    const KEEPS: u64 = 64;
    let keeping = KeeperSettings::default().with(|it| {
        it.replay.max_messages = 4 * KEEPS as u32;
        it.replay.max_bytes = 4 * KEEPS as usize * (LEN + MESSAGE_HEADER_BYTES);
    });
    let site = Site::start(keeping, true);
    let mut wire = Wire::connect(tcp(&site.address()));
    wire.hello(&[], 0);
    let (mut sent, mut answers, mut acknowledged) = (0, 0, 0);
    while answers < MUCH {
        while sent < MUCH && sent - acknowledged < KEEPS {
            wire.message(&long(sent));
            sent += 1;
        }
        let frame = wire.try_frame().expect("a server that finds room");
        if let Some((received, _)) = wire::control_of(&frame) {
            acknowledged = received;
        } else if frame.0 == 1 {
            answers += 1;
            wire.control(answers, false);
        }
    }
    expect(&site.seen, 0..MUCH);
}

#[test]
fn who_waits_for_room_gets_what_another_session_gives_back() {
    let site = Site::start(KeeperSettings::default(), false);
    let budget = MemoryBudget::new(SEGMENT_BYTES);
    let settings = quick().with(|it| {
        patient(&mut it.replay);
        it.replay.budget = Some(budget.clone());
    });
    let connector = connector(settings);
    let nobody = "127.0.0.1:1".parse().unwrap();
    let (first, _) = connect(&connector, &nobody);
    send(&first, 0).unwrap();
    assert_eq!(budget.used(), SEGMENT_BYTES);
    let (second, _seen) = connect(&connector, &site.address());
    is_open(&second);
    let sent = sends(&second, 7);
    until("it waits", || budget.refused() > 0);
    first.refuse(1, "enough");
    assert_eq!(sent.recv_timeout(LONG).unwrap(), Ok(()));
    expect(&site.seen, 7..8);
}

#[test]
fn who_waits_for_a_client_gets_the_room_of_one_that_is_back() {
    let keeping = KeeperSettings::default().with(|it| {
        patient(&mut it.replay);
        it.max_suspended_bytes = 160;
    });
    let site = Site::start(keeping, false);
    let away = || {
        let mut wire = Wire::connect(tcp(&site.address()));
        let token = wire.hello(&[], 0).token;
        let session = opened(&site.seen);
        drop(wire);
        suspended(&site.seen);
        (session, token)
    };
    let (first, token) = away();
    let (second, _) = away();
    send(&second, 0).unwrap();
    for number in 0..9 {
        send(&first, number).unwrap();
    }
    until("all counts", || site.keeper.suspended_bytes() == 160);
    let sent = sends(&second, 1);
    let mut back = Wire::connect(tcp(&site.address()));
    back.hello(&token, 0);
    assert_eq!(back.next_message(), 0u64.to_le_bytes());
    assert_eq!(sent.recv_timeout(LONG).unwrap(), Ok(()));
}

#[test]
fn an_encoder_may_ask_the_keeper_while_a_session_goes_for_its_bytes() {
    let keeping = KeeperSettings::default().with(|it| it.max_suspended_bytes = 160);
    let site = Site::start(keeping, false);
    let next = || {
        let mut wire = Wire::connect(tcp(&site.address()));
        wire.hello(&[], 0);
        (opened(&site.seen), wire)
    };
    let (sender, wire) = next();
    drop(wire);
    suspended(&site.seen);
    let (holder, wire) = next();
    drop(wire);
    suspended(&site.seen);
    until("both wait", || site.keeper.suspended() == 2);
    for number in 0..9 {
        send(&holder, number).unwrap();
    }
    let (keeper, goes) = (site.keeper.clone(), holder.id());
    let (asks, asked) = channel();
    let (result, sent) = channel();
    thread::spawn(move || {
        let done = sender.send_with(1, 8, |to| {
            asks.send(()).unwrap();
            // As long as it encodes, nobody else learns what this session has.
            until("the holder goes", || {
                keeper.sessions().iter().all(|it| it.id() != goes)
            });
            to.fill(0);
        });
        result.send(done)
    });
    asked.recv_timeout(LONG).unwrap();
    let (one_more, wire) = next();
    for number in 0..2 {
        send(&one_more, number).unwrap();
    }
    drop(wire);
    assert_eq!(sent.recv_timeout(LONG).unwrap(), Ok(()));
    assert_eq!(ended(&site.seen).why, End::Evicted);
    assert_eq!(one_more.state().ended(), None);
}

#[test]
fn for_the_bytes_of_others_no_session_goes_that_holds_none() {
    let keeping = KeeperSettings::default().with(|it| it.max_suspended_bytes = 160);
    let site = Site::start(keeping, false);
    let next = || {
        let mut wire = Wire::connect(tcp(&site.address()));
        wire.hello(&[], 0);
        (opened(&site.seen), wire)
    };
    let (oldest, wire) = next();
    drop(wire);
    suspended(&site.seen);
    let (holder, wire) = next();
    drop(wire);
    suspended(&site.seen);
    for number in 0..10 {
        send(&holder, number).unwrap();
    }
    let (one_more, wire) = next();
    send(&one_more, 0).unwrap();
    drop(wire);
    let end = ended(&site.seen);
    assert_eq!((end.why, end.unacknowledged), (End::Evicted, 10));
    assert_eq!(oldest.state().ended(), None);
    assert_eq!(one_more.state().ended(), None);
}
