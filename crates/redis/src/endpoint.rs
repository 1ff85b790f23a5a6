//! The address of a Redis server: a host and a port, or a Unix socket.

use std::{fmt, path::PathBuf};

/// The port on which Redis listens by default.
pub const DEFAULT_PORT: u16 = 6379;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// A port of a host.
    Tcp {
        /// A name or an IP address, IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket on this machine.
    Unix(PathBuf),
}

impl Endpoint {
    /// A port of a host; an IPv6 address without brackets.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        Self::Tcp { host, port }
    }

    /// The node that the server at `asked` named in a redirect or in its topology. An empty host means
    /// that server's own host. `None` when the server does not know the node's address itself: it
    /// answers `?` then, or port 0.
    #[must_use]
    pub fn announced(host: &str, port: u16, asked: &Self) -> Option<Self> {
        match (host, asked) {
            (_, _) if port == 0 => None,
            ("?", _) => None,
            ("", Self::Tcp { host, .. }) => Some(Self::tcp(host, port)),
            // A server on a Unix socket runs on this machine.
            ("", Self::Unix(_)) => Some(Self::tcp("localhost", port)),
            (host, _) => Some(Self::tcp(host, port)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_node_may_be_on_the_host_that_was_asked() {
        let asked = Endpoint::tcp("10.0.0.1", 7000);
        let announced = |host, port| Endpoint::announced(host, port, &asked);
        assert_eq!(announced("b", 1), Some(Endpoint::tcp("b", 1)));
        assert_eq!(announced("", 1), Some(Endpoint::tcp("10.0.0.1", 1)));
        assert_eq!(announced("?", 1), None);
        assert_eq!(announced("b", 0), None);
        let socket = Endpoint::Unix("/run/redis.sock".into());
        let here = Endpoint::announced("", 7, &socket);
        assert_eq!(here, Some(Endpoint::tcp("localhost", 7)));
    }

    #[test]
    fn endpoints_are_shown_as_they_are_written() {
        assert_eq!(Endpoint::tcp("::1", 7).to_string(), "[::1]:7");
        let socket = Endpoint::Unix("/run/redis.sock".into());
        assert_eq!(socket.to_string(), "unix:/run/redis.sock");
    }
}
