use std::io::{Read, Write};
use std::time::Duration;

use embar_transport::{Completion, Reactor, SendBuf};

use crate::Kind;
use crate::driver::{driver, room};

/// Both ends of each connection are in this process.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

pub fn a_thousand_connections_each_get_their_own_bytes<K: Kind>() {
    const CONNECTIONS: usize = 1000;
    allow_many_files();
    let mut driver = driver::<K>();
    let mut pairs: Vec<_> = (0..CONNECTIONS).map(|_| driver.pair()).collect();
    for (token, _) in &pairs {
        driver.reactor.recv(*token, room(8));
    }
    for (number, (_, peer)) in pairs.iter_mut().enumerate() {
        peer.write_all(&(number as u64).to_le_bytes()).unwrap();
    }
    // Echo what came.
    let (mut received, mut sent) = (0, 0);
    while received < CONNECTIONS || sent < CONNECTIONS {
        driver
            .wait_for("echo", |completion| match completion {
                Completion::Received {
                    token, buf, result, ..
                } => {
                    assert_eq!(result.unwrap(), 8);
                    received += 1;
                    Ok(Some((token, buf)))
                }
                Completion::Sent { result, .. } => {
                    result.unwrap();
                    sent += 1;
                    Ok(None)
                }
                other => Err(other),
            })
            .into_iter()
            .for_each(|(token, buf)| {
                let bytes = buf.with_filled(0..8, <[u8]>::to_vec);
                driver.reactor.send(token, SendBuf::heap(bytes));
            });
    }
    for (number, (token, peer)) in pairs.iter_mut().enumerate() {
        let mut echo = [0; 8];
        peer.read_exact(&mut echo).unwrap();
        assert_eq!(u64::from_le_bytes(echo), number as u64);
        driver.reactor.close(*token);
    }
    assert_eq!(driver.reactor.outstanding(), 0);
}

pub fn a_busy_connection_starves_nobody<K: Kind>() {
    const POLLS_MAX: usize = 32;
    let mut driver = driver::<K>();
    let (busy, mut busy_peer) = driver.pair();
    let (quiet, mut quiet_peer) = driver.pair();
    busy_peer.write_all(&[1; 10_000]).unwrap();
    driver.reactor.recv(quiet, room(1));
    driver.reactor.recv(busy, room(1));
    driver.received(busy).1.unwrap();
    // From here the busy one is always ready; the quiet one's edge has to be looked for.
    quiet_peer.write_all(b"x").unwrap();
    let mut out = Vec::new();
    for _ in 0..POLLS_MAX {
        driver.reactor.recv(busy, room(1));
        driver.reactor.poll(Some(Duration::ZERO), &mut out).unwrap();
        let mut busy_done = false;
        for done in out.drain(..) {
            match done {
                Completion::Received { token, .. } if token == quiet => return,
                Completion::Received { token, .. } => busy_done |= token == busy,
                _ => {}
            }
        }
        assert!(
            busy_done,
            "the busy connection stopped although it has bytes"
        );
    }
    panic!("the quiet connection was not served within {POLLS_MAX} polls");
}

pub fn idle_connections_cost_no_calls<K: Kind>() {
    let mut driver = driver::<K>();
    let idle: Vec<_> = (0..100).map(|_| driver.pair()).collect();
    for (token, _) in &idle {
        driver.reactor.recv(*token, room(8));
    }
    driver.nothing_happens();
    let (token, mut peer) = driver.pair();
    let before = driver.reactor.counters();
    for _ in 0..100 {
        peer.write_all(b"x").unwrap();
        driver.receive_exactly(token, 1);
    }
    let after = driver.reactor.counters();
    let calls = after.recv_calls - before.recv_calls;
    assert!(calls <= 200, "{calls} receive calls for 100 bytes");
    let polls = after.polls - before.polls;
    assert!(polls <= 300, "{polls} polls for 100 bytes");
}
