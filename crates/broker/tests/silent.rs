//! What a connection costs a broker that says nothing. Memory is the process's, so this has a binary of its own.

mod support;

use std::fs;
use std::net::TcpStream;

use support::{Peer, data, small};

const CONNECTIONS: usize = 400;

/// Bytes of memory that this process has.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("this process has memory");
    let pages = statm.split(' ').nth(1).and_then(|text| text.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

/// Mappings of rings.
fn rings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("this process has mappings");
    maps.lines()
        .filter(|line| line.contains("embar-ring"))
        .count()
}

#[test]
fn a_silent_connection_takes_no_rings_and_at_most_4_kib() {
    let cluster = small().start().expect("a cluster");
    let mut streams = Vec::with_capacity(CONNECTIONS);
    let mut open = |count: usize| {
        for _ in 0..count {
            streams.push(TcpStream::connect(data(&cluster)).expect("the kernel answers"));
        }
        // Who comes behind them is served, so they were accepted.
        drop(Peer::greet(data(&cluster)));
    };
    open(8);
    let _kept = Peer::greet(data(&cluster));
    let (bytes, mapped) = (resident(), rings());
    open(CONNECTIONS);
    let each = resident().saturating_sub(bytes) / CONNECTIONS;
    assert!(each <= 4 << 10, "{each} bytes for each");
    // Those of who came behind may be there still, or wait for the next one.
    assert!(rings() <= mapped + 8, "{} instead of {mapped}", rings());
}
