//! Damaged memory in a cluster that is started again: nothing is missing without a word, and nothing
//! is ever wrong.
//!
//! A share of all cases is tried; with `EMBAR_DAMAGE=all` every bit of every record that is in use is
//! flipped, one at a time, and every record is overwritten, each followed by a restart.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use embar_broker::Cluster;
use embar_fabric::layout::TableId;
use embar_fabric::{Layout, Region};
use embar_memory::Coherence;
use embar_wire::control::{Control, Metadata, StartAt, Subscribe};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;
use support::{Frame, Peer, batch_of, create_topic_of_order, data, eventually, small};

/// Topics by order level.
const TOPICS: [(&str, u32); 3] = [("kept", 0), ("loose", 2), ("strict", 5)];
/// Batches of each.
const BATCHES: u64 = 4;
const LINE: usize = 64;

/// As many of a size that a topic keeps the last ones of only, and others take its memory.
const BATCHES_TO_EVICT: u64 = 16;
const RETENTION_BYTES: u64 = 128 << 10;

/// A region that a cluster left, and what it was then.
struct Left {
    _parent: tempfile::TempDir,
    dir: PathBuf,
    files: BTreeMap<PathBuf, Vec<u8>>,
    layout: Layout,
    /// Of each topic, the offsets that could be read.
    kept: BTreeMap<&'static str, Range<u64>>,
    value_bytes: usize,
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    vec![number as u8 + 1; bytes]
}

impl Left {
    /// By a cluster that kept everything.
    fn new() -> Self {
        Self::by(BATCHES, 300, 0)
    }

    /// By one that had evicted.
    fn that_evicted() -> Self {
        let left = Self::by(BATCHES_TO_EVICT, 40_000, RETENTION_BYTES);
        let (first, next) = (BATCHES_TO_EVICT / 4, BATCHES_TO_EVICT);
        let evicted = |kept: &Range<u64>| kept.start > first && kept.end == next;
        assert!(left.kept.values().all(evicted), "{:?}", left.kept);
        left
    }

    fn by(batches: u64, value_bytes: usize, retention_bytes: u64) -> Self {
        let parent = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let dir = parent.path().join("region");
        let cluster = small().region_dir(&dir).start().expect("it starts");
        for (topic, order) in TOPICS {
            create_topic_of_order(&cluster, topic, order, retention_bytes);
            let mut peer = Peer::greet(data(&cluster));
            let opened = peer.open_publisher(topic, 1);
            for number in 0..batches {
                let epoch = opened.session_epoch;
                peer.send_bytes(&batch_of(
                    7,
                    epoch,
                    opened.topic_id,
                    number,
                    &[&value(number, value_bytes)],
                ));
            }
            peer.expect_acks(batches as usize);
        }
        let kept = TOPICS.map(|(topic, _)| {
            let all = Peer::greet(data(&cluster)).subscribe(topic, StartAt::Earliest);
            (topic, all.first..all.next)
        });
        drop(cluster);
        let region = Region::open(&dir, Coherence::Coherent).expect("it was left in order");
        let layout = region.layout().clone();
        let names = ["control", "payload-1"].map(|name| dir.join(name));
        let files = names.map(|path| (path.clone(), fs::read(path).expect("it is there")));
        Self {
            _parent: parent,
            dir,
            files: files.into(),
            layout,
            kept: kept.into(),
            value_bytes,
        }
    }

    fn control(&self) -> &[u8] {
        &self.files[&self.dir.join("control")]
    }

    /// Every line in use: the name of its table, and where it lies.
    fn lines(&self) -> Vec<(&'static str, usize)> {
        let control = self.control();
        let tables = self.layout.tables().iter();
        let named = tables.flat_map(|table| {
            let range = table.offset as usize..(table.offset + table.bytes()) as usize;
            range.step_by(LINE).map(|at| (table.id.name(), at))
        });
        let superblock = (0..4096).step_by(LINE).map(|at| ("superblock", at));
        superblock
            .chain(named)
            .filter(|(_, at)| control[*at..at + LINE].iter().any(|byte| *byte != 0))
            .collect()
    }

    /// Both copies of each window in use.
    fn windows(&self) -> Vec<Range<usize>> {
        let lines = self.lines().into_iter();
        let lines = lines.filter_map(|(table, at)| (table == "windows").then_some(at));
        let rows: BTreeSet<usize> = lines.map(|at| at / (2 * LINE)).collect();
        rows.into_iter()
            .map(|row| row * 2 * LINE..(row + 1) * 2 * LINE)
            .collect()
    }

    /// Starts a cluster over what was left, in which `damage` changed these bytes.
    fn start_with(&self, range: Range<usize>, damage: impl Fn(&mut [u8])) -> Cluster {
        for (path, bytes) in &self.files {
            let mut bytes = bytes.clone();
            if path.ends_with("control") {
                damage(&mut bytes[range.clone()]);
            }
            fs::write(path, bytes).expect("it is ours");
        }
        small().region_dir(&self.dir).start().expect("it starts")
    }

    /// As [`Left::start_with`]; returns the topics that the cluster refuses, each with what it says.
    fn try_with(
        &self,
        range: Range<usize>,
        damage: impl Fn(&mut [u8]),
    ) -> Vec<(&'static str, String)> {
        let cluster = self.start_with(range, damage);
        let look = |(topic, _)| Some((topic, self.look(&cluster, topic, StartAt::Earliest).err()?));
        TOPICS.into_iter().filter_map(look).collect()
    }

    /// Reads what was kept of a topic: it is complete, or the broker says what is wrong; also to whoever
    /// has read it.
    fn look(&self, cluster: &Cluster, topic: &str, start: StartAt) -> Result<(), String> {
        let kept = self.kept[topic].clone();
        let more = Control::Subscribe(Subscribe {
            topic: topic.into(),
            start: StartAt::Offset(kept.end),
            topic_id: 0,
            share: Share::All,
            isolation: Isolation::Durable,
        });
        match Peer::greet(data(cluster)).ask(&more) {
            Control::Subscribed(subscribed) => assert_eq!(subscribed.start, kept.end, "{topic}"),
            Control::Error(error) => return Err(error.message),
            other => panic!("{other:?}"),
        }
        let mut peer = Peer::greet(data(cluster));
        let all = Control::Subscribe(Subscribe {
            topic: topic.into(),
            start,
            topic_id: 0,
            share: Share::All,
            isolation: Isolation::Durable,
        });
        let subscribed = match peer.ask(&all) {
            Control::Subscribed(subscribed) => subscribed,
            Control::Error(error) => return Err(error.message),
            other => panic!("{other:?}"),
        };
        assert_eq!(subscribed.next, kept.end, "{topic}");
        // What was evicted may be there still, and come back with a window that was lost.
        assert!(subscribed.start <= kept.start, "{topic}");
        let mut next = subscribed.start;
        while next < kept.end {
            match peer.receive().expect("batches, or why not") {
                Frame::Batch { header, payload } => {
                    for (offset, found) in support::messages(&header, &payload) {
                        assert_eq!(offset, next, "{topic}");
                        let right = found == value(next, self.value_bytes);
                        assert!(right, "{topic}, offset {offset}");
                        next += 1;
                    }
                }
                Frame::Control(Control::Error(error)) => return Err(error.message),
                Frame::Closed(closed) => return Err(support::error_of(closed).message),
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }
}

fn all_cases() -> bool {
    std::env::var("EMBAR_DAMAGE").is_ok_and(|cases| cases == "all")
}

/// One line of each table, or all of them.
fn chosen(left: &Left) -> Vec<(&'static str, usize)> {
    let lines = left.lines();
    if all_cases() {
        return lines;
    }
    let last: BTreeMap<&str, usize> = lines.iter().copied().collect();
    lines
        .into_iter()
        .filter(|(table, at)| last[table] == *at)
        .collect()
}

fn try_wrong_bits(left: &Left) {
    for (i, (table, at)) in chosen(left).into_iter().enumerate() {
        let bits: Vec<usize> = if all_cases() {
            (0..LINE * 8).collect()
        } else {
            vec![i * 97 % (LINE * 8)]
        };
        for bit in bits {
            let refused = left.try_with(at..at + LINE, |line| line[bit / 8] ^= 1 << (bit % 8));
            assert_eq!(refused, [], "bit {bit} of {table}, line at {at}");
        }
    }
}

fn try_lost_records(left: &Left) {
    for (table, at) in chosen(left) {
        // Garbage, and what a record that was never written reads as.
        for byte in [0xC3, 0] {
            let refused = left.try_with(at..at + LINE, |line| line.fill(byte));
            assert!(refused.len() <= 1, "{table}, line at {at}: {refused:?}");
            for (topic, why) in refused {
                assert!(why.contains("damaged"), "{table}, {topic}: {why}");
            }
        }
    }
}

#[test]
fn a_wrong_bit_costs_nothing() {
    try_wrong_bits(&Left::new());
}

#[test]
fn a_wrong_bit_costs_nothing_where_batches_were_evicted() {
    try_wrong_bits(&Left::that_evicted());
}

#[test]
fn a_lost_record_costs_at_most_its_topic_and_is_told() {
    try_lost_records(&Left::new());
}

#[test]
fn a_lost_record_costs_at_most_its_topic_where_batches_were_evicted() {
    try_lost_records(&Left::that_evicted());
}

#[test]
fn a_window_that_is_lost_costs_nothing() {
    let left = Left::new();
    for window in left.windows() {
        assert_eq!(left.try_with(window, |row| row.fill(0xC3)), []);
    }
}

#[test]
fn a_lost_window_costs_nothing_retained_after_evictions() {
    let left = Left::that_evicted();
    for window in left.windows() {
        let cluster = left.start_with(window, |row| row.fill(0xC3));
        let mut refused = 0;
        for (topic, _) in TOPICS {
            if let Err(why) = left.look(&cluster, topic, StartAt::Earliest) {
                // Nobody can tell what was evicted and what was lost.
                assert!(why.contains("damaged"), "{topic}: {why}");
                refused += 1;
            }
            let kept = StartAt::Offset(left.kept[topic].start);
            assert_eq!(left.look(&cluster, topic, kept), Ok(()), "{topic}");
        }
        assert!(refused <= 1, "{refused}");
    }
}

#[test]
fn a_broker_whose_row_is_lost_while_it_serves_is_never_left_out() {
    let parent = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let dir = parent.path().join("region");
    let cluster = small().region_dir(&dir).start().expect("it starts");
    let region = Region::open(&dir, Coherence::Coherent).expect("the head made it");
    let rows = region.layout().tables()[TableId::Brokers as usize];
    let owners = region.layout().tables()[TableId::Owners as usize];
    let stored = region.broker_row(1).found().expect("it serves");
    let control = fs::OpenOptions::new().write(true).open(dir.join("control"));
    let control = control.expect("it is there");
    // Zeros read as never written.
    for filling in [0, 0xC3] {
        let lost = vec![filling; rows.entry_bytes as usize];
        let at = rows.offset + rows.entry_bytes;
        control.write_all_at(&lost, at).expect("it is written");
        let asked = Peer::greet(cluster.bootstrap()).ask(&Control::Metadata(Metadata::default()));
        let Control::ClusterMetadata(found) = asked else {
            panic!("{asked:?} in place of the brokers");
        };
        let data: Vec<u32> = found
            .brokers
            .iter()
            .filter(|it| it.takes_data)
            .map(|it| it.id)
            .collect();
        assert_eq!(data, [1]);
        let at = owners.offset + owners.entry_bytes;
        let lost = vec![filling; owners.entry_bytes as usize];
        control.write_all_at(&lost, at).expect("it is written");
        assert!(region.owner_alive(1).expect("its lock is there"));
        eventually("the broker stores its incarnation again", || {
            region.incarnation(1) == stored.incarnation
        });
        eventually("the broker stores its row again", || {
            region.broker_row(1).found() == Some(stored)
        });
    }
}

#[test]
fn a_window_that_is_lost_while_its_broker_serves_is_stored_again() {
    let parent = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let dir = parent.path().join("region");
    let cluster = small().region_dir(&dir).start().expect("it starts");
    for (topic, order) in TOPICS {
        create_topic_of_order(&cluster, topic, order, 0);
        Peer::greet(data(&cluster)).open_publisher(topic, 1);
    }
    let region = Region::open(&dir, Coherence::Coherent).expect("the head made it");
    let windows = region.layout().tables()[TableId::Windows as usize];
    let row = u64::from(region.geometry().topics) * windows.entry_bytes;
    let control = fs::OpenOptions::new().write(true).open(dir.join("control"));
    let control = control.expect("it is there");
    for cell in 0..TOPICS.len() as u16 {
        let stored = region.window(1, cell).found().expect("it was opened");
        let at = windows.offset + row + u64::from(cell) * windows.entry_bytes;
        let lost = vec![0; windows.entry_bytes as usize];
        control.write_all_at(&lost, at).expect("it is written");
        eventually("the broker stores the window again", || {
            region.window(1, cell).found() == Some(stored)
        });
    }
}
