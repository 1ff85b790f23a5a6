//! Single servers.

mod certificate;

use certificate::certificate;
use embar_redis_servers::{Options, Server, StartError};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

fn start() -> Server {
    Server::start(&Options::default()).unwrap()
}

/// Connects as a client does.
fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn ping(stream: &mut TcpStream) -> String {
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}

/// Whether this process runs.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn a_server_answers_until_it_is_dropped() {
    let server = start();
    assert_eq!(ping(&mut connect(&server)), "+PONG\r\n");
    assert_eq!(server.command(&["RPUSH", "list", "a", "b c"]).unwrap(), "2");
    assert_eq!(
        server.command(&["LRANGE", "list", "0", "-1"]).unwrap(),
        "a\nb c"
    );
    assert_eq!(
        server.command(&["CONFIG", "GET", "save"]).unwrap(),
        "save\n"
    );
    assert!(
        server
            .command(&["GET", "list"])
            .unwrap_err()
            .to_string()
            .contains("WRONGTYPE")
    );

    let (pid, dir, address) = (
        server.pid().unwrap(),
        server.dir().to_owned(),
        server.address(),
    );
    assert!(is_alive(pid));
    drop(server);
    assert!(!is_alive(pid) && !dir.exists());
    assert_eq!(
        TcpStream::connect(address).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = thread::spawn(start).join().unwrap();
    assert_eq!(ping(&mut connect(&server)), "+PONG\r\n");
}

/// Starts its own program once more, as the process to kill.
#[test]
#[expect(clippy::print_stdout, reason = "one process tells the other")]
fn a_server_dies_with_its_process() {
    const NAME: &str = "a_server_dies_with_its_process";
    const PART: &str = "EMBAR_TEST_IS_KILLED";
    if env::var_os(PART).is_some() {
        let server = start();
        println!("pid={}.", server.pid().unwrap());
        loop {
            thread::park();
        }
    }
    // A process that is killed removes no folders.
    let dir = tempfile::tempdir().unwrap();
    let mut other = Command::new(env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(PART, "")
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(other.stdout.take().unwrap());
    let mut lines = out.lines().map(Result::unwrap);
    let pid = lines.find_map(|line| {
        Some(
            line.split_once("pid=")?
                .1
                .split_once('.')?
                .0
                .parse()
                .unwrap(),
        )
    });
    let pid = pid.expect("it starts a server");
    assert!(is_alive(pid));
    other.kill().unwrap();
    other.wait().unwrap();
    let deadline = Instant::now() + LONG;
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "the server outlived its process");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_server_comes_back_where_it_was_and_empty() {
    let mut server = start();
    let mut client = connect(&server);
    server.command(&["SET", "key", "value"]).unwrap();
    server.kill();
    assert!(!server.is_running() && server.pid().is_none());
    assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    assert!(server.command(&["PING"]).is_err());

    let port = server.port();
    server.restart().unwrap();
    assert_eq!(server.port(), port);
    assert_eq!(ping(&mut connect(&server)), "+PONG\r\n");
    assert_eq!(server.command(&["EXISTS", "key"]).unwrap(), "0");
}

#[test]
fn a_paused_server_answers_when_it_is_resumed() {
    let server = start();
    let mut client = connect(&server);
    server.pause();
    assert!(!server.is_running());
    client.write_all(b"PING\r\n").unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    assert_eq!(
        client.read(&mut [0; 7]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    server.resume();
    client.set_read_timeout(Some(LONG)).unwrap();
    let mut reply = [0; 7];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn dropping_a_paused_server_ends_it() {
    let server = start();
    let pid = server.pid().unwrap();
    server.pause();
    let begin = Instant::now();
    drop(server);
    assert!(!is_alive(pid) && begin.elapsed() < LONG);
}

#[test]
fn a_server_with_a_password_wants_it() {
    let password = Some("not so \"secret\"".to_owned());
    let server = Server::start(&Options {
        password,
        ..Options::default()
    })
    .unwrap();
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    assert_eq!(ping(&mut connect(&server)), "-NOAUTH");
}

#[test]
fn extra_arguments_override_the_others() {
    let extra = ["--maxclients 77", "--timeout", "11", "--save", "5 6"]
        .map(str::to_owned)
        .to_vec();
    let server = Server::start(&Options {
        extra,
        ..Options::default()
    })
    .unwrap();
    for (name, value) in [("maxclients", "77"), ("timeout", "11"), ("save", "5 6")] {
        let expected = format!("{name}\n{value}");
        assert_eq!(server.command(&["CONFIG", "GET", name]).unwrap(), expected);
    }
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let taken = start();
    let port = Some(taken.port());
    let error = Server::start(&Options {
        port,
        ..Options::default()
    })
    .unwrap_err();
    assert!(matches!(error, StartError::PortInUse(_)), "{error}");

    let extra = vec!["--no-such-option 1".to_owned()];
    let error = Server::start(&Options {
        extra,
        ..Options::default()
    })
    .unwrap_err();
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

#[test]
fn a_server_with_tls_wants_it() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Some(certificate(dir.path()));
    let server = Server::start(&Options {
        tls,
        ..Options::default()
    })
    .unwrap();
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    let mut client = connect(&server);
    client.write_all(b"PING\r\n").unwrap();
    let mut reply = Vec::new();
    // The server closes, with or without a reset, and says nothing in plain text.
    let _end = client.read_to_end(&mut reply);
    assert!(!reply.starts_with(b"+PONG"));
}
