//! Memory of a peer that died: its pages are freed by the last who maps them, and not by a thread that serves others.

use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition};

use super::*;

/// No other mapping of this process is as long.
const BYTES: u64 = (3 << 20) + 4096;

/// A connection whose peer handed over memory and is gone, and that memory.
fn left_behind() -> Shm {
    let memory = Sealed::new(BYTES).unwrap();
    let options = ShmOptions {
        memories: vec![memory.handle()],
        ..ShmOptions::default()
    };
    Shm::pair(&options, &ShmOptions::default()).unwrap().1
}

/// Whether memory of this length that somebody handed over is mapped.
fn is_mapped() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        number(end) - number(start) == BYTES && rest.contains("embar-sealed")
    })
}

fn await_unmapped() {
    let deadline = Instant::now() + PATIENCE;
    while is_mapped() {
        assert!(Instant::now() < deadline, "it stays mapped");
        std::thread::yield_now();
    }
}

#[test]
fn who_closes_a_connection_does_not_unmap_what_its_peer_handed_over() {
    // Also starts the thread that does: one of the other thread's would be forbidden it, too.
    drop(left_behind());
    await_unmapped();
    let connection = left_behind();
    assert!(is_mapped());
    let closing = std::thread::spawn(move || {
        let of_this_length =
            SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, BYTES).unwrap();
        let rule = SeccompRule::new(vec![of_this_length]).unwrap();
        forbid(libc::SYS_munmap, vec![rule], Errno::PERM);
        let mut epoll = Epoll::new().unwrap();
        let token = epoll.add(connection).unwrap();
        epoll.close(token);
    });
    closing.join().unwrap();
    await_unmapped();
}
