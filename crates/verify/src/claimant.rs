//! A connection that announces a large batch and sends hardly any of it.
//!
//! No client library does that: it is made of a bare socket, a session for the handshake, and the first bytes of a
//! batch.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail};
use embar_session::RingPools;
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, OpenPublisher, PublisherOpened, Secret};
use embar_wire::time::WallNs;

use super::bare_session;

/// How long a broker may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of one message of a batch that is never whole.
const MESSAGE_BYTES: usize = 64 << 10;
/// Bytes that are sent with the header, so that something has arrived.
const BEGUN_BYTES: usize = 1000;

/// A publisher's connection in the middle of a batch.
#[derive(Debug)]
pub struct Claimant {
    stream: TcpStream,
    /// The batch as far as it will ever be sent.
    batch: Vec<u8>,
    sent: usize,
}

impl Claimant {
    /// Opens a publisher of `producer` and begins a batch of about `claim` bytes.
    pub fn begin(
        address: SocketAddr,
        rings: &RingPools,
        topic: &str,
        producer: u64,
        claim: u64,
    ) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
        let opened = open(&mut stream, rings, topic, producer)?;
        let mut batch = batch(&opened, producer, claim as usize)?;
        // No run lasts long enough to send more than this.
        batch.truncate(1 << 20);
        stream.write_all(&batch[..BEGUN_BYTES])?;
        Ok(Self {
            stream,
            batch,
            sent: BEGUN_BYTES,
        })
    }

    /// Sends one byte more; an error once the broker ended the connection.
    pub fn drip(&mut self) -> Result<()> {
        let Some(byte) = self.batch.get(self.sent..=self.sent) else {
            bail!("all is sent");
        };
        self.stream.write_all(byte)?;
        self.sent += 1;
        Ok(())
    }
}

/// The handshake and the publisher's opening.
fn open(
    stream: &mut TcpStream,
    rings: &RingPools,
    topic: &str,
    producer: u64,
) -> Result<PublisherOpened> {
    let request = Control::OpenPublisher(OpenPublisher {
        topic: topic.into(),
        producer,
        acks: 1,
        instance: 1,
        secret: Secret([1; 16]),
        ..OpenPublisher::default()
    });
    match bare_session::ask(stream, rings, "claimant", &request)? {
        Control::PublisherOpened(opened) => Ok(opened),
        other => bail!("{other:?} is no opened publisher"),
    }
}

/// A sealed batch of `claim` bytes, or a little less.
fn batch(opened: &PublisherOpened, producer: u64, claim: usize) -> Result<Vec<u8>> {
    let mut builder = BatchBuilder::new(Vec::new(), claim);
    let message = vec![0; MESSAGE_BYTES];
    while builder.try_push(None, &[], &message).is_ok() {}
    Ok(builder
        .seal(SealFields {
            producer,
            sequence: 0,
            topic: opened.topic_id,
            epoch: opened.session_epoch,
            append_time: WallNs(1),
            flags: BatchFlags::default(),
        })
        .into())
}
