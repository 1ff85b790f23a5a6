//! Clients and brokers of one machine speak by Unix sockets and through shared memory: who chooses them, who may, and
//! what happens when they do not lead to the broker.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Space, Up, embar, end_of, eventually, is_running, names_in, run, signal, text};
use embar_bench::usage::Connections;
use embar_broker::{BrokerConfig, Cluster};
use embar_client::{Admin, OpenError, Order, Publisher, Start, Subscriber, TopicSpec, Transport};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;

fn cluster(dir: &Path, config: BrokerConfig) -> Cluster {
    Cluster::builder()
        .region_bytes(104 << 20)
        .brokers(3)
        .region_dir(dir)
        .config(config)
        .start()
        .expect("a cluster")
}

fn socket(dir: &Path, id: u16) -> PathBuf {
    dir.join("sockets").join(id.to_string())
}

/// The files of a broker: of its Unix socket, and, but for the head, which takes no data, for connections by shared memory.
fn files(dir: &Path, id: u16) -> Vec<PathBuf> {
    let unix = socket(dir, id);
    let shm = (id > 0).then(|| unix.with_extension("shm"));
    shm.into_iter().chain([unix]).collect()
}

/// Where a test keeps a file that it took away.
fn away(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".away");
    name.into()
}

fn admin(bootstrap: &str, transport: Transport) -> Admin {
    let admin = Admin::connect(bootstrap).expect("a thread");
    admin.timeout(common::PATIENCE).transport(transport)
}

/// Which kinds of connections there were: by TCP, by Unix sockets, and by shared memory. How many tells nothing: a
/// broker that does not know a new topic yet is asked again on another.
type Kinds = (bool, bool, bool);

const BY_TCP: Kinds = (true, false, false);
const BY_UNIX: Kinds = (false, true, false);
const BY_SHM: Kinds = (false, false, true);
const BY_ALL: Kinds = (true, true, true);

fn kinds(connections: Connections) -> Kinds {
    let Connections {
        tcp_connections: tcp,
        unix_connections: unix,
        shm_connections: shm,
    } = connections;
    (tcp > 0, unix > 0, shm > 0)
}

/// Publishes a message; by which connections.
fn publish(bootstrap: &str, topic: &str, transport: Transport) -> Kinds {
    let publisher = Publisher::builder(bootstrap)
        .topic(topic)
        .transport(transport)
        .open()
        .expect("brokers take it");
    publisher.publish(b"m").expect("open");
    publisher.flush().expect("acknowledged");
    let connections = kinds(Connections::of(&publisher.profile()));
    publisher.close().expect("in good order");
    connections
}

/// Reads all of a topic; how many messages there are, and by which connections they came.
fn read(bootstrap: &str, topic: &str, transport: Transport) -> (usize, Kinds) {
    let mut subscriber = Subscriber::builder(bootstrap)
        .topic(topic)
        .from(Start::Earliest)
        .until_end(true)
        .transport(transport)
        .open()
        .expect("brokers serve it");
    let mut messages = 0;
    while subscriber.next().expect("open").is_some() {
        messages += 1;
    }
    (messages, kinds(Connections::of(&subscriber.profile())))
}

#[test]
fn clients_choose_the_shortest_way_unless_they_are_told_otherwise() {
    let space = Space::new();
    let cluster = cluster(&space.region(), BrokerConfig::default());
    let tcp = cluster.bootstrap().to_string();
    let unix = format!("unix:{}", socket(&space.region(), 0).display());
    let mut messages = 0;
    for (topic, order) in [
        ("plain", Order::None),
        ("ordered", Order::TotalPerPublisher),
    ] {
        let spec = TopicSpec::new(topic).order(order);
        admin(&unix, Transport::Unix)
            .create_topic(spec)
            .wait()
            .expect("created");
        messages = 0;
        for bootstrap in [&tcp, &unix] {
            for (transport, expected) in [
                (Transport::Auto, BY_SHM),
                (Transport::Tcp, BY_TCP),
                (Transport::Unix, BY_UNIX),
                (Transport::Shm, BY_SHM),
            ] {
                assert_eq!(publish(bootstrap, topic, transport), expected);
                messages += 1;
                assert_eq!(read(bootstrap, topic, transport), (messages, expected));
            }
        }
    }
    assert_eq!(messages, 8);
    for (transport, is_unix) in [
        (Transport::Tcp, false),
        (Transport::Auto, true),
        (Transport::Shm, true),
    ] {
        let asked = admin(&tcp, transport);
        let status = asked.status(1).wait().expect("it answers");
        assert_eq!(status.unix_connections > 0, is_unix, "{transport}");
        let described = asked.describe_topic("plain").wait().expect("it is there");
        assert_eq!(described.partitions.len(), 2);
    }
    cluster.shutdown();
    assert_eq!(names_in(&space.region().join("sockets")), [""; 0]);
}

#[test]
fn brokers_without_unix_sockets_are_reached_by_tcp() {
    let space = Space::new();
    let config = BrokerConfig {
        unix_socket: false,
        ..BrokerConfig::default()
    };
    let cluster = cluster(&space.region(), config);
    let bootstrap = cluster.bootstrap().to_string();
    assert!(!space.region().join("sockets").exists());
    assert_eq!(publish(&bootstrap, "t", Transport::Auto), BY_TCP);
    let opened = Publisher::builder(&bootstrap)
        .topic("t")
        .transport(Transport::Unix)
        .open_timeout(Duration::from_millis(200))
        .open();
    let error = opened.expect_err("there is no way to them");
    assert!(matches!(error, OpenError::Client(_)), "{error}");
    cluster.shutdown();
}

#[test]
fn brokers_without_shared_memory_are_reached_by_unix_sockets() {
    let space = Space::new();
    let config = BrokerConfig {
        shared_memory: false,
        ..BrokerConfig::default()
    };
    let cluster = cluster(&space.region(), config);
    let bootstrap = cluster.bootstrap().to_string();
    let mut files = names_in(&space.region().join("sockets"));
    files.sort();
    assert_eq!(files, ["0", "1", "2"]);
    assert_eq!(publish(&bootstrap, "t", Transport::Auto), BY_UNIX);
    assert_eq!(read(&bootstrap, "t", Transport::Auto), (1, BY_UNIX));
    let opened = Publisher::builder(&bootstrap)
        .topic("t")
        .transport(Transport::Shm)
        .open_timeout(Duration::from_millis(200))
        .open();
    let error = opened.expect_err("there is no way to them");
    assert!(matches!(error, OpenError::Client(_)), "{error}");
    cluster.shutdown();
}

#[test]
fn who_finds_no_room_in_shared_memory_comes_by_a_unix_socket() {
    let space = Space::new();
    let config = BrokerConfig {
        // Of which two may go by shared memory.
        max_connections: 32,
        ..BrokerConfig::default()
    };
    let cluster = cluster(&space.region(), config);
    let open = || {
        let publisher = Publisher::builder(&cluster.bootstrap().to_string())
            .topic("t")
            .open()
            .expect("brokers take it");
        publisher.publish(b"m").expect("open");
        publisher.flush().expect("acknowledged");
        publisher
    };
    let by = |publisher: &Publisher| kinds(Connections::of(&publisher.profile()));
    let (first, second, third) = (open(), open(), open());
    assert_eq!([&first, &second, &third].map(by), [BY_SHM, BY_SHM, BY_UNIX]);
    first.close().expect("in good order");
    eventually("there is room again", || by(&open()) == BY_SHM);
    drop((second, third));
    cluster.shutdown();
}

#[test]
fn a_path_that_is_too_long_leaves_clients_to_tcp() {
    let space = Space::new();
    let region = space.dir.join("r".repeat(100));
    let cluster = cluster(&region, BrokerConfig::default());
    let bootstrap = cluster.bootstrap().to_string();
    assert_eq!(publish(&bootstrap, "t", Transport::Auto), BY_TCP);
    cluster.shutdown();
}

#[test]
fn a_socket_of_another_cluster_is_not_taken_for_the_brokers() {
    let (space, other_space) = (Space::new(), Space::new());
    let ours = cluster(&space.region(), BrokerConfig::default());
    let other = cluster(&other_space.region(), BrokerConfig::default());
    let bootstrap = ours.bootstrap().to_string();
    for id in [0, 1, 2] {
        let others = files(&other_space.region(), id);
        for (place, other) in files(&space.region(), id).iter().zip(others) {
            fs::rename(place, away(place)).expect("ours");
            symlink(other, place).expect("ours");
        }
    }
    // The wrong ones were looked at, too.
    assert_eq!(publish(&bootstrap, "t", Transport::Auto), BY_ALL);
    assert_eq!(read(&bootstrap, "t", Transport::Auto), (1, BY_ALL));
    let asked = admin(&bootstrap, Transport::Auto);
    let topics = asked.list_topics().wait().expect("ours answers");
    assert_eq!(topics.len(), 1);
    assert_eq!(asked.status(2).wait().expect("ours answers").broker, 2);
    let elsewhere = admin(&other.bootstrap().to_string(), Transport::Auto);
    let topics = elsewhere.list_topics().wait().expect("it answers");
    assert_eq!(topics.len(), 0, "nothing went astray");
    // A broker of the right cluster, and not the one that is meant.
    for (id, wrong) in [(1, 2), (2, 1)] {
        let wrong = files(&space.region(), wrong);
        for (place, wrong) in files(&space.region(), id).iter().zip(wrong) {
            fs::remove_file(place).expect("ours");
            symlink(away(&wrong), place).expect("ours");
        }
    }
    assert_eq!(publish(&bootstrap, "t", Transport::Auto), BY_ALL);
    assert_eq!(asked.status(2).wait().expect("it answers").broker, 2);
    assert_eq!(read(&bootstrap, "t", Transport::Auto).0, 2);
    ours.shutdown();
    other.shutdown();
}

#[test]
fn a_socket_file_with_a_full_backlog_holds_nobody_up() {
    let space = Space::new();
    let cluster = cluster(&space.region(), BrokerConfig::default());
    let bootstrap = cluster.bootstrap().to_string();
    // As the files of brokers that are stopped, and have as many clients as the kernel lets wait.
    let mut waiting = Vec::new();
    for place in [0, 1, 2].iter().flat_map(|id| files(&space.region(), *id)) {
        fs::rename(&place, away(&place)).expect("ours");
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .expect("a socket")
        };
        let address = SocketAddrUnix::new(&place).expect("short");
        let listener = open();
        rustix::net::bind(&listener, &address).expect("free");
        rustix::net::listen(&listener, 0).expect("bound");
        loop {
            let client = open();
            match rustix::net::connect(&client, &address) {
                Ok(()) => waiting.push(client),
                Err(full) => break assert_eq!(full, Errno::AGAIN),
            }
        }
        waiting.push(listener);
    }
    assert_eq!(publish(&bootstrap, "t", Transport::Auto), BY_TCP);
    assert_eq!(read(&bootstrap, "t", Transport::Auto), (1, BY_TCP));
    let status = admin(&bootstrap, Transport::Auto).status(1).wait();
    assert_eq!(status.expect("by TCP").broker, 1);
    cluster.shutdown();
}

/// Runs something as another user would, or not at all, where this user may not become another.
fn as_stranger<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        // Only root can become another user.
        return None;
    }
    std::thread::scope(|scope| {
        let stranger = scope.spawn(move || {
            let (keep, nobody) = (None, rustix::process::Uid::from_raw(65534));
            // Of this thread alone.
            rustix::thread::set_thread_res_uid(keep, Some(nobody), keep).expect("root may");
            act()
        });
        Some(stranger.join().expect("no panic"))
    })
}

/// Lets every user through to the socket files, as an owner may who does not care.
fn open_to_all(space: &Space) {
    let region = space.region();
    let sockets = region.join("sockets");
    for dir in [&region, &sockets] {
        fs::set_permissions(dir, Permissions::from_mode(0o777)).expect("ours");
    }
    for place in [0, 1, 2].iter().flat_map(|id| files(&region, *id)) {
        fs::set_permissions(place, Permissions::from_mode(0o666)).expect("ours");
    }
}

#[test]
fn a_stranger_cannot_take_the_place_of_a_broker() {
    let space = Space::new();
    let cluster = cluster(&space.region(), BrokerConfig::default());
    let bootstrap = cluster.bootstrap().to_string();
    open_to_all(&space);
    let planted = as_stranger(|| {
        let places = [0, 1, 2].map(|id| files(&space.region(), id));
        places
            .into_iter()
            .flatten()
            .map(|place| {
                fs::rename(&place, away(&place)).expect("the directory is open");
                UnixListener::bind(place).expect("the directory is open")
            })
            .collect::<Vec<_>>()
    });
    let Some(planted) = planted else { return };
    assert_eq!(publish(&bootstrap, "t", Transport::Auto), BY_TCP);
    assert_eq!(read(&bootstrap, "t", Transport::Auto), (1, BY_TCP));
    let path = format!("unix:{}", socket(&space.region(), 1).display());
    let refused = admin(&path, Transport::Auto).timeout(Duration::from_secs(1));
    let error = refused.metadata().wait().expect_err("a stranger is there");
    let said = format!("{:#}", anyhow::Error::from(error));
    assert!(said.contains("user 65534 listens there"), "{said}");
    // Whoever connected said nothing before it looked who is there.
    for listener in planted {
        listener.set_nonblocking(true).expect("a socket");
        while let Ok((stream, _)) = listener.accept() {
            let bytes = std::io::copy(&mut { stream }, &mut std::io::sink());
            assert_eq!(bytes.expect("it was closed"), 0);
        }
    }
    cluster.shutdown();
}

#[test]
fn a_stranger_is_refused_and_counted() {
    let space = Space::new();
    let cluster = cluster(&space.region(), BrokerConfig::default());
    open_to_all(&space);
    let place = socket(&space.region(), 1);
    let said = as_stranger(|| {
        use std::io::{Read, Write};
        let mut stream = UnixStream::connect(&place).expect("the file is open to all");
        stream
            .set_read_timeout(Some(common::PATIENCE))
            .expect("a socket");
        let _ = stream.write_all(&[0; 64]);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        text(&said)
    });
    let Some(said) = said else { return };
    assert!(said.contains("of the broker's user and of root"), "{said}");
    let asked = admin(&cluster.bootstrap().to_string(), Transport::Auto);
    assert_eq!(asked.status(1).wait().expect("it serves").refused_users, 1);
    assert_eq!(asked.status(2).wait().expect("it serves").refused_users, 0);
    cluster.shutdown();
}

/// Publishes lines with `embar produce`; what it says of them.
fn produce(up: &Up, more: &[&str]) -> Value {
    let space = Space::new();
    let file = space.dir.join("lines");
    fs::write(&file, "1\n2\n3\n").expect("a file");
    let file = file.display().to_string();
    let args = [&["--json", "produce", "t", file.as_str()], more].concat();
    serde_json::from_str(&up.ok(&args)).expect("JSON")
}

/// The process that serves as broker 1 after a restart, as `up` reports it.
fn successor(space: &Space) -> u32 {
    let said = fs::read_to_string(space.dir.join("up.err")).expect("it said so");
    let line = said
        .lines()
        .find(|it| it.starts_with("broker 1 serves again"));
    let (_, rest) = line.and_then(|it| it.split_once("(pid ")).expect("it did");
    let pid = rest.split(')').next().and_then(|pid| pid.parse().ok());
    pid.expect("a number")
}

fn ways(produced: &Value) -> Kinds {
    let count = |name| produced[name].as_u64().expect("a number") > 0;
    (
        count("tcp_connections"),
        count("unix_connections"),
        count("shm_connections"),
    )
}

#[test]
fn a_broker_that_was_killed_is_found_by_its_socket_again() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    assert_eq!(ways(&produce(&up, &[])), BY_SHM);
    assert_eq!(ways(&produce(&up, &["--transport", "tcp"])), BY_TCP);
    let unix = format!("unix:{}", socket(&space.region(), 2).display());
    let by_path = ["--bootstrap", &unix, "--transport", "unix"];
    assert_eq!(ways(&produce(&up, &by_path)), BY_UNIX);
    let mut pids = up.pids();
    signal(pids[1], "KILL");
    eventually("it serves again", || {
        let asked = run(&mut up.embar(&["--json", "status"]));
        let status: Value = serde_json::from_slice(&asked.stdout).unwrap_or_default();
        let broker = &status["brokers"][1];
        broker["incarnation"] == 2 && broker["state"] == "ready"
    });
    assert_eq!(ways(&produce(&up, &[])), BY_SHM);
    assert_eq!(up.ok(&["consume", "t"]).lines().count(), 12);
    // What a killed cluster leaves behind, the next one replaces.
    let mut up = up;
    pids[1] = successor(&space);
    // Without a parent in the same session the kernel would let those go on that are stopped.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("ours to say");
    for pid in &pids {
        signal(*pid, "STOP");
    }
    up.child.kill().expect("ours");
    end_of(&mut up.child);
    for pid in &pids {
        signal(*pid, "KILL");
    }
    eventually("all are gone", || pids.iter().all(|pid| !is_running(*pid)));
    drop(up);
    assert_eq!(names_in(&space.region().join("sockets")).len(), 4 + 2);
    let up = Up::start(&space, &["--fresh"]);
    assert_eq!(ways(&produce(&up, &[])), BY_SHM);
    assert_eq!(up.ok(&["consume", "t"]).lines().count(), 3);
    up.stop();
    assert_eq!(names_in(&space.region().join("sockets")), [""; 0]);
}

#[test]
fn up_passes_on_what_there_is_not_to_be() {
    let help = run(&mut embar(&["broker", "--help"]));
    for (option, expected) in [
        ("--no-unix-socket", BY_TCP),
        ("--no-shared-memory", BY_UNIX),
    ] {
        let space = Space::new();
        let up = Up::start(&space, &[option]);
        assert_eq!(ways(&produce(&up, &[])), expected);
        up.stop();
        assert!(text(&help.stdout).contains(option));
    }
}
