//! Figures over HTTP: right, bounded, and not for everybody.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use embar_session::{
    Address, Admin, AdminBuilder, AdminError, Client, CloseReason, Plain, Server, Settings,
};

use crate::support::{
    LONG, alone, closed, descriptors, echo_server, in_time, loopback, message, recorder,
    recording_server, threads, until,
};

const TOKEN: &str = "correct-horse-battery";

fn tcp(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(address) => *address,
        Address::Unix(_) | Address::Shm(_) => panic!("not TCP"),
    }
}

/// Sends `request` and reads until the end.
fn exchange(admin: &Admin, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(tcp(admin.address())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(admin: &Admin, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n");
    let answer = exchange(admin, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let length = format!("Content-Length: {}", body.len());
    assert!(head.contains(&length), "{head}");
    body.to_owned()
}

/// The value of a series, named as in the text.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let text = line.unwrap_or_else(|| panic!("no {series} in\n{metrics}"));
    text.parse().unwrap()
}

fn local() -> AdminBuilder {
    Admin::listen(loopback())
}

#[test]
fn figures_that_panic_are_left_out() {
    let admin = local()
        .add_metrics(|| panic!("as the test wants it"))
        .add_metrics(|| "of_the_program 7\n".to_owned())
        .start()
        .unwrap();
    for _ in 0..2 {
        let metrics = get(&admin, "/metrics");
        assert!(metrics.ends_with("of_the_program 7\n# EOF\n"), "{metrics}");
    }
}

fn start(builder: AdminBuilder, server: &Server) -> Admin {
    builder.watch("game", server.monitor()).start().unwrap()
}

#[test]
fn the_figures_move_with_the_traffic() {
    let mut settings = Settings::default();
    settings.session.idle_timeout = Duration::from_secs(30);
    let server = echo_server(settings, loopback());
    let admin = start(local(), &server);
    let before = get(&admin, "/metrics");
    assert!(before.ends_with("# EOF\n"));
    assert_eq!(value(&before, "embar_session_open{group=\"game\"}"), 0.0);
    let received = "embar_session_received_bytes_total{group=\"game\"}";
    assert_eq!(value(&before, received), 0.0);

    let mut lively = Settings::default();
    lively.session.keep_alive = Duration::from_millis(10);
    let client = Client::with(Plain, lively).unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    for _ in 0..10 {
        session.send_with(1, 1000, |buf| buf.fill(1)).unwrap();
        message(&seen);
    }
    // Bytes are counted once they are written, which is after they may have arrived.
    until("counts", || {
        let stats = server.stats();
        stats.messages_sent == 10 && stats.bytes_sent > 10_080
    });
    let after = get(&admin, "/metrics");
    let group = |name: &str| value(&after, &format!("embar_session_{name}{{group=\"game\"}}"));
    assert_eq!(group("open"), 1.0);
    assert_eq!(group("opened_total"), 1.0);
    assert_eq!(group("received_messages_total"), 10.0);
    assert_eq!(group("sent_messages_total"), 10.0);
    assert!(group("received_bytes_total") > 10_080.0);
    assert!(group("sent_bytes_total") > 10_080.0);
    assert_eq!(group("without_details"), 0.0);
    let (id, peer) = {
        let session = &server.sessions()[0];
        (session.id(), *session.peer())
    };
    let labels = format!("{{group=\"game\",session=\"{id}\",peer=\"{peer}\"}}");
    let of_session = |name: &str| value(&after, &format!("embar_session_peer_{name}{labels}"));
    assert_eq!(of_session("received_messages_total"), 10.0);
    assert!(of_session("sent_bytes_total") > 10_080.0);
    assert!(of_session("queued_bytes") >= 0.0);
    assert!(of_session("writes_total") >= 1.0 && of_session("full_total") == 0.0);

    // The client's round trips are the client's to show.
    until("a ping", || session.stats().round_trip.is_some());
    let clients = local().watch("it", client.monitor()).start().unwrap();
    let trips = get(&clients, "/metrics");
    let trip = trips
        .lines()
        .find(|line| line.starts_with("embar_session_peer_round_trip_seconds{"));
    let trip: f64 = trip.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(trip > 0.0 && trip < 60.0);

    let json: serde_json::Value = serde_json::from_str(&get(&admin, "/sessions")).unwrap();
    let shown = &json["groups"][0];
    assert_eq!(shown["name"], "game");
    assert_eq!(shown["received_messages"], 10);
    assert_eq!(shown["sessions"][0]["peer"], peer.to_string());

    session.close();
    closed(&seen);
    until("gone", || server.stats().sessions == 0);
    let end = get(&admin, "/metrics");
    let closed = "embar_session_closed_total{group=\"game\",reason=\"finished\"}";
    assert_eq!(value(&end, closed), 1.0);
    assert!(!end.contains("session=\""), "series end with their session");
    let received_messages = "embar_session_received_messages_total{group=\"game\"}";
    assert_eq!(value(&end, received_messages), 10.0, "counts stay");
}

#[test]
fn idle_kicks_are_counted_by_reason() {
    let mut settings = Settings::default();
    settings.session.idle_timeout = Duration::from_millis(50);
    let (server, at_server) = recording_server(settings, loopback());
    let admin = start(local(), &server);
    let mut silent = Settings::default();
    silent.session.keep_alive = Duration::ZERO;
    let client = Client::with(Plain, silent).unwrap();
    let (handler, _seen) = recorder();
    let _session = client.connect(server.address(), handler).unwrap();
    assert_eq!(closed(&at_server).reason, CloseReason::Idle);
    until("over", || server.stats().sessions == 0);
    let metrics = get(&admin, "/metrics");
    assert_eq!(
        value(&metrics, "embar_session_idle_kicks_total{group=\"game\"}"),
        1.0
    );
    let closed = "embar_session_closed_total{group=\"game\",reason=\"idle\"}";
    assert_eq!(value(&metrics, closed), 1.0);
}

#[test]
fn only_the_busiest_sessions_have_series_of_their_own() {
    let server = echo_server(Settings::default(), loopback());
    let admin = start(local().detailed_sessions(3), &server);
    let none = start(local().detailed_sessions(0), &server);
    let client = Client::new().unwrap();
    let mut sessions = Vec::new();
    for number in 0..20usize {
        let (handler, seen) = recorder();
        let session = client.connect(server.address(), handler).unwrap();
        // Those in the middle say most.
        let bytes = if (8..11).contains(&number) { 1000 } else { 10 };
        session.send_with(1, bytes, |buf| buf.fill(0)).unwrap();
        message(&seen);
        sessions.push((session, seen));
    }
    until("counts", || server.stats().messages_sent == 20);
    let metrics = get(&admin, "/metrics");
    let series: Vec<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("embar_session_peer_sent_bytes_total{"))
        .collect();
    assert_eq!(series.len(), 3, "{metrics}");
    for line in series {
        let bytes: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(bytes > 1000.0, "{line}");
    }
    assert_eq!(
        value(&metrics, "embar_session_without_details{group=\"game\"}"),
        17.0
    );
    assert!(!get(&none, "/metrics").contains("session=\""));
}

#[test]
fn a_token_is_asked_for_and_a_public_address_needs_one() {
    let server = echo_server(Settings::default(), loopback());
    for public in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let address: Address = public.parse().unwrap();
        let error = Admin::listen(address).start().unwrap_err();
        assert!(matches!(error, AdminError::Unprotected { .. }), "{error}");
        assert!(error.to_string().contains("set one"), "{error}");
    }
    for bad in ["", "short", "with a space in it, long enough"] {
        let error = local().token(bad).start().unwrap_err();
        assert!(matches!(error, AdminError::Token), "{error}");
    }
    for bad in ["", "a\"b", "a\nb"] {
        let error = local().watch(bad, server.monitor()).start().unwrap_err();
        assert!(matches!(error, AdminError::Name { .. }), "{error}");
    }
    let everywhere: Address = "0.0.0.0:0".parse().unwrap();
    let open = start(Admin::listen(everywhere).token(TOKEN), &server);
    let admin = {
        // Reachable by the loopback address, too.
        let port = tcp(open.address()).port();
        SocketAddr::from(([127, 0, 0, 1], port))
    };
    let ask = |authorization: &str| {
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask(&format!("Authorization: Bearer {TOKEN}\r\n")).contains("# EOF"));
    for wrong in [
        String::new(),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer wrong-horse-battery\r\n".to_owned(),
        format!("Authorization: Bearer {TOKEN}x\r\n"),
        format!("Authorization: Basic {TOKEN}\r\n"),
        format!("Authorization: Bearer {}\r\n", &TOKEN[..20]),
    ] {
        let answer = ask(&wrong);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{wrong}: {answer}");
        assert!(answer.contains("WWW-Authenticate: Bearer\r\n"));
        assert!(
            !answer.contains("embar_session"),
            "nothing is told: {answer}"
        );
    }
}

#[test]
fn a_unix_socket_is_for_this_user_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin");
    let server = echo_server(Settings::default(), loopback());
    let admin = start(Admin::listen(path.as_path()), &server);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(b"GET /sessions HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"game\""), "{answer}");
    drop(admin);
    assert!(!path.exists());
}

#[test]
fn hostile_requests_do_no_harm() {
    let server = echo_server(Settings::default(), loopback());
    let patience = Duration::from_millis(200);
    let admin = start(local().timeout(patience), &server);
    let huge = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 100_000]].concat();
    for (request, status) in [
        (&b"\0\x01\x02\r\n\r\n"[..], "400"),
        (b"\xff\xfe\r\n\r\n", "400"),
        (b"\r\n\r\n", "400"),
        (b"GET / SPDY/3\r\n\r\n", "400"),
        (
            b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            "405",
        ),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", "404"),
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
    ] {
        let answer = exchange(&admin, request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    // Too much at once: it is cut off, with or without an answer, and in time.
    let mut stream = TcpStream::connect(tcp(admin.address())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let _ = stream.write_all(&huge);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "));
    // One that says nothing, one that says a byte at a time, one that leaves, one that never
    // reads: each is over soon, and the figures are there again.
    let mut silent = TcpStream::connect(tcp(admin.address())).unwrap();
    let mut slow = TcpStream::connect(tcp(admin.address())).unwrap();
    drop(TcpStream::connect(tcp(admin.address())).unwrap());
    let mut deaf = TcpStream::connect(tcp(admin.address())).unwrap();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let started = Instant::now();
    let cut = std::thread::spawn(move || {
        let deadline = Instant::now() + LONG;
        while slow.write_all(b"G").is_ok() {
            assert!(Instant::now() < deadline, "never cut off");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(get(&admin, "/metrics").contains("# EOF"));
    assert!(started.elapsed() >= patience, "they were waited for");
    // One after the other, in the order in which they came: so they are over.
    silent.set_nonblocking(true).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it is cut off");
    cut.join().unwrap();
    drop(deaf);
    // The sessions never noticed.
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    session.send_with(1, 1, |buf| buf.fill(9)).unwrap();
    assert_eq!(message(&seen).1, [9]);
}

#[test]
fn nothing_listens_unless_asked_and_stopping_is_at_once() {
    if !alone("admin::nothing_listens_unless_asked_and_stopping_is_at_once") {
        return;
    }
    let server = echo_server(Settings::default(), loopback());
    let (threads_before, descriptors_before) = (threads(), descriptors());
    let admin = start(local().timeout(2 * LONG), &server);
    assert_eq!(threads(), threads_before + 1);
    let address = tcp(admin.address());
    // In the middle of a request that takes its time.
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /met").unwrap();
    in_time("the stop", || drop(admin));
    TcpStream::connect(address).unwrap_err();
    drop(stream);
    until("threads", || threads() == threads_before);
    assert_eq!(descriptors(), descriptors_before);
}

#[test]
fn who_does_not_get_in_is_counted_by_reason() {
    let server = echo_server(Settings::default(), loopback());
    let admin = start(local(), &server);
    let silent = TcpStream::connect(tcp(&server.address())).unwrap();
    for _ in 0..2 {
        let mut stranger = TcpStream::connect(tcp(&server.address())).unwrap();
        stranger.write_all(&[0; 8]).unwrap();
    }
    until("refused, and gone", || {
        let stats = server.stats();
        stats.refused == 2 && stats.arrivals == 1
    });
    let metrics = get(&admin, "/metrics");
    let refused = "embar_session_refused_total{group=\"game\",reason=\"not_session\"}";
    assert_eq!(value(&metrics, refused), 2.0);
    let group = |name: &str| format!("embar_session_{name}{{group=\"game\"}}");
    assert_eq!(value(&metrics, &group("arrivals")), 1.0);
    assert_eq!(value(&metrics, &group("open")), 0.0);

    drop(silent);
    until("it left", || server.stats().arrivals == 0);
    let metrics = get(&admin, "/metrics");
    assert_eq!(value(&metrics, &group("left_early_total")), 1.0);
    let json: serde_json::Value = serde_json::from_str(&get(&admin, "/sessions")).unwrap();
    let shown = &json["groups"][0];
    assert_eq!(
        (&shown["refused"], &shown["left_early"]),
        (&2.into(), &1.into())
    );
    assert_eq!(shown["refused_by_reason"]["NotSession"], 2);
}
