//! Sessions whose workers poll before they sleep.

use std::time::{Duration, Instant};

use embar_session::{Client, CloseReason, Plain, Settings};

use crate::support::{
    Event, LONG, closed, echo_server, in_time, loopback, message, recorder, recording_server, small,
};

/// Longer than the test: its workers never sleep. On a busy machine each message then costs turns
/// of the scheduler, so the tests send few.
const ALWAYS: Duration = Duration::from_secs(3600);

/// Too short to count on: its workers sleep between any two messages.
const BRIEFLY: Duration = Duration::from_micros(50);

fn settings(spin: Duration) -> Settings {
    small().with(|settings| settings.spin = spin)
}

#[test]
fn messages_go_both_ways() {
    for spin in [BRIEFLY, ALWAYS] {
        let (server, at_server) = recording_server(settings(spin), loopback());
        let client = Client::with(Plain, settings(spin)).unwrap();
        let (handler, at_client) = recorder();
        let session = client.connect(server.address(), handler).unwrap();
        let Event::Opened(peer, _) = at_server.recv_timeout(LONG).unwrap() else {
            panic!("opening comes first");
        };
        for number in 0..100u32 {
            let bytes = number.to_le_bytes();
            session
                .send_with(1, 4, |buf| buf.copy_from_slice(&bytes))
                .unwrap();
            assert_eq!(message(&at_server), (1, bytes.to_vec()));
            peer.send_with(2, 4, |buf| buf.copy_from_slice(&bytes))
                .unwrap();
            assert_eq!(message(&at_client), (2, bytes.to_vec()));
        }
    }
}

/// More sessions than are tried one by one.
#[test]
fn many_sessions_of_one_worker_are_all_served() {
    let server = echo_server(settings(ALWAYS), loopback());
    let client = Client::with(Plain, settings(ALWAYS)).unwrap();
    let sessions: Vec<_> = (0..20)
        .map(|_| {
            let (handler, seen) = recorder();
            (client.connect(server.address(), handler).unwrap(), seen)
        })
        .collect();
    for round in 0..5u8 {
        for (session, seen) in &sessions {
            session.send_with(1, 1, |buf| buf[0] = round).unwrap();
            assert_eq!(message(seen), (1, vec![round]));
        }
    }
}

/// The second of two messages is left to the worker, which spins and must see it.
#[test]
fn what_another_thread_sends_while_the_worker_spins_leaves_promptly() {
    // No heartbeat takes along what was left behind.
    let mut quiet = settings(ALWAYS);
    quiet.session.keep_alive = Duration::ZERO;
    let server = echo_server(quiet.clone(), loopback());
    let client = Client::with(Plain, quiet).unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    for round in 0..100u32 {
        for id in 1..=3 {
            session
                .send_with(id, 4, |buf| buf.copy_from_slice(&round.to_le_bytes()))
                .unwrap();
        }
        for id in 1..=3 {
            assert_eq!(message(&seen), (id, round.to_le_bytes().to_vec()));
        }
    }
    session.close();
    assert_eq!(closed(&seen).reason, CloseReason::Finished);
}

/// A worker that spins keeps its deadlines: a silent peer is noticed, one that lives is not.
#[test]
fn a_silent_peer_is_closed_in_time_and_another_stays() {
    const IDLE: Duration = Duration::from_millis(800);
    for spin in [BRIEFLY, ALWAYS] {
        let mut patient = settings(spin);
        patient.session.idle_timeout = IDLE;
        let (server, at_server) = recording_server(patient, loopback());
        let mut silent = small();
        silent.session.keep_alive = Duration::ZERO;
        let silent = Client::with(Plain, silent).unwrap();
        let alive = Client::with(Plain, settings(spin)).unwrap();
        let (handler, at_alive) = recorder();
        let living = alive.connect(server.address(), handler).unwrap();
        let begun = Instant::now();
        let (handler, at_silent) = recorder();
        silent.connect(server.address(), handler).unwrap();
        assert_eq!(closed(&at_silent).reason, CloseReason::Idle);
        assert_eq!(closed(&at_server).reason, CloseReason::Idle);
        assert!(begun.elapsed() >= IDLE);
        living.send_with(1, 1, |buf| buf.fill(3)).unwrap();
        assert_eq!(message(&at_server), (1, vec![3]));
        assert!(living.closed().is_none());
        drop(at_alive);
    }
}

#[test]
fn a_shutdown_ends_workers_that_spin() {
    let (server, at_server) = recording_server(settings(ALWAYS), loopback());
    let client = Client::with(Plain, settings(ALWAYS)).unwrap();
    let (handler, at_client) = recorder();
    client.connect(server.address(), handler).unwrap();
    in_time("the server", || server.shutdown(2 * LONG));
    assert_eq!(closed(&at_client).reason, CloseReason::Shutdown);
    closed(&at_server);
    in_time("the client", || client.shutdown(2 * LONG));
}
