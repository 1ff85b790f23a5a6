//! The core against a scripted cluster.

use std::time::Duration;

use embar_frame::Now;
use embar_meter::random::SplitMix64;
use embar_wire::control::{Control, ErrorCode, StartAt, Subscribed};
use embar_wire::isolation::Isolation;
use embar_wire::limits::BATCH_HEADER_BYTES;
use embar_wire::topic::Order;

use super::core::SubscriberCore;
use super::model::{Checksums, Delivered, Event, OnEvicted, Start, SubscriberConfig};
use super::position::Positions;
use super::reading::tests::frame as batch;
use crate::connection::{ChannelId, ConnectionAction, ConnectionError};
use crate::error::{ClientError, ReadError, SettingError};
use crate::testing::{
    SECOND, Sockets, all_sent, bootstrap, cluster, cluster_without, frame, pong, refusal, welcome,
};
use crate::transport::Ways;

mod helpers;
mod hostile;
mod leases;
mod members;
mod opening;
mod ordered;
mod refusals;
mod replaced;
mod runs;
mod wait;

const A: ChannelId = ChannelId(1);
const B: ChannelId = ChannelId(2);
const TOPIC: u32 = 9;

fn config() -> SubscriberConfig {
    SubscriberConfig {
        name: "test".into(),
        bootstrap: bootstrap(),
        ways: Ways::TCP,
        topic: "t".into(),
        start: Start::Earliest,
        until_end: false,
        on_evicted: OnEvicted::Fail,
        loss_timeout: Duration::from_secs(30),
        idle_timeout: Duration::ZERO,
        open_timeout: Duration::from_secs(5),
        shared_batch_bytes: None,
        // Not the default: whoever asks a broker must pass it on.
        isolation: Isolation::Latest,
        checksums: Checksums::All,
        buffers_per_broker: 2,
        seed: 1,
    }
}

struct Script {
    core: SubscriberCore,
    now: Now,
    sockets: Sockets,
    delivered: Vec<Delivered>,
    events: Vec<Event>,
    /// Of connections that are made from now on.
    shares_memory: bool,
}

impl Script {
    fn new(config: SubscriberConfig) -> Self {
        let mut script = Self {
            core: SubscriberCore::new(config),
            now: Now(0),
            sockets: Sockets::default(),
            delivered: Vec::new(),
            events: Vec::new(),
            shares_memory: false,
        };
        script.core.start(script.now);
        script.drain();
        script
    }

    fn open(config: SubscriberConfig, data: u32) -> Self {
        Self::open_with(config, &cluster(data))
    }

    fn open_with(config: SubscriberConfig, metadata: &Control) -> Self {
        let mut script = Self::new(config);
        script.tell_cluster(metadata);
        script
    }

    fn tell_cluster(&mut self, metadata: &Control) {
        self.connect(ChannelId::CONTROL);
        assert!(self.feed(ChannelId::CONTROL, &welcome(0)).is_empty());
        self.tell(ChannelId::CONTROL, metadata);
        self.lose(ChannelId::CONTROL);
    }

    /// Brokers reported away so far.
    fn away(&self) -> Vec<u32> {
        let away = self.events.iter().filter_map(|event| match event {
            Event::ChannelLost { broker, .. } => Some(*broker),
            _ => None,
        });
        away.collect()
    }

    fn drain(&mut self) {
        for channel in (0..self.core.channel_count()).map(ChannelId) {
            while let Some(action) = self.core.poll(channel) {
                let socket = self.sockets.channel(channel);
                match action {
                    ConnectionAction::Connect(address) => socket.connecting = Some(address),
                    ConnectionAction::Send(buf) => {
                        socket.take_control(&buf);
                        self.core.sent(channel, all_sent(buf), &Ok(()), self.now);
                    }
                    ConnectionAction::Receive(buf) => socket.receiving = Some(buf),
                    ConnectionAction::ShutdownWrite | ConnectionAction::Close => {
                        socket.closing = true
                    }
                }
            }
        }
        while let Some(event) = self.core.next_event() {
            match event {
                Event::Deliver(delivered) => self.delivered.push(delivered),
                other => self.events.push(other),
            }
        }
    }

    fn connect(&mut self, channel: ChannelId) {
        assert!(
            self.sockets.channel(channel).connecting.take().is_some(),
            "{channel:?} does not connect"
        );
        self.core.connected(channel, self.shares_memory, self.now);
        self.drain();
    }

    /// Returns what the core did not take.
    fn feed<'a>(&mut self, channel: ChannelId, mut bytes: &'a [u8]) -> &'a [u8] {
        while !bytes.is_empty() {
            let Some((buffer, count, rest)) = self.sockets.channel(channel).fill(bytes) else {
                break;
            };
            bytes = rest;
            self.core.received(channel, buffer, &Ok(count), self.now);
            self.drain();
        }
        bytes
    }

    fn tell(&mut self, channel: ChannelId, message: &Control) {
        assert!(self.feed(channel, &frame(message)).is_empty());
    }

    /// Connects the channel, which shall ask for `wanted`, and is told to start at `start` of a topic that ends at `next`.
    fn subscribe(&mut self, channel: ChannelId, wanted: StartAt, start: u64, next: u64) {
        self.ask(channel, wanted);
        self.tell(channel, &subscribed(Order::None, start, next));
    }

    /// Connects the channel, which shall ask for `wanted`. Returns the topic that it means.
    fn ask(&mut self, channel: ChannelId, wanted: StartAt) -> u32 {
        self.connect(channel);
        assert!(self.feed(channel, &welcome(channel.0)).is_empty());
        let Some(Control::Subscribe(subscribe)) = self.sockets.channel(channel).sent.pop() else {
            panic!("{channel:?} does not subscribe");
        };
        assert_eq!(subscribe.start, wanted);
        subscribe.topic_id
    }

    fn lose(&mut self, channel: ChannelId) {
        let socket = self.sockets.channel(channel);
        (socket.receiving, socket.closing, socket.connecting) = (None, false, None);
        self.core
            .disconnected(channel, ConnectionError::Local("lost"), self.now);
        self.drain();
    }

    fn tick_at(&mut self, now: u64) {
        self.now = Now(now);
        self.core.tick(self.now);
        self.drain();
    }

    /// Base offset, count and skip of what was delivered.
    fn taken(&mut self) -> Vec<(u64, u32, u32)> {
        let mut taken = Vec::new();
        for delivered in std::mem::take(&mut self.delivered) {
            let mut skip = delivered.skip;
            taken.extend(delivered.batches().map(|(header, _)| {
                let skip = std::mem::take(&mut skip);
                (header.base_offset(), header.message_count(), skip)
            }));
            self.core
                .returned(delivered.channel, delivered.payload.into_space(), self.now);
            self.drain();
        }
        taken
    }

    fn failure(&self) -> Option<&ReadError> {
        self.events.iter().find_map(|event| match event {
            Event::Failed(error) => Some(error),
            _ => None,
        })
    }
}

fn subscribed(order: Order, start: u64, next: u64) -> Control {
    Control::Subscribed(Subscribed {
        topic_id: TOPIC,
        start,
        first: 0,
        next,
        order,
    })
}

#[test]
fn batches_arrive_whole_in_whatever_pieces() {
    for piece in [1, 7, 64, 1000, 1 << 20] {
        let mut script = Script::open(config(), 1);
        script.subscribe(A, StartAt::Earliest, 0, 0);
        assert!(
            script
                .events
                .iter()
                .any(|event| matches!(event, Event::Opened))
        );
        let big = vec![7; 100_000];
        let bytes = [batch(0, TOPIC, &[b"a", b"b"]), batch(2, TOPIC, &[&big])].concat();
        let mut seen = Vec::new();
        for part in bytes.chunks(piece) {
            assert!(script.feed(A, part).is_empty());
            seen.extend(script.taken());
        }
        assert_eq!(seen, [(0, 2, 0), (2, 1, 0)], "pieces of {piece}");
    }
}

#[test]
fn the_first_batch_may_begin_before_the_start_and_no_later_one_may() {
    let positions = Positions::from_iter([(1, 11)]);
    let mut script = Script::open(
        SubscriberConfig {
            start: Start::Positions(positions),
            ..config()
        },
        1,
    );
    script.subscribe(A, StartAt::Offset(11), 11, 20);
    script.feed(A, &batch(10, TOPIC, &[b"a", b"b", b"c"]));
    assert_eq!(script.taken(), [(10, 3, 1)]);
    script.feed(A, &batch(12, TOPIC, &[b"c", b"d"]));
    assert_eq!(
        script.failure(),
        Some(&ReadError::BrokenOrder {
            broker: 1,
            expected: 13,
            found: 12
        })
    );
}

#[test]
fn a_gap_is_an_error_and_nothing_behind_it_is_delivered() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.feed(
        A,
        &[batch(0, TOPIC, &[b"a"]), batch(2, TOPIC, &[b"c"])].concat(),
    );
    assert_eq!(script.taken(), [(0, 1, 0)]);
    assert!(matches!(
        script.failure(),
        Some(ReadError::BrokenOrder {
            expected: 1,
            found: 2,
            ..
        })
    ));
    assert!(script.sockets.channel(A).closing);
}

#[test]
fn a_lost_broker_is_resumed_at_the_next_offset_while_others_deliver() {
    let mut script = Script::open(config(), 2);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.subscribe(B, StartAt::Earliest, 5, 5);
    script.feed(A, &batch(0, TOPIC, &[b"a", b"b"]));
    let half = batch(2, TOPIC, &[&[1; 5000]]);
    script.feed(A, &half[..1000]);
    script.lose(A);
    script.feed(B, &batch(5, TOPIC, &[b"x"]));
    assert_eq!(script.taken(), [(0, 2, 0), (5, 1, 0)]);
    script.tick_at(SECOND);
    script.subscribe(A, StartAt::Offset(2), 2, 3);
    script.feed(A, &half);
    assert_eq!(script.taken(), [(2, 1, 0)]);
}

#[test]
fn a_broker_that_stays_away_is_an_error_after_the_time_given() {
    let mut script = Script::open(config(), 2);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.subscribe(B, StartAt::Earliest, 0, 0);
    script.lose(B);
    script.tick_at(30 * SECOND - 1);
    assert!(script.failure().is_none());
    script.tick_at(30 * SECOND);
    assert!(matches!(
        script.failure(),
        Some(ReadError::BrokerLost { broker: 2, .. })
    ));
}

#[test]
fn a_broker_gone_from_the_start_is_awaited_if_its_data_is_wanted() {
    let until_end = SubscriberConfig {
        until_end: true,
        ..config()
    };
    let named = SubscriberConfig {
        start: Start::Positions(Positions::from_iter([(1, 0), (2, 7)])),
        ..config()
    };
    for (config, first, gone_start) in [
        (until_end, StartAt::Earliest, StartAt::Earliest),
        (named, StartAt::Offset(0), StartAt::Offset(7)),
    ] {
        let open = || {
            let mut script = Script::open_with(config.clone(), &cluster_without(2, Some(2)));
            script.subscribe(A, first, 0, 0);
            assert_eq!(script.away(), [2]);
            assert!(
                !script
                    .events
                    .iter()
                    .any(|event| matches!(event, Event::End)),
                "what the other has is missing"
            );
            script
        };
        let mut script = open();
        script.tick_at(30 * SECOND - 1);
        assert!(script.failure().is_none());
        script.tick_at(30 * SECOND);
        assert!(matches!(
            script.failure(),
            Some(ReadError::BrokerLost { broker: 2, .. })
        ));

        let mut script = open();
        script.tick_at(SECOND);
        script.tell_cluster(&cluster(2));
        script.ask(B, gone_start);
    }
}

#[test]
fn a_broker_gone_from_the_start_is_read_once_it_returns() {
    for (start, first) in [
        (Start::Latest, StartAt::Latest),
        (Start::Earliest, StartAt::Earliest),
    ] {
        let config = SubscriberConfig { start, ..config() };
        let mut script = Script::open_with(config, &cluster_without(2, Some(2)));
        script.subscribe(A, first, 5, 5);
        script.tick_at(40 * SECOND);
        assert!(script.failure().is_none(), "it is done without");
        script.tell_cluster(&cluster_without(2, Some(2)));
        assert_eq!(script.away(), [2], "said once");
        script.tick_at(50 * SECOND);
        script.tell_cluster(&cluster(2));
        script.ask(B, first);
        script.tick_at(60 * SECOND);
        script.tell_cluster(&cluster(3));
        // All of what one that joined later has came after the subscription.
        script.ask(ChannelId(3), StartAt::Earliest);
    }
}

#[test]
fn eviction_fails_or_skips_as_told() {
    let out_of_range = refusal(ErrorCode::OffsetOutOfRange, false, Some(100));
    let start = Start::Positions(Positions::from_iter([(1, 40)]));
    let mut script = Script::open(
        SubscriberConfig {
            start: start.clone(),
            ..config()
        },
        1,
    );
    script.ask(A, StartAt::Offset(40));
    script.tell(A, &out_of_range);
    script.lose(A);
    assert_eq!(
        script.failure(),
        Some(&ReadError::Evicted {
            broker: 1,
            position: 40,
            first_available: 100
        })
    );

    let mut script = Script::open(
        SubscriberConfig {
            start,
            on_evicted: OnEvicted::SkipToFirst,
            ..config()
        },
        1,
    );
    script.ask(A, StartAt::Offset(40));
    script.tell(A, &out_of_range);
    script.lose(A);
    let skipped = |event: &Event| {
        matches!(
            event,
            Event::Skipped {
                broker: Some(1),
                to: 100,
                messages: 60
            }
        )
    };
    assert!(script.events.iter().any(skipped), "{:?}", script.events);
    script.subscribe(A, StartAt::Offset(100), 100, 101);
    script.feed(A, &batch(100, TOPIC, &[b"z"]));
    assert_eq!(script.taken(), [(100, 1, 0)]);
}

#[test]
fn until_end_ends_when_all_brokers_are_there() {
    let mut script = Script::open(
        SubscriberConfig {
            until_end: true,
            ..config()
        },
        2,
    );
    let ended = |script: &Script| {
        script
            .events
            .iter()
            .any(|event| matches!(event, Event::End))
    };
    script.subscribe(A, StartAt::Earliest, 0, 2);
    script.subscribe(B, StartAt::Earliest, 0, 0);
    assert!(!ended(&script), "A has two to come");
    script.feed(A, &batch(0, TOPIC, &[b"a", b"b"]));
    assert!(ended(&script));
    assert_eq!(script.taken(), [(0, 2, 0)]);
    assert!(script.failure().is_none());
}

#[test]
fn without_a_free_buffer_nothing_is_read_until_one_comes_back() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    for base in 0..2 {
        assert!(script.feed(A, &batch(base, TOPIC, &[b"m"])).is_empty());
    }
    assert!(script.core.is_starved());
    let third = batch(2, TOPIC, &[b"m"]);
    assert_eq!(script.feed(A, &third).len(), third.len(), "held back");
    assert_eq!(script.taken().len(), 2);
    assert!(script.feed(A, &third).is_empty());
    assert_eq!(script.taken(), [(2, 1, 0)]);
}

#[test]
fn a_broker_that_hangs_is_noticed_and_lost_in_time() {
    let idle = SubscriberConfig {
        idle_timeout: Duration::from_secs(9),
        ..config()
    };
    let mut script = Script::open(idle, 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.tick_at(6 * SECOND);
    script.feed(A, &pong());
    script.tick_at(15 * SECOND - 1);
    assert!(!script.sockets.channel(A).closing);
    script.tick_at(15 * SECOND);
    assert!(script.sockets.channel(A).closing, "nine seconds of silence");
    script.tick_at(16 * SECOND);
    script.lose(A);
    assert_eq!(script.away(), [1]);
    script.tick_at(46 * SECOND);
    assert!(matches!(
        script.failure(),
        Some(ReadError::BrokerLost { broker: 1, .. })
    ));
}

#[test]
fn a_broker_that_has_to_wait_for_the_consumer_is_not_given_up() {
    let idle = SubscriberConfig {
        idle_timeout: Duration::from_secs(9),
        ..config()
    };
    let mut script = Script::open(idle, 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    for base in 0..2 {
        assert!(script.feed(A, &batch(base, TOPIC, &[b"m"])).is_empty());
    }
    for second in 1..100 {
        script.tick_at(second * SECOND);
        assert!(!script.sockets.channel(A).closing, "second {second}");
    }
    let pings = script.sockets.channel(A).pings;
    assert!(pings >= 99 / 9, "{pings} signs of life for the broker");
    assert_eq!(script.taken().len(), 2);
    script.tick_at(107 * SECOND);
    assert!(!script.sockets.channel(A).closing, "it has its time again");
    assert!(script.feed(A, &batch(2, TOPIC, &[b"m"])).is_empty());
    assert_eq!(script.taken(), [(2, 1, 0)]);
}

#[test]
fn a_subscriber_that_ends_inside_of_a_batch_ends_in_good_order() {
    let bytes = batch(0, TOPIC, &[&[1; 5000]]);
    for cut in [10, 64, 1000] {
        let mut script = Script::open(config(), 1);
        script.subscribe(A, StartAt::Earliest, 0, 0);
        script.feed(A, &bytes[..cut]);
        script.core.stop(script.now);
        script.drain();
        assert!(script.sockets.channel(A).closing);
        // What is on its way still comes, and is thrown away until the broker closes.
        assert!(script.feed(A, &bytes[cut..]).is_empty(), "cut at {cut}");
        assert!(script.delivered.is_empty());
        script.lose(A);
        assert_eq!(script.core.next_tick(), None);
    }
}

#[test]
fn a_damaged_batch_is_asked_for_again_and_then_reported() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 1);
    let mut damaged = batch(0, TOPIC, &[b"abc"]);
    let last = damaged.len() - 60;
    damaged[last] ^= 1;
    for attempt in 1..=3 {
        assert!(script.failure().is_none(), "attempt {attempt}");
        script.feed(A, &damaged);
        if attempt < 3 {
            assert!(script.sockets.channel(A).closing);
            script.lose(A);
            script.tick_at(script.now.0 + SECOND);
            script.subscribe(A, StartAt::Offset(0), 0, 1);
        }
    }
    assert!(matches!(
        script.failure(),
        Some(ReadError::Corrupt {
            broker: 1,
            offset: 0,
            ..
        })
    ));
    assert!(script.delivered.is_empty());
}

#[test]
fn latest_starts_where_the_broker_says_and_resumes_there() {
    let mut script = Script::open(
        SubscriberConfig {
            start: Start::Latest,
            ..config()
        },
        1,
    );
    script.subscribe(A, StartAt::Latest, 77, 77);
    assert!(script.events.iter().any(|event| matches!(
        event,
        Event::Started {
            broker: Some(1),
            start: 77
        }
    )));
    script.lose(A);
    script.tick_at(SECOND);
    script.ask(A, StartAt::Offset(77));
}
