//! Where a socket listens, and who is at the other end.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where to listen or to connect to. As text: `host:port`, or `unix:` or `shm:` and a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// A socket file.
    Unix(PathBuf),
    /// A socket file by which both sides hand each other memory, and move bytes by that.
    Shm(PathBuf),
}

/// Text that is not an [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no address ({reason}); write host:port, unix:/path, or shm:/path")]
pub struct AddressError {
    text: String,
    reason: String,
}

impl FromStr for Address {
    type Err = AddressError;

    /// Asks the system's resolver, which may take a while, if the host is a name.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = |reason: String| AddressError {
            text: text.into(),
            reason,
        };
        let path = |path: &str| match path {
            "" => Err(error("the path is missing".into())),
            path => Ok(PathBuf::from(path)),
        };
        if let Some(text) = text.strip_prefix("unix:") {
            return path(text).map(Self::Unix);
        }
        if let Some(text) = text.strip_prefix("shm:") {
            return path(text).map(Self::Shm);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        let mut found = text
            .to_socket_addrs()
            .map_err(|source| error(source.to_string()))?;
        let first = found.next();
        first
            .map(Self::Tcp)
            .ok_or_else(|| error("the host has no address".into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        Self::Unix(path.into())
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Self {
        address.clone()
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// It came by TCP from this address.
    Tcp(SocketAddr),
    /// It came by QUIC from this address. Where it goes to later changes nothing here.
    Quic(SocketAddr),
    /// It is a process of this machine that may open the socket file.
    Unix,
    /// The same, through shared memory.
    Shm,
}

impl Peer {
    /// Its IP address and port, if it has one.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) | Self::Quic(address) => Some(*address),
            Self::Unix | Self::Shm => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) | Self::Quic(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
            Self::Shm => f.write_str("shm"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_trip_through_text() {
        for text in [
            "127.0.0.1:9400",
            "[::1]:80",
            "unix:/run/x.sock",
            "unix:y",
            "shm:/run/x.shm",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(
            "unix:/run/x".parse(),
            Ok(Address::Unix(PathBuf::from("/run/x")))
        );
        assert_eq!("shm:y".parse(), Ok(Address::Shm(PathBuf::from("y"))));
        assert!(matches!("localhost:80".parse(), Ok(Address::Tcp(at)) if at.port() == 80));
    }

    #[test]
    fn other_text_is_named_in_the_error() {
        for text in ["", "unix:", "shm:", "127.0.0.1", "127.0.0.1:99999"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
            assert!(error.contains("host:port"), "{error}");
        }
    }
}
