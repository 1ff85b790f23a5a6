//! Resolves the addresses where a client asks for the cluster first: `HOST:PORT` or `unix:PATH`, or several separated by
//! commas.

use std::io;
use std::net::ToSocketAddrs;

use embar_transport::Address;

use crate::error::AddressError;

/// All addresses behind `text`. Names are looked up, which may block.
pub(crate) fn resolve(text: &str) -> Result<Vec<Address>, AddressError> {
    let mut addresses = Vec::new();
    for part in text.split(',').map(str::trim) {
        let wrong = |source: io::Error| AddressError {
            address: part.to_string(),
            source: source.into(),
        };
        if let Some(path) = part.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(wrong(io::Error::other("the path is missing")));
            }
            addresses.push(Address::Unix(path.into()));
            continue;
        }
        let found = part.to_socket_addrs().map_err(wrong)?;
        let before = addresses.len();
        addresses.extend(found.map(Address::Tcp));
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
        let three = resolve("127.0.0.1:9400, [::1]:9401, unix:/r/0").expect("addresses");
        let texts: Vec<String> = three.iter().map(Address::to_string).collect();
        assert_eq!(texts, ["127.0.0.1:9400", "[::1]:9401", "unix:/r/0"]);
        for bad in [
            "",
            "127.0.0.1",
            "127.0.0.1:9400,",
            "127.0.0.1:99999",
            "unix:",
        ] {
            let error = resolve(bad).expect_err(bad);
            let mut parts = bad.split(',');
            assert!(parts.any(|part| part == error.address), "{error}");
        }
    }
}
