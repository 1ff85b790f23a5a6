//! Once its log is full, a broker takes in batches and sends them to a subscriber without an allocation, in whichever
//! way it receives them: what one batch took serves the next.

mod support;

use std::time::Duration;

use embar_broker::{BrokerConfig, Cluster, ReceivePath};
use embar_transport::alloc::{Counting, of_process, of_thread, set_counting};
use embar_wire::control::StartAt;
use support::{Peer, batch_of, create_topic_of_order, data};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REGION_BYTES: u64 = 32 << 20;
const PRODUCER: u64 = 7;
/// Half a log is passed so often.
const TIMES: usize = 4;

/// How often threads other than the test's asked for memory: those of the broker, of the head, and of the sequencer.
fn asked_by_others() -> u64 {
    of_process().times - of_thread().times
}

/// What goes through a broker.
struct Stream {
    publisher: Peer,
    subscriber: Peer,
    topic: u32,
    epoch: u32,
    value: Vec<u8>,
    next: u64,
}

impl Stream {
    fn open(cluster: &Cluster, order: u32, value_bytes: usize) -> Self {
        create_topic_of_order(cluster, "t", order, 0);
        let mut publisher = Peer::greet(data(cluster));
        let opened = publisher.open_session("t", PRODUCER);
        let mut subscriber = Peer::greet(data(cluster));
        subscriber.subscribe("t", StartAt::Earliest);
        Self {
            publisher,
            subscriber,
            topic: opened.topic_id,
            epoch: opened.session_epoch,
            value: vec![7; value_bytes],
            next: 0,
        }
    }

    /// Publishes so many batches, about 128 KiB at once, and reads them.
    fn pass(&mut self, batches: usize) {
        let at_once = ((128 << 10) / self.value.len()).max(1);
        for _ in 0..batches / at_once {
            let mut bytes = Vec::new();
            for _ in 0..at_once {
                let values: &[&[u8]] = &[&self.value];
                bytes.extend(batch_of(
                    PRODUCER, self.epoch, self.topic, self.next, values,
                ));
                self.next += 1;
            }
            self.publisher.send_bytes(&bytes);
            self.publisher.expect_acks(at_once);
            self.subscriber.read(at_once);
        }
    }
}

/// How often a full broker asks for memory for half as many batches as filled its log: the least of several times. What its batches
/// need, it needs each time, and what its threads need once, a while after their start, may come in any of them.
fn asked_for_half_a_log(receive: ReceivePath, order: u32, value_bytes: usize) -> u64 {
    let config = BrokerConfig {
        receive,
        idle_timeout: Duration::ZERO,
        ..BrokerConfig::default()
    };
    let cluster = support::small().region_bytes(REGION_BYTES).config(config);
    let cluster = cluster.start().expect("a small cluster starts");
    let mut stream = Stream::open(&cluster, order, value_bytes);
    let full = REGION_BYTES as usize / value_bytes;
    let before = asked_by_others();
    stream.pass(full);
    let warm = asked_by_others();
    assert!(warm > before, "the first ones are counted");
    let mut half = || {
        let before = asked_by_others();
        stream.pass(full / 2);
        asked_by_others() - before
    };
    (0..TIMES).map(|_| half()).min().expect("more than none")
}

/// One after the other, because the count is the whole process's.
#[test]
fn a_full_broker_allocates_nothing_for_a_batch() {
    set_counting(true);
    let all = ReceivePath::ALL.map(|receive| (receive, 0, 300_000));
    let small = [(ReceivePath::Direct, 0), (ReceivePath::Uring, 5)];
    let small = small.map(|(receive, order)| (receive, order, 16 << 10));
    let ordered = [(ReceivePath::Direct, 5, 300_000)];
    for (receive, order, value_bytes) in all.into_iter().chain(small).chain(ordered) {
        let asked = asked_for_half_a_log(receive, order, value_bytes);
        // The sequencer keeps a list of the pages of a topic's order. It grows for as long as there are free pages,
        // and is twice as long each time, so at most once while half as many batches come as came before.
        let grown = u64::from(order > 1);
        assert!(
            asked <= grown,
            "{receive}, order {order}, {value_bytes} bytes: {asked} allocations"
        );
    }
}
