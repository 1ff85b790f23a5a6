//! Peers that say anything at all, beside one that is honest.

use std::net::SocketAddr;
use std::time::Duration;

use embar_resume::{Handler, Keeper, KeeperSettings, RESERVED_ID, Resumable, State, Target};
use embar_session::{Flow, Message, Server};
use fastrand::Rng;

use crate::support::{
    LONG, Site, connect, connector, ended, expect, loopback, quick, recorder, send, small_rings,
    tcp, until,
};
use crate::wire::{self, Wire};

/// Answers what it can.
struct Careless;

impl Handler for Careless {
    fn message(&mut self, session: &Resumable, message: Message<'_>) -> Flow {
        let payload = message.payload();
        let fill = |to: &mut [u8]| to.copy_from_slice(payload);
        let _ = session.send_with(message.id(), payload.len(), fill);
        Flow::Continue
    }
}

/// Says what the seed has it say, on one connection after the other.
fn speak(server: SocketAddr, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let mut tokens = vec![Vec::new(), vec![7; 32], vec![8; 5]];
    let mut wire = Wire::connect(server);
    for _ in 0..60 {
        let number = match random.u8(..8) {
            0 => random.u64(..),
            small => u64::from(small / 2),
        };
        match random.u8(..10) {
            0 | 1 => {
                if random.bool() {
                    wire = Wire::connect(server);
                }
                let token = random.choice(&tokens).cloned().unwrap_or_default();
                wire.say_attempt(&token, number, random.u64(..4));
                if random.bool()
                    && let Some(welcome) = wire.answer()
                {
                    tokens.push(welcome.token);
                }
            }
            2..=5 => wire.message(&vec![1; random.usize(..200)]),
            6 => wire.control(number, random.bool()),
            7 => wire.leave(number),
            8 => wire.let_go(number),
            _ => {
                let bytes: Vec<u8> = (0..random.u8(..80)).map(|_| random.u8(..)).collect();
                wire.frame(RESERVED_ID, &bytes);
            }
        }
    }
}

#[test]
fn whatever_strangers_say_an_honest_session_is_as_it_was() {
    const MESSAGES: u64 = 2000;
    let keeping = KeeperSettings::default().with(|it| {
        it.resume_window = Duration::from_millis(20);
    });
    let keeper = Keeper::new(keeping).unwrap();
    let server = Server::builder()
        .settings(small_rings())
        .listen(loopback())
        .start(keeper.handlers(|_| Careless))
        .unwrap();
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let session = connector.open(Target::new(server.address()), handler);
    let address = tcp(&server.address());
    std::thread::scope(|scope| {
        scope.spawn(|| (0..100).for_each(|seed| speak(address, seed)));
        for number in 0..MESSAGES {
            send(&session, number).unwrap();
            expect(&seen, number..number + 1);
        }
    });
    until("strangers are forgotten", || keeper.sessions().len() == 1);
    assert_eq!((keeper.suspended(), keeper.suspended_bytes()), (0, 0));
    assert_eq!(server.stats().panics, 0);
    send(&session, MESSAGES).unwrap();
    expect(&seen, MESSAGES..MESSAGES + 1);
    session.close();
    assert_eq!(ended(&seen).unacknowledged, 0);
}

#[test]
fn whatever_servers_say_a_client_has_an_end_and_its_other_sessions_are_as_they_were() {
    const SESSIONS: u64 = 30;
    let site = Site::start(KeeperSettings::default(), true);
    let mut random = Rng::with_seed(1);
    let server = wire::fake_server(move |connection| {
        let mut number = || random.u64(..4);
        connection.welcome(number(), &[5; 32], number() / 2);
        for _ in 0..number() * 4 {
            match number() {
                0 => connection.message(&[1; 40]),
                1 => connection.control(number() / 2, true),
                2 => connection.leave(number()),
                _ => connection.let_go(number()),
            }
        }
    });
    let connector = connector(quick());
    let (honest, answers) = connect(&connector, &site.address());
    let strangers: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let (session, seen) = connect(&connector, &server);
            for number in 0..3 {
                // It may be over already.
                let _ = send(&session, number);
            }
            (session, seen)
        })
        .collect();
    for number in 0..SESSIONS {
        send(&honest, number).unwrap();
        expect(&answers, number..number + 1);
    }
    for (session, seen) in strangers {
        session.wait_until(LONG, |state| {
            !matches!(state, State::Connecting { attempt: ..2 })
        });
        session.refuse(1, "enough");
        ended(&seen);
    }
    assert_eq!(honest.state(), State::Open);
}
