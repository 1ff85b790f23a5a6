//! One blocking connection: a request, then its answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use embar_wire::control::Control;

use crate::connection::{Incoming, Link, LinkAction};

/// Why a request got no answer. The connection cannot be used again, or a late answer would go to the next request.
pub(super) type Broken = String;

pub(super) struct Conversation {
    stream: TcpStream,
    link: Link,
}

impl Conversation {
    /// Connects and shakes hands.
    pub(super) fn open(address: SocketAddr, deadline: Instant) -> Result<Self, Broken> {
        let stream = TcpStream::connect_timeout(&address, left(deadline)?)
            .map_err(|error| error.to_string())?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let mut link = Link::new(&format!("embar-admin {}", env!("CARGO_PKG_VERSION")), 4096);
        link.connect(address);
        // The link asks for the connection that stands already.
        let _ = link.poll();
        link.connected();
        let mut conversation = Self { stream, link };
        while !conversation.link.is_up() {
            if let Some(message) = conversation.turn(deadline)? {
                return Err(match message {
                    Control::Error(refusal) => refusal.message,
                    other => format!("{:?} before Welcome", other.id()),
                });
            }
        }
        Ok(conversation)
    }

    /// Asks and waits for the answer.
    pub(super) fn ask(&mut self, request: &Control, deadline: Instant) -> Result<Control, Broken> {
        self.link.send(request);
        loop {
            match self.turn(deadline)? {
                None => {}
                Some(Control::Ping) => self.link.send(&Control::Pong),
                Some(Control::Goodbye(goodbye)) => {
                    return Err(format!("the broker is leaving: {}", goodbye.reason));
                }
                Some(answer) => return Ok(answer),
            }
        }
    }

    /// Takes one frame, or does one thing that brings it closer.
    fn turn(&mut self, deadline: Instant) -> Result<Option<Control>, Broken> {
        match self.link.next_frame()? {
            Some(Incoming::Welcome(_)) => return Ok(None),
            Some(Incoming::Control(message)) => return Ok(Some(message)),
            Some(_) => return Err("data on a control connection".into()),
            None => {}
        }
        match self.link.poll() {
            Some(LinkAction::Send(bytes)) => {
                let limit = left(deadline)?;
                let sent = self
                    .stream
                    .set_write_timeout(Some(limit))
                    .and_then(|()| self.stream.write_all(&bytes));
                sent.map_err(|error| readable(&error))?;
                self.link.sent();
            }
            Some(LinkAction::Receive(mut buffer, space)) => {
                let limit = left(deadline)?;
                let count = self
                    .stream
                    .set_read_timeout(Some(limit))
                    .and_then(|()| self.stream.read(&mut buffer[space]))
                    .map_err(|error| readable(&error))?;
                if count == 0 {
                    return Err("the broker closed the connection".into());
                }
                self.link.received(buffer, count);
            }
            Some(LinkAction::Connect(_) | LinkAction::Close) | None => {
                return Err("the connection ended".into());
            }
        }
        Ok(None)
    }
}

fn left(deadline: Instant) -> Result<Duration, Broken> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err("no answer in time".into())
    } else {
        Ok(left)
    }
}

/// A socket's timeout is reported as if the call had been non-blocking.
fn readable(error: &io::Error) -> Broken {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".into(),
        _ => error.to_string(),
    }
}
