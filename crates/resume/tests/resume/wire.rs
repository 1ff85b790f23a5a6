//! The protocol by hand, for peers that do what no honest one does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use embar_resume::RESERVED_ID;
use embar_session::{Address, CloseReason};

use crate::support::LONG;

pub const FRESH: u64 = 1;
pub const RESUMED: u64 = 2;
pub const DRAINING: u64 = 3;
pub const UNKNOWN: u64 = 1;
pub const OLD_TOKEN: u64 = 2;
pub const EVICTED: u64 = 4;
pub const ENDED: u64 = 5;

const HELLO: u16 = 0xFF00;
const WELCOME: u16 = 0xFF01;
const CLOSE: u16 = 0xFF05;
const MAGIC: u32 = u32::from_le_bytes(*b"EMBR");
const SESSION_MAGIC: u32 = u32::from_le_bytes(*b"EMBS");

pub type Frame = (u16, Vec<u8>);

enum Field<'a> {
    Number(u64),
    Fixed(u32),
    Bytes(&'a [u8]),
}

fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn encode(fields: &[(u64, Field<'_>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, field) in fields {
        match field {
            Field::Number(number) => {
                varint(tag << 3, &mut bytes);
                varint(*number, &mut bytes);
            }
            Field::Fixed(number) => {
                varint(tag << 3 | 5, &mut bytes);
                bytes.extend(number.to_le_bytes());
            }
            Field::Bytes(content) => {
                varint(tag << 3 | 2, &mut bytes);
                varint(content.len() as u64, &mut bytes);
                bytes.extend(*content);
            }
        }
    }
    bytes
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

/// The number, or the bytes, of a field; what is not there is 0 and empty.
fn field(mut bytes: &[u8], wanted: u64) -> (u64, Vec<u8>) {
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes);
        let (number, content) = match key & 7 {
            0 => (read_varint(&mut bytes), &[][..]),
            5 => {
                let (number, rest) = bytes.split_at(4);
                bytes = rest;
                (
                    u64::from(u32::from_le_bytes(number.try_into().unwrap())),
                    &[][..],
                )
            }
            2 => {
                let len = read_varint(&mut bytes) as usize;
                let (content, rest) = bytes.split_at(len);
                bytes = rest;
                (0, content)
            }
            other => panic!("a field of kind {other}"),
        };
        if key >> 3 == wanted {
            return (number, content.to_vec());
        }
    }
    (0, Vec::new())
}

fn greeting(own: &[u8]) -> Vec<u8> {
    encode(&[
        (1, Field::Fixed(SESSION_MAGIC)),
        (2, Field::Number(1)),
        (3, Field::Bytes(b"plain")),
        (4, Field::Number(1)),
        (5, Field::Number(4096)),
        (8, Field::Bytes(own)),
    ])
}

/// What a WELCOME says.
pub struct Welcome {
    pub outcome: u64,
    pub fresh: u64,
    pub token: Vec<u8>,
    pub received: u64,
}

fn welcome_of(content: &[u8]) -> Welcome {
    let (_, own) = field(content, 8);
    Welcome {
        outcome: field(&own, 3).0,
        fresh: field(&own, 4).0,
        token: field(&own, 5).1,
        received: field(&own, 6).0,
    }
}

/// The token in the first frame of a server.
pub fn token_in(bytes: &[u8]) -> Vec<u8> {
    let len = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    welcome_of(&bytes[8..8 + len]).token
}

/// How much a message between the messages acknowledges, and whether it lets the client go.
pub fn control_of(frame: &Frame) -> Option<(u64, bool)> {
    let (id, content) = frame;
    (*id == RESERVED_ID).then(|| (field(content, 1).0, field(content, 4).0 == 1))
}

/// The reason and the text, if it is the end.
pub fn end_of((id, content): &Frame) -> Option<(i32, String)> {
    (*id == CLOSE).then(|| {
        let text = String::from_utf8(field(content, 3).1).unwrap();
        (field(content, 1).0 as i32, text)
    })
}

/// A connection.
pub struct Wire(TcpStream);

impl Wire {
    pub fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).unwrap())
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    pub fn frame(&mut self, id: u16, content: &[u8]) {
        let mut frame = (content.len() as u32).to_le_bytes().to_vec();
        frame.extend(id.to_le_bytes());
        frame.extend([0; 2]);
        frame.extend(content);
        // The other end may have closed.
        let _ = self.0.write_all(&frame);
    }

    /// The next frame, heartbeats included; `None` at the end.
    pub fn try_frame(&mut self) -> Option<Frame> {
        let mut header = [0; 8];
        self.0.read_exact(&mut header).ok()?;
        let len = u32::from_le_bytes(header[..4].try_into().unwrap());
        let mut content = vec![0; len as usize];
        self.0.read_exact(&mut content).ok()?;
        Some((u16::from_le_bytes([header[4], header[5]]), content))
    }

    pub fn until_frame<T>(&mut self, mut pick: impl FnMut(&Frame) -> Option<T>) -> T {
        loop {
            let frame = self.try_frame().expect("a frame");
            if let Some(picked) = pick(&frame) {
                return picked;
            }
        }
    }

    /// HELLO with this greeting.
    pub fn say(&mut self, own: &[u8]) {
        self.frame(HELLO, &greeting(own));
    }

    pub fn say_hello(&mut self, token: &[u8], received: u64) {
        self.say_attempt(token, received, 0);
    }

    pub fn say_attempt(&mut self, token: &[u8], received: u64, attempt: u64) {
        self.say(&encode(&[
            (1, Field::Fixed(MAGIC)),
            (2, Field::Number(1)),
            (3, Field::Bytes(token)),
            (4, Field::Number(received)),
            (8, Field::Number(attempt)),
        ]));
    }

    pub fn hello(&mut self, token: &[u8], received: u64) -> Welcome {
        self.say_hello(token, received);
        self.until_frame(|(id, content)| (*id == WELCOME).then(|| welcome_of(content)))
    }

    /// What the server answers, unless it refuses.
    pub fn answer(&mut self) -> Option<Welcome> {
        let (id, content) = self.try_frame()?;
        (id == WELCOME).then(|| welcome_of(&content))
    }

    pub fn welcome(&mut self, outcome: u64, token: &[u8], received: u64) {
        let _ = self.try_frame();
        let own = encode(&[
            (1, Field::Fixed(MAGIC)),
            (2, Field::Number(1)),
            (3, Field::Number(outcome)),
            (5, Field::Bytes(token)),
            (6, Field::Number(received)),
        ]);
        self.frame(WELCOME, &greeting(&own));
    }

    pub fn message(&mut self, content: &[u8]) {
        self.frame(1, content);
    }

    /// Acknowledges all below a number, and asks for the same.
    pub fn control(&mut self, received: u64, answer: bool) {
        let fields = [
            (1, Field::Number(received)),
            (2, Field::Number(u64::from(answer))),
        ];
        self.frame(RESERVED_ID, &encode(&fields));
    }

    /// Acknowledges all below a number, and sends nothing more on this connection.
    pub fn leave(&mut self, received: u64) {
        let fields = [(1, Field::Number(received)), (3, Field::Number(1))];
        self.frame(RESERVED_ID, &encode(&fields));
    }

    /// As a server that has all, and lets its client go.
    pub fn let_go(&mut self, received: u64) {
        let fields = [(1, Field::Number(received)), (4, Field::Number(1))];
        self.frame(RESERVED_ID, &encode(&fields));
    }

    /// Ends politely.
    pub fn close(&mut self) {
        let reason = CloseReason::Finished.number() as u64;
        self.frame(CLOSE, &encode(&[(1, Field::Number(reason))]));
    }

    pub fn next_message(&mut self) -> Vec<u8> {
        self.until_frame(|(id, content)| (*id == 1).then(|| content.clone()))
    }

    /// The reason and the text of the end.
    pub fn closed(&mut self) -> (i32, String) {
        self.until_frame(end_of)
    }
}

/// Serves one connection after the other by hand.
pub fn fake_server(mut serve: impl FnMut(&mut Wire) + Send + 'static) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            serve(&mut Wire::of(stream));
        }
    });
    address
}
