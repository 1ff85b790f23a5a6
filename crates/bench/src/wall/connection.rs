//! One connection of a receiving process: reads what the peer wants, then takes bytes into the ring or sends bytes from
//! it, as far as the non-blocking socket goes along.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::ring::{Place, Ring};
use super::wire::{ANSWER_BYTES, Checker, HELLO_BYTES, Hello, Kind};

/// When a connection has work next.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// There may be more to do: other connections first.
    Again,
    /// Nothing until the next edge of the socket.
    Wait,
    /// Done, or broken.
    Over,
}

enum State {
    Greeting {
        bytes: [u8; HELLO_BYTES],
        got: usize,
    },
    Taking {
        hello: Hello,
        place: Place,
        got: usize,
        total: u64,
    },
    Answering {
        bytes: [u8; ANSWER_BYTES],
        sent: usize,
    },
    Giving {
        place: Place,
        at: usize,
        batch: usize,
        left: u64,
    },
}

/// A non-blocking stream and how far it is.
pub struct Connection {
    /// The socket.
    pub stream: TcpStream,
    /// The peer has shut its side, so a short read no longer says that an edge will follow.
    pub peer_ended: bool,
    checker: Checker,
    state: State,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            peer_ended: false,
            checker: Checker::default(),
            state: State::Greeting {
                bytes: [0; HELLO_BYTES],
                got: 0,
            },
        }
    }

    /// Takes or sends one batch at most.
    pub fn turn(&mut self, ring: &mut Ring) -> Turn {
        match self.step(ring) {
            Ok(turn) => turn,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Turn::Wait,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Turn::Again,
            Err(_) => Turn::Over,
        }
    }

    fn step(&mut self, ring: &mut Ring) -> io::Result<Turn> {
        match &mut self.state {
            State::Greeting { bytes, got } => {
                *got += more(self.stream.read(&mut bytes[*got..])?)?;
                if *got == HELLO_BYTES {
                    self.state = begin(bytes, ring).ok_or(io::ErrorKind::InvalidData)?;
                }
                Ok(Turn::Again)
            }
            State::Taking {
                hello,
                place,
                got,
                total,
            } => {
                let batch = hello.batch_bytes as usize;
                let room = ring.bytes(*place, *got, batch);
                let wanted = room.len();
                let n = self.stream.read(room)?;
                if n == 0 {
                    self.state = State::Answering {
                        bytes: total.to_le_bytes(),
                        sent: 0,
                    };
                    return Ok(Turn::Again);
                }
                let check = hello.kind == Kind::Check;
                if check {
                    self.checker.arrived(&room[..n], *got);
                }
                *got += n;
                *total += n as u64;
                if *got == batch {
                    if check && !self.checker.is_sound(ring.bytes(*place, 0, batch)) {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    *place = ring.take(batch).ok_or(io::ErrorKind::InvalidData)?;
                    *got = 0;
                    return Ok(Turn::Again);
                }
                // Fewer bytes than asked for: the socket is empty (epoll(7), on edges) and the next byte raises an edge.
                Ok(if n < wanted && !self.peer_ended {
                    Turn::Wait
                } else {
                    Turn::Again
                })
            }
            State::Answering { bytes, sent } => {
                *sent += self.stream.write(&bytes[*sent..])?;
                Ok(if *sent == ANSWER_BYTES {
                    Turn::Over
                } else {
                    Turn::Again
                })
            }
            State::Giving {
                place,
                at,
                batch,
                left,
            } => {
                if *left == 0 {
                    return Ok(Turn::Over);
                }
                let end = (*at as u64 + *left).min(*batch as u64) as usize;
                let n = self.stream.write(ring.bytes(*place, *at, end))?;
                *at += n;
                *left -= n as u64;
                if *at == *batch {
                    *place = ring.take(*batch).ok_or(io::ErrorKind::InvalidData)?;
                    *at = 0;
                }
                Ok(Turn::Again)
            }
        }
    }
}

/// No bytes are the end, where one is not due.
fn more(n: usize) -> io::Result<usize> {
    if n == 0 {
        Err(io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(n)
    }
}

fn begin(bytes: &[u8; HELLO_BYTES], ring: &mut Ring) -> Option<State> {
    let hello = Hello::parse(bytes)?;
    let batch = hello.batch_bytes as usize;
    let place = ring.take(batch)?;
    Some(match hello.kind {
        Kind::Give => State::Giving {
            place,
            at: 0,
            batch,
            left: hello.bytes,
        },
        Kind::Take | Kind::Check => State::Taking {
            hello,
            place,
            got: 0,
            total: 0,
        },
    })
}
