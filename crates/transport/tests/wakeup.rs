//! Descriptors of the user's that end a reactor's wait.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use embar_transport::{Completion, Epoll, Mapped, Reactor, Uring};
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

/// How long a wait may take that something ends.
const LONG: Duration = Duration::from_secs(60);

fn wake_ups(reactor: &mut impl Reactor<Mapped>, timeout: Duration) -> usize {
    let mut out = Vec::new();
    reactor.poll(Some(timeout), &mut out).unwrap();
    assert!(out.iter().all(|it| matches!(it, Completion::Woken)));
    out.len()
}

/// A pipe; only the end that is written to is non-blocking.
fn pipe() -> (OwnedFd, File) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    (reader, File::from(writer))
}

#[test]
fn a_byte_in_a_pipe_ends_a_wait_and_many_bytes_end_one() {
    bytes_in_a_pipe(Epoll::new().unwrap());
    bytes_in_a_pipe(Uring::new().unwrap());
}

fn bytes_in_a_pipe(mut reactor: impl Reactor<Mapped>) {
    let (reader, mut writer) = pipe();
    reactor.set_wakeup(reader).unwrap();
    assert_eq!(wake_ups(&mut reactor, Duration::ZERO), 0);
    for _ in 0..3 {
        // More than the pipe holds: it is full when the reactor looks.
        while writer.write(&[1; 4096]).is_ok() {}
        assert_eq!(wake_ups(&mut reactor, LONG), 1);
        assert_eq!(wake_ups(&mut reactor, Duration::ZERO), 0, "it was drained");
        writer.write_all(&[1]).unwrap();
        assert_eq!(wake_ups(&mut reactor, LONG), 1);
    }
}

#[test]
fn a_wakeup_replaces_the_one_before() {
    replaced(Epoll::new().unwrap());
    replaced(Uring::new().unwrap());
}

fn replaced(mut reactor: impl Reactor<Mapped>) {
    let (reader, mut old) = pipe();
    reactor.set_wakeup(reader).unwrap();
    let counter = File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    reactor.set_wakeup(counter.try_clone().unwrap()).unwrap();
    assert!(old.write(&[1]).is_err(), "nobody reads the pipe any more");
    assert_eq!(wake_ups(&mut reactor, Duration::ZERO), 0);
    for _ in 0..3 {
        (&counter).write_all(&1_u64.to_ne_bytes()).unwrap();
        assert_eq!(wake_ups(&mut reactor, LONG), 1);
        assert_eq!(wake_ups(&mut reactor, Duration::ZERO), 0);
    }
}
