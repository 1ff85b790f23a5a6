//! What the old process knows goes over with its listeners.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use embar_session::Client;
use embar_session::hand_over::{self, HandOverError};

use super::{GREETING, end, server, serves_on, successor};
use crate::listeners::echoes;
use crate::support::{Echo, LONG, until};

#[test]
fn state_goes_over_whole_before_the_new_process_is_ready() {
    for bytes in [0, 5, 10 << 20] {
        let directory = tempfile::tempdir().unwrap();
        let door = directory.path().join("door");
        let server = server(directory.path()).start(|_| Echo).unwrap();
        let state: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let mut taken = hand_over::take(&door, LONG).unwrap();
                assert!(taken.state() == state, "another state of {bytes} bytes");
                assert_eq!(taken.state(), b"");
                assert_eq!(taken.listeners().len(), 2);
                assert_eq!(server.stats().listening, 2, "it stopped before");
                taken.ready().unwrap();
            });
            hand_over::offer_with_state(&server, &door, LONG, || Ok(state.clone())).unwrap();
            taker.join().unwrap();
        });
        assert_eq!(server.stats().listening, 0);
    }
}

#[test]
fn a_server_may_be_told_to_stop_by_the_function_that_makes_its_state() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    thread::scope(|scope| {
        let offer = scope.spawn(|| {
            hand_over::offer_with_state(&server, &door, LONG, || {
                server.stop_accepting();
                Ok(b"state".to_vec())
            })
        });
        let mut taken = hand_over::take(&door, LONG).unwrap();
        assert_eq!(taken.state(), b"state");
        assert!(!taken.listeners().is_empty());
        taken.ready().unwrap();
        offer.join().unwrap().unwrap();
        assert_eq!(server.stats().listening, 0);
    });
}

#[test]
fn the_old_process_goes_on_where_the_new_one_dies_with_the_state() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    for _ in 0..2 {
        let successor = successor(&door, true);
        let offered = hand_over::offer_with_state(&server, &door, LONG, || Ok(b"frozen".into()));
        assert!(
            matches!(offered, Err(HandOverError::NotReady(_))),
            "{offered:?}"
        );
        assert!(!successor.wait_with_output().unwrap().status.success());
        serves_on(&server);
    }
    let last = successor(&door, false);
    hand_over::offer_with_state(&server, &door, LONG, || Ok(b"frozen".into())).unwrap();
    let client = Client::new().unwrap();
    assert!(server.addresses().iter().all(|it| echoes(&client, it)));
    assert_eq!(end(last), 2);
}

#[test]
fn the_new_process_is_told_that_there_is_no_state() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    thread::scope(|scope| {
        let taker = scope.spawn(|| hand_over::take(&door, LONG));
        let offered =
            hand_over::offer_with_state(&server, &door, LONG, || Err("the room is on fire".into()));
        assert!(matches!(&offered, Err(HandOverError::State(_))));
        assert!(offered.unwrap_err().to_string().contains("on fire"));
        let taken = taker.join().unwrap();
        assert!(matches!(taken, Err(HandOverError::Withdrawn)), "{taken:?}");
        // A panic goes to the caller, and is a death for the new process.
        let offer = scope.spawn(|| {
            hand_over::offer_with_state(&server, &door, LONG, || panic!("as the test wants it"))
        });
        let taken = hand_over::take(&door, LONG);
        assert!(matches!(taken, Err(HandOverError::Left)), "{taken:?}");
        assert!(offer.join().is_err());
    });
    serves_on(&server);
}

#[test]
fn the_new_process_waits_while_the_state_is_made_and_only_that() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    let (makes, works) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let offer = scope.spawn(|| {
            hand_over::offer_with_state(&server, &door, LONG, || {
                makes.store(true, Ordering::Relaxed);
                until("it said that it works", || works.load(Ordering::Relaxed));
                Ok(b"state".into())
            })
        });
        until("there is an offer", || door.exists());
        // It is made for nobody who cannot take it.
        for greeting in [&b"EMBHAND1"[..], b"GET / HTTP/1.1\r\n\r\n", b""] {
            let mut other = UnixStream::connect(&door).unwrap();
            other.write_all(greeting).unwrap();
            other.shutdown(std::net::Shutdown::Write).unwrap();
            let mut said = Vec::new();
            // A reset, where it has not read all.
            let _ = other.read_to_end(&mut said);
            assert_eq!(said, GREETING);
        }
        assert!(!makes.load(Ordering::Relaxed));
        let mut taker = UnixStream::connect(&door).unwrap();
        taker.write_all(GREETING).unwrap();
        let mut said = [0; 10];
        taker.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"EMBHAND2WW");
        works.store(true, Ordering::Relaxed);
        let mut said = Vec::new();
        until("the listeners come", || {
            let mut byte = [0];
            taker.read_exact(&mut byte).unwrap();
            said.extend(byte);
            byte == *b"L"
        });
        assert_eq!(said.iter().filter(|it| **it != b'W').count(), 1);
        drop(taker);
        let offered = offer.join().unwrap();
        assert!(
            matches!(offered, Err(HandOverError::NotReady(_))),
            "{offered:?}"
        );
    });
    serves_on(&server);
}

#[test]
fn no_word_is_taken_for_the_rest_of_a_state_that_was_cut_short() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    thread::scope(|scope| {
        let offer = scope
            .spawn(|| hand_over::offer_with_state(&server, &door, LONG, || Ok(vec![0; 10 << 20])));
        until("there is an offer", || door.exists());
        let mut taker = UnixStream::connect(&door).unwrap();
        taker.write_all(GREETING).unwrap();
        // It hangs, and goes on when it is too late.
        let offered = offer.join().unwrap();
        let Err(HandOverError::NotReady(why)) = &offered else {
            panic!("{offered:?}");
        };
        assert_eq!(why.kind(), ErrorKind::TimedOut);
        let mut said = Vec::new();
        taker.read_to_end(&mut said).unwrap();
        assert!(said.len() > 100 && said.len() < 10 << 20);
        assert_eq!(said.last(), Some(&0));
    });
    serves_on(&server);
}

#[test]
fn the_time_that_state_takes_is_not_the_new_process_s() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    let patience = Duration::from_secs(4);
    thread::scope(|scope| {
        let taker = scope.spawn(|| hand_over::take(&door, LONG)?.ready());
        let offered = hand_over::offer_with_state(&server, &door, patience, || {
            thread::sleep(patience);
            Ok(Vec::new())
        });
        offered.unwrap();
        taker.join().unwrap().unwrap();
    });
}
