//! By which transport a client reaches brokers: by TCP, or by the Unix sockets of those on its own machine.
//!
//! The cluster tells of each broker on which machine it has a socket file, and in which directory. A client on that
//! machine tries the file first. What it finds there may be stale, another's, or out of its reach (another user's, or
//! not in this container), so it believes in it only when three things are right: the kernel says that a process of its
//! own user or of root listens there, the region that the broker names is the cluster's, and so is the broker's number.
//! Otherwise it comes by TCP, at once.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use embar_transport::Address;
use embar_transport::socket::machine_id;
use embar_wire::control::{BrokerInfo, ClusterMetadata, Welcome};

use crate::connection::Violation;

/// By which transport a client connects to the brokers that it hears of. The addresses where it asks for the cluster
/// first are used as they are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Transport {
    /// By Unix sockets to brokers on this machine, where this process may; else by TCP.
    #[default]
    Auto,
    /// By TCP only.
    Tcp,
    /// By Unix sockets only: brokers that have none on this machine are left alone.
    Unix,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        })
    }
}

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        let all = [Self::Auto, Self::Tcp, Self::Unix];
        let mut named = all.into_iter().filter(|it| it.to_string() == text);
        named.next().ok_or_else(|| UnknownTransport(text.into()))
    }
}

/// Text that names no [`Transport`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no transport: write auto, tcp or unix")]
pub struct UnknownTransport(String);

/// What a core knows of transports, which looks at no machine itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    transport: Transport,
    /// The machine that the client is on; 0: on none that has Unix sockets.
    machine: u64,
}

impl Ways {
    /// For a client on a machine of which nothing is known.
    pub const TCP: Self = Self {
        transport: Transport::Tcp,
        machine: 0,
    };

    /// For a client in this process.
    pub fn of(transport: Transport) -> Self {
        let machine = match transport {
            Transport::Tcp => 0,
            Transport::Auto | Transport::Unix => machine_id().map_or(0, NonZeroU64::get),
        };
        Self { transport, machine }
    }

    /// For a client on a machine with this number.
    #[cfg(test)]
    pub(crate) fn on(transport: Transport, machine: u64) -> Self {
        Self { transport, machine }
    }

    /// The ways to a broker of a cluster.
    pub(crate) fn to(self, info: &BrokerInfo, cluster: &ClusterMetadata) -> Routes {
        let dir = Path::new(&cluster.socket_dir);
        let is_here = self.machine != 0 && info.socket_machine == self.machine;
        let unix = (is_here && cluster.region != 0 && dir.is_absolute()).then(|| UnixRoute {
            path: dir.join(info.id.to_string()),
            region: cluster.region,
        });
        let tcp = info.address.parse().ok();
        Routes {
            unix,
            tcp: tcp.filter(|_| self.transport != Transport::Unix),
        }
    }
}

/// The ways that a client may take to one broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Routes {
    /// The better one.
    pub(crate) unix: Option<UnixRoute>,
    pub(crate) tcp: Option<SocketAddr>,
}

/// A socket file, and who is to be found there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnixRoute {
    path: PathBuf,
    region: u64,
}

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        self.unix.is_none() && self.tcp.is_none()
    }

    /// All of them, the best first.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Address> + use<> {
        let unix = self.unix.as_ref().map(UnixRoute::address);
        unix.into_iter().chain(self.tcp.map(Address::Tcp))
    }

    /// Whether a broker that answers at one of these addresses is of the cluster. TCP is believed.
    pub(crate) fn check(&self, taken: &Address, welcome: &Welcome) -> Result<(), Violation> {
        match &self.unix {
            Some(unix) if unix.address() == *taken => unix.check(welcome),
            _ => Ok(()),
        }
    }
}

impl UnixRoute {
    pub(crate) fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }

    /// Whether a broker of the same cluster answers.
    pub(crate) fn check(&self, welcome: &Welcome) -> Result<(), Violation> {
        if welcome.region == self.region {
            return Ok(());
        }
        let path = self.path.display();
        Err(format!("a broker of another cluster answers at unix:{path}").into())
    }
}

#[cfg(test)]
mod tests {
    use embar_wire::control::{BrokerRole, BrokerState};

    use super::*;

    fn routes(ways: Ways, change: impl FnOnce(&mut BrokerInfo, &mut ClusterMetadata)) -> Routes {
        let mut info = BrokerInfo {
            id: 3,
            state: BrokerState::Ready,
            address: "127.0.0.1:9403".into(),
            incarnation: 1,
            role: BrokerRole::Member,
            takes_data: true,
            socket_machine: 7,
        };
        let mut cluster = ClusterMetadata {
            region: 5,
            socket_dir: "/r/sockets".into(),
            ..ClusterMetadata::default()
        };
        change(&mut info, &mut cluster);
        ways.to(&info, &cluster)
    }

    fn on(machine: u64, transport: Transport) -> Ways {
        Ways::on(transport, machine)
    }

    fn texts(routes: &Routes) -> Vec<String> {
        routes.addresses().map(|it| it.to_string()).collect()
    }

    #[test]
    fn the_socket_of_a_broker_on_this_machine_comes_first() {
        let both = routes(on(7, Transport::Auto), |_, _| {});
        assert_eq!(texts(&both), ["unix:/r/sockets/3", "127.0.0.1:9403"]);
        let unix = routes(on(7, Transport::Unix), |_, _| {});
        assert_eq!(texts(&unix), ["unix:/r/sockets/3"]);
        assert_eq!(texts(&routes(Ways::TCP, |_, _| {})), ["127.0.0.1:9403"]);
    }

    #[test]
    fn no_socket_is_looked_for_where_there_can_be_none() {
        let auto = on(7, Transport::Auto);
        for tcp in [
            routes(on(8, Transport::Auto), |_, _| {}),
            routes(on(0, Transport::Auto), |info, _| info.socket_machine = 0),
            routes(auto, |info, _| info.socket_machine = 0),
            routes(auto, |_, cluster| cluster.region = 0),
            routes(auto, |_, cluster| cluster.socket_dir = String::new()),
            routes(auto, |_, cluster| cluster.socket_dir = "sockets".into()),
        ] {
            assert_eq!(texts(&tcp), ["127.0.0.1:9403"]);
        }
        let none = routes(on(8, Transport::Unix), |_, _| {});
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn a_broker_of_another_cluster_is_not_believed_at_a_path() {
        let routes = routes(on(7, Transport::Auto), |_, _| {});
        let welcome = |region| Welcome {
            region,
            ..Welcome::default()
        };
        let [unix, tcp] = [0, 1].map(|nth| routes.addresses().nth(nth).expect("two"));
        assert!(routes.check(&unix, &welcome(5)).is_ok());
        assert!(routes.check(&unix, &welcome(6)).is_err());
        assert!(routes.check(&unix, &welcome(0)).is_err());
        assert!(routes.check(&tcp, &welcome(6)).is_ok());
    }

    #[test]
    fn transports_survive_the_trip_through_text() {
        for transport in [Transport::Auto, Transport::Tcp, Transport::Unix] {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        let error = "udp".parse::<Transport>().expect_err("unknown");
        assert!(error.to_string().contains("udp"), "{error}");
    }

    #[test]
    fn this_machine_is_known_unless_tcp_is_asked_for() {
        assert_ne!(Ways::of(Transport::Auto).machine, 0);
        assert_eq!(Ways::of(Transport::Tcp), Ways::TCP);
    }
}
