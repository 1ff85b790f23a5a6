//! The allocator that counts: by thread, for the process, and only while it is asked to.

use std::thread;

use embar_transport::alloc::{Counting, of_process, of_thread, set_counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` allocates on this thread: times and bytes.
fn allocated(work: impl FnOnce()) -> (u64, u64) {
    let before = of_thread();
    work();
    let all = of_thread().since(before);
    (all.times, all.bytes)
}

fn grow() {
    let mut bytes: Vec<u8> = Vec::with_capacity(1000);
    bytes.resize(3000, 1);
    drop(bytes);
    drop(vec![0_u64; 100]);
}

// One test, as the switch is for the whole process.
#[test]
fn a_thread_knows_what_it_allocated_while_it_counted() {
    assert_eq!(allocated(grow), (0, 0));
    set_counting(true);
    let of_all = of_process();
    // A vector doubles, or becomes as large as it must.
    assert_eq!(allocated(grow), (3, 1000 + 3000 + 800));
    let elsewhere = thread::spawn(|| allocated(grow));
    assert_eq!(elsewhere.join().expect("no panic").0, 3);
    let here = allocated(|| thread::spawn(grow).join().expect("no panic"));
    assert!(
        here.1 < 1000 + 3000 + 800,
        "that was another thread: {here:?}"
    );
    let of_all = of_process().since(of_all);
    assert!(of_all.times >= 9 && of_all.bytes >= 3 * 4800, "{of_all:?}");
    set_counting(false);
    assert_eq!(allocated(grow), (0, 0));
}
