//! One request of a session and its answer, on any bytes that can be read and written, for peers that no client library is.

use std::io::{Read, Write};

use anyhow::{Context as _, Result, bail};
use embar_frame::Now;
use embar_session::{Incoming, RingPools, SessionConfig, SessionCore, Step};
use embar_wire::control::{self, Control, Hello, Role};
use embar_wire::frame::LogProtocol;
use embar_wire::limits::MAX_CONTROL_BYTES;

/// Shakes hands as a client of this name, sends the request, and returns the first message that comes.
pub fn ask(
    stream: &mut (impl Read + Write),
    rings: &RingPools,
    name: &str,
    request: &Control,
) -> Result<Control> {
    let hello = Hello {
        role: Role::Client,
        name: name.into(),
    };
    let config = SessionConfig::default().with(|config| {
        config.max_frame_bytes = MAX_CONTROL_BYTES;
        config.read_ahead = 0;
    });
    let mut core = SessionCore::connecting(
        LogProtocol::default(),
        &config,
        rings,
        &hello.to_greeting(),
        Now(0),
    )?;
    loop {
        while let Some(incoming) = core.next(Now(0)) {
            match incoming {
                Incoming::Opened { .. } => {
                    let mut bytes = Vec::new();
                    control::encode(request, &mut bytes)?;
                    stream.write_all(&bytes)?;
                }
                Incoming::Message(message) => {
                    let id = message.id().try_into().ok().context("an unknown frame")?;
                    return Ok(control::decode(id, message.payload())?);
                }
                other => bail!("{other:?} in place of an answer"),
            }
        }
        let mut wanted = None;
        while let Some(step) = core.poll() {
            match step {
                Step::Recv(buf) => wanted = Some(buf),
                Step::Send(mut buf) => {
                    buf.with_unsent(|head, body| {
                        stream.write_all(head)?;
                        stream.write_all(body)
                    })?;
                    buf.advance(buf.remaining());
                    core.sent(buf, &Ok(()), Now(0));
                }
                Step::ShutdownWrite | Step::Close => bail!("the broker ended the session"),
            }
        }
        let mut buf = wanted.context("the session is over")?;
        let count = stream.read(buf.spaces().0)?;
        buf.advance(count);
        core.received(buf, &Ok(count), Now(0));
    }
}
