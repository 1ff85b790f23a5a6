//! Counts what one message costs in instructions, in the core alone.
//!
//! ```text
//! cargo build --release -p embar-session --example instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     target/release/examples/instructions send 100000
//! ```
//!
//! The first argument is `send` (size, encode, commit; the bytes are dropped), `receive` (the same
//! bytes over and over: find the frame, decode the view) or `both`, the second how many messages. A
//! message costs the difference of two counts for different numbers of messages, divided by the
//! difference of the numbers. The I/O that is left out is done once for 100 messages.

#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;

use embar_session::buffer::{RecvBuf, SendBuf};
use embar_session::{Incoming, Now, Plain, RingPools, SessionConfig, SessionCore, Step};

#[allow(missing_docs, unused_imports, clippy::all, reason = "generated")]
mod proto {
    mod generated {
        include!(concat!(env!("OUT_DIR"), "/testing.include.rs"));
    }
    pub(super) use generated::embar::testing::v1::*;
}

/// Messages that go out together.
const BATCH: usize = 100;

struct End {
    core: SessionCore<Plain>,
    recv: Option<RecvBuf>,
    send: Option<SendBuf>,
}

impl End {
    fn new(core: SessionCore<Plain>) -> Self {
        Self {
            core,
            recv: None,
            send: None,
        }
    }

    fn poll(&mut self) {
        while let Some(step) = self.core.poll() {
            match step {
                Step::Recv(buf) => self.recv = Some(buf),
                Step::Send(buf) => self.send = Some(buf),
                Step::ShutdownWrite | Step::Close => {}
            }
        }
    }

    /// All that is to be sent, as if it were: appended to `out` if there is one.
    fn sent(&mut self, out: Option<&mut Vec<u8>>) {
        self.poll();
        let Some(mut send) = self.send.take() else {
            return;
        };
        if let Some(out) = out {
            send.with_unsent(|head, _| out.extend_from_slice(head));
        }
        send.advance(send.remaining());
        self.core.sent(send, &Ok(()), Now(0));
    }

    /// As if `bytes` had been received.
    fn received(&mut self, bytes: &[u8]) {
        self.poll();
        let Some(mut recv) = self.recv.take() else {
            return;
        };
        let count = recv.fill(bytes);
        self.core.received(recv, &Ok(count), Now(0));
    }

    /// What a handler does: one look at each message as a view. The sum of their numbers.
    fn read(&mut self) -> u64 {
        let mut sum = 0;
        loop {
            match self.core.next(Now(0)) {
                None => return sum,
                Some(Incoming::Message(message)) => {
                    sum += message
                        .decode::<proto::PacketView<'_>>()
                        .map_or(0, |packet| packet.number);
                }
                Some(Incoming::Opened { .. }) => {
                    let _ = self.core.welcome(b"", Now(0));
                }
                Some(_) => {}
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "both".into());
    let count: usize = arguments.next().map_or(Ok(100_000), |n| n.parse())?;
    let received = run(&what, count)?;
    println!("{what}: {count} messages, {received} of them received");
    Ok(())
}

/// Sends, receives or both, `count` messages in all; how many were received.
pub fn run(what: &str, count: usize) -> Result<u64, Box<dyn Error>> {
    let (send, receive) = match what {
        "both" => (true, true),
        "send" => (true, false),
        "receive" => (false, true),
        other => return Err(format!("{other}? say send, receive or both").into()),
    };
    let rings = RingPools::new(64 << 10, 64 << 10, 2)?;
    let config = SessionConfig::default();
    let mut a = End::new(SessionCore::connecting(
        Plain,
        &config,
        &rings,
        b"",
        Now(0),
    )?);
    let mut b = End::new(SessionCore::accepting(Plain, &config, &rings, Now(0))?);
    let mut bytes = Vec::new();
    a.sent(Some(&mut bytes));
    b.received(&bytes);
    b.read();
    bytes.clear();
    b.sent(Some(&mut bytes));
    a.received(&bytes);
    a.read();
    bytes.clear();

    let packet = proto::Packet {
        number: 1,
        name: "sixteen bytes ok".into(),
        data: vec![7; 42],
        ..Default::default()
    };
    for _ in 0..BATCH {
        a.core.send(1, &packet)?;
    }
    a.sent(Some(&mut bytes));
    let mut sum = 0;
    for _ in 0..count / BATCH {
        if send {
            for _ in 0..BATCH {
                a.core.send(1, &packet)?;
            }
            a.sent(None);
        }
        if receive {
            b.received(&bytes);
            sum += b.read();
        }
    }
    Ok(sum)
}
