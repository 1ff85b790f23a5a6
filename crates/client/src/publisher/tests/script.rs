//! A cluster that does what a test tells it, and the core that believes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use embar_frame::Now;
use embar_transport::SendBuf;
use embar_wire::ack::encode_ack;
use embar_wire::acks::Acks;
use embar_wire::batch::{BatchFlags, BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, ErrorCode, OpenPublisher, PublisherOpened, Secret};
use embar_wire::limits::MAX_BATCH_BYTES;
use embar_wire::time::WallNs;

use super::super::core::PublisherCore;
use super::super::model::{Event, OnBrokerLoss, PublisherConfig, SealedBatch};
use super::super::receipt::{Outcome, Position};
use crate::connection::{ChannelId, ConnectionAction, ConnectionError};
use crate::testing::{REGION, Sockets, all_sent, bootstrap, cluster, frame, welcome, welcome_of};
use crate::transport::Ways;

pub(super) const A: ChannelId = ChannelId(1);
pub(super) const B: ChannelId = ChannelId(2);

pub(in crate::publisher) fn config() -> PublisherConfig {
    PublisherConfig {
        name: "test".into(),
        bootstrap: bootstrap(),
        ways: Ways::TCP,
        topic: "t".into(),
        producer: 7,
        secret: Secret([3; 16]),
        acks: Acks::Readable,
        batch_bytes: 1 << 20,
        channels_per_broker: 1,
        batches_in_flight: 2,
        on_broker_loss: OnBrokerLoss::Resend,
        auto_create: true,
        delivery_timeout: Duration::from_secs(30),
        ack_timeout: Duration::from_secs(4),
        idle_timeout: Duration::ZERO,
        open_timeout: Duration::from_secs(5),
        seed: 1,
    }
}

pub(super) struct Script {
    pub(super) core: PublisherCore,
    pub(super) now: Now,
    pub(super) sockets: Sockets,
    /// Batches with the reactor.
    pub(super) batches: HashMap<ChannelId, SendBuf>,
    pub(super) events: Vec<Event>,
    /// Channels whose connections go by shared memory.
    pub(super) share_memory: Vec<ChannelId>,
    /// Nonce of the region of the brokers that answer from now on.
    pub(super) region: u64,
}

impl Script {
    pub(super) fn new(config: PublisherConfig) -> Self {
        let mut script = Self {
            core: PublisherCore::new(config),
            now: Now(0),
            sockets: Sockets::default(),
            batches: HashMap::new(),
            events: Vec::new(),
            share_memory: Vec::new(),
            region: REGION,
        };
        script.core.start(script.now);
        script.drain();
        script
    }

    /// Two data brokers, each with one open channel.
    pub(super) fn open(config: PublisherConfig) -> Self {
        Self::open_with(config, &opened())
    }

    /// As [`Script::open`], with this answer on both channels.
    pub(super) fn open_with(config: PublisherConfig, opened: &Control) -> Self {
        let mut script = Self::new(config);
        script.tell_cluster(2);
        script.announce(A, opened);
        script.announce(B, opened);
        assert!(
            matches!(script.events[..], [Event::Opened { topic_id: 9, .. }]),
            "{:?}",
            script.events
        );
        script.events.clear();
        script
    }

    pub(super) fn drain(&mut self) {
        for channel in (0..self.core.channel_count()).map(ChannelId) {
            while let Some(action) = self.core.poll(channel, self.now) {
                let socket = self.sockets.channel(channel);
                match action {
                    ConnectionAction::Connect(address) => socket.connecting = Some(address),
                    ConnectionAction::Send(buf) => {
                        if socket.take_control(&buf) {
                            assert!(self.batches.insert(channel, buf).is_none());
                        } else {
                            self.core.sent(channel, all_sent(buf), &Ok(()), self.now);
                        }
                    }
                    ConnectionAction::Receive(buf) => socket.receiving = Some(buf),
                    ConnectionAction::ShutdownWrite | ConnectionAction::Close => {
                        socket.closing = true
                    }
                }
            }
        }
        self.events
            .extend(std::iter::from_fn(|| self.core.next_event()));
    }

    pub(super) fn connect(&mut self, channel: ChannelId) {
        let shares_memory = self.share_memory.contains(&channel);
        assert!(
            self.sockets.channel(channel).connecting.take().is_some(),
            "{channel:?} does not connect"
        );
        self.core.connected(channel, shares_memory, self.now);
        self.drain();
    }

    pub(super) fn feed(&mut self, channel: ChannelId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some((buffer, count, rest)) = self.sockets.channel(channel).fill(bytes) else {
                return;
            };
            bytes = rest;
            self.core.received(channel, buffer, &Ok(count), self.now);
            self.drain();
        }
    }

    pub(super) fn tell(&mut self, channel: ChannelId, message: &Control) {
        self.feed(channel, &frame(message));
    }

    /// Answers the control channel, and lets it hang up.
    pub(super) fn tell_cluster(&mut self, data: u32) {
        self.connect(ChannelId::CONTROL);
        self.feed(ChannelId::CONTROL, &welcome(0));
        self.tell(ChannelId::CONTROL, &cluster(data));
        self.lose(ChannelId::CONTROL);
    }

    pub(super) fn open_lane(&mut self, channel: ChannelId) {
        self.announce(channel, &opened());
    }

    /// Connects the channel, and answers its announcement, which is returned.
    pub(super) fn announce(&mut self, channel: ChannelId, opened: &Control) -> OpenPublisher {
        self.connect(channel);
        self.feed(channel, &welcome_of(channel.0, self.region));
        let Some(Control::OpenPublisher(announced)) = self.sockets.channel(channel).sent.pop()
        else {
            panic!("{channel:?} does not announce the publisher");
        };
        self.tell(channel, opened);
        announced
    }

    pub(super) fn submit(&mut self, number: u64) {
        self.submit_unseen(number);
        self.drain();
    }

    /// Before any channel's driver looks at the core again.
    pub(super) fn submit_unseen(&mut self, number: u64) {
        self.core.submit(sealed(number, b"message"), self.now);
    }

    /// What the reactor has on this channel: batch number, and whether it is marked.
    pub(super) fn sending(&self, channel: ChannelId) -> Option<(u64, bool)> {
        let header = self.header(channel)?;
        Some((
            header.append_time().0,
            header.flags().contains(BatchFlags::POSSIBLE_DUPLICATE),
        ))
    }

    /// The header of the first batch that the reactor has on this channel.
    pub(super) fn header(&self, channel: ChannelId) -> Option<BatchHeader> {
        self.headers(channel).into_iter().next()
    }

    /// The headers of all that the reactor has on this channel.
    pub(super) fn headers(&self, channel: ChannelId) -> Vec<BatchHeader> {
        let mut headers = Vec::new();
        let Some(buf) = self.batches.get(&channel) else {
            return headers;
        };
        buf.with_unsent(|_, mut batches| {
            while !batches.is_empty() {
                let header = BatchHeader::parse(batches, MAX_BATCH_BYTES).expect("a good header");
                batches = &batches[header.frame_len() as usize..];
                headers.push(header);
            }
        });
        headers
    }

    pub(super) fn sent(&mut self, channel: ChannelId) {
        let buf = self
            .batches
            .remove(&channel)
            .expect("a batch is with the reactor");
        self.core.sent(channel, all_sent(buf), &Ok(()), self.now);
        self.drain();
    }

    pub(super) fn ack(&mut self, channel: ChannelId, first: u64, offsets: &[u64]) {
        let mut bytes = Vec::new();
        encode_ack(first, None, offsets, &mut bytes);
        self.feed(channel, &bytes);
    }

    pub(super) fn refuse(
        &mut self,
        channel: ChannelId,
        first: u64,
        code: ErrorCode,
        marks: &[u64],
    ) {
        let mut bytes = Vec::new();
        encode_ack(first, Some(code), marks, &mut bytes);
        self.feed(channel, &bytes);
    }

    pub(super) fn lose(&mut self, channel: ChannelId) {
        self.batches.remove(&channel);
        let socket = self.sockets.channel(channel);
        (socket.receiving, socket.closing, socket.connecting) = (None, false, None);
        self.core
            .disconnected(channel, ConnectionError::Local("lost"), self.now);
        self.drain();
    }

    pub(super) fn tick_at(&mut self, now: u64) {
        self.now = Now(now);
        self.core.tick(self.now);
        self.drain();
    }

    pub(super) fn outcomes(&mut self) -> Vec<(u64, Outcome)> {
        let resolved = self.events.drain(..).filter_map(|event| match event {
            Event::Resolved { batch, outcome, .. } => Some((batch, outcome)),
            _ => None,
        });
        resolved.collect()
    }
}

/// A batch of one message, with its number as the time.
pub(super) fn sealed(number: u64, value: &[u8]) -> SealedBatch {
    let mut builder = BatchBuilder::new(Vec::new(), 1 << 20);
    builder.try_push(None, &[], value).expect("fits");
    let bytes = builder.seal(SealFields {
        sequence: number,
        append_time: WallNs(number),
        ..SealFields::default()
    });
    SealedBatch {
        number,
        messages: 1,
        bytes: Arc::new(bytes),
    }
}

pub(super) fn opened() -> Control {
    Control::PublisherOpened(PublisherOpened {
        topic_id: 9,
        max_batch_bytes: 1 << 20,
        max_message_bytes: 1 << 19,
        ..PublisherOpened::default()
    })
}

pub(super) fn stored(broker: u32, offset: u64) -> Outcome {
    let broker = Some(broker);
    Outcome::Stored(Position { broker, offset })
}
