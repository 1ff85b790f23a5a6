//! Whatever a publisher or a subscriber of an ordered topic does: it has a defined outcome, and nobody
//! else notices.

mod support;

use std::io::Read;
use std::time::Duration;

use embar_broker::{BrokerConfig, Cluster};
use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::batch::Batch;
use embar_wire::control::{
    Control, DeleteTopic, ErrorCode, OpenPublisher, OpenSession, PublisherOpened, Secret,
    SessionOpened, StartAt, Subscribe,
};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;
use support::{Frame, Peer, batch_of, create_topic_of_order, data, error_of};

const STRICT: &str = "order-5";
const LOOSE: &str = "order-2";

/// A head and two brokers, and a topic of each order.
fn start(config: BrokerConfig) -> Cluster {
    let builder = Cluster::builder().brokers(3).region_bytes(128 << 20);
    let cluster = builder.config(config).start().expect("it starts");
    create_topic_of_order(&cluster, STRICT, 5, 0);
    create_topic_of_order(&cluster, LOOSE, 2, 0);
    cluster
}

/// The first opening of an instance of a producer's client.
fn open(topic: &str, producer: u64, instance: u64) -> OpenPublisher {
    OpenPublisher {
        topic: topic.into(),
        producer,
        acks: 1,
        instance,
        secret: Secret([producer as u8; 16]),
        ..OpenPublisher::default()
    }
}

/// A connection with a session.
struct Publisher {
    peer: Peer,
    producer: u64,
    topic: u32,
    epoch: u32,
}

impl Publisher {
    fn open(cluster: &Cluster, topic: &str, producer: u64) -> Self {
        Self::of_instance(cluster, topic, producer, 1)
    }

    fn of_instance(cluster: &Cluster, topic: &str, producer: u64, instance: u64) -> Self {
        let mut peer = Peer::greet(data(cluster));
        let mut open = open(topic, producer, instance);
        let mut answer = peer.ask(&Control::OpenPublisher(open.clone()));
        while let Control::SessionHeld(held) = answer {
            open.takes_over = held.session_epoch;
            answer = peer.ask(&Control::OpenPublisher(open.clone()));
        }
        match answer {
            Control::PublisherOpened(PublisherOpened {
                topic_id,
                session_epoch,
                ..
            }) => Self {
                peer,
                producer,
                topic: topic_id,
                epoch: session_epoch,
            },
            other => panic!("{other:?}"),
        }
    }

    fn send_as(&mut self, producer: u64, epoch: u32, number: u64) {
        let value = number.to_le_bytes();
        let bytes = batch_of(producer, epoch, self.topic, number, &[&value]);
        self.peer.send_bytes(&bytes);
    }

    fn send(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.send_as(self.producer, self.epoch, number);
        }
    }

    fn answers(&mut self, count: usize) -> Vec<Result<u64, (ErrorCode, u64)>> {
        self.peer.expect_answers(count)
    }

    /// Sends one batch; what became of it.
    fn publish(&mut self, number: u64) -> Result<u64, (ErrorCode, u64)> {
        self.send([number]);
        self.answers(1)[0]
    }

    fn renew(&mut self) -> Control {
        let gives_up = self.epoch;
        self.peer
            .ask(&Control::OpenSession(OpenSession { gives_up }))
    }
}

#[test]
fn a_session_of_a_topic_that_was_deleted_hears_that_it_was() {
    let cluster = start(BrokerConfig::default());
    for topic in [STRICT, LOOSE] {
        let mut publisher = Publisher::open(&cluster, topic, 7);
        assert_eq!(publisher.publish(0), Ok(0));
        let name = topic.into();
        let delete = Control::DeleteTopic(DeleteTopic { name });
        let deleted = Peer::greet(cluster.bootstrap()).ask(&delete);
        assert_eq!(deleted, Control::TopicDeleted);
        // The sequencer hears of it before the broker or after it: the session is not what is missing.
        let refused = (1..).find_map(|number| {
            publisher.send([number]);
            match publisher.peer.receive().expect("it is told") {
                Frame::Ack { refused, .. } => refused,
                Frame::Control(Control::Error(error)) => Some(error.code),
                Frame::Closed(closed) => Some(error_of(closed).code),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(refused, Some(ErrorCode::UnknownTopic));
    }
}

#[test]
fn numbers_behind_are_stored_and_those_too_far_ahead_are_refused() {
    let cluster = start(BrokerConfig {
        session_window: 16,
        ..BrokerConfig::default()
    });
    for topic in [STRICT, LOOSE] {
        let mut publisher = Publisher::open(&cluster, topic, 7);
        publisher.send(0..3);
        assert_eq!(publisher.answers(3), [Ok(0), Ok(1), Ok(2)]);
        // Backwards: each is where it was.
        publisher.send([2, 0, 1]);
        assert_eq!(publisher.answers(3), [Ok(2), Ok(0), Ok(1)]);
        let beyond = Err((ErrorCode::BeyondWindow, 0));
        for far in [3 + 16, 1 << 40, u64::MAX - 1] {
            assert_eq!(publisher.publish(far), beyond, "{topic} {far}");
        }
        let senseless = Err((ErrorCode::InvalidArgument, 0));
        assert_eq!(publisher.publish(u64::MAX), senseless);
        assert_eq!(publisher.publish(3), Ok(3));
    }
}

#[test]
fn a_gap_longer_than_its_lease_ends_the_epoch_and_the_next_goes_on() {
    let cluster = start(BrokerConfig {
        gap_lease: Duration::from_millis(200),
        ..BrokerConfig::default()
    });
    let mut other = Publisher::open(&cluster, STRICT, 8);
    let mut publisher = Publisher::open(&cluster, STRICT, 7);
    publisher.send([0, 2, 3]);
    assert_eq!(other.publish(0).map(|position| position < 2), Ok(true));
    let fenced = Err((ErrorCode::Fenced, 1));
    assert_eq!(publisher.answers(3)[1..], [fenced, fenced]);
    // What is missing comes too late.
    assert_eq!(publisher.publish(1), fenced);
    let Control::SessionOpened(SessionOpened {
        session_epoch,
        mark: 1,
        ..
    }) = publisher.renew()
    else {
        panic!("an epoch that begins with what is missing")
    };
    let old = std::mem::replace(&mut publisher.epoch, session_epoch);
    assert_eq!(session_epoch, old + 1);
    publisher.send(1..4);
    assert_eq!(publisher.answers(3), [Ok(2), Ok(3), Ok(4)]);
    assert_eq!(other.publish(1), Ok(5));
}

#[test]
fn of_two_clients_with_one_identity_the_older_learns_that_it_is_taken() {
    let cluster = start(BrokerConfig::default());
    let mut older = Publisher::of_instance(&cluster, STRICT, 7, 1);
    assert_eq!(older.publish(0), Ok(0));
    // It waits for batch 1, which never comes.
    older.send([2]);
    let mut newer = Publisher::of_instance(&cluster, STRICT, 7, 2);
    assert_eq!(newer.epoch, older.epoch + 1);
    let fenced = Err((ErrorCode::Fenced, 1));
    assert_eq!(older.answers(1), [fenced]);
    assert_eq!(older.publish(1), fenced);
    assert_eq!(newer.publish(1), Ok(1));
    older.peer.send(&Control::OpenSession(OpenSession {
        gives_up: older.epoch,
    }));
    assert_eq!(older.peer.expect_refusal().code, ErrorCode::SessionTaken);
    // Coming back as the one that it was does not help either.
    let mut back = Peer::greet(data(&cluster));
    back.send(&Control::OpenPublisher(OpenPublisher {
        resumes: true,
        ..open(STRICT, 7, 1)
    }));
    assert_eq!(back.expect_refusal().code, ErrorCode::SessionTaken);
    assert_eq!(newer.publish(2), Ok(2));
}

#[test]
fn forged_epochs_change_nothing() {
    let cluster = start(BrokerConfig::default());
    for topic in [STRICT, LOOSE] {
        let mut publisher = Publisher::open(&cluster, topic, 7);
        assert_eq!(publisher.publish(0), Ok(0));
        let unknown = Err((ErrorCode::UnknownSession, 0));
        for epoch in [0, publisher.epoch + 1, u32::MAX] {
            publisher.send_as(7, epoch, 1);
            assert_eq!(publisher.answers(1), [unknown], "{topic} epoch {epoch}");
        }
        let Control::SessionOpened(opened) = publisher.renew() else {
            panic!("the next epoch")
        };
        let old = std::mem::replace(&mut publisher.epoch, opened.session_epoch);
        assert_eq!(publisher.publish(1), Ok(1));
        // An older one is over, whatever its numbers are.
        publisher.send_as(7, old, 1);
        publisher.send_as(7, old, 2);
        let fenced = Err((ErrorCode::Fenced, 2));
        assert_eq!(publisher.answers(2), [fenced, fenced], "{topic}");
        assert_eq!(publisher.publish(2), Ok(2));
    }
}

#[test]
fn nobody_publishes_in_a_session_of_somebody_else() {
    let cluster = start(BrokerConfig::default());
    let mut victim = Publisher::open(&cluster, STRICT, 7);
    assert_eq!(victim.publish(0), Ok(0));
    let mut thief = Publisher::open(&cluster, STRICT, 8);
    thief.send_as(7, victim.epoch, 1);
    let error = thief.peer.expect_refusal();
    assert_eq!(error.code, ErrorCode::BadFrame);
    assert!(error.message.contains("another"), "{}", error.message);
    // Nor does whoever has none get one.
    let mut nobody = Peer::greet(data(&cluster));
    nobody.send(&Control::CloseSession);
    assert_eq!(nobody.expect_refusal().code, ErrorCode::BadFrame);
    assert_eq!(victim.publish(1), Ok(1));
}

#[test]
fn a_full_table_of_held_batches_has_room_for_others_and_expected_ones() {
    let cluster = start(BrokerConfig {
        held_batches: 8,
        ..BrokerConfig::default()
    });
    let mut greedy = Publisher::open(&cluster, STRICT, 7);
    let mut modest = Publisher::open(&cluster, STRICT, 8);
    greedy.send(1..=20);
    // Its answer says that all before it is in the lane.
    let answer = greedy.peer.ask(&Control::Status);
    assert!(matches!(answer, Control::StatusReply(_)), "{answer:?}");
    modest.send([1, 0]);
    assert_eq!(modest.answers(2), [Ok(1), Ok(0)]);
    greedy.send([0]);
    let answers = greedy.answers(21);
    assert_eq!(
        answers[..4],
        [3, 4, 5, 6].map(Ok),
        "half of it is one's own"
    );
    let full = Err((ErrorCode::HeldFull, 0));
    assert!(answers[4..20].iter().all(|answer| *answer == full));
    assert_eq!(answers[20], Ok(2));
    greedy.send(5..=20);
    let expected: Vec<_> = (7..23).map(Ok).collect();
    assert_eq!(greedy.answers(16), expected);
}

/// Batches until the end, each with its own bytes; the position after them.
fn read_to_the_end(slow: &mut Peer) -> u64 {
    let mut bytes = Vec::new();
    // Half a batch may be the end.
    drop(slow.stream.read_to_end(&mut bytes));
    let (mut rest, mut next) = (&bytes[..], 0);
    while let Ok((batch, behind)) = Batch::split_first(rest, u32::MAX) {
        let header = batch.header();
        // What lay in another broker's memory may have been used again while it was sent.
        if header.check_payload(batch.payload()).is_err() {
            break;
        }
        assert_eq!(header.base_offset(), next);
        next += u64::from(header.message_count());
        rest = behind;
    }
    next
}

#[test]
fn a_subscriber_that_never_reads_delays_no_one_and_is_closed() {
    let cluster = start(BrokerConfig::default());
    create_topic_of_order(&cluster, "short", 5, 1 << 20);
    let value = vec![5; 200_000];
    let addresses = [1, 2].map(|id| cluster.broker(id).expect("it runs").address());
    let mut publisher = Publisher::open(&cluster, "short", 7);
    let mut readers = addresses.map(|broker| {
        let (mut slow, mut quick) = (Peer::greet(broker), Peer::greet(broker));
        slow.subscribe("short", StartAt::Earliest);
        quick.subscribe("short", StartAt::Earliest);
        (slow, quick)
    });
    let count = 120;
    for number in 0..count {
        let bytes = batch_of(7, publisher.epoch, publisher.topic, number, &[&value]);
        publisher.peer.send_bytes(&bytes);
        assert_eq!(publisher.answers(1), [Ok(number)]);
        for (_, quick) in &mut readers {
            assert_eq!(quick.read(1)[0].0, number);
        }
    }
    for (broker, (slow, _)) in addresses.into_iter().zip(&mut readers) {
        let next = read_to_the_end(slow);
        assert!(next < count, "it was cut");
        let subscribe = Subscribe {
            topic: "short".into(),
            start: StartAt::Offset(next),
            topic_id: 0,
            share: Share::All,
            isolation: Isolation::Durable,
        };
        let Control::Error(error) = Peer::greet(broker).ask(&Control::Subscribe(subscribe)) else {
            panic!("position {next} is gone")
        };
        assert_eq!(error.code, ErrorCode::OffsetOutOfRange);
        let first = error.first_available.expect("where it goes on");
        assert!(first > next && first < count, "{next} {first}");
        let mut back = Peer::greet(broker);
        back.subscribe("short", StartAt::Offset(first));
        let read = back.read((count - first) as usize);
        assert!(read.iter().map(|(position, _)| *position).eq(first..count));
    }
}

#[test]
fn what_is_stored_and_gone_is_acknowledged_without_a_position() {
    let cluster = start(BrokerConfig::default());
    create_topic_of_order(&cluster, "short", 5, 256 << 10);
    let mut publisher = Publisher::open(&cluster, "short", 7);
    let value = vec![1; 60_000];
    for number in 0..20 {
        let bytes = batch_of(7, publisher.epoch, publisher.topic, number, &[&value]);
        publisher.peer.send_bytes(&bytes);
        assert_eq!(publisher.answers(1), [Ok(number)]);
    }
    assert_eq!(publisher.publish(0), Ok(POSITION_UNKNOWN));
    assert_eq!(publisher.publish(19), Ok(19));
}
