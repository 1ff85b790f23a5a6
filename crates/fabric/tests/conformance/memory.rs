use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use embar_fabric::Seen;
use embar_fabric::slot::{observe, publish, read_row, rewrite};
use embar_memory::Memory;

use crate::common::NONCE;
use crate::setup::Setup;

pub fn words_and_bytes_come_back<S: Setup>() {
    let (memory, _) = S::pair(4096);
    memory.store(8, 0x0102_0304_0506_0708);
    assert_eq!(memory.load(8), 0x0102_0304_0506_0708);
    let mut bytes = [0; 8];
    memory.read(8, &mut bytes);
    assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1], "little-endian");
    let long: Vec<u8> = (0..200).collect();
    memory.write(120, &long);
    let mut back = vec![0; 200];
    memory.read(120, &mut back);
    assert_eq!(back, long);
}

pub fn a_rest_of_a_word_is_kept<S: Setup>() {
    let (memory, _) = S::pair(4096);
    memory.store(64, u64::MAX);
    memory.write(64, &[1, 2, 3]);
    assert_eq!(
        memory.load(64).to_le_bytes(),
        [1, 2, 3, 255, 255, 255, 255, 255]
    );
    let mut short = [0; 3];
    memory.read(64, &mut short);
    assert_eq!(short, [1, 2, 3]);
}

pub fn what_is_published_is_observed<S: Setup>() {
    let (here, there) = S::pair(4096);
    for lap in 1..200 {
        let seen = observe(&*there, 128, NONCE, lap);
        assert_eq!(seen, Seen::Nothing, "not yet");
        publish(&*here, 128, &[lap as u8; 56], NONCE, lap);
        let seen = observe(&*there, 128, NONCE, lap);
        assert_eq!(seen, Seen::Found([lap as u8; 56]));
    }
}

pub fn out_of_bounds_panics<S: Setup>() {
    let (memory, _) = S::pair(4096);
    let panics = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).is_err();
    assert!(panics(&|| memory.store(4096, 1)));
    assert!(panics(&|| assert_eq!(memory.load(4), 0)), "not aligned");
    assert!(panics(&|| memory.write(4088, &[0; 9])));
    assert!(panics(&|| memory.read(u64::MAX - 7, &mut [0; 8])));
}

pub fn a_row_is_never_torn<S: Setup>() {
    let (here, there) = S::pair(4096);
    rewrite(&*here, 0, NONCE, 0, &[0; 56]);
    rewrite(&*here, 0, NONCE, 1, &[1; 56]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 2..3000 {
                rewrite(&*here, 0, NONCE, version, &[version as u8; 56]);
            }
            done.store(true, Ordering::Release);
        });
        let mut last = 0;
        loop {
            let finished = done.load(Ordering::Acquire);
            if let Seen::Found((version, body)) = read_row(&*there, 0, NONCE) {
                assert_eq!(body, [version as u8; 56], "torn");
                assert!(version >= last, "went back from {last} to {version}");
                last = version;
            }
            if finished {
                break;
            }
        }
        assert_eq!(
            read_row(&*there, 0, NONCE).map(|(version, _)| version),
            Seen::Found(2999)
        );
    });
}
