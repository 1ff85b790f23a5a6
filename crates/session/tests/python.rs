//! The client in Python (`clients/python`) on real servers, and on some that break the rules.

#[path = "common/sums.rs"]
mod sums;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use embar_session::{
    Address, BodyStore, CloseReason, Closed, Flow, FrameHeader, Handler, Message, OnFull, Redirect,
    Server, Session, Settings, Side,
};
use sums::Sums;

const LONG: Duration = Duration::from_secs(120);
const HELLO: u16 = 0xFF00;
const WELCOME: u16 = 0xFF01;
const PING: u16 = 0xFF02;
const GOODBYE: u16 = 0xFF04;
/// A PING, and a PONG.
const PING_BYTES: u64 = 17;
const CLOSE: u16 = 0xFF05;
const CHECKED: u16 = 0x8000;

fn client() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python")
}

fn python(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg(client().join(script)).args(arguments);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Runs a scenario to its end; it asserts for itself.
fn run(arguments: &[&str]) {
    finished(start(arguments));
}

fn start(arguments: &[&str]) -> Child {
    let mut command = python("scenarios.py", arguments);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    pipes.stderr(Stdio::piped()).spawn().expect("python3")
}

fn finished(mut child: Child) {
    let mut errors = child.stderr.take().unwrap();
    let (told, ended) = channel();
    std::thread::spawn(move || {
        let mut said = String::new();
        let _ = errors.read_to_string(&mut said);
        let _ = told.send(said);
    });
    let Ok(said) = ended.recv_timeout(LONG) else {
        let _ = child.kill();
        panic!("it does not end");
    };
    assert!(child.wait().unwrap().success(), "{said}");
}

/// What the scenario prints next.
fn line(child: &mut Child) -> String {
    let mut line = String::new();
    let out = child.stdout.as_mut().unwrap();
    BufReader::with_capacity(1, out)
        .read_line(&mut line)
        .unwrap();
    line.trim_end().to_owned()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn loopback() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.session.max_body_bytes = 1 << 20;
    settings
}

/// Sends everything back, and tells how each session ended.
struct Echo(Sender<Closed>, Vec<u8>);

impl Handler for Echo {
    fn greeted(&mut self, _: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
        if greeting == b"nobody" {
            return Err("no such user".to_owned());
        }
        Ok([b"welcome, ", greeting].concat())
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let payload = message.payload();
        // It fails behind the last that a client waits for: its session is ending.
        let _ = session.send_with(message.id(), payload.len(), |to| {
            to.copy_from_slice(payload);
        });
        Flow::Continue
    }

    fn body(&mut self, _: &Session, _: u16, head: &[u8], len: usize) -> embar_session::BodyTarget {
        self.1 = head.to_vec();
        embar_session::BodyTarget::heap(len)
    }

    fn body_done(&mut self, session: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        let body = store.into_heap().unwrap()[range].to_vec();
        session
            .send_body(id, &self.1, Arc::new(body.into()))
            .unwrap();
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.0.send(why.clone());
    }
}

fn echo(settings: Settings) -> (Server, String, Receiver<Closed>) {
    let (told, ends) = channel();
    let told = Mutex::new(told);
    let server = Server::builder()
        .settings(settings)
        .listen(loopback())
        .start(move |_| Echo(told.lock().unwrap().clone(), Vec::new()))
        .unwrap();
    let address = server.address().to_string();
    (server, address, ends)
}

#[test]
fn its_messages_are_made_from_the_schemas_and_encoded_as_everywhere() {
    let made = python("generate.py", &["--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    run(&["codec"]);
    run(&["generator"]);
}

#[test]
fn messages_and_bodies_go_both_ways_and_a_close_says_finished() {
    let (_server, address, ends) = echo(settings());
    run(&["echo", &address]);
    let why = ends.recv_timeout(LONG).unwrap();
    assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::Finished));
    run(&["asyncio_echo", &address]);
    for _ in 0..20 {
        let why = ends.recv_timeout(LONG).unwrap();
        assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::Finished));
    }

    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("echo").display());
    let server = Server::builder().settings(settings());
    let (told, _ends) = channel();
    let told = Mutex::new(told);
    let listening = server.listen(address.parse::<Address>().unwrap());
    let _server = listening
        .start(move |_| Echo(told.lock().unwrap().clone(), Vec::new()))
        .unwrap();
    run(&["echo", &address]);
}

/// Tells its session, and nothing else.
struct Silent(Sender<Session>, Sender<Closed>);

impl Handler for Silent {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        self.0.send(session.clone()).unwrap();
    }

    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.1.send(why.clone());
    }
}

fn silent(settings: Settings) -> (Server, Receiver<Session>, Receiver<Closed>) {
    let (opened, sessions) = channel();
    let (told, ends) = channel();
    let channels = Mutex::new((opened, told));
    let server = Server::builder().settings(settings).listen(loopback());
    let start = server.start(move |_| {
        let channels = channels.lock().unwrap();
        Silent(channels.0.clone(), channels.1.clone())
    });
    (start.unwrap(), sessions, ends)
}

#[test]
fn a_quiet_client_answers_pings_and_a_client_of_a_server_without_pings_sends_its_own() {
    // Each end gives up after three seconds, which so many signs of life outlast: a PONG for each PING of
    // the server, or a PING of the client each second.
    let pings = (Duration::from_millis(250), 20);
    for (keep_alive, signs) in [pings, (Duration::ZERO, 5)] {
        let mut settings = settings();
        settings.session.idle_timeout = Duration::from_secs(3);
        settings.session.keep_alive = keep_alive;
        let (server, sessions, ends) = silent(settings);
        let child = start(&["quiet", &server.address().to_string()]);
        let session = sessions.recv_timeout(LONG).unwrap();
        let begun = session.stats().bytes_received;
        until("signs of life", || {
            assert_eq!(session.closed(), None);
            if keep_alive.is_zero() {
                // The server has no PINGs, and its messages are no reason for the client to be silent.
                let _ = session.send_with(1, 0, |_| {});
                std::thread::sleep(Duration::from_millis(50));
            }
            session.stats().bytes_received >= begun + PING_BYTES * signs
        });
        assert_eq!(session.stats().round_trip.is_some(), !keep_alive.is_zero());
        session
            .send_with(2, 6, |to| to.copy_from_slice(b"enough"))
            .unwrap();
        finished(child);
        let why = ends.recv_timeout(LONG).unwrap();
        assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::Finished));
    }
}

#[test]
fn refusals_have_their_reasons() {
    let settings = settings().with(|it| it.max_sessions = 1);
    let (_server, address, _ends) = echo(settings);
    run(&["refused", &address]);
}

/// Says 500 things, and closes.
struct Leaves;

impl Handler for Leaves {
    fn message(&mut self, session: &Session, _: Message<'_>) -> Flow {
        for number in 0..500 {
            let text = number.to_string();
            let fill = |to: &mut [u8]| to.copy_from_slice(text.as_bytes());
            session.send_with(1, text.len(), fill).unwrap();
        }
        session.close();
        Flow::Continue
    }
}

#[test]
fn an_end_made_by_the_server_has_its_reason_behind_all_that_was_said() {
    let server = Server::builder().listen(loopback());
    let server = server.start(|_| Leaves).unwrap();
    run(&["closed_by_server", &server.address().to_string()]);

    let mut child = start(&["shutdown", &server.address().to_string()]);
    assert_eq!(line(&mut child), "open");
    let elsewhere = Redirect::to("game.example:7000").unwrap();
    server.redirect(&elsewhere.after(Duration::from_millis(200)));
    server.shutdown(LONG);
    finished(child);
}

/// Takes nothing until it is told to, then answers each message.
struct Gate(Arc<AtomicU64>, Sender<Session>);

impl Handler for Gate {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        self.1.send(session.clone()).unwrap();
    }

    fn message(&mut self, session: &Session, _: Message<'_>) -> Flow {
        if self.0.load(Ordering::SeqCst) == 0 {
            return Flow::Pause;
        }
        session.send_with(2, 0, |_| {}).unwrap();
        Flow::Continue
    }
}

#[test]
fn who_is_not_read_waits_within_bounds() {
    let open = Arc::new(AtomicU64::new(0));
    let (opened, sessions) = channel();
    let opened = Mutex::new(opened);
    let gate = Arc::clone(&open);
    let server = Server::builder().listen(loopback());
    let server = server
        .start(move |_| Gate(Arc::clone(&gate), opened.lock().unwrap().clone()))
        .unwrap();
    let mut child = start(&["waits_for_room", &server.address().to_string()]);
    assert_eq!(line(&mut child), "stuck");
    open.store(1, Ordering::SeqCst);
    sessions.recv_timeout(LONG).unwrap().resume();
    finished(child);
}

#[test]
fn what_its_program_does_not_take_waits_at_the_server() {
    let (server, sessions, _ends) = silent(settings());
    let mut child = start(&["does_not_read", &server.address().to_string()]);
    assert_eq!(line(&mut child), "open");
    let session = sessions.recv_timeout(LONG).unwrap();
    // 20 MB: much more than the kernel and the ring hold.
    session.set_on_full(OnFull::Wait { timeout: LONG });
    let sender = session.clone();
    let sending = std::thread::spawn(move || {
        for number in 0..20_000_u32 {
            let fill = |to: &mut [u8]| to[..4].copy_from_slice(&number.to_be_bytes());
            sender.send_with(1, 1000, fill).unwrap();
        }
    });
    until("the server has no room", || session.stats().times_full > 0);
    writeln!(child.stdin.as_mut().unwrap()).unwrap();
    finished(child);
    sending.join().unwrap();
}

#[test]
fn checksums_are_made_and_verified() {
    let (told, _ends) = channel();
    let told = Mutex::new(told);
    let server = Server::builder().protocol(Sums).listen(loopback());
    let server = server
        .start(move |_| Echo(told.lock().unwrap().clone(), Vec::new()))
        .unwrap();
    run(&["checksums", &server.address().to_string()]);
}

#[cfg(feature = "tls")]
#[test]
fn encrypted_sessions_go_to_the_server_that_was_meant() {
    use embar_session::rustls::ServerConfig;
    use embar_session::rustls::pki_types::PrivatePkcs8KeyDer;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    };

    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "trusted");
    let root = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let chain = vec![certificate.der().clone()];
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(chain, key.into()).unwrap();

    let (told, ends) = channel();
    let told = Mutex::new(told);
    let server = Server::builder().tls(Arc::new(config)).listen(loopback());
    let server = server
        .start(move |_| Echo(told.lock().unwrap().clone(), Vec::new()))
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("root.der");
    std::fs::write(&trusted, root.der()).unwrap();
    let address = server
        .address()
        .to_string()
        .replace("127.0.0.1", "localhost");
    run(&["encrypted", &address, trusted.to_str().unwrap()]);
    let why = ends.recv_timeout(LONG).unwrap();
    assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::Finished));
}

fn frame(id: u16, flags: u16, content: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        length: content.len() as u32,
        id,
        flags,
    };
    [&header.to_bytes(), content].concat()
}

/// The next frame: id and content; nothing at the end.
fn next(stream: &mut impl Read) -> Option<(u16, Vec<u8>)> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).ok()?;
    let header = FrameHeader::parse(&header);
    let mut content = vec![0; header.length as usize];
    stream.read_exact(&mut content).ok()?;
    Some((header.id, content))
}

#[test]
fn what_breaks_the_rules_closes_the_session_with_a_reason_that_the_server_hears() {
    let greeting = |version: u8, name: &[u8]| {
        let name = [&[0x1a, name.len() as u8], name].concat();
        let limits = [0x20, 0x01, 0x28, 0x80, 0x80, 0x04];
        frame(
            WELCOME,
            0,
            &[b"\x0d" as &[u8], b"EMBS\x10", &[version], &name, &limits].concat(),
        )
    };
    let welcome = greeting(1, b"plain");
    let after = |frame: Vec<u8>| [&welcome[..], &frame].concat();
    let big = |length: u32, id, flags| {
        let header = FrameHeader { length, id, flags };
        after(header.to_bytes().to_vec())
    };
    let cases = [
        (
            b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            CloseReason::NotSession,
        ),
        (frame(PING, 0, &[]), CloseReason::NotSession),
        (frame(WELCOME, 0, b"\x0dEMBX"), CloseReason::NotSession),
        (frame(WELCOME, 0, b"\x0d"), CloseReason::NotSession),
        (frame(WELCOME, 1, &[]), CloseReason::NotSession),
        (frame(WELCOME, 0, &[0; 3073]), CloseReason::NotSession),
        (greeting(2, b"plain"), CloseReason::SessionVersion),
        (greeting(1, b"other"), CloseReason::Protocol),
        (Vec::new(), CloseReason::HelloTimeout),
        (after(frame(0xFFFF, 0, &[])), CloseReason::UnknownFrame),
        (after(welcome.clone()), CloseReason::BadFrame),
        (after(frame(HELLO, 0, &[])), CloseReason::BadFrame),
        (after(frame(1, 2, &[])), CloseReason::BadFrame),
        (after(frame(1, CHECKED, &[0; 4])), CloseReason::BadFrame),
        (after(frame(PING, 1, &[])), CloseReason::BadFrame),
        (after(frame(PING, 0, &[0xff])), CloseReason::BadFrame),
        // Redirects that nobody should print, or is longer than any address.
        (
            after(frame(GOODBYE, 0, b"\x12\x02a\n")),
            CloseReason::BadFrame,
        ),
        (
            after(frame(
                GOODBYE,
                0,
                &[b"\x12\x80\x02" as &[u8], &[b'x'; 256]].concat(),
            )),
            CloseReason::BadFrame,
        ),
        (after(frame(1, 1, &[9, 0, 0, 0])), CloseReason::BadFrame),
        (big(3, 1, 1), CloseReason::BadFrame),
        (big(65_537, 1, 0), CloseReason::TooLarge),
        (big((1 << 20) + 1, 1, 1), CloseReason::TooLarge),
        (big(u32::MAX, PING, 0), CloseReason::TooLarge),
        (welcome.clone(), CloseReason::Idle),
    ];
    let schema_name = |reason: CloseReason| {
        let mut name = String::new();
        for letter in reason.name().chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        name
    };
    let cut = [welcome.clone(), after(vec![9, 0, 0])];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    listener.set_nonblocking(true).unwrap();
    let names = cases.iter().map(|case| schema_name(case.1));
    let names: Vec<String> = names
        .chain(cut.iter().map(|_| "DISCONNECTED".into()))
        .collect();
    let arguments = ["breaks", &address].into_iter();
    let arguments: Vec<&str> = arguments.chain(names.iter().map(String::as_str)).collect();
    let child = start(&arguments);
    let accept = || {
        let mut accepted = None;
        until("a client comes", || {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let (mut stream, _) = accepted.unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        assert_eq!(next(&mut stream).expect("HELLO").0, HELLO);
        stream
    };
    for (bytes, reason) in cases {
        let mut stream = accept();
        stream.write_all(&bytes).unwrap();
        let close = loop {
            match next(&mut stream) {
                Some((CLOSE, content)) => break content,
                Some((PING, _)) => {}
                other => panic!("{other:?} instead of CLOSE for {reason:?}"),
            }
        };
        assert_eq!(close[..2], [0x08, reason.number() as u8], "{bytes:x?}");
        assert_eq!(next(&mut stream), None, "nothing behind CLOSE");
    }
    for bytes in cut {
        accept().write_all(&bytes).unwrap();
    }
    finished(child);
}
