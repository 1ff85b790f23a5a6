//! The stages of the way to the disks and back that a process times, and what it counts of them. The process that sequences writes
//! them; each broker that takes data reads them for its subscribers.

use embar_meter::profile::Schema;

/// A metered step. The discriminant indexes [`SCHEMA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// Copying what was ordered into the memory from which a commit is written, and checking it.
    GatherCommit,
    /// One write of a commit, until it is synced: one call does both.
    WriteAndSync,
    /// Storing how far each chain is on the disk, and waking the brokers that wait for that.
    AdvanceFrontier,
    /// Reading batches for one subscriber.
    ReadBlock,
}

/// A counted event. The discriminant indexes [`SCHEMA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Commits that were synced.
    Commits,
    /// Bytes that were written: commits, and the headers and indexes of segments.
    Bytes,
    /// The payloads of batches in the commits, without the batches' headers.
    PayloadBytes,
    /// Segments that were begun.
    Segments,
    /// Bytes that were read for subscribers, with what lies between their batches.
    ReadBytes,
    /// Bytes that the scrub has read.
    ScrubbedBytes,
    /// Damaged places that the scrub has put back.
    Repaired,
    /// Damaged places that it could not put back.
    Unrepaired,
}

/// `[DiskProfile]`: one recorder per thread that writes a disk, and one for the thread that reads.
pub static SCHEMA: Schema = Schema {
    title: "DiskProfile",
    stages: &[
        "GatherCommit",
        "WriteAndSync",
        "AdvanceFrontier",
        "ReadBlock",
    ],
    counters: &[
        "commits",
        "bytes",
        "payload_bytes",
        "segments",
        "read_bytes",
        "scrubbed_bytes",
        "repaired",
        "unrepaired",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_and_counters_have_their_names() {
        let stage = |it: Stage| SCHEMA.stages[it as usize];
        assert_eq!(stage(Stage::GatherCommit), "GatherCommit");
        assert_eq!(stage(Stage::ReadBlock), "ReadBlock");
        let counter = |it: Counter| SCHEMA.counters[it as usize];
        assert_eq!(counter(Counter::PayloadBytes), "payload_bytes");
        assert_eq!(counter(Counter::ReadBytes), "read_bytes");
        assert_eq!(counter(Counter::Unrepaired), "unrepaired");
    }
}
