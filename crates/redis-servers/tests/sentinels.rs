//! A primary with replicas, and sentinels.

use embar_redis_servers::{SentinelOptions, Sentinels};
use std::thread;
use std::time::{Duration, Instant};

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "it never happens: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn all_name(all: &Sentinels, server: usize) -> bool {
    (0..all.sentinels().len()).all(|it| matches!(all.named_by(it), Ok(Some(it)) if it == server))
}

#[test]
fn sentinels_replace_a_dead_primary_and_remember_it() {
    let mut all = Sentinels::start(&SentinelOptions::default()).unwrap();
    assert!(all_name(&all, 0));
    all.servers()[0].command(&["SET", "key", "value"]).unwrap();
    until("the replica has it", || {
        all.servers()[1].command(&["GET", "key"]).unwrap() == "value"
    });
    all.servers_mut()[0].kill();
    until("the replica is the primary", || all_name(&all, 1));
    all.servers()[1].command(&["SET", "key", "new"]).unwrap();
    // It comes back as a primary without data, and becomes a replica.
    all.servers_mut()[0].restart().unwrap();
    all.wait_ok(LONG).unwrap();
    assert_eq!(all.servers()[0].command(&["GET", "key"]).unwrap(), "new");
    all.sentinels_mut()[0].restart().unwrap();
    assert_eq!(all.named_by(0).unwrap(), Some(1), "its file says so");
    all.wait_ok(LONG).unwrap();
}
