//! Who counts as one peer when the sequencer needs the places of sessions.

use std::net::{IpAddr, SocketAddr};

/// This machine: all that comes over loopback, or by a Unix socket.
const HERE: u32 = 0;

/// A peer's number: an address of version 4, or the network of one of version 6, as a host has as many
/// addresses there as it likes. Two networks may have the same number: then they share what one has.
pub(super) fn peer_number(address: Option<SocketAddr>) -> u32 {
    match address.map(|it| it.ip().to_canonical()) {
        None => HERE,
        Some(ip) if ip.is_loopback() => HERE,
        Some(IpAddr::V4(ip)) => ip.to_bits(),
        Some(IpAddr::V6(ip)) => {
            let network = (ip.to_bits() >> 64) as u64;
            (network.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_peer_whatever_its_port_and_so_is_this_machine() {
        let number = |text: &str| peer_number(Some(text.parse().expect("an address")));
        assert_eq!(number("127.0.0.1:9"), HERE);
        assert_eq!(number("[::1]:9"), HERE);
        assert_eq!(peer_number(None), HERE);
        assert_eq!(number("192.0.2.1:9"), number("192.0.2.1:10"));
        assert_eq!(number("192.0.2.1:9"), number("[::ffff:192.0.2.1]:9"));
        assert_ne!(number("192.0.2.1:9"), number("192.0.2.2:9"));
        assert_eq!(number("[2001:db8::1]:9"), number("[2001:db8::2]:9"));
        assert_ne!(number("[2001:db8::1]:9"), number("[2001:db8:0:1::1]:9"));
    }
}
