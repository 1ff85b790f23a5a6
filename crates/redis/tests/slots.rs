//! Slots and topologies as a real server has them.

use std::{
    io::{Read, Write},
    net::TcpListener,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use embar_mux::Framing;
use embar_redis::{
    config::Endpoint,
    resp::{Arg, Framer, FromReply, Out, ReplyLimits, bulk_len, header_len, parse},
    slot::{SLOTS, slot},
    topology::Topology,
};
use proptest::{collection::vec, prelude::*, strategy::ValueTree, test_runner::TestRunner};
use tempfile::TempDir;

/// A node of a cluster of its own, which ends with this value.
struct Node {
    process: Child,
    folder: TempDir,
    port: u16,
}

impl Node {
    fn start() -> Self {
        // Between looking for a free port and taking it, another program may take it.
        (0..10)
            .find_map(|_| Self::try_start())
            .expect("a redis-server that starts")
    }

    fn try_start() -> Option<Self> {
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        // The cluster's nodes talk to each other 10000 ports above it.
        let port = free.local_addr().expect("it has an address").port();
        drop(free);
        let bus = port.checked_add(10000)?;
        let folder = tempfile::tempdir().expect("a folder");
        let process = Command::new("redis-server")
            .current_dir(folder.path())
            .args(["--port", &port.to_string(), "--cluster-port"])
            .args([&bus.to_string(), "--cluster-enabled", "yes"])
            .args(["--unixsocket", "socket", "--save", ""])
            .args(["--bind", "127.0.0.1"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (apt-get install redis-server)");
        let mut node = Self {
            process,
            folder,
            port,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(node.socket()).is_err() {
            if node.process.try_wait().expect("a state").is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(node)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn connect(&self) -> Connection {
        let stream = UnixStream::connect(self.socket()).expect("the server listens");
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a timeout");
        Connection { stream }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Sends commands at once, and gives what they are answered with, one after another.
    fn call(&mut self, commands: &[&[&dyn Arg]]) -> Vec<u8> {
        for command in commands {
            let bulks = command.iter().map(|arg| bulk_len(arg.len()));
            let mut bytes = vec![0; header_len(command.len()) + bulks.sum::<usize>()];
            let mut out = Out::new(&mut bytes);
            out.header(command.len());
            command.iter().for_each(|arg| out.bulk(arg));
            out.finish();
            self.stream.write_all(&bytes).expect("the server reads");
        }
        let mut framer = Framer::new(ReplyLimits::default());
        let mut replies = Vec::new();
        let mut left = commands.len();
        let mut room = [0; 4096];
        while left > 0 {
            let received = self.stream.read(&mut room).expect("the server answers");
            assert!(received > 0, "the server ended the connection");
            let mut new = &room[..received];
            while !new.is_empty() {
                let part = framer.advance(new).expect("RESP");
                left -= usize::from(part.complete);
                replies.extend(&new[..part.taken]);
                new = &new[part.taken..];
            }
        }
        replies
    }

    fn ask<T: FromReply>(&mut self, command: &[&dyn Arg]) -> T {
        let reply = self.call(&[command]);
        let (view, len) = parse(&reply).expect("a reply");
        assert_eq!(len, reply.len());
        T::from_reply(view).expect("the reply that the command has")
    }
}

#[test]
fn keys_have_the_slots_that_a_server_gives_them() {
    let node = Node::start();
    let mut connection = node.connect();
    let mut runner = TestRunner::deterministic();
    let tagged = "[a{}]{0,12}".prop_map(String::into_bytes);
    let any_key = prop_oneof![vec(any::<u8>(), 0..40), tagged];
    let keys: Vec<Vec<u8>> = (0..500)
        .map(|_| any_key.new_tree(&mut runner).expect("a key").current())
        .collect();
    let commands: Vec<[&dyn Arg; 3]> = keys
        .iter()
        .map(|key| [&"CLUSTER" as &dyn Arg, &"KEYSLOT", key])
        .collect();
    let commands: Vec<&[&dyn Arg]> = commands.iter().map(|command| &command[..]).collect();
    let replies = connection.call(&commands);
    let mut at = 0;
    for key in &keys {
        let (view, len) = parse(&replies[at..]).expect("a reply");
        assert_eq!(u16::from_reply(view), Ok(slot(key)), "{key:?}");
        at += len;
    }
    assert_eq!(at, replies.len());
}

#[test]
fn a_topology_is_the_same_in_both_commands_and_protocols() {
    let node = Node::start();
    let asked = Endpoint::Unix(node.socket());
    let mut connection = node.connect();
    let add: [&dyn Arg; 6] = [&"CLUSTER", &"ADDSLOTSRANGE", &0, &99, &200, &(SLOTS - 1)];
    connection.ask::<()>(&add);
    let mut topologies = Vec::new();
    for version in [2, 3] {
        connection.ask::<()>(&[&"HELLO", &version]);
        let reply = connection.call(&[&[&"CLUSTER", &"SLOTS"]]);
        let (view, _) = parse(&reply).expect("a reply");
        topologies.push(Topology::from_slots(view, &asked).expect("a topology"));
        let reply = connection.call(&[&[&"CLUSTER", &"SHARDS"]]);
        let (view, _) = parse(&reply).expect("a reply");
        topologies.push(Topology::from_shards(view, &asked, false).expect("a topology"));
    }
    for topology in &topologies {
        assert_eq!(topology, &topologies[0]);
    }
    let [shard] = topologies[0].shards() else {
        panic!("one shard: {topologies:?}")
    };
    assert_eq!(shard.ranges, [0..=99, 200..=SLOTS - 1]);
    // The node does not know its own address: it is where it was asked.
    assert_eq!(shard.primary, Endpoint::tcp("localhost", node.port));
    assert_eq!(topologies[0].uncovered(), 100);
}
