//! A full log gives up no more than it must, and from those who take most of what is short.

mod support;

use std::io::Write;
use std::ops::Range;
use std::thread;

use embar_broker::log::LogUsage;
use embar_broker::{BrokerConfig, Cluster};
use embar_wire::control::{ErrorCode, PublisherOpened, StartAt};
use support::{
    Frame, Peer, batch, batch_of, create_topic, create_topic_of_order, data, eventually, small,
    start,
};

/// Bytes of a message that fills most of a MiB.
const LARGE: usize = 1_000_000;

/// The first message that can be read, and the one after the last.
fn kept(cluster: &Cluster, topic: &str) -> Range<u64> {
    let subscribed = Peer::greet(data(cluster)).subscribe(topic, StartAt::Earliest);
    subscribed.first..subscribed.next
}

fn messages(range: &Range<u64>) -> u64 {
    range.end - range.start
}

fn log_usage(cluster: &Cluster) -> LogUsage {
    cluster.broker(1).expect("it runs").log_usage()
}

/// A publisher, of a session where the topic has them.
struct Sender {
    peer: Peer,
    opened: PublisherOpened,
    producer: u64,
}

impl Sender {
    fn open(cluster: &Cluster, topic: &str, producer: u64) -> Self {
        let mut peer = Peer::greet(data(cluster));
        let opened = peer.open_session(topic, producer);
        Self {
            peer,
            opened,
            producer,
        }
    }

    fn batch(&self, sequence: u64, values: &[&[u8]]) -> Vec<u8> {
        let (epoch, topic) = (self.opened.session_epoch, self.opened.topic_id);
        batch_of(self.producer, epoch, topic, sequence, values)
    }

    /// Large messages, each acknowledged.
    fn publish(&mut self, sequences: Range<u64>) {
        for sequence in sequences {
            let value = vec![sequence as u8; LARGE];
            self.peer.send_bytes(&self.batch(sequence, &[&value]));
            self.peer.expect_acks(1);
        }
    }

    /// Batches as small as can be, all acknowledged.
    fn publish_tiny(&mut self, sequences: Range<u64>) {
        let mut writer = self.peer.stream.try_clone().expect("a socket");
        let bytes: Vec<u8> = sequences
            .clone()
            .flat_map(|sequence| self.batch(sequence, &[b"tiny"]))
            .collect();
        let writes = thread::spawn(move || writer.write_all(&bytes));
        self.peer.expect_acks(messages(&sequences) as usize);
        writes.join().expect("no panic").expect("the broker reads");
    }

    /// A few bytes that wait until the ones before them have come.
    fn send_ahead(&mut self, sequence: u64) {
        self.peer
            .send_bytes(&self.batch(sequence, &[b"ahead of its session"]));
    }
}

/// One topic fills the index while another fills the memory.
fn tiny_messages_beside_large_ones_of(order: u32) {
    let cluster = start(BrokerConfig::default());
    create_topic_of_order(&cluster, "large", order, 0);
    create_topic(&cluster, "tiny", 0);
    Sender::open(&cluster, "large", 9).publish(0..12);
    let mut tiny = Sender::open(&cluster, "tiny", 7);
    let mut sent = 0;
    // The index has fewer records than that, and there is memory for more.
    while kept(&cluster, "tiny").start == 0 {
        assert!(sent < 200_000, "the index of a small region is small");
        tiny.publish_tiny(sent..sent + 4000);
        sent += 4000;
    }
    assert_eq!(kept(&cluster, "large"), 0..12);
    assert!(messages(&kept(&cluster, "tiny")) > 25_000);
    assert!(log_usage(&cluster).free_bytes > 8 << 20);
}

#[test]
fn who_fills_the_index_pays_for_it() {
    tiny_messages_beside_large_ones_of(0);
}

#[test]
fn who_fills_the_index_pays_for_it_and_not_an_ordered_topic() {
    tiny_messages_beside_large_ones_of(5);
}

#[test]
fn a_large_batch_takes_one_block_of_many_small_topics() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "large", 0);
    let value = vec![1; 60_000];
    let mut topics = 0;
    while log_usage(&cluster).free_bytes > 0 {
        let name = format!("t{topics}");
        create_topic(&cluster, &name, 0);
        let mut sender = Sender::open(&cluster, &name, 7);
        for sequence in 0..16 {
            sender.peer.send_bytes(&sender.batch(sequence, &[&value]));
        }
        sender.peer.expect_acks(16);
        topics += 1;
    }
    let before = log_usage(&cluster).readable_bytes;
    let mut large = Sender::open(&cluster, "large", 7);
    let values = vec![vec![1; 500_000]; 4];
    let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
    large.peer.send_bytes(&large.batch(0, &values));
    large.peer.expect_acks(1);
    let gone = before + 2_000_000 - log_usage(&cluster).readable_bytes;
    assert!(gone < 5 << 20, "{gone} bytes went for two million");
}

#[test]
fn a_batch_for_which_there_can_be_no_room_takes_nothing() {
    let cluster = start(BrokerConfig::default());
    create_topic_of_order(&cluster, "t", 5, 0);
    create_topic(&cluster, "other", 0);
    let mut steady = Sender::open(&cluster, "t", 7);
    let mut gap = Sender::open(&cluster, "t", 100);
    // In each stretch of the log in which the batch could lie, something waits for its place.
    let mut sequence = 0;
    while log_usage(&cluster).free_bytes > 0 {
        steady.publish(sequence..sequence + 1);
        if sequence % 8 == 3 {
            gap.send_ahead(1 + sequence);
            let waiting = 1 + sequence / 8;
            eventually("it waits", || {
                log_usage(&cluster).pending_bytes >= waiting * 128
            });
        }
        sequence += 1;
    }
    let before = kept(&cluster, "t");
    let mut other = Sender::open(&cluster, "other", 7);
    let values = vec![vec![1; LARGE]; 8];
    let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
    other.peer.send_bytes(&other.batch(0, &values));
    let refused = other.peer.expect_refusal();
    assert_eq!(refused.code, ErrorCode::Backpressure);
    assert_eq!(kept(&cluster, "t"), before);
}

#[test]
fn stalled_readers_pin_no_more_than_a_share_of_evicted_memory() {
    let config = BrokerConfig {
        send_buffer_bytes: Some(64 << 10),
        ..BrokerConfig::default()
    };
    let cluster = start(config);
    create_topic(&cluster, "t", 0);
    let mut sender = Sender::open(&cluster, "t", 7);
    sender.publish(0..60);
    let full = kept(&cluster, "t");
    // One for each batch, in the middle of which it stops.
    let readers: Vec<Peer> = full
        .clone()
        .map(|from| {
            let mut reader = Peer::greet(data(&cluster));
            reader.subscribe("t", StartAt::Offset(from));
            // Its first bytes are here, so the rest is being sent.
            reader.stream.peek(&mut [0]).expect("it is sent to");
            reader
        })
        .collect();
    for sequence in 60..70 {
        sender.publish(sequence..sequence + 1);
        let left = messages(&kept(&cluster, "t"));
        assert!(left * 4 >= messages(&full) * 3, "{left} of {full:?}");
    }
    drop(readers);
}

/// Sends a few bytes ahead of what comes before them into every extent, while others publish.
fn gaps_in_every_extent(cluster: &Cluster, rounds: u64) {
    let mut steady = Sender::open(cluster, "t", 7);
    let mut gap = Sender::open(cluster, "t", 100);
    for sequence in 0..rounds {
        steady.publish(sequence..sequence + 1);
        gap.send_ahead(sequence + 1);
        // It is in the log, or refused.
        eventually("it was looked at", || {
            let pending = log_usage(cluster).pending_bytes;
            pending >= (sequence + 1) * 128 || has_answer(&gap.peer)
        });
    }
}

fn has_answer(peer: &Peer) -> bool {
    peer.stream.set_nonblocking(true).expect("an option");
    let there = peer.stream.peek(&mut [0]).is_ok();
    peer.stream.set_nonblocking(false).expect("an option");
    there
}

#[test]
fn a_gap_keeps_no_more_than_a_share_from_being_read() {
    let cluster = start(BrokerConfig::default());
    create_topic_of_order(&cluster, "t", 5, 0);
    gaps_in_every_extent(&cluster, 80);
    let left = messages(&kept(&cluster, "t"));
    assert!(
        left >= 32,
        "{left} of 48 are kept: {:?}",
        log_usage(&cluster)
    );
}

#[test]
fn a_gap_costs_other_topics_nothing_that_they_hold_less_of() {
    let cluster = start(BrokerConfig::default());
    create_topic_of_order(&cluster, "t", 5, 0);
    create_topic(&cluster, "other", 0);
    Sender::open(&cluster, "other", 9).publish(0..10);
    gaps_in_every_extent(&cluster, 60);
    assert_eq!(kept(&cluster, "other"), 0..10);
    let left = messages(&kept(&cluster, "t"));
    assert!(
        left >= 24,
        "{left} of 38 are kept: {:?}",
        log_usage(&cluster)
    );
}

#[test]
fn a_gap_in_the_largest_topic_costs_others_no_more_than_a_share() {
    let cluster = start(BrokerConfig::default());
    // Below its limit: it pays when nobody else can.
    create_topic(&cluster, "limited", 1 << 40);
    create_topic_of_order(&cluster, "t", 5, 0);
    Sender::open(&cluster, "limited", 9).publish(0..60);
    let full = kept(&cluster, "limited");
    gaps_in_every_extent(&cluster, 30);
    let left = messages(&kept(&cluster, "limited"));
    assert!(left * 4 >= messages(&full) * 3, "{left} of {full:?}");
}

#[test]
fn gaps_in_as_many_topics_as_fill_the_log_keep_no_publisher_out() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "other", 0);
    let values = vec![vec![1; LARGE]; 5];
    let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
    let mut waiting = Vec::new();
    for topic in (0..10).map(|number| format!("t{number}")) {
        create_topic_of_order(&cluster, &topic, 5, 0);
        let mut steady = Sender::open(&cluster, &topic, 7);
        steady.peer.send_bytes(&steady.batch(0, &values));
        steady.peer.expect_acks(1);
        let mut gap = Sender::open(&cluster, &topic, 100);
        let pending = log_usage(&cluster).pending_bytes;
        gap.send_ahead(1);
        eventually("it was looked at", || {
            log_usage(&cluster).pending_bytes > pending || has_answer(&gap.peer)
        });
        waiting.push(gap);
    }
    Sender::open(&cluster, "other", 9).publish(0..5);
    assert_eq!(kept(&cluster, "other"), 0..5);
}

#[test]
fn of_topics_that_hold_as_much_the_one_that_has_it_longest_pays() {
    const TOPICS: u16 = 1100;
    let cluster = small().topics(TOPICS).start().expect("it starts");
    let name = |topic| format!("t{topic}");
    for topic in 0..TOPICS {
        create_topic(&cluster, &name(topic), 0);
        Sender::open(&cluster, &name(topic), 7).publish_tiny(0..1);
    }
    let is_gone = |topic: &u16| kept(&cluster, &name(*topic)).is_empty();
    let gone: Vec<u16> = (0..TOPICS).filter(is_gone).collect();
    assert!(!gone.is_empty(), "there is room for an extent of fewer");
    assert!(gone.iter().copied().eq(0..gone.len() as u16), "{gone:?}");
}

#[test]
fn lives_of_a_broker_cost_its_topics_no_pages_of_the_index() {
    const TOPICS: u16 = 200;
    let mut cluster = start(BrokerConfig::default());
    let names: Vec<String> = (0..TOPICS).map(|topic| format!("t{topic}")).collect();
    names
        .iter()
        .for_each(|name| create_topic(&cluster, name, 0));
    // More than there are pages for.
    for life in 0..4 {
        for name in &names {
            Sender::open(&cluster, name, 7).publish_tiny(life..life + 1);
        }
        cluster.crash_broker(1);
        cluster.restart_broker(1).expect("it comes back");
    }
    let whole = names.iter().filter(|name| kept(&cluster, name) == (0..4));
    assert_eq!(whole.count(), names.len());
}

#[test]
fn announced_batches_take_a_share_of_the_index_at_most() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "tiny", 0);
    let mut sender = Sender::open(&cluster, "tiny", 7);
    let id = sender.opened.topic_id;
    sender.publish_tiny(0..34_000);
    let mut claims: Vec<Peer> = (0..250)
        .map(|_| {
            let mut peer = Peer::greet(data(&cluster));
            peer.open_publisher("tiny", 1);
            peer.send_bytes(&batch(id, 0, &[b"first"]));
            peer.expect_acks(1);
            peer
        })
        .collect();
    let before = kept(&cluster, "tiny");
    for peer in &mut claims {
        peer.send_bytes(&batch(id, 1, &[b"claim"])[..64]);
    }
    // Those that may not claim are received beside the log.
    eventually("all have begun", || {
        let log = log_usage(&cluster);
        log.receiving_bytes + log.staged_bytes >= 250 * 128
    });
    let left = messages(&kept(&cluster, "tiny"));
    assert!(left * 6 >= messages(&before) * 5, "{left} of {before:?}");
    // A publisher is not kept out meanwhile.
    let mut honest = Peer::greet(data(&cluster));
    honest.open_publisher("tiny", 1);
    honest.send_bytes(&batch(id, 0, &[b"honest"]));
    assert!(matches!(
        honest.receive(),
        Some(Frame::Ack { refused: None, .. })
    ));
}
