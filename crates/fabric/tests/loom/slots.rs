//! One slot, and one row of two.

use std::sync::Arc;

use embar_fabric::Seen;
use embar_fabric::slot::{observe, peek, publish, read_row, rewrite};

use crate::memory::{Modelled, NONCE, explore};

/// A body in which the words that are modelled, and no others, are of a version.
fn body(version: u8) -> [u8; 56] {
    let mut body = [0; 56];
    (body[0], body[55]) = (version, version);
    body
}

/// First and last byte of a body, both of the same version or it is torn.
fn whole(body: [u8; 56]) -> u8 {
    assert_eq!(body[0], body[55], "torn");
    body[0]
}

#[test]
fn an_observed_record_is_whole() {
    explore(|| {
        let memory = Modelled::slots(1);
        let writer = Arc::clone(&memory);
        let thread = loom::thread::spawn(move || {
            publish(&*writer, 0, &body(1), NONCE, 1);
            publish(&*writer, 0, &body(2), NONCE, 2);
        });
        for lap in [1, 2] {
            match observe(&*memory, 0, NONCE, lap) {
                Seen::Found(body) => assert_eq!(u32::from(whole(body)), lap),
                Seen::Nothing => {}
                Seen::Damaged => panic!("torn"),
            }
        }
        thread.join().unwrap();
        assert_eq!(observe(&*memory, 0, NONCE, 2), Seen::Found(body(2)));
    });
}

#[test]
fn a_peeked_record_is_of_the_lap_it_names() {
    explore(|| {
        let memory = Modelled::slots(1);
        let writer = Arc::clone(&memory);
        publish(&*memory, 0, &body(1), NONCE, 1);
        let thread = loom::thread::spawn(move || {
            publish(&*writer, 0, &body(2), NONCE, 2);
        });
        match peek(&*memory, 0, NONCE) {
            Seen::Found((lap, body)) => assert_eq!(u32::from(whole(body)), lap),
            Seen::Nothing => {}
            Seen::Damaged => panic!("torn"),
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_row_is_whole_and_never_goes_back() {
    explore(|| {
        let memory = Modelled::slots(2);
        rewrite(&*memory, 0, NONCE, 1, &body(1));
        let writer = Arc::clone(&memory);
        let thread = loom::thread::spawn(move || {
            rewrite(&*writer, 0, NONCE, 2, &body(2));
            rewrite(&*writer, 0, NONCE, 3, &body(3));
        });
        let mut last = 1;
        for _ in 0..2 {
            if let Some((version, body)) = read_row(&*memory, 0, NONCE).found() {
                assert_eq!(u32::from(whole(body)), version);
                assert!(version >= last, "went back from {last} to {version}");
                last = version;
            }
        }
        thread.join().unwrap();
        assert_eq!(
            read_row(&*memory, 0, NONCE).map(|(version, _)| version),
            Seen::Found(3)
        );
    });
}

/// The writer fills both slots between a reader's two looks.
#[test]
fn an_overtaken_reader_does_not_go_back() {
    explore(|| {
        let memory = Modelled::slots(2);
        rewrite(&*memory, 0, NONCE, 2, &body(2));
        rewrite(&*memory, 0, NONCE, 3, &body(3));
        let writer = Arc::clone(&memory);
        let thread = loom::thread::spawn(move || {
            rewrite(&*writer, 0, NONCE, 4, &body(4));
            rewrite(&*writer, 0, NONCE, 5, &body(5));
        });
        if let Some((version, body)) = read_row(&*memory, 0, NONCE).found() {
            assert_eq!(u32::from(whole(body)), version);
            assert!(version >= 3, "version 3 was there before the thread began");
        }
        thread.join().unwrap();
    });
}
