//! Listeners that were opened elsewhere, listeners of each worker, and servers that stop accepting.

use std::collections::HashMap;
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use embar_session::{
    Accepting, Address, Client, CloseReason, Flow, Handler, Message, Refusal, Server, Session,
    Settings, StartError, activated_listeners,
};

use crate::admission::{WELCOME, connect_from, first_id, is_cut};
use crate::hello::hello;
use crate::support::{Echo, LONG, alone, echo_server, loopback, message, recorder, until};

/// Whether a server echoes at `address`.
pub fn echoes(client: &Client, address: &Address) -> bool {
    let (handler, seen) = recorder();
    let Ok(session) = client.connect(address, handler) else {
        return false;
    };
    session.send_with(1, 1, |to| to.fill(5)).unwrap();
    let echoed = message(&seen).1 == [5];
    session.close();
    echoed
}

/// This program, for one test in it, which does something else where `variable` is set.
pub fn this_program(test: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap().to_owned();
    let args = [test, "--exact", "--test-threads=1", "--nocapture"];
    let args = args.map(str::to_owned);
    [program].into_iter().chain(args).collect()
}

#[test]
fn listeners_that_are_handed_in_are_accepted_from() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp_address = Address::Tcp(tcp.local_addr().unwrap());
    let unix = UnixListener::bind(&path).unwrap();
    let server = Server::builder()
        .listener(tcp)
        .listener(unix)
        .start(|_| Echo)
        .unwrap();
    let addresses = [tcp_address, Address::Unix(path.clone())];
    assert_eq!(server.addresses(), addresses);
    assert_eq!(server.stats().listening, 2);
    let client = Client::new().unwrap();
    assert!(addresses.iter().all(|it| echoes(&client, it)));
    drop(server);
    assert!(path.exists(), "the file is not the server's");
}

#[test]
fn what_does_not_listen_is_an_error_that_says_so() {
    let idle = UdpSocket::bind("127.0.0.1:0").unwrap();
    let idle = TcpListener::from(OwnedFd::from(idle));
    let error = Server::builder().listener(idle).start(|_| Echo).err();
    let error = error.unwrap();
    assert!(matches!(error, StartError::Listener(_)));
    assert!(error.to_string().contains("datagrams"), "{error}");
    let unix = UnixListener::from(OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()));
    let error = Server::builder().listener(unix).start(|_| Echo).err();
    let error = error.unwrap().to_string();
    assert!(
        error.contains("family") || error.contains("path"),
        "{error}"
    );
}

/// In a process of its own: a program that another test starts has a copy of the listeners for a moment, until it is another
/// program, and so long the system lets connections in.
#[test]
fn a_server_that_stops_accepting_serves_those_who_are_there() {
    if !alone("listeners::a_server_that_stops_accepting_serves_those_who_are_there") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let server = Server::builder()
        .workers(2)
        .listen(loopback())
        .listen(Address::Unix(path.clone()))
        .start(|_| Echo)
        .unwrap();
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let mut slow = connect_from(1, &server);
    until("both came", || {
        server.stats().arrivals == 1 && server.stats().sessions == 1
    });
    server.stop_accepting();
    assert_eq!(server.stats().listening, 0);
    assert!(!path.exists());
    let refused = client.connect(server.address(), recorder().0).unwrap_err();
    let kind = std::io::ErrorKind::ConnectionRefused;
    assert_eq!(refused.reason, CloseReason::Io(kind));
    session.send_with(1, 1, |to| to.fill(3)).unwrap();
    assert_eq!(message(&seen).1, [3]);
    slow.write_all(&hello()).unwrap();
    assert_eq!(first_id(&mut slow), Some(WELCOME));
    server.stop_accepting();
    server.shutdown(LONG);
}

/// Tells which thread it runs on.
struct Where(Arc<Mutex<HashMap<ThreadId, usize>>>);

impl Handler for Where {
    fn opened(&mut self, _: &Session, _: &[u8]) {
        let mut threads = self.0.lock().unwrap();
        *threads.entry(std::thread::current().id()).or_default() += 1;
    }

    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}

fn sessions_by_thread(accepting: Accepting) -> Vec<usize> {
    let threads = Arc::default();
    let told = Arc::clone(&threads);
    let settings = Settings::default().with(|settings| {
        settings.workers = 4;
        settings.accepting = accepting;
    });
    let server = Server::builder()
        .settings(settings)
        .listen(loopback())
        .start(move |_| Where(Arc::clone(&told)))
        .unwrap();
    assert_eq!(server.addresses().len(), 1);
    let listeners = server.stats().listening;
    let each = accepting == Accepting::EachWorker;
    assert_eq!(listeners, if each { 4 } else { 1 });
    let client = Client::new().unwrap();
    for _ in 0..64 {
        client.connect(server.address(), recorder().0).unwrap();
    }
    until("all opened", || server.stats().opened == 64);
    let counts = threads.lock().unwrap();
    counts.values().copied().collect()
}

#[test]
fn workers_get_connections_in_turn_or_by_listeners_of_their_own() {
    assert_eq!(sessions_by_thread(Accepting::Dealt), [16; 4]);
    let counts = sessions_by_thread(Accepting::EachWorker);
    assert_eq!(counts.iter().sum::<usize>(), 64);
    // That the kernel gives one of four all 64 does not happen.
    assert!(counts.len() > 1, "{counts:?}");
}

/// Descriptors are the process's, so this has one of its own.
#[test]
fn each_worker_gives_up_descriptors_that_another_one_needs() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    if !alone("listeners::each_worker_gives_up_descriptors_that_another_one_needs") {
        return;
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(256);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut settings = Settings::default().with(|it| it.workers = 2);
    settings.session.hello_timeout = 4 * LONG;
    settings.admission.local_is_exempt = false;
    let server = echo_server(settings, loopback());
    // The first worker gets those of many addresses, the second one those of one.
    let silent: Vec<_> = (0..10u8)
        .map(|turn| {
            let from = if turn % 2 == 0 { 10 + turn } else { 2 };
            let stream = connect_from(from, &server);
            let arrivals = u64::from(turn) + 1;
            until("it came", || server.stats().arrivals == arrivals);
            stream
        })
        .collect();
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken.pop();
    // For the first worker, which has nobody to spare.
    let _another = connect_from(3, &server);
    // The kernel asks for a descriptor also to find that nobody else waits, so there may be two.
    until("room was made, and it came", || {
        let refused = server.monitor().refused_by_reason();
        let made = matches!(refused[..], [(Refusal::Crowded, 1..=2)]);
        made && server.stats().arrivals + refused[0].1 == 11
    });
    // It is counted before it is closed.
    until("the oldest of most is cut", || is_cut(&silent[1]));
    assert!(!silent.iter().step_by(2).any(is_cut), "none of few");
}

const ACTIVATED: &str = "EMBAR_TEST_ACTIVATED";

/// Runs `as_activated` with these descriptors from 3 on, as a service manager does.
fn activate(
    first: impl Into<Stdio>,
    second: impl Into<Stdio>,
    count: &str,
    names: &str,
    says: &Path,
) -> Child {
    let script = "exec 3<&0 4<&1 </dev/null >&2; LISTEN_PID=$$ exec \"$@\"";
    Command::new("sh")
        .args(["-c", script, "sh"])
        .args(this_program("listeners::as_activated"))
        .env(ACTIVATED, "1")
        .env("LISTEN_FDS", count)
        .env("LISTEN_FDNAMES", names)
        .stdin(first)
        .stdout(second)
        .stderr(std::fs::File::create(says).unwrap())
        .spawn()
        .unwrap()
}

/// The program that is activated.
#[test]
fn as_activated() {
    if std::env::var_os(ACTIVATED).is_none() {
        return;
    }
    let listeners = match activated_listeners() {
        Ok(listeners) => listeners,
        Err(error) => {
            writeln!(std::io::stderr(), "refused: {error}").unwrap();
            std::process::exit(7);
        }
    };
    let names: Vec<_> = listeners.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["game", "local"]);
    assert!(activated_listeners().unwrap().is_empty(), "given out once");
    let mut server = Server::builder();
    for (_, listener) in listeners {
        server = server.listener(listener);
    }
    let server = server.start(|_| Echo).unwrap();
    // What it starts has none of them.
    let inherited = Command::new("sh")
        .args(["-c", "test ! -e /proc/self/fd/3 -a ! -e /proc/self/fd/4"])
        .status();
    assert!(inherited.unwrap().success());
    until("its two clients", || server.stats().closed == 2);
}

#[test]
fn a_service_manager_passes_its_listeners_on() {
    let directory = tempfile::tempdir().unwrap();
    let (path, says) = (directory.path().join("s"), directory.path().join("says"));
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [
        Address::Tcp(tcp.local_addr().unwrap()),
        Address::Unix(path.clone()),
    ];
    let unix = UnixListener::bind(&path).unwrap();
    // Who comes before it runs waits.
    let mut program = activate(
        OwnedFd::from(tcp),
        OwnedFd::from(unix),
        "2",
        "game:local",
        &says,
    );
    let client = Client::new().unwrap();
    assert!(addresses.iter().all(|it| echoes(&client, it)));
    let ended = program.wait().unwrap();
    let said = std::fs::read_to_string(&says).unwrap();
    assert!(ended.success(), "{said}");
}

#[test]
fn a_service_manager_that_passes_on_something_else_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let says = directory.path().join("says");
    let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    for (second, count, complaint) in [
        (
            file(),
            "2",
            "`local` that was passed on is of no use: it is no socket",
        ),
        (tcp(), "200", "is not open"),
        (tcp(), "4294967295", "must be a number from 0"),
        (tcp(), "two", "must be a number from 0"),
    ] {
        let mut program = activate(tcp(), second, count, "game:local", &says);
        let ended = program.wait().unwrap();
        let said = std::fs::read_to_string(&says).unwrap();
        assert_eq!(ended.code(), Some(7), "{said}");
        assert!(said.contains(complaint), "{said}");
    }
}
