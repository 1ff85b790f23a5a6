//! The admin client's connection to one broker. Each call sends a request and blocks the worker thread until the answer
//! comes or the deadline passes.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use embar_transport::socket::SocketError;
use embar_transport::{Address, RecvBuf, SendBuf, Stream, socket as sockets};
use embar_wire::control::{Control, ErrorReply, Welcome};

use crate::clock::Clock;
use crate::connection::{
    Connection, ConnectionAction, ConnectionError, ConnectionSettings, Incoming, Violation,
    refusal_of,
};
use crate::socket;

/// Why a request got no answer. The connection cannot be used again, or a late answer would go to the next request.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) cause: ConnectionError,
    /// What the broker said, if it refused the request.
    pub(super) refusal: Option<ErrorReply>,
}

impl<E: Into<ConnectionError>> From<E> for Broken {
    fn from(cause: E) -> Self {
        let (cause, refusal) = (cause.into(), None);
        Self { cause, refusal }
    }
}

impl Broken {
    fn refused(refusal: ErrorReply) -> Self {
        Self {
            cause: (&refusal).into(),
            refusal: Some(refusal),
        }
    }

    /// Of a blocking call: a socket reports a timeout as if the call had been non-blocking.
    fn io(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ConnectionError::NO_ANSWER.into()
            }
            _ => error.into(),
        }
    }
}

const ENDED: ConnectionError = ConnectionError::Local("the connection ended");

/// A connection on which each call blocks, until its deadline.
pub(super) struct BlockingConnection {
    stream: Stream,
    connection: Connection,
    clock: Clock,
    /// What the connection wants to be received into.
    receiving: Option<RecvBuf>,
}

/// What became of one step of a conversation.
enum Turn {
    Welcome(Welcome),
    Answer(Control),
    /// Something moved.
    Progress,
    /// Nothing more can be done before bytes come.
    Wait(RecvBuf),
}

impl BlockingConnection {
    /// Connects, by `connect_by`, and shakes hands; `check` says whether it is the right broker that answers.
    pub(super) fn open(
        address: &Address,
        settings: &ConnectionSettings,
        connect_by: Instant,
        deadline: Instant,
        check: impl Fn(&Welcome) -> Result<(), Violation>,
    ) -> Result<Self, Broken> {
        let connected = sockets::connect(address, left(connect_by)?, &socket::options());
        let stream = connected.map_err(|error| match error {
            SocketError::Connect { source, .. } | SocketError::Listen { source, .. } => {
                Broken::io(source)
            }
        })?;
        let mut connection = Connection::new(settings.clone());
        connection.connect(address.clone());
        // It asks to be connected, which it is.
        let _ = connection.poll();
        let clock = Clock::new();
        connection.connected(clock.now())?;
        let mut conversation = Self {
            stream,
            connection,
            clock,
            receiving: None,
        };
        loop {
            match conversation.turn(deadline)? {
                Turn::Welcome(welcome) => {
                    check(&welcome)?;
                    return Ok(conversation);
                }
                Turn::Answer(Control::Error(refusal)) => return Err(Broken::refused(refusal)),
                Turn::Answer(other) => {
                    let what = format!("{:?} was not asked for", other.id());
                    return Err(Violation::from(what).into());
                }
                Turn::Progress => {}
                Turn::Wait(buf) => conversation.receive(buf, Some(deadline))?,
            }
        }
    }

    /// Asks and waits for the answer.
    pub(super) fn ask(&mut self, request: &Control, deadline: Instant) -> Result<Control, Broken> {
        self.connection.send(request)?;
        loop {
            match self.turn(deadline)? {
                Turn::Welcome(_) | Turn::Progress => {}
                Turn::Answer(answer) => return Ok(answer),
                Turn::Wait(buf) => self.receive(buf, Some(deadline))?,
            }
        }
    }

    /// Takes in what came since the last answer: heartbeats, or the end. True if the next request may be made here.
    pub(super) fn is_alive(&mut self, deadline: Instant) -> bool {
        loop {
            match self.turn(deadline) {
                Ok(Turn::Wait(buf)) => match self.receive(buf, None) {
                    Ok(()) if self.receiving.is_some() => return true,
                    Ok(()) => {}
                    Err(_) => return false,
                },
                Ok(Turn::Progress) => {}
                // An answer that nobody waits for would be taken for the next one.
                Ok(Turn::Welcome(_) | Turn::Answer(_)) | Err(_) => return false,
            }
        }
    }

    /// Takes one frame, or does one thing that brings it closer.
    fn turn(&mut self, deadline: Instant) -> Result<Turn, Broken> {
        match self.connection.next(self.clock.now())? {
            Some(Incoming::Welcome(welcome)) => return Ok(Turn::Welcome(welcome)),
            Some(Incoming::Control(message)) => return Ok(Turn::Answer(message)),
            Some(Incoming::Nothing) => return Ok(Turn::Progress),
            Some(Incoming::Goodbye) => {
                return Err(ConnectionError::Local("the broker is leaving").into());
            }
            // A broker that will never do it says so by the end of the session, too; any other end may be made good
            // elsewhere, or later.
            Some(Incoming::Closed(closed)) => {
                return match refusal_of(&closed) {
                    Some(refusal) if !refusal.retryable => {
                        Ok(Turn::Answer(Control::Error(refusal)))
                    }
                    Some(refusal) => Err(Broken::refused(refusal)),
                    None => Err(ConnectionError::Session(closed).into()),
                };
            }
            Some(Incoming::Ack(_) | Incoming::Batch { .. }) => {
                return Err(Violation::from("data on a control connection").into());
            }
            None => {}
        }
        match self.connection.poll() {
            Some(ConnectionAction::Send(buf)) => self.send(buf, deadline)?,
            Some(ConnectionAction::Receive(buf)) => self.receiving = Some(buf),
            Some(
                ConnectionAction::Connect(_)
                | ConnectionAction::ShutdownWrite
                | ConnectionAction::Close,
            ) => {
                return Err(ENDED.into());
            }
            None => {
                let waits = self.receiving.take().map(Turn::Wait);
                return waits.ok_or_else(|| ENDED.into());
            }
        }
        Ok(Turn::Progress)
    }

    fn send(&mut self, mut buf: SendBuf, deadline: Instant) -> Result<(), Broken> {
        self.stream.set_timeout(Some(left(deadline)?))?;
        buf.with_unsent(|head, body| {
            self.stream.write_all(head)?;
            self.stream.write_all(body)
        })
        .map_err(Broken::io)?;
        buf.advance(buf.remaining());
        self.connection.sent(buf, &Ok(()), self.clock.now());
        Ok(())
    }

    /// Waits for bytes; without a deadline it takes only what is there. If nothing came, the buffer stays for later.
    fn receive(&mut self, mut buf: RecvBuf, deadline: Option<Instant>) -> Result<(), Broken> {
        let stream = &mut self.stream;
        let prepared = match deadline {
            Some(deadline) => stream.set_timeout(Some(left(deadline)?)),
            None => stream.set_nonblocking(true),
        };
        let result = prepared.and_then(|()| stream.read(buf.spaces().0));
        if deadline.is_none() {
            stream.set_nonblocking(false)?;
        }
        match result {
            Ok(bytes) => {
                buf.advance(bytes);
                self.connection.received(buf, &Ok(bytes), self.clock.now());
            }
            // A process that was stopped and goes on: a receive with a timeout ends by it.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.receiving = Some(buf),
            Err(error) if deadline.is_none() && error.kind() == io::ErrorKind::WouldBlock => {
                self.receiving = Some(buf);
            }
            Err(error) => return Err(Broken::io(error)),
        }
        Ok(())
    }
}

fn left(deadline: Instant) -> Result<Duration, Broken> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(ConnectionError::NO_ANSWER.into())
    } else {
        Ok(left)
    }
}
