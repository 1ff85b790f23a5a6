//! One connection of a receiving process: reads what the peer wants, then takes bytes into the ring or sends bytes from
//! it, as far as the non-blocking socket goes along.

use std::io::{self, Read, Write};

use super::relay::Relay;
use super::ring::{Place, Ring};
use super::stream::Stream;
use super::wire::{ANSWER_BYTES, Checker, HELLO_BYTES, Hello, Kind};

/// When a connection has work next.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// There may be more to do: other connections first.
    Again,
    /// Nothing until the next edge of the socket.
    Wait,
    /// Nothing until the relay has room, or a batch to send.
    WaitForRelay,
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
    Following {
        /// What is being sent: where it is, how long it is, and how much of it is sent.
        batch: Option<(Place, usize, usize)>,
        left: u64,
    },
}

/// What all connections of a process share.
pub struct Memory {
    /// Where bytes go to, and come from.
    pub ring: Ring,
    /// What is to be passed on.
    pub relay: Relay,
}

/// A non-blocking stream and how far it is.
pub struct Connection {
    /// The socket.
    pub stream: Stream,
    /// The peer has shut its side, so a short read no longer says that an edge will follow.
    pub peer_ended: bool,
    checker: Checker,
    state: State,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(stream: Stream) -> Self {
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
    pub fn turn(&mut self, memory: &mut Memory) -> Turn {
        match self.step(memory) {
            Ok(turn) => turn,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Turn::Wait,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Turn::Again,
            Err(_) => Turn::Over,
        }
    }

    fn step(&mut self, memory: &mut Memory) -> io::Result<Turn> {
        let Memory { ring, relay } = memory;
        let checker = &mut self.checker;
        let stream = &mut self.stream;
        match &mut self.state {
            State::Greeting { bytes, got } => {
                *got += more(stream.read(&mut bytes[*got..])?)?;
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
                if hello.kind.relays() && relay.is_full() {
                    return Ok(Turn::WaitForRelay);
                }
                let batch = hello.batch_bytes as usize;
                let room = ring.bytes(*place, *got, batch);
                let wanted = room.len();
                let n = stream.read(room)?;
                if n == 0 {
                    self.state = answer(*total);
                    return Ok(Turn::Again);
                }
                let check = hello.kind.checks();
                if check {
                    checker.arrived(&room[..n], *got);
                }
                *got += n;
                *total += n as u64;
                if *got == batch {
                    if check && !checker.is_sound(ring.bytes(*place, 0, batch)) {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    if hello.kind.relays() {
                        relay.push(*place, batch);
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
                *sent += stream.write(&bytes[*sent..])?;
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
                let n = stream.write(ring.bytes(*place, *at, end))?;
                *at += n;
                *left -= n as u64;
                if *at == *batch {
                    *place = ring.take(*batch).ok_or(io::ErrorKind::InvalidData)?;
                    *at = 0;
                }
                Ok(Turn::Again)
            }
            State::Following { batch, left } => {
                if *left == 0 {
                    return Ok(Turn::Over);
                }
                let Some((place, len, sent)) = batch else {
                    *batch = relay.next().map(|(place, len)| (place, len, 0));
                    return Ok(if batch.is_some() {
                        Turn::Again
                    } else {
                        Turn::WaitForRelay
                    });
                };
                let n = stream.write(ring.bytes(*place, *sent, *len))?;
                *sent += n;
                *left = left.saturating_sub(n as u64);
                if sent == len {
                    relay.sent(*len);
                    *batch = None;
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

fn answer(number: u64) -> State {
    State::Answering {
        bytes: number.to_le_bytes(),
        sent: 0,
    }
}

fn begin(bytes: &[u8; HELLO_BYTES], ring: &mut Ring) -> Option<State> {
    let hello = Hello::parse(bytes)?;
    let batch = hello.batch_bytes as usize;
    Some(match hello.kind {
        Kind::Give => State::Giving {
            place: ring.take(batch)?,
            at: 0,
            batch,
            left: hello.bytes,
        },
        Kind::Take | Kind::Check | Kind::Relay | Kind::RelayChecked => {
            ring.spoil();
            State::Taking {
                hello,
                place: ring.take(batch)?,
                got: 0,
                total: 0,
            }
        }
        Kind::Fill { message_bytes } => {
            ring.fill(batch, message_bytes as usize)?;
            answer(ring.capacity())
        }
        Kind::Follow => State::Following {
            batch: None,
            left: hello.bytes,
        },
    })
}
