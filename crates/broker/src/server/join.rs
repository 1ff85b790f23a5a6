//! How a follower or a standby asks the head where the region is. This happens once, before any thread runs,
//! so it simply blocks.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use embar_frame::Now;
use embar_session::{Incoming, RingPools, SessionConfig, SessionCore, Step};
use embar_transport::socket::{self, SocketOptions};
use embar_transport::{Mapped, RecvBuf, SendBuf};
use embar_wire::control::{self, Control, Hello, Join, Role};
use embar_wire::frame::{FrameId, LogProtocol};

use super::start_error::StartError;

/// How long the head may take to answer, and to send each part of it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Why no answer came: the head may be stopped, or wait for memory.
const NO_ANSWER: &str = "it does not answer in time; a row of a region on this machine can be taken without it, with --region and --id";
/// Size of each ring of the session.
const RING_BYTES: usize = 16 << 10;

/// What the head answers: where the region is, and which row is free.
pub(super) struct OfferedPlace {
    pub dir: PathBuf,
    pub nonce: u64,
    pub row: u16,
}

/// Asks the head at this address for a row.
pub(super) fn request_place(
    head: SocketAddr,
    address: SocketAddr,
    takes_data: bool,
) -> Result<OfferedPlace, StartError> {
    let fail = |why: String| StartError::Join { head, why };
    let absent = |why: String| StartError::NoHead { head, why };
    let mut head_session = HeadSession::connect(head).map_err(|e| absent(e.to_string()))?;
    let join = Join {
        pid: std::process::id(),
        address: address.to_string(),
        takes_data,
    };
    let answer = head_session.request(&Control::Join(join));
    let answer = answer.map_err(|failure| match failure {
        RequestFailure::NoAnswer(why) => absent(why),
        RequestFailure::Ended(why) => fail(why),
    })?;
    match answer {
        Control::Joined(joined) => Ok(OfferedPlace {
            dir: PathBuf::from(joined.region_dir),
            nonce: joined.nonce,
            row: u16::try_from(joined.broker_id).unwrap_or(u16::MAX),
        }),
        Control::Error(error) => Err(fail(error.message)),
        other => Err(fail(format!("it answered Join with {:?}", other.id()))),
    }
}

/// Why a request has no answer.
enum RequestFailure {
    /// Nobody is there, or the process stands still.
    NoAnswer(String),
    /// The head ended the session, or does not speak our protocol.
    Ended(String),
}

impl From<String> for RequestFailure {
    fn from(why: String) -> Self {
        Self::Ended(why)
    }
}

/// A session with the head over a socket that blocks.
struct HeadSession {
    stream: TcpStream,
    core: SessionCore<LogProtocol>,
    began: Instant,
}

impl HeadSession {
    fn connect(head: SocketAddr) -> io::Result<Self> {
        let stream = socket::connect_tcp(head, TIMEOUT, &SocketOptions::default());
        let stream = stream.map_err(io::Error::other)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let hello = Hello {
            role: Role::Broker,
            name: "broker".into(),
        };
        let core = SessionCore::connecting(
            LogProtocol::default(),
            &SessionConfig::default(),
            &RingPools::new(RING_BYTES, RING_BYTES, 0)?,
            &hello.to_greeting(),
            Now(0),
        )?;
        Ok(Self {
            stream,
            core,
            began: Instant::now(),
        })
    }

    fn now(&self) -> Now {
        Now(0).after(self.began.elapsed())
    }

    /// One request, one answer.
    fn request(&mut self, request: &Control) -> Result<Control, RequestFailure> {
        let mut sent_request = false;
        loop {
            let now = self.now();
            match self.core.next(now) {
                Some(Incoming::Opened { .. }) if !sent_request => {
                    sent_request = true;
                    let len = control::body_len(request).map_err(|e| e.to_string())?;
                    let id = request.id() as u16;
                    let sent = self.core.send_with(id, len, |out| {
                        control::encode_body(request, out).expect("`body_len` said how long it is");
                    });
                    sent.map_err(|e| e.to_string())?;
                }
                Some(Incoming::Message(answer)) => {
                    let id = FrameId::try_from(answer.id()).map_err(|e| e.to_string())?;
                    let answer = control::decode(id, answer.payload());
                    return Ok(answer.map_err(|e| e.to_string())?);
                }
                Some(Incoming::Closed(closed)) => return Err(closed.to_string().into()),
                Some(_) => {}
                None => self.exchange(now)?,
            }
        }
    }

    /// Sends what there is, then receives once.
    fn exchange(&mut self, now: Now) -> Result<(), RequestFailure> {
        if now > Now(0).after(TIMEOUT) {
            return Err(RequestFailure::NoAnswer(NO_ANSWER.into()));
        }
        let mut wanted = None;
        while let Some(step) = self.core.poll() {
            match step {
                Step::Recv(buf) => wanted = Some(buf),
                Step::Send(buf) => {
                    let (buf, result) = self.send(buf);
                    self.core.sent(buf, &result, now);
                    result.map_err(socket_error)?;
                }
                Step::ShutdownWrite | Step::Close => {
                    return Err(RequestFailure::Ended("it closed the connection".into()));
                }
            }
        }
        if let Some(buf) = wanted {
            let (buf, result) = self.receive(buf);
            self.core.received(buf, &result, now);
            result.map_err(socket_error)?;
        }
        Ok(())
    }

    fn send(&mut self, mut buf: SendBuf<Mapped>) -> (SendBuf<Mapped>, io::Result<()>) {
        let written = buf.with_unsent(|head, body| {
            self.stream.write_all(head)?;
            self.stream.write_all(body)
        });
        if written.is_ok() {
            buf.advance(buf.remaining());
        }
        (buf, written)
    }

    fn receive(&mut self, mut buf: RecvBuf<Mapped>) -> (RecvBuf<Mapped>, io::Result<usize>) {
        let got = loop {
            match self.stream.read(buf.spaces().0) {
                // A stopped process that goes on: the kernel ends its receives that have a timeout.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                got => break got,
            }
        };
        if let Ok(count) = got {
            buf.advance(count);
        }
        (buf, got)
    }
}

/// What went wrong with the socket. The kernel reports a timeout as an error that says nothing of time.
fn socket_error(error: io::Error) -> RequestFailure {
    RequestFailure::NoAnswer(match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => NO_ANSWER.into(),
        _ => error.to_string(),
    })
}
