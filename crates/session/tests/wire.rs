//! The page about the wire is what real servers and clients do: its dumps and tables are read from
//! there and played.

#[path = "common/sums.rs"]
mod sums;

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use embar_session::{
    Address, BodyStore, Client, CloseReason, Closed, Flow, FrameHeader, Handler,
    MAX_GREETING_BYTES, MAX_REASON_BYTES, MIN_IDLE_TIMEOUT, Message, Plain, Server, Session,
    Settings, Side, StatusPolicy,
};
use sums::Sums;

const LONG: Duration = Duration::from_secs(60);
const CLOSE: u16 = 0xFF05;
const PING: u16 = 0xFF02;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn page() -> String {
    file("../../docs/architecture/session-wire.md")
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |text| u8::from_str_radix(text, 16).unwrap_or_else(|_| panic!("no hex: {hex}"));
    hex.split_whitespace().map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x} ");
        text
    })
}

/// A frame of a dump: who sends it, its title, its bytes.
struct Dumped {
    by_client: bool,
    title: String,
    bytes: Vec<u8>,
}

/// The dump of this name.
fn dump(name: &str) -> Vec<Dumped> {
    let page = page();
    let begin = format!("```wire {name}\n");
    let (_, rest) = page.split_once(&begin).expect("a dump of this name");
    let (text, _) = rest.split_once("```").expect("its end");
    let mut frames: Vec<Dumped> = Vec::new();
    for line in text.lines() {
        if let Some((by @ (">" | "<"), title)) = line.split_once(' ') {
            frames.push(Dumped {
                by_client: by == ">",
                title: title.to_owned(),
                bytes: Vec::new(),
            });
            continue;
        }
        let hex = line.split('|').next().unwrap();
        let frame = frames.last_mut().expect("a title first");
        frame.bytes.extend(bytes(hex));
    }
    frames
}

/// The bytes and the reasons of the table behind this mark.
fn faults(mark: &str) -> Vec<(Vec<u8>, i32)> {
    let page = page();
    let (_, rest) = page.split_once(mark).expect("a table with this mark");
    let table = rest
        .trim_start()
        .lines()
        .take_while(|line| line.starts_with('|'));
    let rows = table.skip(2).map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let hex = cells[0].trim().trim_matches('`');
        (bytes(hex), cells[2].trim().parse().expect("a reason"))
    });
    rows.collect()
}

/// What the page's server does.
struct PageServer;

impl Handler for PageServer {
    fn greeted(&mut self, _: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
        match greeting {
            b"x" => Err("no such room".to_owned()),
            b"hi" => Ok(b"welcome".to_vec()),
            _ => Ok(Vec::new()),
        }
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let payload = message.payload();
        let sent = session.send_with(message.id(), payload.len(), |to| {
            to.copy_from_slice(payload);
        });
        sent.unwrap();
        Flow::Continue
    }

    fn body_done(&mut self, session: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        let body = &store.into_heap().unwrap()[range];
        let sent = session.send_with(id, body.len(), |to| to.copy_from_slice(body));
        sent.unwrap();
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.session.max_body_bytes = 1 << 20;
    // PINGs of its own would come between.
    settings.session.keep_alive = Duration::ZERO;
    settings
}

fn loopback() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

fn server(settings: Settings) -> Server {
    let builder = Server::builder().settings(settings).listen(loopback());
    builder.start(|_| PageServer).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address().to_string()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The next frame; nothing at the end.
fn frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 8];
    match stream.read(&mut frame[..1]).unwrap() {
        0 => return None,
        _ => stream.read_exact(&mut frame[1..]).unwrap(),
    }
    let length = FrameHeader::parse(frame[..].first_chunk().unwrap()).length;
    frame.resize(8 + length as usize, 0);
    stream.read_exact(&mut frame[8..]).unwrap();
    Some(frame)
}

fn same(told: &Dumped, found: Option<&[u8]>) {
    let (page, found) = (hex(&told.bytes), found.map(hex));
    let who = if told.by_client { "client" } else { "server" };
    assert!(
        found.as_deref() == Some(&*page),
        "the page's {} of the {who} is not what comes\npage: {page}\nreal: {found:?}",
        told.title
    );
}

/// Sends the page's frames of the client and compares what the server answers.
fn play(frames: &[Dumped], server: &Server) -> TcpStream {
    let mut stream = connect(server);
    for told in frames {
        if told.by_client {
            stream.write_all(&told.bytes).unwrap();
        } else {
            same(told, frame(&mut stream).as_deref());
        }
    }
    stream
}

#[test]
fn a_real_server_answers_as_the_page_says() {
    let server = server(settings());
    let mut stream = play(&dump("session"), &server);
    // Behind the client's CLOSE there is nothing but the end.
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(frame(&mut stream), None);

    let mut stream = play(&dump("refusal"), &server);
    assert_eq!(frame(&mut stream), None);

    let mut settings = settings();
    settings.session.max_body_bytes = 0;
    let builder = Server::builder().protocol(Sums).settings(settings);
    let server = builder.listen(loopback()).start(|_| PageServer).unwrap();
    play(&dump("checksums"), &server);
}

/// A client that does what the page's does.
struct PageClient(Sender<Result<Vec<u8>, Closed>>);

impl Handler for PageClient {
    fn opened(&mut self, _: &Session, greeting: &[u8]) {
        self.0.send(Ok(greeting.to_vec())).unwrap();
    }

    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        self.0.send(Ok(message.payload().to_vec())).unwrap();
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.0.send(Err(why.clone()));
    }
}

/// A server that sends the page's frames and compares what the client says. PINGs are the client's
/// own matter.
fn page_server(name: &'static str) -> (Address, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        for told in dump(name) {
            let id = FrameHeader::parse(told.bytes.first_chunk().unwrap()).id;
            if told.by_client && id != PING {
                same(&told, frame(&mut stream).as_deref());
            } else if !told.by_client {
                stream.write_all(&told.bytes).unwrap();
            }
        }
        // The client ends its side, or is gone already.
        assert_eq!(frame(&mut stream), None);
    });
    (address, thread)
}

#[test]
fn a_real_client_speaks_as_the_page_says() {
    let mut settings = settings();
    settings.session.max_body_bytes = 0;
    let client = Client::with(Plain, settings.clone()).unwrap();
    let (address, server) = page_server("session");
    let (events, seen) = channel();
    let opening = client.open(&address, b"hi", PageClient(events));
    let session = opening.wait().unwrap();
    let next = || seen.recv_timeout(LONG).unwrap();
    assert_eq!(next().unwrap(), b"welcome");
    let hello = |to: &mut [u8]| to.copy_from_slice(b"hello");
    session.send_with(1, 5, hello).unwrap();
    assert_eq!(next().unwrap(), b"hello");
    let body = Arc::new(b"12345".to_vec().into());
    session.send_body(2, b"name", body).unwrap();
    assert_eq!(next().unwrap(), b"12345");
    session.goodbye();
    session.close();
    assert_eq!(next().unwrap_err().reason, CloseReason::Finished);
    server.join().unwrap();

    let (address, server) = page_server("refusal");
    let (events, _seen) = channel();
    let refused = client.open(&address, b"x", PageClient(events)).wait();
    let why = refused.unwrap_err();
    let told = (why.by, why.reason, &*why.text);
    assert_eq!(told, (Side::Peer, CloseReason::Refused, "no such room"));
    server.join().unwrap();
    drop(client);

    let client = Client::with(Sums, settings).unwrap();
    let (address, server) = page_server("checksums");
    let (events, seen) = channel();
    let session = client.connect(address, PageClient(events)).unwrap();
    seen.recv_timeout(LONG).unwrap().unwrap();
    session.send_with(1, 5, hello).unwrap();
    assert_eq!(seen.recv_timeout(LONG).unwrap().unwrap(), b"hello");
    session.abort();
    server.join().unwrap();
}

/// The reason of the CLOSE that comes next, which is also the end.
fn reason(stream: &mut TcpStream) -> u8 {
    let close = frame(stream).expect("CLOSE");
    assert_eq!(FrameHeader::parse(close.first_chunk().unwrap()).id, CLOSE);
    assert_eq!(frame(stream), None, "something behind CLOSE");
    assert_eq!(close[8], 0x08, "the reason comes first: {}", hex(&close));
    close[9]
}

#[test]
fn what_breaks_the_rules_has_the_reason_of_the_page_and_disturbs_nobody() {
    let server = server(settings());
    let mut honest = play(&dump("session")[..2], &server);
    for (bytes, expected) in faults("<!-- wire: first -->") {
        let mut stream = connect(&server);
        stream.write_all(&bytes).unwrap();
        assert_eq!(i32::from(reason(&mut stream)), expected, "{}", hex(&bytes));
    }
    for (bytes, expected) in faults("<!-- wire: open -->") {
        let mut stream = play(&dump("session")[..2], &server);
        stream.write_all(&bytes).unwrap();
        assert_eq!(i32::from(reason(&mut stream)), expected, "{}", hex(&bytes));
    }
    let echo = &dump("session")[2..4];
    honest.write_all(&echo[0].bytes).unwrap();
    same(&echo[1], frame(&mut honest).as_deref());
}

#[test]
fn unknown_fields_are_skipped_however_many() {
    let server = server(settings());
    let mut stream = play(&dump("session")[..2], &server);
    let fields = [0xF8, 0x01, 0x05].repeat(1000);
    let header = FrameHeader::new(PING, fields.len() as u32).to_bytes();
    stream.write_all(&[&header, &fields[..]].concat()).unwrap();
    let answer = frame(&mut stream).expect("a PONG");
    assert_eq!(answer[4..6], [0x03, 0xff]);
}

#[test]
fn a_greeting_that_is_too_long_has_the_reason_of_the_page() {
    assert!(page().contains("more is reason 8"));
    let server = server(settings());
    let hello = &dump("session")[0].bytes;
    // Without its own greeting, which is the last field.
    let fields = &hello[8..hello.len() - 4];
    let hello = |greeting: usize| {
        let length = [0x42, greeting as u8 | 0x80, (greeting >> 7) as u8];
        let content = [fields, &length, &vec![b'g'; greeting]].concat();
        let header = FrameHeader::new(0xFF00u16, content.len() as u32);
        let mut stream = connect(&server);
        stream.write_all(&header.to_bytes()).unwrap();
        stream.write_all(&content).unwrap();
        stream
    };
    let welcome = frame(&mut hello(MAX_GREETING_BYTES)).expect("WELCOME");
    assert_eq!(welcome[4..6], [0x01, 0xff]);
    assert_eq!(reason(&mut hello(MAX_GREETING_BYTES + 1)), 8);
}

#[test]
fn a_status_is_answered_by_a_server_that_tells_its_figures() {
    let server = server(settings().with(|it| it.status = StatusPolicy::Everyone));
    let mut stream = play(&dump("session")[..2], &server);
    stream.write_all(&dump("status")[0].bytes).unwrap();
    let reply = frame(&mut stream).expect("a reply");
    assert_eq!(reply[4..8], [0x07, 0xff, 0, 0]);
    assert_eq!(reply[8..10], [0x08, 0x01], "outcome: given");
}

/// The fields that the dumps name are those of the schema, and have its numbers.
#[test]
fn the_dumps_name_the_fields_of_the_schema() {
    let schema = file("proto/session.proto");
    let page = page();
    let mut named = 0;
    for line in page.lines().filter(|line| !line.starts_with('|')) {
        let Some((hex, said)) = line.split_once("| ") else {
            continue;
        };
        let Some((number, name)) = said
            .split_once(':')
            .and_then(|(field, _)| field.split_once(' '))
            .and_then(|(number, name)| Some((number.parse::<u8>().ok()?, name)))
        else {
            continue;
        };
        assert_eq!(bytes(hex)[0] >> 3, number, "{line}");
        assert!(schema.contains(&format!(" {name} = {number};")), "{line}");
        named += 1;
    }
    assert!(named > 30, "{named} fields");
}

#[test]
fn the_page_has_all_reasons_ids_and_limits() {
    let page = page();
    for reason in CloseReason::ALL_ON_WIRE {
        let row = format!("| {} | `{}` |", reason.number(), reason.name());
        assert!(page.contains(&row), "{row}");
    }
    let schema = file("proto/session.proto");
    let greeting = schema.split_once("message Greeting {").unwrap().1;
    let greeting = greeting.split_once("\n}").unwrap().0;
    for line in greeting.lines().filter(|line| line.contains(" = ")) {
        let (declared, rest) = line.split_once(" = ").unwrap();
        let name = declared.rsplit(' ').next().unwrap();
        let number = rest.split_once(';').unwrap().0;
        let row = format!("| {number} `{name}` |");
        assert!(page.contains(&row), "{row}");
    }
    for id in 0xFF00..=0xFF0C {
        assert!(
            page.contains(&format!("| `{id:#06X}` |").replace("0X", "0x")),
            "{id:#x}"
        );
    }
    let grouped = |number: usize| format!("{},{:03}", number / 1000, number % 1000);
    let idle = grouped(MIN_IDLE_TIMEOUT.as_millis() as usize);
    assert!(page.contains(&format!("A timeout below {idle}")));
    assert!(page.contains(&format!("up to {} bytes", grouped(MAX_GREETING_BYTES))));
    assert!(page.contains(&format!("at most {MAX_REASON_BYTES} bytes")));
    let session = Settings::default().session;
    for (reason, time) in [
        (CloseReason::HelloTimeout, session.hello_timeout),
        (CloseReason::FrameTimeout, session.frame_timeout),
        (CloseReason::Idle, session.idle_timeout),
    ] {
        let row = format!("| {} | ", reason.number());
        let row = page.lines().find(|line| line.starts_with(&row)).unwrap();
        assert!(row.contains(&format!(" {} s", time.as_secs())), "{row}");
    }
}
