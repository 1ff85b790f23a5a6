//! Finds free ports for Redis servers, and for the cluster bus of each.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The cluster bus of a node listens on the node's port plus this.
pub const BUS_OFFSET: u16 = 10_000;

/// Ports for servers. Linux gives neither these nor their bus ports to outgoing connections (it begins at 32768), which
/// could otherwise take the port of a server while it restarts. Nor are they where people have clusters of their own
/// (7000, with its bus at 17000).
const RANGE: Range<u16> = 20_000..22_700;

/// The next port to try. Each process begins at a random one, so that test programs that run at the same time seldom meet.
static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..)));

/// A port that is free, as is that of its cluster bus. `None` if all are taken.
pub fn free() -> Option<u16> {
    let span = RANGE.end - RANGE.start;
    (0..span)
        .map(|_| RANGE.start + NEXT.fetch_add(1, Ordering::Relaxed) % span)
        .find(|port| is_free(*port, true))
}

/// Whether a server, and its cluster bus if it has one, can listen there.
pub fn is_free(port: u16, with_bus: bool) -> bool {
    let can_listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    can_listen(port) && (!with_bus || port.checked_add(BUS_OFFSET).is_some_and(can_listen))
}

#[cfg(test)]
mod tests {
    use super::{BUS_OFFSET, free, is_free};
    use std::net::TcpListener;

    #[test]
    fn a_port_is_free_only_if_its_bus_is() {
        let port = free().unwrap();
        let _bus = TcpListener::bind(("127.0.0.1", port + BUS_OFFSET)).unwrap();
        assert!(is_free(port, false) && !is_free(port, true));
        assert!(!is_free(60_000, true), "its bus would be above 65535");
        assert_ne!(free().unwrap(), free().unwrap());
    }
}
