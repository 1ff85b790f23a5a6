//! Settings of a subscriber, and opening it.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use embar_meter::Profile;
use embar_wire::isolation::Isolation;
use embar_wire::limits::MAX_BROKERS;

use super::core::SubscriberCore;
use super::io_threads::{IoThreads, Limits};
use super::model::{Checksums, OnEvicted, Start, SubscriberConfig};
use super::queue::Queue;
use super::{Positions, Subscriber, driver, io_threads};
use crate::clock::random_seed;
use crate::error::{ClientError, OpenError, SettingError};
use crate::profile::subscriber::SCHEMA;
use crate::settings::{ClientSettings, client_setters};
use crate::transport::Transport;
use crate::wait::WaitProbe;
use crate::wake::block_on;

/// Batches of an order of at least so many bytes come from several brokers, each from the one that stores it. Smaller ones
/// come together by one connection, as many as a receive brings.
const SHARED_BATCH_BYTES: u32 = 256 << 10;

/// Made by [`Subscriber::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until open"]
pub struct SubscriberBuilder {
    client: ClientSettings,
    start: Start,
    until_end: bool,
    on_evicted: OnEvicted,
    loss_timeout: Duration,
    isolation: Isolation,
    checksums: Checksums,
    buffers_per_broker: usize,
    io_threads: Option<usize>,
}

impl SubscriberBuilder {
    pub(super) fn new(bootstrap: &str) -> Self {
        Self {
            client: ClientSettings::new(bootstrap),
            start: Start::Earliest,
            until_end: false,
            on_evicted: OnEvicted::Fail,
            loss_timeout: Duration::from_secs(30),
            isolation: Isolation::Durable,
            checksums: Checksums::All,
            buffers_per_broker: 2,
            io_threads: None,
        }
    }

    client_setters!();

    /// Where to start. Default [`Start::Earliest`]. Positions must be of the topic's kind: see [`Positions`](super::Positions).
    pub fn from(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Whether to end when everything is delivered that was there when the subscription began. Default false.
    pub fn until_end(mut self, yes: bool) -> Self {
        self.until_end = yes;
        self
    }

    /// What to do when messages were evicted before they were read. Default [`OnEvicted::Fail`].
    pub fn on_evicted(mut self, choice: OnEvicted) -> Self {
        self.on_evicted = choice;
        self
    }

    /// A broker that is away for longer ends the subscription with [`ReadError::BrokerLost`](crate::ReadError::BrokerLost). Default 30 s. The others
    /// deliver meanwhile.
    ///
    /// On topics of order 2 and 5 one broker can serve all messages and another takes its place, so the time runs only while
    /// none does, and ends with [`ReadError::AllBrokersLost`](crate::ReadError::AllBrokersLost).
    ///
    /// One that was gone when the subscription began counts as well, from then on, if something of it is certain to be
    /// wanted: with [`SubscriberBuilder::until_end`], or if [`Start::Positions`] names it. Otherwise its messages are
    /// missing until it returns, which is logged.
    ///
    /// The time runs from the end of a connection, which [`SubscriberBuilder::idle_timeout`] brings about if a broker
    /// hangs.
    pub fn loss_timeout(mut self, limit: Duration) -> Self {
        self.loss_timeout = limit;
        self
    }

    /// Up to where a topic that is on disks is read. Default [`Isolation::Durable`]. Of a topic in memory alone everything is
    /// read.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Which batches are compared with their checksums. Default [`Checksums::All`].
    pub fn checksums(mut self, which: Checksums) -> Self {
        self.checksums = which;
        self
    }

    /// Buffers of one broker, at least 2; at this limit the broker is held back. Each has a batch, or several small
    /// ones of 512 KiB together. Default 2: more would leave the cache. What a broker lends takes no buffer: it is held back while
    /// 16 such batches, or 8 MiB of them, are not read.
    pub fn buffers_per_broker(mut self, buffers: usize) -> Self {
        self.buffers_per_broker = buffers;
        self
    }

    /// How many threads receive and check, from 1 to 128. Brokers' connections are shared out among them, so there are never more
    /// than brokers that are read from. Default 4, on a machine with one core 1.
    ///
    /// With more than one, topics of order 2 and 5 are read from up to four brokers while their batches have 256 KiB and more.
    pub fn io_threads(mut self, most: usize) -> Self {
        self.io_threads = Some(most);
        self
    }

    /// Finds the cluster and subscribes on every data broker, or on one of them if the topic has one order over all.
    ///
    /// # Errors
    /// [`OpenError::Setting`], [`OpenError::Address`], [`OpenError::Client`] if no broker serves the topic, or
    /// [`OpenError::Read`] if what the subscriber is to begin with cannot be had.
    pub fn open(self) -> Result<Subscriber, OpenError> {
        block_on(self.open_async(), None).unwrap_or(Err(ClientError::Closed.into()))
    }

    /// As [`SubscriberBuilder::open`], without blocking the thread while it waits for brokers. (Names in the bootstrap
    /// address are looked up in place.)
    ///
    /// # Errors
    /// As [`SubscriberBuilder::open`].
    pub async fn open_async(self) -> Result<Subscriber, OpenError> {
        self.check()?;
        let profile = Profile::new(&SCHEMA);
        profile.set_enabled(self.client.metering);
        let positions = match &self.start {
            Start::Positions(positions) => positions.clone(),
            Start::Earliest | Start::Latest => Positions::new(),
        };
        let most = self.io_threads.unwrap_or_else(io_threads::default_limit);
        let core = SubscriberCore::new(SubscriberConfig {
            bootstrap: self.client.addresses()?,
            ways: self.client.ways(),
            name: self.client.name,
            topic: self.client.topic,
            start: self.start,
            until_end: self.until_end,
            on_evicted: self.on_evicted,
            loss_timeout: self.loss_timeout,
            idle_timeout: self.client.idle_timeout,
            open_timeout: self.client.open_timeout,
            // One thread receives no faster from several.
            shared_batch_bytes: (most > 1).then_some(SHARED_BATCH_BYTES),
            isolation: self.isolation,
            checksums: self.checksums,
            buffers_per_broker: self.buffers_per_broker,
            seed: random_seed(),
        });
        let queue = Arc::new(Queue::default());
        let asked = Arc::downgrade(&queue);
        self.client
            .wait_probe
            .ask_by(move || asked.upgrade()?.waiting_for());
        let limits = Limits {
            threads: most,
            spin: self.client.spin,
        };
        let threads = IoThreads::start(core, &queue, &profile, limits, driver::run)?;
        let mut subscriber = Subscriber::new(queue, profile, threads, positions);
        poll_fn(|context| subscriber.queue.poll_opened(context)).await?;
        subscriber.take_starts();
        Ok(subscriber)
    }

    fn check(&self) -> Result<(), SettingError> {
        self.client.check(&[("loss_timeout", self.loss_timeout)])?;
        if !(2..=4096).contains(&self.buffers_per_broker) {
            return Err(SettingError::new(
                "buffers_per_broker",
                self.buffers_per_broker,
                "must be from 2 to 4096",
            ));
        }
        if let Some(most) = self.io_threads
            && !(1..=MAX_BROKERS).contains(&most)
        {
            let rule = format!("must be from 1 to {MAX_BROKERS}");
            return Err(SettingError::new("io_threads", most, rule));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_named() {
        let builder = || Subscriber::builder("127.0.0.1:1").topic("t");
        let refused = |builder: SubscriberBuilder| match builder.check() {
            Err(SettingError { setting, .. }) => setting,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(builder().topic("")), "topic");
        assert_eq!(
            refused(builder().buffers_per_broker(1)),
            "buffers_per_broker"
        );
        assert_eq!(refused(builder().io_threads(0)), "io_threads");
        assert_eq!(refused(builder().io_threads(129)), "io_threads");
        assert_eq!(
            refused(builder().loss_timeout(Duration::ZERO)),
            "loss_timeout"
        );
        assert_eq!(
            refused(builder().idle_timeout(Duration::ZERO)),
            "idle_timeout"
        );
        assert_eq!(
            refused(builder().client_name("n".repeat(1025))),
            "client_name"
        );
        assert!(builder().check().is_ok());
    }
}
