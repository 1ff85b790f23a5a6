//! The broker's end of a session on a blocking socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use embar_frame::{CHECKSUM_BYTES, FRAME_HEADER_BYTES, Now};
use embar_session::{Incoming, RingPools, SessionConfig, SessionCore, Step};
use embar_transport::RecvBuf;
use embar_wire::ack;
use embar_wire::control::{self, Control, ErrorCode, Hello, Welcome};
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::limits::{Limits, MAX_BATCH_BYTES};

/// What a client said.
pub enum Heard {
    Request(Control),
    /// A whole frame.
    Batch(Vec<u8>),
    /// Nothing for as long as was asked.
    Silence,
    Gone,
}

pub struct Conversation {
    stream: TcpStream,
    core: SessionCore<LogProtocol>,
    receiving: Option<RecvBuf>,
    /// How often something came.
    receipts: u64,
    began: Instant,
}

impl Conversation {
    /// `idle` is how long a client is told that it may be silent. Nothing is done to one that is.
    pub fn new(stream: TcpStream, idle: Duration) -> Self {
        let rings = RingPools::new(64 << 10, 64 << 10, 0).expect("sizes");
        let config = SessionConfig::default().with(|config| {
            config.max_body_bytes = MAX_BATCH_BYTES;
            config.idle_timeout = idle;
        });
        let core = SessionCore::accepting(LogProtocol::default(), &config, &rings, Now(0));
        Self {
            stream,
            core: core.expect("memory"),
            receiving: None,
            receipts: 0,
            began: Instant::now(),
        }
    }

    /// How often the client said something.
    pub fn receipts(&self) -> u64 {
        self.receipts
    }

    fn now(&self) -> Now {
        Now(0).after(self.began.elapsed())
    }

    /// What comes next, waited for no longer than `patience` where that is given.
    pub fn hear(&mut self, patience: Option<Duration>) -> Heard {
        loop {
            let now = self.now();
            match self.core.next(now) {
                Some(Incoming::Opened { greeting }) => {
                    Hello::from_greeting(greeting).expect("a good Hello");
                    self.core
                        .welcome(&welcome().to_greeting(), now)
                        .expect("decided now");
                    continue;
                }
                Some(Incoming::Message(message)) => {
                    let id = FrameId::try_from(message.id()).expect("a known frame");
                    let request = control::decode(id, message.payload());
                    return Heard::Request(request.expect("a good request"));
                }
                Some(Incoming::Head(head)) => {
                    let frame = head.header();
                    let mut bytes = frame.to_bytes().to_vec();
                    bytes.extend_from_slice(head.head());
                    bytes.extend_from_slice(head.early());
                    return self.rest_of(bytes, frame.frame_bytes());
                }
                Some(Incoming::Closed(_)) => return Heard::Gone,
                Some(_) => continue,
                None => {}
            }
            if !self.flush() {
                return Heard::Gone;
            }
            let Some(mut buf) = self.receiving.take() else {
                return Heard::Gone;
            };
            let timeout = self.stream.set_read_timeout(patience);
            match timeout.and_then(|()| self.stream.read(buf.spaces().0)) {
                Ok(count) => {
                    buf.advance(count);
                    self.receipts += 1;
                    self.core.received(buf, &Ok(count), self.now());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.receiving = Some(buf);
                    return Heard::Silence;
                }
                Err(error) => self.core.received(buf, &Err(error), self.now()),
            }
        }
    }

    fn rest_of(&mut self, mut frame: Vec<u8>, len: usize) -> Heard {
        let have = frame.len();
        frame.resize(len, 0);
        let whole = self
            .stream
            .set_read_timeout(None)
            .and_then(|()| self.stream.read_exact(&mut frame[have..]));
        if whole.is_err() {
            return Heard::Gone;
        }
        self.core.body_received(len - have, self.now());
        Heard::Batch(frame)
    }

    /// Sends what the session has ready; false if it is over.
    fn flush(&mut self) -> bool {
        while let Some(step) = self.core.poll() {
            match step {
                Step::Recv(buf) => self.receiving = Some(buf),
                Step::Send(mut buf) => {
                    let written = buf.with_unsent(|head, _| self.stream.write_all(head));
                    if written.is_err() {
                        return false;
                    }
                    buf.advance(buf.remaining());
                    self.core.sent(buf, &Ok(()), self.now());
                }
                Step::ShutdownWrite | Step::Close => return false,
            }
        }
        true
    }

    pub fn say(&mut self, message: &Control) {
        let len = control::body_len(message).expect("small");
        let said = self.core.send_with(message.id() as u16, len, |out| {
            control::encode_body(message, out).expect("of that length");
        });
        // To a client that is gone nothing can be said.
        let _ = said;
    }

    /// Ends the session, with a code of the log as the reason.
    pub fn refuse(mut self, code: ErrorCode, text: &str) {
        self.core.refuse(code.number(), text, self.now());
        self.flush();
    }

    /// Where the batch is, or why it is nowhere, with what comes with the reason.
    pub fn acknowledge(&mut self, number: u64, stored: Result<u64, (ErrorCode, u64)>) {
        let mut bytes = Vec::new();
        match stored {
            Ok(offset) => ack::encode_ack(number, None, &[offset], &mut bytes),
            Err((code, mark)) => ack::encode_ack(number, Some(code), &[mark], &mut bytes),
        }
        let body = &bytes[FRAME_HEADER_BYTES..bytes.len() - CHECKSUM_BYTES];
        let _ = self.core.send_with(FrameId::Ack as u16, body.len(), |out| {
            out.copy_from_slice(body);
        });
    }

    /// Ends the session in place of a welcome.
    pub fn turn_away(mut self, code: ErrorCode, text: &str) {
        self.core.refuse(code.number(), text, self.now());
        self.flush();
        // What the client said is read, or the connection would be reset, and it might not hear why.
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = io::copy(&mut self.stream, &mut io::sink());
    }

    /// Whole batches, as they are; false if the client is gone.
    pub fn send_batches(&mut self, frames: &[u8]) -> bool {
        self.flush() && self.stream.write_all(frames).is_ok()
    }
}

fn welcome() -> Welcome {
    Welcome {
        broker_id: 0,
        incarnation: 1,
        max_control_bytes: Limits::default().max_control_bytes,
        max_batch_bytes: MAX_BATCH_BYTES,
        server: "fake".into(),
        region: 0,
    }
}
