//! By which transport a client reaches brokers: by TCP, by the Unix sockets of those on its own machine, or through memory that
//! it shares with them.
//!
//! The cluster tells of each broker on which machine it has a socket file, and in which directory. Beside it is another
//! for connections by shared memory, if the broker offers these. A client on that machine tries the files first. What it finds there may be stale, another's, or out of its reach (another user's, or
//! not in this container), so it believes in it only when three things are right: the kernel says that a process of its
//! own user or of root listens there, the region that the broker names is the cluster's, and so is the broker's number.
//! Otherwise it takes the next way, at once.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::Path;
use std::str::FromStr;

use embar_transport::Address;
use embar_transport::socket::machine_id;
use embar_wire::control::{BrokerInfo, ClusterMetadata, Welcome};

use crate::connection::Violation;

/// Of the file by which a broker offers shared memory, beside its socket file.
const SHM_EXTENSION: &str = "shm";

/// By which transport a client connects to the brokers that it hears of. The addresses where it asks for the cluster
/// first are used as they are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Transport {
    /// To brokers on this machine, where this process may, batches go through shared memory, and all else by Unix
    /// sockets; to others by TCP.
    #[default]
    Auto,
    /// By TCP only.
    Tcp,
    /// By Unix sockets only: brokers that have none on this machine are left alone.
    Unix,
    /// Batches go through shared memory only: brokers that offer none on this machine are left alone. What is asked of a
    /// broker goes by its Unix socket.
    Shm,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Shm => "shm",
        })
    }
}

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        let all = [Self::Auto, Self::Tcp, Self::Unix, Self::Shm];
        let mut named = all.into_iter().filter(|it| it.to_string() == text);
        named.next().ok_or_else(|| UnknownTransport(text.into()))
    }
}

/// Text that names no [`Transport`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no transport: write auto, tcp, unix or shm")]
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
            Transport::Auto | Transport::Unix | Transport::Shm => {
                machine_id().map_or(0, NonZeroU64::get)
            }
        };
        Self { transport, machine }
    }

    /// For a client on a machine with this number.
    #[cfg(test)]
    pub(crate) fn on(transport: Transport, machine: u64) -> Self {
        Self { transport, machine }
    }

    /// The ways by which batches go to and from a broker of a cluster.
    pub(crate) fn to(self, info: &BrokerInfo, cluster: &ClusterMetadata) -> Routes {
        let mut routes = self.to_ask(info, cluster);
        if matches!(self.transport, Transport::Auto | Transport::Shm) {
            routes.shm = routes.unix.as_ref().map(|unix| LocalRoute {
                address: Address::Shm(unix.path().with_extension(SHM_EXTENSION)),
                region: unix.region,
            });
        }
        if self.transport == Transport::Shm {
            routes.unix = None;
        }
        routes
    }

    /// The ways to ask a broker of a cluster for something.
    pub(crate) fn to_ask(self, info: &BrokerInfo, cluster: &ClusterMetadata) -> Routes {
        let dir = Path::new(&cluster.socket_dir);
        let is_here = self.machine != 0 && info.socket_machine == self.machine;
        let unix = (is_here && cluster.region != 0 && dir.is_absolute()).then(|| LocalRoute {
            address: Address::Unix(dir.join(info.id.to_string())),
            region: cluster.region,
        });
        let may_leave = matches!(self.transport, Transport::Auto | Transport::Tcp);
        let tcp = info.address.parse().ok();
        Routes {
            shm: None,
            unix,
            tcp: tcp.filter(|_| may_leave),
        }
    }
}

/// The ways that a client may take to one broker, the best first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Routes {
    pub(crate) shm: Option<LocalRoute>,
    pub(crate) unix: Option<LocalRoute>,
    pub(crate) tcp: Option<SocketAddr>,
}

/// A file of a broker on this machine, and who is to be found there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalRoute {
    address: Address,
    region: u64,
}

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        self.shm.is_none() && self.unix.is_none() && self.tcp.is_none()
    }

    /// All of them, the best first.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Address> + use<> {
        let local = [&self.shm, &self.unix].map(|it| it.as_ref().map(LocalRoute::address));
        let tcp = self.tcp.map(Address::Tcp);
        local.into_iter().flatten().chain(tcp)
    }

    /// What is left to try after this one.
    pub(crate) fn after(&self, taken: &Address) -> Option<Address> {
        self.addresses().skip_while(|it| it != taken).nth(1)
    }

    /// Whether a broker that answers at one of these addresses is of the cluster. TCP is believed.
    pub(crate) fn check(&self, taken: &Address, welcome: &Welcome) -> Result<(), Violation> {
        let mut local = [&self.shm, &self.unix].into_iter().flatten();
        match local.find(|it| it.address == *taken) {
            Some(route) => route.check(welcome),
            None => Ok(()),
        }
    }
}

impl LocalRoute {
    pub(crate) fn address(&self) -> Address {
        self.address.clone()
    }

    fn path(&self) -> &Path {
        match &self.address {
            Address::Unix(path) | Address::Shm(path) => path,
            Address::Tcp(_) => unreachable!("a local route leads to a file"),
        }
    }

    /// Whether a broker of the same cluster answers.
    pub(crate) fn check(&self, welcome: &Welcome) -> Result<(), Violation> {
        if welcome.region == self.region {
            return Ok(());
        }
        let address = &self.address;
        Err(format!("a broker of another cluster answers at {address}").into())
    }
}

/// By what a connection goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    Unix,
    Shm,
}

impl Way {
    pub(crate) fn of(address: &Address) -> Self {
        match address {
            Address::Tcp(_) => Self::Tcp,
            Address::Unix(_) => Self::Unix,
            Address::Shm(_) => Self::Shm,
        }
    }

    /// Whether it leads through a file, where anybody may be found.
    pub(crate) fn is_local(self) -> bool {
        self != Self::Tcp
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
    fn the_files_of_a_broker_on_this_machine_come_first() {
        let (shm, unix, tcp) = (
            "shm:/r/sockets/3.shm",
            "unix:/r/sockets/3",
            "127.0.0.1:9403",
        );
        let all = routes(on(7, Transport::Auto), |_, _| {});
        assert_eq!(texts(&all), [shm, unix, tcp]);
        let only = |transport| texts(&routes(on(7, transport), |_, _| {}));
        assert_eq!(only(Transport::Shm), [shm]);
        assert_eq!(only(Transport::Unix), [unix]);
        assert_eq!(texts(&routes(Ways::TCP, |_, _| {})), [tcp]);
        let ways = all.addresses().collect::<Vec<_>>();
        assert_eq!(all.after(&ways[0]), Some(ways[1].clone()));
        assert_eq!(all.after(&ways[2]), None);
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
        let [shm, unix, tcp] = [0, 1, 2].map(|nth| routes.addresses().nth(nth).expect("three"));
        for file in [&shm, &unix] {
            assert!(routes.check(file, &welcome(5)).is_ok());
            assert!(routes.check(file, &welcome(6)).is_err());
            assert!(routes.check(file, &welcome(0)).is_err());
        }
        assert!(routes.check(&tcp, &welcome(6)).is_ok());
    }

    #[test]
    fn transports_survive_the_trip_through_text() {
        let all = [
            Transport::Auto,
            Transport::Tcp,
            Transport::Unix,
            Transport::Shm,
        ];
        for transport in all {
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
