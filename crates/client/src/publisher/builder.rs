//! Settings of a publisher, and opening it.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use embar_memory::sealed::SealedRange;
use embar_meter::Profile;
use embar_wire::acks::Acks;
use embar_wire::control::Secret;
use embar_wire::limits::{DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES, MIN_BATCH_BYTES};

use super::buffer_sizes::{BufferSizes, Buffers, in_flight};
use super::core::PublisherCore;
use super::model::{OnBrokerLoss, PublisherConfig};
use super::pool::Pool;
use super::shared::{Delivery, OnAck, Opened, Ready, Shared, SharedSettings};
use super::{Publisher, driver};
use crate::clock::{random_secret, random_seed};
use crate::error::{ClientError, OpenError, SettingError};
use crate::profile::publisher::SCHEMA;
#[cfg(feature = "profile")]
use crate::profiles::{self, Kind, Told};
use crate::settings::{ClientSettings, client_setters};
use crate::transport::Transport;
use crate::wait::WaitProbe;
use crate::wake::block_on;

/// Made by [`Publisher::builder`].
#[must_use = "a builder does nothing until open"]
pub struct PublisherBuilder {
    client: ClientSettings,
    acks: Acks,
    batch_bytes: usize,
    linger: Duration,
    threads_per_broker: u32,
    buffers: Buffers,
    batches_in_flight: Option<usize>,
    on_broker_loss: OnBrokerLoss,
    auto_create: bool,
    producer_id: Option<u64>,
    producer_secret: Option<[u8; 16]>,
    on_ack: Option<OnAck>,
    delivery_timeout: Duration,
    ack_timeout: Duration,
}

impl PublisherBuilder {
    pub(super) fn new(bootstrap: &str) -> Self {
        Self {
            client: ClientSettings::new(bootstrap),
            acks: Acks::Readable,
            batch_bytes: DEFAULT_BATCH_BYTES as usize,
            linger: Duration::from_millis(5),
            threads_per_broker: 1,
            buffers: Buffers::PerConnection(None),
            batches_in_flight: None,
            on_broker_loss: OnBrokerLoss::Resend,
            auto_create: true,
            producer_id: None,
            producer_secret: None,
            on_ack: None,
            delivery_timeout: Duration::from_secs(30),
            ack_timeout: Duration::from_secs(4),
        }
    }

    client_setters!();

    /// When a batch counts as published. Default [`Acks::Readable`]. [`Acks::Durable`] needs a topic that is on disks, with a
    /// [replication factor](crate::TopicSpec::replication_factor) of at least 2.
    pub fn acks(mut self, acks: Acks) -> Self {
        self.acks = acks;
        self
    }

    /// Bytes of a full batch, header included: 128 to 16 MiB, default 2 MiB. A multiple of 64 is used, and no more than
    /// all brokers take when the publisher opens. One that comes later and takes less gets no batches.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// How long a message may wait for its batch to fill, from the first message of the batch. Default 5 ms; zero sends
    /// every message in a batch of its own, at once.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Connections, each with an I/O thread, for each data broker. Default 1.
    pub fn threads_per_broker(mut self, threads: u32) -> Self {
        self.threads_per_broker = threads;
        self
    }

    /// Batch buffers in all, at least 2; publishing waits when none is free. Default: for each connection as many as it
    /// has in flight, and 2.
    pub fn buffers(mut self, buffers: usize) -> Self {
        self.buffers = Buffers::Count(buffers);
        self
    }

    /// As [`PublisherBuilder::buffers`], in bytes: as many batches as fit, at least 2.
    pub fn in_flight_bytes(mut self, bytes: usize) -> Self {
        self.buffers = Buffers::Bytes(bytes);
        self
    }

    /// Unacknowledged batches that one connection carries, at most. Default: 2 MiB of them, but 4 to 64.
    pub fn batches_in_flight(mut self, batches: usize) -> Self {
        self.batches_in_flight = Some(batches);
        if let Buffers::PerConnection(each) = &mut self.buffers {
            *each = Some(batches);
        }
        self
    }

    /// What to do with batches that a lost connection may have delivered. Default [`OnBrokerLoss::Resend`]. On topics of
    /// order 2 and 5 they are sent again in any case, and stored once.
    pub fn on_broker_loss(mut self, choice: OnBrokerLoss) -> Self {
        self.on_broker_loss = choice;
        self
    }

    /// Whether a topic that does not exist is created when the publisher opens, of order 0 and in memory alone; with
    /// [`Acks::Durable`] of replication factor 2. Default true.
    pub fn auto_create(mut self, create: bool) -> Self {
        self.auto_create = create;
        self
    }

    /// Identity of the publishing session, found in batch headers, where every subscriber sees it. Default: random. On
    /// topics of order 2 and 5 only one publisher may have an identity at a time.
    pub fn producer_id(mut self, id: u64) -> Self {
        self.producer_id = Some(id);
        self
    }

    /// What proves to the cluster that the identity is this publisher's, on topics of order 2 and 5: 16 bytes that nobody
    /// else can guess, and that are not all zero. Subscribers never see it. Default: random.
    ///
    /// A publisher that is to succeed another one of its identity needs the secret of that one. The one that opens last
    /// then ends the one before, with [`ClientError::SessionTaken`]; whoever has another secret is refused, with
    /// [`ClientError::WrongSecret`]. The cluster keeps the secret as long as the session.
    pub fn producer_secret(mut self, secret: [u8; 16]) -> Self {
        self.producer_secret = Some(secret);
        self
    }

    /// Called for every batch when its outcome is known, by an I/O thread: it must be quick, must not block, and may
    /// publish only by `try_publish`. If it panics that is logged, the first time, and all goes on.
    pub fn on_ack(mut self, callback: impl Fn(&Delivery) + Send + Sync + 'static) -> Self {
        self.on_ack = Some(Box::new(callback));
        self
    }

    /// A batch that no broker took within this time fails. Default 30 s.
    ///
    /// On topics of order 2 and 5 this ends when the batch is handed to a connection: it has its number then, and without
    /// it nothing behind it would be stored. It is sent until a broker takes it or the publisher ends, so
    /// [`flush`](super::PublisherHandle::flush) and [`Publisher::close`] wait for as long as the cluster is away.
    pub fn delivery_timeout(mut self, limit: Duration) -> Self {
        self.delivery_timeout = limit;
        self
    }

    /// A connection with batches in flight that makes no progress for this long counts as dead. Default 4 s; it must be
    /// longer than a batch takes on the wire.
    pub fn ack_timeout(mut self, limit: Duration) -> Self {
        self.ack_timeout = limit;
        self
    }

    /// Finds the cluster, connects to every data broker, creates the topic if need be, and allocates the buffers.
    ///
    /// # Errors
    /// [`OpenError::Setting`], [`OpenError::Address`], or [`OpenError::Client`] if no broker took the publisher: for
    /// instance [`ClientError::Refused`] for [`Acks::None`] on a topic with a total order, or for [`Acks::Durable`] on one in
    /// memory alone.
    pub fn open(self) -> Result<Publisher, OpenError> {
        block_on(self.open_async(), None).unwrap_or(Err(ClientError::Closed.into()))
    }

    /// As [`PublisherBuilder::open`], without blocking the thread while it waits for brokers. (Names in the bootstrap
    /// address are looked up in place.)
    ///
    /// # Errors
    /// As [`PublisherBuilder::open`].
    pub async fn open_async(self) -> Result<Publisher, OpenError> {
        self.check()?;
        let profile = Profile::new(&SCHEMA);
        profile.set_enabled(self.client.metering);
        let producer = self.producer_id.unwrap_or_else(random_seed);
        let config = PublisherConfig {
            name: self.client.name.clone(),
            bootstrap: self.client.addresses()?,
            ways: self.client.ways(),
            topic: self.client.topic.clone(),
            producer,
            secret: Secret(self.producer_secret.unwrap_or_else(random_secret)),
            acks: self.acks,
            // Checked to be small.
            batch_bytes: self.batch_bytes as u32,
            channels_per_broker: self.threads_per_broker,
            batches_in_flight: self.in_flight(),
            on_broker_loss: self.on_broker_loss,
            auto_create: self.auto_create,
            delivery_timeout: self.delivery_timeout,
            ack_timeout: self.ack_timeout,
            idle_timeout: self.client.idle_timeout,
            open_timeout: self.client.open_timeout,
            seed: random_seed(),
        };
        let in_flight = self.in_flight();
        let delivery_timeout = self.delivery_timeout;
        let sizes = BufferSizes {
            batch_bytes: self.batch_bytes,
            buffers: self.buffers,
        };
        let settings = SharedSettings {
            sizes,
            linger: self.linger,
            spin: self.client.spin,
            delivery_timeout,
            producer,
            on_ack: self.on_ack,
        };
        let shared = Arc::new(Shared::new(PublisherCore::new(config), profile, settings));
        let helper: Weak<Shared> = Arc::downgrade(&shared);
        shared.receipts.set_helper(helper);
        let asked = Arc::downgrade(&shared);
        self.client
            .wait_probe
            .ask_by(move || asked.upgrade()?.waiting_for());
        let start = |core: &mut PublisherCore, now| core.start(now);
        shared.with_core(None, None, start);
        let mut publisher = Publisher::starting(shared.clone(), driver::start(&shared)?);
        let opened = shared.opened().await?;
        let memory = shared.take_batch_memory();
        shared.set_ready(allocate(opened, sizes, in_flight, memory));
        publisher.ready(delivery_timeout);
        #[cfg(feature = "profile")]
        {
            let weak = Arc::downgrade(&shared);
            let told = move |profile| weak.upgrade()?.told(profile).map(Told::Publisher);
            profiles::register(Kind::Publisher, &shared.profile, told);
        }
        Ok(publisher)
    }

    fn in_flight(&self) -> usize {
        let given = self.batches_in_flight;
        given.unwrap_or_else(|| in_flight(self.batch_bytes))
    }

    fn check(&self) -> Result<(), SettingError> {
        self.client.check(&[
            ("delivery_timeout", self.delivery_timeout),
            ("ack_timeout", self.ack_timeout),
        ])?;
        let in_range = |setting, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(SettingError::new(
                setting,
                value,
                format!("must be from {least} to {most}"),
            ))
        };
        in_range(
            "batch_bytes",
            self.batch_bytes,
            MIN_BATCH_BYTES as usize,
            MAX_BATCH_BYTES as usize,
        )?;
        in_range(
            "threads_per_broker",
            self.threads_per_broker as usize,
            1,
            64,
        )?;
        if self.producer_secret == Some([0; 16]) {
            let rule = "must not be all zero: choose bytes that nobody guesses";
            return Err(SettingError::new("producer_secret", "16 zeros", rule));
        }
        in_range("batches_in_flight", self.in_flight(), 1, 4096)?;
        if let Buffers::Count(buffers) = self.buffers {
            in_range("buffers", buffers, 2, 65_536)?;
        }
        Ok(())
    }
}

fn allocate(
    opened: Opened,
    sizes: BufferSizes,
    batches_in_flight: usize,
    ranges: Vec<SealedRange>,
) -> Ready {
    let sizes = BufferSizes {
        batch_bytes: sizes.batch_bytes.min(opened.max_batch_bytes as usize),
        ..sizes
    };
    let batch_bytes = sizes.batch_bytes;
    Ready {
        pool: Pool::new(batch_bytes, sizes.count(opened.channels), ranges),
        topic_id: opened.topic_id,
        batch_bytes,
        batches_in_flight,
        max_message_bytes: opened.max_message_bytes as usize,
    }
}

impl fmt::Debug for PublisherBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherBuilder")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use embar_memory::sealed::Sealed;

    use super::*;

    #[test]
    fn settings_that_cannot_work_are_named() {
        let builder = || Publisher::builder("127.0.0.1:1").topic("t");
        let refused = |builder: PublisherBuilder| match builder.check() {
            Err(SettingError { setting, .. }) => setting,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(builder().topic("a/b")), "topic");
        assert_eq!(refused(builder().batch_bytes(100)), "batch_bytes");
        assert_eq!(refused(builder().batch_bytes(17 << 20)), "batch_bytes");
        assert_eq!(
            refused(builder().threads_per_broker(0)),
            "threads_per_broker"
        );
        assert_eq!(refused(builder().buffers(1)), "buffers");
        assert_eq!(refused(builder().batches_in_flight(0)), "batches_in_flight");
        assert_eq!(
            refused(builder().producer_secret([0; 16])),
            "producer_secret"
        );
        assert_eq!(
            refused(builder().ack_timeout(Duration::ZERO)),
            "ack_timeout"
        );
        assert_eq!(
            refused(builder().idle_timeout(Duration::ZERO)),
            "idle_timeout"
        );
        assert!(builder().check().is_ok());
    }

    #[test]
    fn the_smaller_the_batches_the_more_are_in_flight() {
        for (batch_bytes, batches) in [
            (16 << 20, 4),
            (2 << 20, 4),
            (128 << 10, 16),
            (16 << 10, 64),
            (128, 64),
        ] {
            let builder = Publisher::builder("127.0.0.1:1").batch_bytes(batch_bytes);
            assert_eq!(builder.in_flight(), batches, "{batch_bytes}");
            assert_eq!(builder.batches_in_flight(7).in_flight(), 7);
        }
    }

    #[test]
    fn batches_are_no_larger_than_brokers_take_and_lie_in_the_ranges_first() {
        let opened = Opened {
            topic_id: 1,
            max_batch_bytes: 4096,
            max_message_bytes: 1024,
            channels: 3,
        };
        let sizes = BufferSizes {
            batch_bytes: 1 << 20,
            buffers: Buffers::Count(3),
        };
        let ranges = Sealed::new(8192).expect("memory").into_ranges(4096);
        let ready = allocate(opened, sizes, 4, ranges);
        assert_eq!(ready.batch_bytes, 4096);
        let buffers = std::iter::from_fn(|| ready.pool.try_take().expect("works"));
        let named = buffers.map(|buffer| buffer.place().is_some());
        // Those that brokers read go first, in turn.
        assert_eq!(named.collect::<Vec<_>>(), [true, true, false]);
    }
}
