//! Topics of orders 0 and 1 that are on a disk: one chain for each broker.

use std::sync::Arc;

use embar_broker::BrokerConfig;
use embar_broker::journal::{self, SeedError};
use embar_broker::log::{AdmitError, Read, Wanted};
use embar_broker::node::Node;
use embar_disk::Chain;
use embar_fabric::Geometry;
use embar_fabric::news::News;
use embar_memory::{Outage, Simulated};
use embar_transport::Pieces;
use embar_wire::batch::BatchHeader;
use embar_wire::control::{Control, OpenPublisher, StartAt, Subscribe};
use embar_wire::frame::FrameId;
use embar_wire::isolation::Isolation;
use embar_wire::limits::MAX_BATCH_BYTES;
use embar_wire::share::Share;

use super::disk::{DiskWriter, found, history};
use super::thread::Thread;
use super::world::{Broker, KEPT, Session, World, sealed};

fn world() -> (World, embar_disk::Simulated) {
    (World::with_disks(1), embar_disk::Simulated::new())
}

/// Up to where a subscriber reads, and what it finds there.
fn read(broker: &Broker, topic: u32, from: u64) -> Option<u64> {
    let wanted = Wanted {
        topic,
        from,
        share: Share::All,
        isolation: Isolation::Durable,
    };
    let pieces = || Box::new(Pieces::new());
    match broker.log.read(&wanted, usize::MAX, &mut 0, pieces) {
        Read::Batches { next, .. } => Some(next),
        Read::End => None,
        _ => panic!("offset {from} cannot be read from memory"),
    }
}

fn durable(broker: &mut Broker, topic: u32) -> u64 {
    broker.answers();
    broker.log.durable(topic)
}

/// The numbers of the batches that a disk has of a broker, from its first on.
fn on_disk(disk: &embar_disk::Simulated, topic: u32, row: u16) -> Vec<u64> {
    let (mut from, mut numbers) = (0, Vec::new());
    while let Ok(batches) = history(disk, Chain { topic, row }, from) {
        let mut at = 0;
        while at < batches.bytes.len() {
            let header = BatchHeader::parse(&batches.bytes[at..], MAX_BATCH_BYTES);
            let header = header.expect("whole batches");
            assert_eq!(header.base_offset(), from);
            from += u64::from(header.message_count());
            numbers.push(header.sequence());
            at += header.frame_len() as usize;
        }
        assert_eq!(batches.next, from);
    }
    numbers
}

#[test]
fn each_broker_hears_how_far_its_own_messages_are_on_the_disk() {
    for order in [0, 1] {
        let (world, disk) = world();
        let mut sequencer = world.sequencer();
        let topic = world.create_topic_on_disks("t", order, 1).id;
        let [mut one, mut two] = [1, 2].map(|row| world.broker(row, &mut sequencer));
        let mut writer = DiskWriter::open(&world, &sequencer, &disk);
        writer.write();
        for number in 0..100 {
            one.append_to(topic, number, 1000);
        }
        two.append_to(topic, 0, 1000);
        assert_eq!([&mut one, &mut two].map(|it| durable(it, topic)), [0; 2]);
        assert_eq!(read(&one, topic, 0), None, "subscribers wait for the disk");
        one.log.announce_grown();
        let commit = writer.gather().expect("it was told");
        assert_eq!(durable(&mut one, topic), 0, "it is not synced");
        writer.sync(commit);
        writer.write();
        assert_eq!(durable(&mut one, topic), 100);
        assert!(read(&one, topic, 0) > Some(0));
        assert_eq!(durable(&mut two, topic), 1, "a new page is told of at once");
        two.append_to(topic, 1, 1000);
        writer.write();
        assert_eq!(durable(&mut two, topic), 1);
        two.log.announce_grown();
        writer.write();
        assert_eq!(durable(&mut two, topic), 2);
        assert_eq!(on_disk(&disk, topic, 1), (0..100).collect::<Vec<_>>());
        assert_eq!(on_disk(&disk, topic, 2), [0, 1]);
    }
}

#[test]
fn what_the_disk_does_not_have_stays_and_takes_half_of_the_log_at_most() {
    let (world, disk) = world();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic_on_disks("t", 0, 1).id;
    let mut broker = world.broker(1, &mut sequencer);
    let mut writer = DiskWriter::open(&world, &sequencer, &disk);
    let mut appended = 0;
    for _ in 0..3 {
        while broker.refused(topic).is_none() {
            assert_eq!(broker.append_to(topic, appended, 10_000), appended);
            appended += 1;
        }
        assert_eq!(broker.refused(topic), Some(AdmitError::Congested));
        // Half of the megabyte that there is.
        let behind = appended - durable(&mut broker, topic);
        assert!((51..55).contains(&behind), "{behind} batches");
        for number in 0..200 {
            broker.append(number, 10_000);
        }
        let stats = broker.log.topic_stats(topic).expect("it is open");
        assert!(stats.first <= stats.durable, "{stats:?}");
        broker.log.announce_grown();
        writer.write();
        assert_eq!(durable(&mut broker, topic), appended);
    }
    for number in 0..200 {
        broker.append(number, 10_000);
    }
    let stats = broker.log.topic_stats(topic).expect("it is open");
    assert!(stats.first > 0, "what the disk has goes: {stats:?}");
    assert_eq!(stats.first_on_disks, 0);
    let evicted = broker.log.read(&Wanted::latest(topic, 0), 1, &mut 0, || {
        Box::new(Pieces::new())
    });
    assert!(matches!(evicted, Read::OnDisk { first } if first == stats.first));
    assert_eq!(on_disk(&disk, topic, 1), (0..appended).collect::<Vec<_>>());
    assert!(
        broker
            .log
            .topic_stats(KEPT)
            .is_some_and(|it| it.batches > 0)
    );
}

#[test]
fn small_batches_leave_half_of_the_index_to_others() {
    let (world, _disk) = world();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic_on_disks("t", 1, 1).id;
    let mut broker = world.broker(1, &mut sequencer);
    let mut appended = 0;
    while broker.refused(topic).is_none() {
        broker.append_to(topic, appended, 8);
        appended += 1;
    }
    // Of 16 pages with 63 records each.
    assert_eq!(appended, 8 * 63 + 1);
    for number in 0..1000 {
        broker.append(number, 8);
    }
    assert_eq!(broker.log.topic_stats(topic).map(|it| it.first), Some(0));
}

#[test]
fn a_broker_that_dies_goes_on_and_so_does_the_disk() {
    for outage in [Outage::Host, Outage::Process] {
        let (world, disk) = world();
        let mut sequencer = world.sequencer();
        let topic = world.create_topic_on_disks("t", 0, 1).id;
        let mut writer = DiskWriter::open(&world, &sequencer, &disk);
        let mut appended = 0;
        for life in 0..5 {
            let mut broker = world.broker(1, &mut sequencer);
            for _ in 0..40 {
                assert_eq!(broker.append_to(topic, appended, 500), appended);
                appended += 1;
            }
            if life % 2 == 0 {
                broker.log.announce_grown();
            }
            writer.write();
            broker.end(outage);
        }
        // The last one has told all. One that comes new is told nothing, and looks at everything.
        let mut broker = world.broker(1, &mut sequencer);
        writer.write();
        assert_eq!(durable(&mut broker, topic), appended);
        assert_eq!(on_disk(&disk, topic, 1), (0..appended).collect::<Vec<_>>());
    }
}

#[test]
fn a_successor_goes_on_where_the_disk_ends() {
    let (world, disk) = world();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic_on_disks("t", 1, 1).id;
    let mut broker = world.broker(1, &mut sequencer);
    let mut appended = 0;
    for _ in 0..4 {
        let mut writer = DiskWriter::open(&world, &sequencer, &disk);
        writer.write();
        for _ in 0..30 {
            broker.append_to(topic, appended, 500);
            appended += 1;
        }
        broker.log.announce_grown();
        let commit = writer.gather().expect("there is something");
        // It dies while that is on its way, or afterwards.
        if appended % 60 == 0 {
            writer.sync(commit);
        }
        sequencer = world.sequencer();
        assert!(writer.gather().is_none(), "it is deposed");
    }
    let mut writer = DiskWriter::open(&world, &sequencer, &disk);
    writer.write();
    assert_eq!(durable(&mut broker, topic), appended);
    assert_eq!(on_disk(&disk, topic, 1), (0..appended).collect::<Vec<_>>());
}

#[test]
fn a_lost_region_gives_brokers_their_next_offsets_back() {
    let (world, disk) = world();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic_on_disks("t", 0, 1).id;
    let mut writer = DiskWriter::open(&world, &sequencer, &disk);
    let mut one = world.broker(1, &mut sequencer);
    for number in 0..50 {
        one.append_to(topic, number, 500);
    }
    one.log.announce_grown();
    writer.write();
    one.append_to(topic, 50, 500);

    let world = World::with_disks(1);
    let region = world.host();
    let seeded = journal::seed(&region, &region.claim_unlocked(0), &[found(&disk)]);
    assert_eq!(seeded.map(|it| (it.topics, it.absent)), Ok((1, None)));
    let mut sequencer = world.sequencer();
    let mut writer = DiskWriter::open(&world, &sequencer, &disk);
    writer.write();
    let [mut one, mut two] = [1, 2].map(|row| world.broker(row, &mut sequencer));
    assert_eq!([&mut one, &mut two].map(|it| durable(it, topic)), [50, 0]);
    assert_eq!(
        one.append_to(topic, 51, 500),
        50,
        "the last one was on no disk"
    );
    assert_eq!(two.append_to(topic, 0, 500), 0);
    let old = one.log.read(&Wanted::latest(topic, 7), 1, &mut 0, || {
        Box::new(Pieces::new())
    });
    assert!(matches!(old, Read::OnDisk { first: 50 }));
    one.log.announce_grown();
    two.log.announce_grown();
    writer.write();
    assert_eq!([&mut one, &mut two].map(|it| durable(it, topic)), [51, 1]);
    let expected: Vec<u64> = (0..50).chain([51]).collect();
    assert_eq!(on_disk(&disk, topic, 1), expected);
}

#[test]
fn a_region_without_a_broker_that_stored_messages_is_refused() {
    let (world, disk) = world();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic_on_disks("t", 0, 1).id;
    let mut writer = DiskWriter::open(&world, &sequencer, &disk);
    writer.write();
    let alone = Geometry {
        brokers: 2,
        ..world.host().geometry().clone()
    };
    let seed = |geometry: &Geometry| {
        let world = World::shaped(geometry);
        let region = world.host();
        let seeded = journal::seed(&region, &region.claim_unlocked(0), &[found(&disk)]);
        seeded.map(|it| it.absent)
    };
    assert_eq!(seed(&alone), Ok(None), "broker 2 has nothing");
    let mut two = world.broker(2, &mut sequencer);
    two.append_to(topic, 0, 500);
    two.log.announce_grown();
    writer.write();
    let refused = seed(&alone).expect_err("nobody could read it");
    let (name, broker) = ("t".to_owned(), 2);
    assert_eq!(
        refused,
        SeedError::Brokers {
            topic: name,
            broker
        }
    );
    assert!(
        refused
            .to_string()
            .ends_with("start with at least --brokers 3")
    );
    let spare = Geometry {
        spares: 1,
        ..world.host().geometry().clone()
    };
    assert_eq!(seed(&spare), Ok(Some(2)), "it may join");
}

#[test]
fn a_deleted_topic_leaves_nothing_of_any_broker() {
    let (world, disk) = world();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic_on_disks("t", 0, 1).id;
    let mut writer = DiskWriter::open(&world, &sequencer, &disk);
    let mut brokers = [1, 2].map(|row| world.broker(row, &mut sequencer));
    for broker in &mut brokers {
        broker.append_to(topic, 0, 500);
        broker.log.announce_grown();
    }
    writer.write();
    world.delete_topic("t");
    for broker in &mut brokers {
        broker.log.close_topic(topic);
    }
    writer.write();
    let found = found(&disk);
    assert_eq!((found.topics.len(), found.highest_id), (0, topic));
    let created = world.create_topic_on_disks("t", 0, 1);
    let other = created.id;
    assert_ne!(other, topic);
    writer.write();
    let [mut one, _] = brokers;
    one.log.open_topic(&created);
    one.append_to(other, 5, 500);
    one.log.announce_grown();
    writer.write();
    assert_eq!(durable(&mut one, other), 1);
    assert_eq!(on_disk(&disk, other, 1), [5]);
}

/// A thread of a broker, and the writer of the disk that the broker's topic is on.
fn thread(order: u32) -> (Arc<Node<Simulated>>, Session, DiskWriter) {
    let (world, disk) = world();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic_on_disks("t", order, 1);
    let writer = DiskWriter::open(&world, &sequencer, &disk);
    let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
    let session = Session {
        topic: topic.id,
        producer: 1,
        slot: 0,
        epoch: 0,
    };
    (node, session, writer)
}

fn publisher(node: &Arc<Node<Simulated>>, acks: u32) -> Thread {
    let mut thread = Thread::new(Arc::clone(node));
    thread.ask(&Control::OpenPublisher(OpenPublisher {
        topic: "t".into(),
        producer: 1,
        acks,
        ..OpenPublisher::default()
    }));
    assert!(matches!(thread.answer(), Control::PublisherOpened(_)));
    thread
}

#[test]
fn acks_2_come_when_the_disk_has_the_batches() {
    for order in [0, 1] {
        let (node, session, mut writer) = thread(order);
        let mut thread = publisher(&node, 2);
        let ack = [FrameId::Ack as u16];
        for number in 0..3 {
            thread.hear(&sealed(&session, number, 500));
            assert!(thread.said().is_empty(), "nothing is written");
            let commit = writer.gather().expect("the broker told of it");
            thread.hear(&[]);
            assert!(thread.said().is_empty(), "it is on its way");
            writer.sync(commit);
            thread.hear(&[]);
            assert_eq!(thread.said(), ack);
        }
    }
}

#[test]
fn acks_1_do_not_wait_and_subscribers_do_unless_they_say_otherwise() {
    for isolation in [Isolation::Durable, Isolation::Latest] {
        let (node, session, mut writer) = thread(0);
        let mut publisher = publisher(&node, 1);
        for number in 0..3 {
            publisher.hear(&sealed(&session, number, 500));
            assert_eq!(publisher.said(), [FrameId::Ack as u16]);
            let mut subscriber = Thread::new(Arc::clone(&node));
            subscriber.ask(&Control::Subscribe(Subscribe {
                topic: "t".into(),
                start: StartAt::Offset(number),
                topic_id: 0,
                share: Share::All,
                isolation,
            }));
            let has_it = |it: &mut Thread| it.said().contains(&(FrameId::Batch as u16));
            let is_latest = isolation == Isolation::Latest;
            assert_eq!(has_it(&mut subscriber), is_latest);
            writer.write();
            subscriber.hear(&[]);
            assert_eq!(has_it(&mut subscriber), !is_latest);
        }
    }
}

#[test]
fn of_topics_in_memory_nobody_is_told() {
    let (world, _disk) = world();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let mut news = world.host().news(News::IndexPages(1));
    assert!(!news.take(&mut Vec::new()), "it is new here");
    for number in 0..500 {
        broker.append(number, 8);
        assert!(!broker.log.has_grown_for_disks());
    }
    let mut named = Vec::new();
    assert!(news.take(&mut named) && named.is_empty());
}
