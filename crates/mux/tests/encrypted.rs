//! Callers against an encrypted server of a small protocol: a command is a line, and so is its
//! reply.
#![cfg(feature = "tls")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use embar_mux::{
    BadReply, CallError, CloseReason, Connection, ConnectionLimits, FrameKind, Framing, Greeting,
    Mux, MuxSettings, Part, Protocol, SubmitError, Turn, block_on,
};
use embar_transport::tls::{TlsFault, TlsTarget};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

/// Longer than anything takes here, on whatever machine.
const LONG: Duration = Duration::from_secs(60);

/// The limits of a connection whose test is not about time.
fn patient() -> ConnectionLimits {
    ConnectionLimits {
        timeout: LONG,
        dead_after: LONG,
        connect_timeout: LONG,
        ..ConnectionLimits::default()
    }
}

/// Lines. It greets nobody, so that connecting is done when the encryption is agreed on.
#[derive(Default)]
struct Lines;

impl Framing for Lines {
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        Ok(Part {
            taken: end.map_or(bytes.len(), |end| end + 1),
            kind: FrameKind::Reply,
            complete: end.is_some(),
        })
    }
}

impl Protocol for Lines {
    fn greet(&mut self, _: Option<&[u8]>) -> Result<Greeting, String> {
        Ok(Greeting::Done)
    }

    fn push(&mut self, _: &[u8]) {}

    fn closed(&mut self, _: &CloseReason) {}
}

/// Passes on few bytes at a time, as a bad network does.
struct Crumbs(TcpStream);

impl Read for Crumbs {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = buf.len().min(700);
        self.0.read(&mut buf[..most])
    }
}

impl Write for Crumbs {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let most = buf.len().min(1 + buf.len() % 97);
        self.0.write(&buf[..most])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Secured = StreamOwned<ServerConnection, Crumbs>;

/// A server whose connections are served by `serve`, on a thread each, and how to trust it.
fn server(serve: impl Fn(Secured) + Send + Sync + 'static) -> (SocketAddr, TlsTarget) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key);
    let config = Arc::new(config.unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let trusting = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let target = TlsTarget::new(Arc::new(trusting), "localhost").unwrap();
    let address = accept(move |stream| {
        let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
        serve(StreamOwned::new(tls, Crumbs(stream)));
    });
    (address, target)
}

fn accept(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (serve, stream) = (Arc::clone(&serve), stream.unwrap());
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Answers each line with "re:" and the line.
fn echo(stream: Secured) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|count| count > 0) {
        let answer = format!("re:{line}");
        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

fn open(
    mux: &Mux<Lines>,
    (address, target): &(SocketAddr, TlsTarget),
    limits: ConnectionLimits,
) -> Connection {
    mux.open_tls((*address).into(), target, limits, Lines)
        .unwrap()
}

fn ask(conn: &Connection, text: &str) -> Result<String, CallError> {
    let line = format!("{text}\n");
    let mut turn = Turn::default();
    let call = block_on(|cx| {
        conn.poll_submit(&mut turn, cx, line.len(), 1, 0, None, &mut |to| {
            to.copy_from_slice(line.as_bytes());
        })
    });
    let call = call.map_err(|error| match error {
        SubmitError::Closed(reason) => CallError::NotSent(reason),
        SubmitError::Full => unreachable!("it waits for room"),
    });
    call?.wait(|reply| String::from_utf8(reply.clone()).unwrap())
}

#[test]
fn many_threads_get_the_replies_to_their_own_commands_of_all_sizes() {
    let settings = MuxSettings {
        ring_bytes: 64 << 10,
        ..MuxSettings::default()
    };
    let mux = Mux::on_thread(&settings).unwrap();
    let conn = open(&mux, &server(echo), patient());
    thread::scope(|scope| {
        for caller in 0..8 {
            let conn = &conn;
            scope.spawn(move || {
                for turn in 0..40 {
                    // The largest do not fit into the ring.
                    let len = [0, 10, 3_000, 20_000, 50_000][turn % 5];
                    let text = format!("{caller}-{turn}-{}", "x".repeat(len));
                    assert_eq!(ask(conn, &text).unwrap(), format!("re:{text}\n"));
                }
            });
        }
    });
    let stats = conn.stats();
    assert_eq!((stats.replies, stats.in_flight), (320, 0));
    assert!(
        stats.bytes_received > stats.bytes_sent,
        "they count plaintext: {stats:?}"
    );
}

#[test]
fn of_a_command_that_was_cut_only_what_may_have_left_may_have_been_done() {
    // Takes one line and the first byte of another, and ends when it is told to.
    let (tell, told) = mpsc::channel();
    let told = Mutex::new(told);
    let server = server(move |stream| {
        let mut stream = BufReader::with_capacity(1, stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        told.lock().unwrap().recv().unwrap();
    });
    let mux = Mux::on_thread(&MuxSettings::default()).unwrap();
    for (replies, may_be_done) in [(1, false), (2, true)] {
        let conn = open(&mux, &server, patient());
        let first = conn.submit(4, 1, 0, None, None, |to| to.copy_from_slice(b"one\n"));
        // Far more than any kernel takes for a peer that does not read.
        let fill = |to: &mut [u8]| to.fill(b'x');
        let large = conn.submit(64 << 20, replies, 0, None, None, fill);
        let behind = conn.submit(4, 1, 0, None, None, |to| to.copy_from_slice(b"two\n"));
        tell.send(()).unwrap();
        let ends = [first, large, behind].map(|call| call.unwrap().wait(|_| ()).unwrap_err());
        let unknown = ends
            .each_ref()
            .map(|end| matches!(end, CallError::Unknown(_)));
        assert_eq!(unknown, [true, may_be_done, false], "{ends:?}");
    }
}

#[test]
fn who_does_not_answer_is_given_up_in_time() {
    let (_, target) = server(echo);
    // Takes what comes, and says nothing.
    let silent = accept(|mut stream| drop(io::copy(&mut stream, &mut io::sink())));
    // Ends at once.
    let gone = accept(drop);
    // Says something else.
    let plain = accept(|mut stream| {
        let _ = stream.write_all(b"-ERR what is this?\r\n");
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    let mux = Mux::on_thread(&MuxSettings::default()).unwrap();
    let short = Duration::from_millis(200);
    for (address, connect_timeout, fault) in [
        (silent, short, TlsFault::Unanswered),
        (gone, LONG, TlsFault::Cut),
        (plain, LONG, TlsFault::NotTls),
    ] {
        let limits = ConnectionLimits {
            connect_timeout,
            ..patient()
        };
        let conn = open(&mux, &(address, target.clone()), limits);
        match ask(&conn, "a").unwrap_err() {
            CallError::NotSent(CloseReason::Tls(error)) => {
                assert_eq!(error.fault, fault, "{error}")
            }
            error => panic!("{fault:?}: {error}"),
        }
    }
}
