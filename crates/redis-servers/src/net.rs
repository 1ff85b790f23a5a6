//! A network that loses packets when it is told to.
//!
//! Each server is on a host of its own, the test's client on another one, and a router between all of them: network
//! namespaces (network_namespaces(7)) with cables from each host to the router. This machine's own network has no part
//! in it, so tests that run at once do not meet. The kernel removes all of it with the last process or file that holds
//! it: nothing is left behind, however a test ends.
//!
//! It is the router that loses packets, by rules of its routing policy (ip-rule(8), `blackhole`): it throws them away
//! and tells nobody. The queue discipline `netem` can do that, too, but many kernels are built without it, and it would
//! have to be taught who talks to whom.

mod anybody;

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
        /// What brings it.
        package: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel does not let us.
    #[error(
        "no network namespace can be made ({0}): run this as root, or allow everybody user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns, whichever there are), and start a container with --privileged"
    )]
    NotAllowed(String),
    /// A namespace was made and cannot be held.
    #[error("a network namespace cannot be held: {0}")]
    Io(#[from] io::Error),
    /// A program could not do something in a namespace.
    #[error("`{program}` cannot do this in a network namespace:\n{input}\nit says: {said}")]
    Refused {
        /// Its name.
        program: &'static str,
        /// What it was to do.
        input: String,
        /// Its words.
        said: String,
    },
}

/// A network namespace, for as long as this is there.
#[derive(Debug)]
struct Namespace(File);

impl Namespace {
    fn new() -> Result<Self, NetError> {
        let mut command = Command::new("unshare");
        // It holds the namespace until we do.
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

    /// Where programs find it that are started by this one.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Has `ip` do something in it, line by line.
    fn ip(&self, commands: &str) -> Result<(), NetError> {
        self.run(["ip", "-batch", "-"], "iproute2", commands)
    }

    /// Has a program read this in it.
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
        // If it ended before it read all of it, it says why.
        let _all_read = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output()?;
        match output.status.code() {
            Some(0) => Ok(()),
            // The word of `nsenter` for a program that is not there.
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

/// Waits until `cat` runs: it says what it is told.
fn echo(cat: &mut Child) -> io::Result<()> {
    let mut byte = [0];
    cat.stdin.as_mut().expect("it is piped").write_all(&byte)?;
    cat.stdout
        .as_mut()
        .expect("it is piped")
        .read_exact(&mut byte)
}

/// A host of a [`Net`], where a server may run.
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

    /// What a command begins with that runs there.
    pub(crate) fn prefix(&self) -> [String; 2] {
        ["nsenter".into(), format!("--net={}", self.namespace.path())]
    }
}

impl Debug for Host {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.address)
    }
}

/// Which packets of a server are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Those from the client: the server hears nothing of it.
    Requests,
    /// Those to the client: the server does what it is told, and nobody hears of it.
    Replies,
    /// Those in both directions.
    All,
    /// Those in both directions, and whatever it sends to other servers or they to it.
    Alone,
}

/// See the module.
#[derive(Debug)]
pub struct Net {
    router: Namespace,
    client: Host,
    hosts: Vec<Host>,
}

impl Net {
    /// A network with so many hosts for servers. Needs the right to make network namespaces, which root has; tests of
    /// everybody use [`Net::test`].
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
        // Threads and processes are where the one is that started them: this one must not begin within the network.
        process::begin();
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

    /// Runs something on the client's host: on a thread of its own, which ends with it. Threads that it starts are on
    /// that host, too, as are their sockets.
    ///
    /// # Panics
    /// If it does, or if this process may not enter the namespace it made.
    pub fn inside<R: Send>(&self, run: impl FnOnce() -> R + Send) -> R {
        let enter = || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.client.namespace.0.as_fd(), network)
                .expect("who may make a namespace may enter it");
            run()
        };
        thread::scope(|scope| match scope.spawn(enter).join() {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        })
    }

    /// From now on these packets of a server are lost.
    ///
    /// # Errors
    /// They are lost already.
    pub fn lose(&self, server: Ipv4Addr, lost: Lost) -> Result<(), NetError> {
        self.rules("add", server, lost)
    }

    /// From now on they arrive again.
    ///
    /// # Errors
    /// They were not lost.
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

    /// Sends a command, whose reply does not come.
    fn vainly(stream: &mut TcpStream, command: &str) {
        let patience = Some(Duration::from_millis(300));
        stream.set_read_timeout(patience).unwrap();
        writeln!(stream, "{command}\r").unwrap();
        assert!(stream.read(&mut [0]).is_err());
    }

    fn hears(stream: &mut TcpStream, reply: &str) {
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).unwrap();
        let mut heard = vec![0; reply.len()];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(heard, reply.as_bytes());
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
                vainly(&mut stream, "INCR count");
                until(|| count() == "1");
                net.heal(ip, Lost::Replies).unwrap();
                hears(&mut stream, ":1\r\n");
                for lost in [Lost::Requests, Lost::All, Lost::Alone] {
                    let before = count();
                    net.lose(ip, lost).unwrap();
                    vainly(&mut stream, "INCR count");
                    assert_eq!(count(), before, "it never came");
                    let patience = Duration::from_millis(100);
                    assert!(TcpStream::connect_timeout(&cut.address(), patience).is_err());
                    writeln!(connect(other.address()), "PING\r").unwrap();
                    net.heal(ip, lost).unwrap();
                    let after = before.parse::<u32>().unwrap() + 1;
                    hears(&mut stream, &format!(":{after}\r\n"));
                }
            });
        });
    }
}
