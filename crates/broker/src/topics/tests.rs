//! Tables of a head and of those who follow it, on one region.

use std::sync::Arc;

use embar_fabric::layout::TableId;
use embar_fabric::{Geometry, Layout};
use embar_memory::{Device, Simulated};
use embar_wire::control::ErrorCode;

use super::*;
use crate::test_region;

type Table = TopicTable<Simulated>;

struct World {
    control: Device,
    payload_file: Device,
    layout: Layout,
}

impl World {
    fn new() -> Self {
        Self::with_disks(0)
    }

    fn with_disks(disks: u16) -> Self {
        let geometry = Geometry {
            topics: 4,
            disks,
            ..test_region::geometry()
        };
        let layout = Layout::new(&geometry);
        let world = Self {
            control: Device::blank(layout.control_bytes()),
            payload_file: Device::blank(geometry.payload_bytes),
            layout,
        };
        let (control, payload_file) = (world.control.host(1), world.payload_file.host(1));
        Region::format(
            Arc::new(control),
            vec![Arc::new(payload_file)],
            &geometry,
            9,
            1,
        )
        .expect("a good geometry");
        world
    }

    fn host(&self, seed: u64) -> Region<Simulated> {
        let payload_files = vec![Arc::new(self.payload_file.host(seed))];
        let region = Region::from_parts(Arc::new(self.control.host(seed)), payload_files);
        region.expect("it was formatted")
    }

    fn head(&self) -> Table {
        let region = self.host(2);
        let records = region.topic_record_writer(&region.claim_unlocked(0));
        TopicTable::attach(&region, Some(records))
    }

    fn follower(&self) -> Table {
        TopicTable::attach(&self.host(3), None)
    }

    /// Changes the words with which the two copies of a topic record begin, behind everybody's back.
    fn damage(&self, record: u16, change: impl Fn(u64) -> u64) {
        let records = self.layout.tables()[TableId::TopicRecords as usize];
        let first = records.offset + u64::from(record) * records.entry_bytes;
        let vandal = self.control.host(9);
        for at in [first, first + records.entry_bytes / 2] {
            vandal.store(at, change(vandal.load(at)));
            vandal.write_back(at, 8);
        }
        vandal.fence();
    }
}

fn create(head: &mut Table, name: &str) -> Topic {
    try_create(head, name, 1).expect("there is room")
}

fn try_create(head: &mut Table, name: &str, replication_factor: u8) -> Result<Topic, TopicError> {
    create_where(head, name, replication_factor, |_| 0)
}

fn create_where(
    head: &mut Table,
    name: &str,
    replication_factor: u8,
    rank: impl Fn(u16) -> u8,
) -> Result<Topic, TopicError> {
    let spec = CreateTopic {
        name: name.into(),
        order: 0,
        retention_bytes: 0,
        retention_ms: 0,
        max_message_bytes: 0,
        replication_factor,
    };
    head.create(&spec, 1 << 20, WallNs(1), rank)
}

fn names(table: &Table) -> Vec<&str> {
    table.iter().map(|topic| topic.name.as_str()).collect()
}

#[test]
fn a_name_that_comes_again_in_another_cell_is_found() {
    for overtaken in [false, true] {
        let world = World::new();
        let mut head = world.head();
        let mut follower = world.follower();
        create(&mut head, "t1");
        create(&mut head, "t2");
        follower.refresh();
        head.delete("t1").expect("it is there");
        head.delete("t2").expect("it is there");
        if overtaken {
            // The ring of news has 16 lines.
            for _ in 0..20 {
                create(&mut head, "other");
                head.delete("other").expect("it is there");
            }
        }
        let again = create(&mut head, "t2");
        assert_eq!(again.record(), 0, "the first that is free");
        follower.refresh();
        for table in [&head, &follower] {
            assert_eq!(names(table), ["t2"]);
            assert_eq!(table.by_name("t2"), Some(&again));
            assert_eq!(table.by_name("t1"), None);
        }
        head.delete("t2").expect("it is there");
        follower.refresh();
        assert_eq!((head.by_name("t2"), follower.by_name("t2")), (None, None));
    }
}

#[test]
fn no_topic_gets_a_topic_record_that_cannot_be_read() {
    // A bit of the nonce; and all of the word, which is then as in a topic record without a topic.
    let changes: [fn(u64) -> u64; 2] = [|word| word ^ 1 << 40, |_| 0];
    for change in changes {
        let world = World::new();
        let lost = create(&mut world.head(), "t1");
        world.damage(lost.record(), change);
        let mut follower = world.follower();
        let mut head = world.head();
        for table in [&head, &follower] {
            assert_eq!((table.damaged(), names(table)), (1, vec![]));
        }
        let other = create(&mut head, "t2");
        assert_ne!(other.record(), lost.record());
        follower.refresh();
        assert_eq!((follower.damaged(), names(&follower)), (1, vec!["t2"]));
    }
}

#[test]
fn a_topic_of_an_unknown_order_counts_as_damaged() {
    let world = World::new();
    let mut head = world.head();
    let lost = create(&mut head, "t1");
    let mut bytes = lost.encode();
    let mut fields = TOPIC_LAYOUT.fields.iter();
    let order = fields
        .find(|field| field.name == "order")
        .expect("it has one");
    bytes[order.offset] = 3;
    let writer = head.writer.as_mut().expect("it is the head's");
    writer.store(lost.record(), &bytes).expect("it fits");
    let follower = world.follower();
    let mut head = world.head();
    for table in [&head, &follower] {
        assert_eq!((table.damaged(), names(table)), (1, vec![]));
        let missing = table.missing("t1");
        assert!(matches!(missing, TopicError::Damaged { .. }), "{missing}");
    }
    assert_ne!(create(&mut head, "t2").record(), lost.record());
}

#[test]
fn a_damaged_topic_that_is_deleted_is_forgotten() {
    let world = World::new();
    let mut head = world.head();
    let lost = create(&mut head, "t1");
    let mut follower = world.follower();
    world.damage(lost.record(), |word| word ^ 1);
    // A look at all topic records finds it.
    let mut late = world.follower();
    assert_eq!(late.damaged(), 1);
    create(&mut head, "t2");
    head.look(lost.record().into());
    head.delete("t1").expect("it is known here");
    for table in [&mut head, &mut follower, &mut late] {
        table.refresh();
        assert_eq!(table.damaged(), 0);
        let missing = table.missing("t1");
        assert!(matches!(missing, TopicError::Unknown { .. }), "{missing}");
    }
    let again = create(&mut head, "t1");
    assert_eq!(again.record(), lost.record());
    assert!(again.id > lost.id);
}

#[test]
fn no_id_is_given_twice() {
    let last = u32::MAX >> TOPIC_RECORD_BITS;
    let versions = [0, 2, 3, 2 * (last - 1)];
    let ids = versions.map(|version| next_id(version, 3).expect("there are more"));
    assert!(ids.is_sorted() && ids.iter().all(|id| topic_record_of(*id) == 3));
    assert_eq!(next_id(2 * last, 3), None);
    assert_eq!(next_id(u32::MAX, 3), None);
}

#[test]
fn a_topic_record_that_reads_as_never_written_is_lost_if_a_broker_knows_its_topic() {
    let world = World::new();
    let topic = create(&mut world.head(), "lost");
    let broker = world.host(4);
    let claim = broker.claim_unlocked(1);
    let mut window = broker.window_writer(&claim, topic.record());
    window.reset(topic.id, 0, 0);
    let records = world.layout.tables()[TableId::TopicRecords as usize];
    let first = records.offset + u64::from(topic.record()) * records.entry_bytes;
    for line in (0..records.entry_bytes).step_by(64) {
        world.control.damage(first + line, |line| line.fill(0));
    }
    let mut head = world.head();
    assert_eq!(names(&head), [""; 0]);
    for table in [&head, &world.follower()] {
        let missing = table.missing("lost");
        assert!(matches!(missing, TopicError::Damaged { damaged: 1, .. }));
    }
    let other = create(&mut head, "other");
    assert_ne!(other.id, topic.id);
    assert_ne!(other.record(), topic.record());
}

#[test]
fn everybody_sees_on_which_disks_a_topic_is() {
    let world = World::with_disks(2);
    let mut head = world.head();
    for (name, factor, disks) in [("memory", 0, 0), ("one", 2, 0b1), ("two", 3, 0b11)] {
        let topic = try_create(&mut head, name, factor).expect("there are two disks");
        assert_eq!((topic.disks, topic.is_durable()), (disks, disks != 0));
        assert_eq!(topic.replication_factor(), factor.max(1));
        assert_eq!(topic.to_wire().replication_factor, factor.max(1));
        for table in [&world.follower(), &world.head()] {
            assert_eq!(table.by_name(name), Some(&topic));
        }
    }
}

#[test]
fn a_disk_that_takes_nothing_gets_a_topic_last() {
    let world = World::with_disks(3);
    let mut head = world.head();
    // The first has failed, and the second is full.
    let rank = |disk: u16| [2, 1, 0][usize::from(disk)];
    let mut disks = |name, factor| create_where(&mut head, name, factor, rank).map(|it| it.disks);
    for name in ["a", "b"] {
        assert_eq!(disks(name, 2), Ok(0b100));
    }
    assert_eq!(disks("c", 3), Ok(0b110));
    assert_eq!(disks("d", 4), Ok(0b111));
}

#[test]
fn a_topic_gets_the_disks_with_the_fewest_topics() {
    let world = World::with_disks(3);
    let mut head = world.head();
    let mut disks = |name, factor| try_create(&mut head, name, factor).map(|topic| topic.disks);
    assert_eq!(
        disks("a", 2),
        Ok(0b001),
        "the first of those that are alike"
    );
    assert_eq!(disks("b", 3), Ok(0b110));
    assert_eq!(disks("c", 2), Ok(0b001));
    assert_eq!(disks("d", 2), Ok(0b010));
    head.delete("a").expect("it is there");
    head.delete("c").expect("it is there");
    let topic = try_create(&mut head, "e", 3).expect("there are three disks");
    assert_eq!(topic.disks, 0b101, "of those that left, nothing counts");
}

#[test]
fn a_disk_that_never_had_a_topic_takes_the_place_of_one_that_fails() {
    let world = World::with_disks(4);
    let mut head = world.head();
    let mut follower = world.follower();
    let one = try_create(&mut head, "one", 2).expect("there are disks");
    let two = try_create(&mut head, "two", 3).expect("there are disks");
    assert_eq!((one.disks, two.disks), (0b0001, 0b0110));
    follower.refresh();
    assert_eq!(follower.take_moved(), [0; 0], "they are new");
    let replaced = head.replace_disk(1, |disk| disk != 0);
    let [(moved, 3)] = &replaced[..] else {
        panic!("{replaced:?}");
    };
    assert_eq!(
        (moved.disks, moved.former_disks, moved.moves),
        (0b1100, 0b0010, 1)
    );
    assert_eq!((moved.id, moved.replication_factor()), (two.id, 3));
    follower.refresh();
    assert_eq!(
        (follower.take_moved(), follower.take_gone()),
        (vec![two.id], vec![])
    );
    assert_eq!(follower.by_id(two.id), Some(moved));
    // The one that is left over for it has failed, too, and the first was its own.
    assert_eq!(head.replace_disk(3, |disk| disk == 1), []);
    let [(again, 0)] = &head.replace_disk(2, |disk| disk == 0)[..] else {
        panic!("the first never had it");
    };
    assert_eq!(
        (again.disks, again.former_disks, again.moves),
        (0b1001, 0b0110, 2)
    );
    assert_eq!(head.by_name("one"), Some(&one), "it was on another disk");
}

#[test]
fn a_topic_that_needs_more_disks_than_there_are_is_refused_with_what_to_do() {
    for (disks, factor, text) in [
        (
            0,
            2,
            "replication factor 2 needs one disk, and the cluster has none: start it with --data DIR, or choose 1",
        ),
        (
            0,
            3,
            "replication factor 3 needs two disks, and the cluster has none: start it with two --data DIR, or choose 1",
        ),
        (
            1,
            3,
            "replication factor 3 needs two disks, and the cluster has one: start it with one more --data DIR, or choose 2",
        ),
        (
            2,
            9,
            "replication factor 9 needs eight disks, and the cluster has two: start it with six more --data DIR, or choose 3",
        ),
        (
            8,
            10,
            "replication factor 10 is not served: choose 1 (memory alone) to 9 (memory and eight disks)",
        ),
    ] {
        let mut head = World::with_disks(disks).head();
        let error = try_create(&mut head, "t", factor).expect_err("too few disks");
        assert_eq!(error.to_string(), text);
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert_eq!(names(&head), [""; 0], "nothing was created");
    }
    let mut head = World::with_disks(8).head();
    let topic = try_create(&mut head, "t", 9).expect("there are eight disks");
    assert_eq!((topic.disks, topic.replication_factor()), (0xFF, 9));
}

#[test]
fn a_topic_on_a_disk_that_the_region_does_not_know_counts_as_damaged() {
    let world = World::with_disks(1);
    let mut head = world.head();
    let topic = try_create(&mut head, "t", 2).expect("there is a disk");
    let elsewhere = Topic {
        disks: 0b10,
        ..topic.clone()
    };
    let writer = head.writer.as_mut().expect("it is the head's");
    let stored = writer.store(topic.record(), &elsewhere.encode());
    stored.expect("it fits");
    let follower = world.follower();
    assert_eq!((follower.damaged(), names(&follower)), (1, vec![]));
}
