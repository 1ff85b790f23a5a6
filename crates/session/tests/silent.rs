//! What a connection costs that says nothing. Memory is the process's, so this has a binary of its
//! own, and one test.

#[path = "common/hello.rs"]
mod hello;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use embar_session::{Address, Flow, Handler, Message, Server, Session, Settings};
use embar_transport::alloc::{Counting, of_process, set_counting};
use hello::hello;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONNECTIONS: usize = 1000;
const LONG: Duration = Duration::from_secs(60);

struct Deaf;

impl Handler for Deaf {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Its mappings.
fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

fn measure(kind: &str, server: &Server, most: usize) {
    let Address::Tcp(address) = server.address() else {
        panic!("not TCP");
    };
    let mut streams = Vec::with_capacity(CONNECTIONS);
    let deadline = Instant::now() + LONG;
    let mut open = |count| {
        for _ in 0..count {
            streams.push(TcpStream::connect(address).unwrap());
        }
        while server.stats().arrivals < streams.len() as u64 {
            assert!(Instant::now() < deadline, "they do not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // The worker has touched its stack, and the allocator what it needs itself.
    open(16);
    let (resident_before, mapped) = (resident(), mappings());
    set_counting(true);
    let before = of_process();
    open(CONNECTIONS - 16);
    // One behind them that becomes a session makes the lists of sessions as long.
    let mut greets = TcpStream::connect(address).unwrap();
    if kind == "plain" {
        greets.write_all(&hello()).unwrap();
        greets.read_exact(&mut [0; 8]).unwrap();
    }
    let allocated = of_process().since(before);
    set_counting(false);
    let each = |bytes: usize| bytes / (CONNECTIONS - 16);
    // What was allocated counts lists that grew several times.
    let figures = [
        each(allocated.bytes as usize),
        each(resident().saturating_sub(resident_before)),
    ];
    assert!(
        figures.iter().all(|&bytes| bytes <= most),
        "{kind}: allocated and resident bytes for each: {figures:?}"
    );
    let more = mappings().saturating_sub(mapped);
    assert!(more < CONNECTIONS / 10, "{more} more mappings");
}

#[test]
fn a_silent_connection_takes_at_most_4_kib() {
    let settings = Settings::default().with(|settings| {
        settings.session.hello_timeout = 2 * LONG;
        settings.admission.max_arrivals = CONNECTIONS;
    });
    let builder = || {
        Server::builder()
            .settings(settings.clone())
            .listen(Address::Tcp(([127, 0, 0, 1], 0).into()))
    };
    measure("plain", &builder().start(|_| Deaf).unwrap(), 4 << 10);
    #[cfg(feature = "tls")]
    {
        let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let der = key.signing_key.serialize_der().try_into().unwrap();
        let config = embar_session::rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], der)
            .unwrap();
        let server = builder().tls(config.into()).start(|_| Deaf).unwrap();
        measure("encrypted", &server, 4 << 10);
    }
}
