//! A small protocol, and servers of it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use embar_mux::{
    BadReply, CallError, CloseReason, Connection, ConnectionLimits, FrameKind, Framing, Greeting,
    Meters, Mux, MuxSettings, Part, Protocol, SubmitError, Turn, block_on,
};

/// Nothing takes so long, on no machine: what does hangs.
pub const LONG: Duration = Duration::from_secs(60);

/// Lines; those that begin with '>' were not asked for, and "bad" is no reply.
#[derive(Default)]
pub struct Lines {
    pub push: bool,
    pub middle: bool,
    pub greeting: Option<&'static [u8]>,
    pub heard: Heard,
}

#[derive(Default, Clone)]
pub struct Heard {
    pub pushes: Arc<Mutex<Vec<Vec<u8>>>>,
    pub end: Arc<Mutex<Option<CloseReason>>>,
    pub meters: Arc<Meters>,
}

impl Framing for Lines {
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply> {
        if !self.middle {
            self.push = bytes[0] == b'>';
            if bytes.starts_with(b"bad") {
                return Err(BadReply { what: "bad" });
            }
        }
        let end = bytes.iter().position(|&byte| byte == b'\n');
        self.middle = end.is_none();
        Ok(Part {
            taken: end.map_or(bytes.len(), |end| end + 1),
            kind: if self.push {
                FrameKind::Push
            } else {
                FrameKind::Reply
            },
            complete: end.is_some(),
        })
    }
}

impl Protocol for Lines {
    fn greet(&mut self, reply: Option<&[u8]>) -> Result<Greeting, String> {
        match (self.greeting.take(), reply) {
            (Some(bytes), None) => Ok(Greeting::Send {
                bytes: bytes.to_vec(),
                replies: 1,
            }),
            (_, Some(b"no\n")) => Err("no".into()),
            _ => Ok(Greeting::Done),
        }
    }

    fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.heard.meters)
    }

    fn push(&mut self, frame: &[u8]) {
        self.heard.pushes.lock().unwrap().push(frame.to_vec());
    }

    fn closed(&mut self, reason: &CloseReason) {
        *self.heard.end.lock().unwrap() = Some(reason.clone());
    }
}

/// A server whose connections are served by `serve`, on a thread each.
pub fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
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
pub fn echo(stream: TcpStream) {
    let mut to = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        if to.write_all(format!("re:{line}\n").as_bytes()).is_err() {
            return;
        }
    }
}

pub fn mux() -> Mux<Lines> {
    Mux::on_thread(&MuxSettings::default()).unwrap()
}

/// The limits of a connection whose test is not about time.
pub fn patient() -> ConnectionLimits {
    ConnectionLimits {
        timeout: LONG,
        dead_after: LONG,
        connect_timeout: LONG,
        ..ConnectionLimits::default()
    }
}

pub fn open(mux: &Mux<Lines>, address: SocketAddr) -> Connection {
    mux.open(address.into(), patient(), Lines::default())
        .unwrap()
}

pub fn ask(conn: &Connection, text: &str) -> Result<String, CallError> {
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

pub fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "it never happens");
        thread::sleep(Duration::from_millis(1));
    }
}
