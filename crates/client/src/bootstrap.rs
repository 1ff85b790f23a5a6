//! Where to start: `HOST:PORT`, or several separated by commas.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::error::Error;

/// All addresses behind `text`. Names are looked up, which may block.
pub(crate) fn resolve(text: &str) -> Result<Vec<SocketAddr>, Error> {
    let mut addresses = Vec::new();
    for part in text.split(',').map(str::trim) {
        let wrong = |cause: String| Error::BadAddress {
            address: part.to_string(),
            cause,
        };
        let found = part
            .to_socket_addrs()
            .map_err(|error| wrong(error.to_string()))?;
        let before = addresses.len();
        addresses.extend(found);
        if addresses.len() == before {
            return Err(wrong("the name has no address".into()));
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
            assert!(
                matches!(resolve(bad), Err(Error::BadAddress { .. })),
                "{bad}"
            );
        }
    }
}
