//! Resolves the addresses where a client asks for the cluster first: `HOST:PORT`, or several separated by commas.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::error::AddressError;

/// All addresses behind `text`. Names are looked up, which may block.
pub(crate) fn resolve(text: &str) -> Result<Vec<SocketAddr>, AddressError> {
    let mut addresses = Vec::new();
    for part in text.split(',').map(str::trim) {
        let wrong = |source: io::Error| AddressError {
            address: part.to_string(),
            source: source.into(),
        };
        let found = part.to_socket_addrs().map_err(wrong)?;
        let before = addresses.len();
        addresses.extend(found);
        if addresses.len() == before {
            return Err(wrong(io::Error::other("the name has no address")));
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_nonsense() {
        let two = resolve("127.0.0.1:9400, [::1]:9401").expect("two addresses");
        assert_eq!(
            two.iter().map(SocketAddr::port).collect::<Vec<_>>(),
            [9400, 9401]
        );
        for bad in ["", "127.0.0.1", "127.0.0.1:9400,", "127.0.0.1:99999"] {
            let error = resolve(bad).expect_err(bad);
            let mut parts = bad.split(',');
            assert!(parts.any(|part| part == error.address), "{error}");
        }
    }
}
