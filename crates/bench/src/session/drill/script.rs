//! What each attack sends.

use anyhow::{Result, bail};
use embar_frame::{FIRST_RESERVED_ID, FRAME_HEADER_BYTES, FrameHeader, Now};
use embar_meter::random::filler;
use embar_session::buffer::Mapped;
use embar_session::{Plain, RingPools, SessionCore, Settings, Step};

use super::kind::Attack;
use crate::session::certificate;
use crate::session::copying::ECHO;
use crate::session::payloads::Payload;
use crate::session::server::echo_task;

/// Ids of the session layer's frames, as its schema has them.
const PING: u16 = FIRST_RESERVED_ID + 2;
const STATUS: u16 = FIRST_RESERVED_ID + 6;
/// Bytes that a flood writes at a time, about.
const CHUNK_BYTES: usize = 16 << 10;
/// Bytes of one question of those who read no answer, and of the message that comes slowly.
const LARGE_BYTES: u32 = 32 << 10;
/// Bytes of bodies that are announced: what the server takes.
const BODY_BYTES: u32 = 16 << 20;
/// Bytes of garbage.
const GARBAGE_BYTES: usize = 300;

/// How a connection of an attack behaves.
#[derive(Debug)]
pub(super) enum Script {
    /// It is closed again at once, as one that was opened. What is sent before that, by turns.
    Hit(Vec<Vec<u8>>),
    /// It stays.
    Stay {
        /// What is sent.
        bytes: Vec<u8>,
        /// So much of it at once, by turns; the others come one by one, from time to time.
        at_once: Vec<usize>,
        /// Whether another connection takes the place of one that the server ended.
        again: bool,
    },
    /// It sends over and over, as fast as it goes.
    Flood {
        /// What is sent once, first.
        opening: Vec<u8>,
        /// What is sent over and over.
        chunk: Vec<u8>,
        /// Whether it reads what comes back.
        reads: bool,
    },
}

impl Script {
    /// Of an attack on a server, which has this certificate if it speaks TLS.
    pub(super) fn of(attack: Attack, certificate: Option<&[u8]>) -> Result<Self> {
        let flood = |frame: Vec<u8>, reads| -> Result<Self> {
            let times = (CHUNK_BYTES / frame.len()).max(1);
            Ok(Self::Flood {
                opening: hello()?,
                chunk: frame.repeat(times),
                reads,
            })
        };
        let stay = |bytes: Vec<u8>, at_once: Vec<usize>, again| {
            Ok(Self::Stay {
                bytes,
                at_once,
                again,
            })
        };
        match attack {
            Attack::Silent => stay(Vec::new(), vec![0], false),
            Attack::Churn => Ok(Self::Hit(vec![Vec::new()])),
            Attack::HalfOpenTls => {
                let Some(certificate) = certificate else {
                    bail!("the server of {} speaks no TLS", attack.name());
                };
                let bytes = certificate::client_hello(certificate)?;
                let (half, all) = (bytes.len() / 2, bytes.len());
                stay(bytes, vec![all, half], true)
            }
            Attack::SlowGreeting => stay(hello()?, vec![1], true),
            Attack::TinyFrames => flood(frame(ECHO, 0, &[]), true),
            Attack::NoReading => flood(frame(ECHO, 0, &question(LARGE_BYTES)), false),
            Attack::SlowWriter => {
                let mut bytes = hello()?;
                bytes.extend(FrameHeader::new(ECHO, LARGE_BYTES).to_bytes());
                let at_once = bytes.len();
                bytes.extend(question(LARGE_BYTES));
                stay(bytes, vec![at_once], true)
            }
            Attack::Garbage => {
                let garbage = filler(GARBAGE_BYTES);
                let mut behind = hello()?;
                behind.extend(&garbage);
                Ok(Self::Hit(vec![garbage, behind]))
            }
            // The field 1 of a PING has 8 bytes; all of them may be 0, and then it may be left away.
            Attack::Pings => flood(frame(PING, 0, &[]), true),
            Attack::BigAnnouncements => {
                let mut bytes = hello()?;
                let header = FrameHeader {
                    length: BODY_BYTES,
                    id: ECHO,
                    flags: Plain::BODY,
                };
                bytes.extend(header.to_bytes());
                // The length of the head, which is empty; of the body nothing comes.
                bytes.extend(0_u32.to_le_bytes());
                let all = bytes.len();
                stay(bytes, vec![all], true)
            }
            Attack::StatusFlood => flood(frame(STATUS, 0, &[]), true),
        }
    }
}

/// A payload of so many bytes that the server echoes: field 2 of `Echo`.
fn question(bytes: u32) -> Vec<u8> {
    // The key, and a length of three bytes.
    let content = bytes - 4;
    let length = [content | 0x80, (content >> 7) | 0x80, content >> 14];
    let mut payload = vec![0x12];
    payload.extend(length.map(|part| part as u8));
    payload.resize(bytes as usize, 0x5A);
    payload
}

fn frame(id: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        length: payload.len() as u32,
        id,
        flags,
    };
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + payload.len());
    bytes.extend(header.to_bytes());
    bytes.extend(payload);
    bytes
}

/// What a client says first. It takes frames of the usual length, so that the server has a reason to keep long answers for it.
fn hello() -> Result<Vec<u8>> {
    let settings = Settings::default();
    let rings = RingPools::new(settings.send_ring_bytes, settings.recv_ring_bytes, 0)?;
    let config = settings.session;
    let greeting = echo_task(Payload { min: 0, max: 0 });
    let mut core = SessionCore::<_, Mapped>::connecting(Plain, &config, &rings, &greeting, Now(0))?;
    while let Some(step) = core.poll() {
        if let Step::Send(buf) = step {
            return Ok(buf.with_unsent(|head, _| head.to_vec()));
        }
    }
    bail!("a session begins with HELLO")
}

#[cfg(test)]
mod tests {
    use buffa::MessageView as _;
    use clap::ValueEnum as _;

    use super::*;
    use crate::session::proto::EchoView;

    #[test]
    fn each_attack_has_a_script() {
        let (_, certificate) = certificate::make().expect("a certificate");
        for attack in Attack::value_variants() {
            assert!(
                Script::of(*attack, Some(&certificate)).is_ok(),
                "{attack:?}"
            );
        }
        assert!(Script::of(Attack::HalfOpenTls, None).is_err());
    }

    #[test]
    fn questions_are_messages_that_the_server_understands() {
        for bytes in [LARGE_BYTES, 20_000] {
            let payload = question(bytes);
            let echo = EchoView::decode_view(&payload).expect("an echo");
            let sizes = (payload.len(), echo.payload.len());
            assert_eq!(sizes, (bytes as usize, bytes as usize - 4));
        }
        assert!(EchoView::decode_view(&[]).is_ok());
    }
}
