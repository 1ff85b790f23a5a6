//! No file descriptors left: peers wait, nothing spins, and accepting goes on as soon as it can.
//! In a process of its own, because the limit is the whole process's.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use embar_transport::{Completion, Epoll, Mapped, Reactor, Stream, Token, Uring};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Takes every descriptor that is left.
fn take_all() -> Vec<File> {
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken
}

struct Driver<R> {
    reactor: R,
    waiting: Vec<Completion>,
}

impl<R: Reactor<Mapped>> Driver<R> {
    /// The next thing that is over.
    fn next(&mut self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.waiting.is_empty() {
            assert!(Instant::now() < deadline, "nothing happened in time");
            let timeout = Some(Duration::from_secs(1));
            self.reactor.poll(timeout, &mut self.waiting).unwrap();
        }
        self.waiting.remove(0)
    }
}

fn assert_failed(completion: Completion, wanted: Token) {
    let Completion::AcceptFailed { listener, error } = completion else {
        panic!("accepted without a descriptor: {completion:?}");
    };
    assert_eq!(listener, wanted);
    let expected = rustix::io::Errno::MFILE.raw_os_error();
    assert_eq!(error.raw_os_error(), Some(expected));
}

fn accepted(completion: Completion) -> Stream {
    match completion {
        Completion::Accepted { stream, .. } => stream,
        other => panic!("not accepted: {other:?}"),
    }
}

/// One after the other, because the limit is the whole process's.
#[test]
fn accepting_without_descriptors_is_reported_rests_and_goes_on() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).unwrap();
    check(Epoll::new().unwrap());
    check(Uring::new().unwrap());
}

fn check(reactor: impl Reactor<Mapped>) {
    let mut driver = Driver {
        reactor,
        waiting: Vec::new(),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = driver.reactor.listen(listener).unwrap();
    let _first_peer = TcpStream::connect(address).unwrap();
    let served = accepted(driver.next());
    let served = driver.reactor.add(served).unwrap();

    let _peers = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    let mut taken = take_all();
    assert_failed(driver.next(), listener);

    // It rests although the peers still wait: a busy loop would poll thousands of times.
    let before = driver.reactor.counters();
    let started = Instant::now();
    assert_failed(driver.next(), listener);
    let rested = started.elapsed();
    let after = driver.reactor.counters();
    assert!(
        rested >= Duration::from_millis(50),
        "rested only {rested:?}"
    );
    assert!(after.polls - before.polls < 10, "spinning");
    assert_eq!(after.accept_failures, 2);

    // Closing a connection frees a descriptor, which goes to the next peer without a rest.
    driver.reactor.close(served);
    let _second = accepted(driver.next());

    // A descriptor that others freed is found after a rest, with no new peer's help.
    taken.truncate(taken.len() - 8);
    let third = loop {
        match driver.next() {
            Completion::AcceptFailed { .. } => {}
            other => break accepted(other),
        }
    };
    assert_eq!(driver.reactor.counters().accepted, 3);
    drop(third);
}
