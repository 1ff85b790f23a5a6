//! A machine that does not allow `io_uring` takes batches all the same, and says how.

mod common;

use std::thread;

use common::{Space, Up};
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// Runs `test` in a thread that gets `errno` when it makes a ring, as does every process that it starts. A container
/// does the same.
fn without_uring(errno: Errno, test: impl FnOnce() + Send + 'static) {
    let refused = SeccompAction::Errno(errno.raw_os_error() as u32);
    let rules = [(libc::SYS_io_uring_setup, Vec::new())].into();
    let arch = std::env::consts::ARCH.try_into().expect("it has filters");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a short one");
    let run = move || {
        apply_filter(&program).expect("every process may");
        test();
    };
    thread::spawn(run).join().expect("the test holds");
}

fn start(space: &Space) -> Up {
    Up::start(space, &["--receive", "uring"])
}

/// How all brokers receive, if it is one way.
fn way(up: &Up) -> String {
    let brokers = up.ready["brokers"].as_array().expect("brokers");
    let mut ways = brokers.iter().map(|broker| broker["receive"].as_str());
    let first = ways.next().expect("a head");
    assert!(ways.all(|way| way == first), "{brokers:?}");
    first.expect("a name").to_owned()
}

/// A hundred thousand messages come back, each once.
fn publish_and_read(up: &Up) {
    up.ok(&["topic", "create", "t", "--order", "5"]);
    up.produce("t", 0..100_000);
    assert_eq!(up.consume("t"), (0..100_000).collect::<Vec<_>>());
}

fn logs(space: &Space) -> String {
    let read = |name| std::fs::read_to_string(space.dir.join("logs").join(name)).expect("a log");
    let names = common::names_in(&space.dir.join("logs"));
    names.into_iter().map(read).collect()
}

#[test]
fn where_it_is_allowed_all_brokers_use_it() {
    let space = Space::new();
    let up = start(&space);
    assert_eq!(way(&up), "uring");
    publish_and_read(&up);
    up.stop();
}

#[test]
fn where_it_is_forbidden_or_missing_brokers_use_epoll_and_say_why() {
    for (errno, why) in [(Errno::PERM, "seccomp"), (Errno::NOSYS, "Linux 6.1")] {
        without_uring(errno, move || {
            let space = Space::new();
            let up = start(&space);
            assert_eq!(way(&up), "direct");
            publish_and_read(&up);
            up.stop();
            let logs = logs(&space);
            let lines = logs
                .lines()
                .filter(|line| line.contains("received by epoll"));
            let lines: Vec<_> = lines.collect();
            assert!(lines.len() >= 2, "{logs}");
            assert!(lines.iter().all(|line| line.contains(why)), "{lines:?}");
        });
    }
}
