//! What rings cost before they are used. Resident memory is the process's, so this has a binary of
//! its own.

use std::fs;

use embar_transport::ring::{RingPool, SendRing};

/// Bytes of memory that this process has.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

#[test]
fn rings_that_nothing_was_sent_by_take_no_memory() {
    const RINGS: usize = 64;
    // 1 MiB of slots each: written, they would be 64 MiB.
    let pool = RingPool::new(4 << 20, 0).unwrap();
    let before = resident();
    let rings: Vec<SendRing> = (0..RINGS).map(|_| SendRing::new(&pool).unwrap()).collect();
    let each = resident().saturating_sub(before) / RINGS;
    assert!(each < 64 << 10, "a ring takes {each} bytes");
    drop(rings);
}
