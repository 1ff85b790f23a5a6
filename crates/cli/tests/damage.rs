//! Damaged shared memory under a cluster of real processes, as its users meet it.
//!
//! One wrong bit costs nothing, however many records have one. What costs more is refused in so many
//! words: never a wrong line, never one that is missing without a word.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Space, Up, run, text};
use embar_meter::random::SplitMix64;

const TOPICS: [(&str, &str); 4] = [
    ("0", "kept"),
    ("1", "sealed"),
    ("2", "loose"),
    ("5", "strict"),
];
const LINES: u64 = 300;
/// Bytes between two flips at least: no record is larger.
const APART: usize = 1024;
/// Both copies of what the region is: of them one is enough, and repairs no bit.
const SUPERBLOCKS: usize = 4096;
const LINE: usize = 64;

/// A region that a cluster with [`TOPICS`] left behind.
struct Left {
    space: Space,
    control: Vec<u8>,
}

impl Left {
    fn new() -> Self {
        let space = Space::new();
        let up = Up::start(&space, &[]);
        for (order, topic) in TOPICS {
            up.ok(&["topic", "create", topic, "--order", order]);
            up.produce(topic, 0..LINES);
        }
        up.stop();
        let control = fs::read(space.region().join("control")).expect("it was kept");
        Self { space, control }
    }

    fn path(&self) -> PathBuf {
        self.space.region().join("control")
    }

    /// Where the lines begin that anything was written to.
    fn lines_in_use(&self) -> Vec<usize> {
        let lines = self.control.chunks(LINE).enumerate();
        let used = lines.filter(|(_, line)| line.iter().any(|byte| *byte != 0));
        used.map(|(index, _)| index * LINE).collect()
    }

    /// One flipped bit in as many lines as there is room for, begun at a random one.
    fn flip_bits(&self, random: &mut SplitMix64) -> usize {
        let mut control = self.control.clone();
        let mut next = below(random, APART);
        let mut flipped = 0;
        for at in self.lines_in_use() {
            if at >= next {
                let bit = below(random, LINE * 8);
                control[at + bit / 8] ^= 1 << (bit % 8);
                next = (at + APART + below(random, APART)).max(SUPERBLOCKS);
                flipped += 1;
            }
        }
        fs::write(self.path(), control).expect("it is ours");
        flipped
    }

    /// A line of other bytes, anywhere in use.
    fn overwrite_line(&self, random: &mut SplitMix64) -> usize {
        let mut control = self.control.clone();
        let lines = self.lines_in_use();
        let at = lines[below(random, lines.len())];
        for byte in &mut control[at..at + LINE] {
            *byte = random.next_u64() as u8;
        }
        fs::write(self.path(), control).expect("it is ours");
        at
    }
}

fn below(random: &mut SplitMix64, end: usize) -> usize {
    random.below(end as u64) as usize
}

fn damage_reported(up: &Up) -> u64 {
    let status: serde_json::Value =
        serde_json::from_str(&up.ok(&["--json", "status"])).expect("JSON");
    let brokers = status["brokers"].as_array().expect("brokers");
    let of = |name: &str| -> u64 { brokers.iter().filter_map(|b| b[name].as_u64()).sum() };
    of("repaired_records") + of("damaged_records")
}

#[test]
fn one_wrong_bit_in_a_record_costs_nothing_and_is_reported() {
    let left = Left::new();
    let mut random = SplitMix64::new(1);
    let flipped = left.flip_bits(&mut random);
    assert!(flipped > 10, "{flipped}");
    let up = Up::start(&left.space, &[]);
    for (_, topic) in TOPICS {
        assert_eq!(up.consume(topic), (0..LINES).collect::<Vec<_>>(), "{topic}");
        up.produce(topic, LINES..LINES + 10);
    }
    assert!(damage_reported(&up) > 0);
    let status = run(&mut up.embar(&["status"]));
    assert!(
        text(&status.stderr).contains("damaged shared memory"),
        "{}",
        text(&status.stderr)
    );
    up.stop();
}

#[test]
fn a_record_that_is_lost_costs_at_most_its_topic_and_says_so() {
    let left = Left::new();
    let rounds = if std::env::var_os("EMBAR_DAMAGE").is_some_and(|cases| cases == "all") {
        400
    } else {
        2
    };
    let mut random = SplitMix64::new(2);
    for round in 0..rounds {
        let at = left.overwrite_line(&mut random);
        let up = Up::start(&left.space, &[]);
        let mut refused = Vec::new();
        for (_, topic) in TOPICS {
            let output = run(&mut up.embar(&["consume", topic]));
            let mut read: Vec<u64> = text(&output.stdout)
                .lines()
                .map(|line| line.parse().expect("nothing but what was published"))
                .collect();
            read.sort_unstable();
            if output.status.success() {
                let whole: Vec<u64> = (0..LINES).collect();
                assert_eq!(read, whole, "{topic}, line at {at} of round {round}");
            } else {
                let said = text(&output.stderr);
                assert!(said.contains("damaged"), "{topic}, line at {at}: {said}");
                refused.push(topic);
            }
        }
        assert!(refused.len() < 2, "line at {at}: {refused:?}");
        up.stop();
    }
}
