//! A process that a reader forked keeps nothing of what the reader was lent. A test binary of its own: what is forked has copies
//! of all descriptors that there are.

use std::os::fd::AsFd;
use std::sync::Arc;

use embar_memory::payload::UNIT_BYTES;
use embar_memory::{Coherence, LentView, PayloadFile};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Of a process that does nothing.
fn fork() -> Pid {
    // SAFETY: the child does nothing but wait, by a call that a child of several threads may make.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: it takes nothing.
            unsafe { libc::pause() };
        }
    }
    Pid::from_raw(child).expect("it was forked")
}

#[test]
fn what_a_reader_had_is_free_although_a_process_that_it_forked_lives() {
    let made = PayloadFile::anonymous_lent(16 * UNIT_BYTES, Coherence::Coherent);
    let (payload, lent) = made.expect("memory");
    let reader = Arc::new(lent.open().expect("a descriptor"));
    let fd = reader.as_fd().try_clone_to_owned().expect("a descriptor");
    let view = LentView::map(fd, lent.len()).expect("mapped");
    let mut extent = payload.allocate(1).expect("all is free");
    let span = extent.reserve(64).expect("fresh").commit();
    span.lend(&reader).expect("nothing is lent").abandon();
    drop((extent, span, reader));
    let child = fork();
    payload.held().release();
    assert_eq!(payload.held_bytes(), UNIT_BYTES, "the reader lives");
    drop(view);
    payload.held().release();
    let held = payload.held_bytes();
    kill_process(child, Signal::KILL).expect("it waits");
    waitpid(Some(child), WaitOptions::empty()).expect("it is ours");
    assert_eq!(held, 0);
}
