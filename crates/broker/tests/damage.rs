//! Damaged memory in a cluster that is started again: nothing is missing without a word, and nothing
//! is ever wrong.
//!
//! A share of all cases is tried; with `EMBAR_DAMAGE=all` every bit of every record that is in use is
//! flipped, one at a time, and every record is overwritten, each followed by a restart.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use embar_broker::Cluster;
use embar_fabric::{Coherence, Layout, Region};
use embar_wire::control::{Control, StartAt, Subscribe};
use support::{Frame, Peer, batch_of, create_topic_of_order, data, small};

/// Topics by order level.
const TOPICS: [(&str, u32); 3] = [("kept", 0), ("loose", 2), ("strict", 5)];
/// Batches of each.
const BATCHES: u64 = 4;
const LINE: usize = 64;

/// A region that a cluster left, and what it was then.
struct Left {
    _parent: tempfile::TempDir,
    dir: PathBuf,
    files: BTreeMap<PathBuf, Vec<u8>>,
    layout: Layout,
}

fn value(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; 300]
}

impl Left {
    fn new() -> Self {
        let parent = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let dir = parent.path().join("region");
        let cluster = small().region_dir(&dir).start().expect("it starts");
        for (topic, order) in TOPICS {
            create_topic_of_order(&cluster, topic, order, 0);
            let mut peer = Peer::greet(data(&cluster));
            let opened = peer.open_publisher(topic, 1);
            for number in 0..BATCHES {
                let epoch = opened.session_epoch;
                peer.send_bytes(&batch_of(
                    7,
                    epoch,
                    opened.topic_id,
                    number,
                    &[&value(number)],
                ));
            }
            peer.expect_acks(BATCHES as usize);
        }
        drop(cluster);
        let region = Region::open(&dir, Coherence::Coherent).expect("it was left in order");
        let layout = region.layout().clone();
        let names = ["control", "blog-1"].map(|name| dir.join(name));
        let files = names.map(|path| (path.clone(), fs::read(path).expect("it is there")));
        Self {
            _parent: parent,
            dir,
            files: files.into(),
            layout,
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

    /// Starts a cluster over what was left, in which `damage` changed a line; returns the topics that it
    /// refuses, each with what it says.
    fn try_with(&self, at: usize, damage: impl Fn(&mut [u8])) -> Vec<(&'static str, String)> {
        for (path, bytes) in &self.files {
            fs::write(path, bytes).expect("it is ours");
        }
        overwrite(&self.dir.join("control"), at, damage);
        let cluster = small().region_dir(&self.dir).start().expect("it starts");
        let refused = TOPICS.map(|(topic, _)| Some((topic, look(&cluster, topic).err()?)));
        refused.into_iter().flatten().collect()
    }
}

fn overwrite(path: &Path, at: usize, damage: impl Fn(&mut [u8])) {
    let mut bytes = fs::read(path).expect("it is there");
    damage(&mut bytes[at..at + LINE]);
    fs::write(path, bytes).expect("it is ours");
}

/// Reads all of a topic: it is complete, or the broker says what is wrong.
fn look(cluster: &Cluster, topic: &str) -> Result<(), String> {
    let mut peer = Peer::greet(data(cluster));
    let all = Control::Subscribe(Subscribe {
        topic: topic.into(),
        start: StartAt::Earliest,
        topic_id: 0,
    });
    let subscribed = match peer.ask(&all) {
        Control::Subscribed(subscribed) => subscribed,
        Control::Error(error) => return Err(error.message),
        other => panic!("{other:?}"),
    };
    assert_eq!((subscribed.first, subscribed.next), (0, BATCHES), "{topic}");
    let mut next = 0;
    while next < BATCHES {
        match peer.receive().expect("batches, or why not") {
            Frame::Batch { header, payload } => {
                for (offset, found) in support::messages(&header, &payload) {
                    assert_eq!((offset, found), (next, value(next)), "{topic}");
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

#[test]
fn a_wrong_bit_costs_nothing() {
    let left = Left::new();
    for (i, (table, at)) in chosen(&left).into_iter().enumerate() {
        let bits: Vec<usize> = if all_cases() {
            (0..LINE * 8).collect()
        } else {
            vec![i * 97 % (LINE * 8)]
        };
        for bit in bits {
            let refused = left.try_with(at, |line| line[bit / 8] ^= 1 << (bit % 8));
            assert_eq!(refused, [], "bit {bit} of {table}, line at {at}");
        }
    }
}

#[test]
fn a_lost_record_costs_at_most_its_topic_and_is_told() {
    let left = Left::new();
    for (table, at) in chosen(&left) {
        // Garbage, and what a record that was never written reads as.
        for byte in [0xC3, 0] {
            let refused = left.try_with(at, |line| line.fill(byte));
            assert!(refused.len() <= 1, "{table}, line at {at}: {refused:?}");
            for (topic, why) in refused {
                assert!(why.contains("damaged"), "{table}, {topic}: {why}");
            }
        }
    }
}
