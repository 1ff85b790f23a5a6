//! Which proxies may say for whom they speak.

use std::net::IpAddr;
use std::sync::Arc;

use embar_transport::Peer;
use ipnet::IpNet;

/// The proxies in front of a listener whose PROXY headers (version 2) are believed.
///
/// A peer's address decides on its limits and on whether it counts as local, so believe only proxies that write the header themselves,
/// and that alone can reach the listener from these addresses.
#[derive(Debug, Clone)]
pub struct Proxies(Arc<Trusted>);

#[derive(Debug, Default)]
struct Trusted {
    networks: Vec<IpNet>,
    unix: bool,
}

/// Text that names no proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no proxy: write an IP address, a network such as 10.0.0.0/8, or unix")]
pub struct ProxiesError {
    text: String,
}

impl Proxies {
    /// Those with these addresses, or in these networks (`10.0.0.0/8`); `unix` stands for all processes that may open the listener's
    /// socket file.
    ///
    /// # Errors
    /// [`ProxiesError`] for text of another kind.
    pub fn new<'a>(trusted: impl IntoIterator<Item = &'a str>) -> Result<Self, ProxiesError> {
        let mut all = Trusted::default();
        for text in trusted {
            let address = || text.parse::<IpAddr>().map(IpNet::from);
            match text.parse().or_else(|_| address()) {
                Ok(network) => all.networks.push(network),
                Err(_) if text == "unix" => all.unix = true,
                Err(_) => {
                    let text = text.to_owned();
                    return Err(ProxiesError { text });
                }
            }
        }
        Ok(Self(Arc::new(all)))
    }

    pub(super) fn trusts(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Unix | Peer::Shm => self.0.unix,
            Peer::Tcp(address) | Peer::Quic(address) => {
                // A socket for both versions tells addresses of version 4 in those of version 6.
                let ip = address.ip().to_canonical();
                self.0.networks.iter().any(|network| network.contains(&ip))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_known_by_their_networks() {
        let proxies = Proxies::new(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]).unwrap();
        let trusted = |text: &str| proxies.trusts(&Peer::Tcp(text.parse().unwrap()));
        for good in [
            "10.255.0.1:9",
            "192.0.2.7:1",
            "[::ffff:10.0.0.1]:1",
            "[2001:db8:1::1]:1",
        ] {
            assert!(trusted(good), "{good}");
        }
        for bad in [
            "11.0.0.1:9",
            "192.0.2.8:1",
            "[2001:db9::1]:1",
            "127.0.0.1:1",
        ] {
            assert!(!trusted(bad), "{bad}");
        }
        assert!(!proxies.trusts(&Peer::Unix));
        assert!(Proxies::new(["unix"]).unwrap().trusts(&Peer::Unix));
        assert!(!Proxies::new([]).unwrap().trusts(&Peer::Unix));
        let error = Proxies::new(["10.0.0.0/33"]).unwrap_err().to_string();
        assert!(error.contains("`10.0.0.0/33`"), "{error}");
    }
}
