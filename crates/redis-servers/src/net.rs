//! A network that loses packets when a test says so.
//!
//! Each server has a host of its own, the test's client has another one, and a router connects them: network namespaces
//! (network_namespaces(7)) with a cable from each host to the router. This machine's own network has no part in it, so
//! tests that run at the same time do not meet. The kernel removes the network with the last process or file that holds
//! it: nothing is left behind, however a test ends.
//!
//! The router loses the packets, by rules of its routing policy (ip-rule(8), `blackhole`): it throws them away without a
//! word. The queue discipline `netem` could do that, too, but many kernels are built without it, and it would need
//! filters for each pair of hosts.

mod user_namespace;

use crate::process;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fmt::{self, Debug, Formatter};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::resume_unwind;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

/// The client's address.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 99, 2, 1);

/// The addresses of all servers.
const SERVERS: &str = "10.99.1.0/24";

/// The router's address, the same at the ends of all cables.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// How many servers may have addresses.
const HOSTS_MAX: u8 = 250;

/// Why there is no such network, or why it cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A program is missing.
    #[error("`{program}` cannot be started ({source}): apt-get install {package}")]
    Missing {
        /// Its name.
        program: &'static str,
        /// The package that contains it.
        package: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not allow it.
    #[error(
        "no network namespace can be made ({0}): run this as root, or allow everybody user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns, whichever there are), and start a container with --privileged"
    )]
    NotAllowed(String),
    /// The namespace exists, and this process cannot keep it.
    #[error("a network namespace cannot be held: {0}")]
    Io(#[from] io::Error),
    /// A program failed in a namespace.
    #[error("`{program}` cannot do this in a network namespace:\n{input}\nit says: {said}")]
    Refused {
        /// Its name.
        program: &'static str,
        /// Its input.
        input: String,
        /// Its error message.
        said: String,
    },
}

/// A network namespace, which lives as long as this value.
#[derive(Debug)]
struct Namespace(File);

impl Namespace {
    fn new() -> Result<Self, NetError> {
        let mut command = Command::new("unshare");
        // `cat` keeps the namespace until this process does.
        command.args(["--net", "cat"]);
        let mut child = start(&mut command, "unshare", "util-linux")?;
        if let Err(error) = echo(&mut child) {
            let output = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(match said.trim() {
                "" => NetError::Io(error),
                said => NetError::NotAllowed(said.to_owned()),
            });
        }
        let file = File::open(format!("/proc/{}/ns/net", child.id()));
        // `cat` ends with its input.
        child.wait_with_output()?;
        Ok(Self(file?))
    }

    /// Its path, for programs that this process starts.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs commands of `ip` in it, one on each line.
    fn ip(&self, commands: &str) -> Result<(), NetError> {
        self.run(["ip", "-batch", "-"], "iproute2", commands)
    }

    /// Runs a program with this input in it.
    fn run(
        &self,
        [program, arguments @ ..]: [&'static str; 3],
        package: &'static str,
        input: &str,
    ) -> Result<(), NetError> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command.args(arguments);
        let mut child = start(&mut command, "nsenter", "util-linux")?;
        let mut stdin = child.stdin.take().expect("it is piped");
        // A program that ends before it has read everything says why.
        let _all_read = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output()?;
        match output.status.code() {
            Some(0) => Ok(()),
            // `nsenter` says so for a program that is missing.
            Some(127) => Err(NetError::Missing {
                program,
                package,
                source: io::ErrorKind::NotFound.into(),
            }),
            _ => Err(NetError::Refused {
                program,
                input: input.to_owned(),
                said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    }
}

fn start(
    command: &mut Command,
    program: &'static str,
    package: &'static str,
) -> Result<Child, NetError> {
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|source| NetError::Missing {
        program,
        package,
        source,
    })
}

/// Waits until `cat` runs, by what it echoes.
fn echo(cat: &mut Child) -> io::Result<()> {
    let mut byte = [0];
    cat.stdin.as_mut().expect("it is piped").write_all(&byte)?;
    cat.stdout
        .as_mut()
        .expect("it is piped")
        .read_exact(&mut byte)
}

/// A host of a [`Net`], on which a server may run.
#[derive(Clone)]
pub struct Host {
    address: Ipv4Addr,
    namespace: Arc<Namespace>,
}

impl Host {
    /// Connects a new host to the router, by a cable with this name.
    fn new(address: Ipv4Addr, router: &Namespace, cable: &str) -> Result<Self, NetError> {
        let namespace = Namespace::new()?;
        router.ip(&format!(
            "link add {cable} type veth peer name cable netns {path}\n\
             addr add {ROUTER} peer {address} dev {cable}\n\
             link set {cable} up\n",
            path = namespace.path(),
        ))?;
        namespace.ip(&format!(
            "link set lo up\n\
             addr add {address} peer {ROUTER} dev cable\n\
             link set cable up\n\
             route add default via {ROUTER}\n",
        ))?;
        Ok(Self {
            address,
            namespace: Arc::new(namespace),
        })
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The command that starts another command on this host.
    pub(crate) fn prefix(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--net={}", self.namespace.path())]
    }
}

impl Debug for Host {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.address)
    }
}

/// Which packets of a server the network loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Packets from the client: the server receives nothing from it.
    Requests,
    /// Packets to the client: the server executes commands, and its replies do not arrive.
    Replies,
    /// Packets in both directions.
    All,
    /// Packets in both directions, and those between it and other servers.
    Alone,
    /// Packets between it and other servers: the client reaches it.
    Peers,
}

/// A network of hosts that loses packets when a test says so.
#[derive(Debug)]
pub struct Net {
    router: Namespace,
    client: Host,
    hosts: Vec<Host>,
}

impl Net {
    /// A network with so many hosts for servers. The process needs the right to make network namespaces, which root has;
    /// tests that any user can run call [`Net::test`].
    ///
    /// # Errors
    /// What is missing, and what to do about it.
    ///
    /// # Panics
    /// With more than 250 hosts.
    pub fn start(hosts: u8) -> Result<Self, NetError> {
        assert!(
            hosts <= HOSTS_MAX,
            "a network has at most {HOSTS_MAX} hosts"
        );
        // A thread is in the network of the thread that started it, so the starter must not begin inside this one.
        process::start_starter();
        let router = Namespace::new()?;
        router.ip("link set lo up\n")?;
        let forward = ["tee", "/proc/sys/net/ipv4/ip_forward", "/dev/null"];
        router.run(forward, "coreutils", "1\n")?;
        let host = |index| {
            let address = Ipv4Addr::new(10, 99, 1, index);
            Host::new(address, &router, &format!("server{index}"))
        };
        Ok(Self {
            hosts: (1..=hosts).map(host).collect::<Result<_, _>>()?,
            client: Host::new(CLIENT, &router, "client")?,
            router,
        })
    }

    /// The hosts for servers.
    pub fn hosts(&self) -> Vec<Host> {
        self.hosts.clone()
    }

    /// Runs `run` on the client's host, on a thread of its own. Threads that it starts, and their sockets, are on that
    /// host, too.
    ///
    /// # Panics
    /// If `run` does, or if this process may not enter the namespace that it made.
    pub fn inside<R: Send>(&self, run: impl FnOnce() -> R + Send) -> R {
        let enter = || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.client.namespace.0.as_fd(), network)
                .expect("a process that may make a namespace may enter it");
            run()
        };
        thread::scope(|scope| match scope.spawn(enter).join() {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        })
    }

    /// Loses these packets of a server from now on.
    ///
    /// # Errors
    /// The network loses them already.
    pub fn lose(&self, server: Ipv4Addr, lost: Lost) -> Result<(), NetError> {
        self.rules("add", server, lost)
    }

    /// Lets these packets arrive again.
    ///
    /// # Errors
    /// The network did not lose them.
    pub fn heal(&self, server: Ipv4Addr, lost: Lost) -> Result<(), NetError> {
        self.rules("del", server, lost)
    }

    fn rules(&self, change: &str, server: Ipv4Addr, lost: Lost) -> Result<(), NetError> {
        let rule = |which: String| format!("rule {change} pref 10 {which} blackhole\n");
        let requests = || rule(format!("from {CLIENT} to {server}"));
        let replies = || rule(format!("from {server} to {CLIENT}"));
        self.router.ip(&match lost {
            Lost::Requests => requests(),
            Lost::Replies => replies(),
            Lost::All => requests() + &replies(),
            Lost::Alone => rule(format!("from {server}")) + &rule(format!("to {server}")),
            Lost::Peers => {
                rule(format!("from {server} to {SERVERS}"))
                    + &rule(format!("from {SERVERS} to {server}"))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Lost, Net};
    use crate::server::{Options, Server};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    fn connect(address: SocketAddr) -> TcpStream {
        TcpStream::connect_timeout(&address, Duration::from_secs(60)).unwrap()
    }

    /// Sends a command whose reply does not come.
    fn send_without_reply(stream: &mut TcpStream, command: &str) {
        let timeout = Some(Duration::from_millis(300));
        stream.set_read_timeout(timeout).unwrap();
        writeln!(stream, "{command}\r").unwrap();
        assert!(stream.read(&mut [0]).is_err());
    }

    fn expect_reply(stream: &mut TcpStream, reply: &str) {
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).unwrap();
        let mut came = vec![0; reply.len()];
        stream.read_exact(&mut came).unwrap();
        assert_eq!(came, reply.as_bytes());
    }

    fn until(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "it is never done");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn packets_are_lost_in_one_direction_or_both_and_arrive_again() {
        Net::test(2, |net| {
            let server = |host| {
                let host = Some(host);
                let options = Options::default();
                Server::start(&Options { host, ..options }).unwrap()
            };
            let [cut, other] = net
                .hosts()
                .try_into()
                .map(|hosts: [_; 2]| hosts.map(server))
                .unwrap();
            let ip = net.hosts()[0].address();
            assert_eq!(cut.address().ip(), ip);
            let count = || cut.command(&["GET", "count"]).unwrap();
            net.inside(|| {
                let mut stream = connect(cut.address());
                net.lose(ip, Lost::Replies).unwrap();
                send_without_reply(&mut stream, "INCR count");
                until(|| count() == "1");
                net.heal(ip, Lost::Replies).unwrap();
                expect_reply(&mut stream, ":1\r\n");
                for lost in [Lost::Requests, Lost::All, Lost::Alone] {
                    let before = count();
                    net.lose(ip, lost).unwrap();
                    send_without_reply(&mut stream, "INCR count");
                    assert_eq!(count(), before, "it never came");
                    let timeout = Duration::from_millis(100);
                    assert!(TcpStream::connect_timeout(&cut.address(), timeout).is_err());
                    writeln!(connect(other.address()), "PING\r").unwrap();
                    net.heal(ip, lost).unwrap();
                    let after = before.parse::<u32>().unwrap() + 1;
                    expect_reply(&mut stream, &format!(":{after}\r\n"));
                }
                let before = count().parse::<u32>().unwrap();
                net.lose(ip, Lost::Peers).unwrap();
                writeln!(stream, "INCR count\r").unwrap();
                expect_reply(&mut stream, &format!(":{}\r\n", before + 1));
                let (host, port) = (ip.to_string(), cut.port().to_string());
                let linked = || {
                    let info = other.command(&["INFO", "replication"]).unwrap();
                    info.contains("master_link_status:up")
                };
                other.command(&["REPLICAOF", &host, &port]).unwrap();
                until(|| {
                    let info = other.command(&["INFO", "replication"]).unwrap();
                    info.contains("master_link_down_since_seconds:")
                });
                assert!(!linked(), "nothing arrives");
                net.heal(ip, Lost::Peers).unwrap();
                until(linked);
            });
        });
    }
}
