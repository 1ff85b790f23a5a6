//! What can be wrong with a request for a topic.

use embar_wire::control::ErrorCode;
use embar_wire::limits::MAX_REPLICATION_FACTOR;
use embar_wire::topic::NameError;

/// Why a topic could not be created, found or deleted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// The name breaks a rule.
    #[error("that is no topic name: {why}")]
    InvalidName {
        /// Which one.
        why: NameError,
    },
    /// No batch could carry such a message.
    #[error(
        "messages of {asked} bytes do not fit a batch here: ask for at most {largest}, or start the brokers with a larger --max-batch-bytes"
    )]
    MessageLimit {
        /// Bytes asked for.
        asked: u32,
        /// Bytes that fit.
        largest: u32,
    },
    /// Taken.
    #[error("topic {name} exists already")]
    Exists {
        /// Its name.
        name: String,
    },
    /// Not there.
    #[error("no topic is called {name}: create it with `embar topic create {name}`")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// Nobody can tell.
    #[error(
        "no topic is called {name} among those whose records can be read, and {damaged} cannot, as memory is damaged: it may be one of them; start with a fresh region (`embar up --fresh`) if it is"
    )]
    Damaged {
        /// The name asked for.
        name: String,
        /// How many cannot be read.
        damaged: usize,
    },
    /// There is no such order level.
    #[error(
        "order {order} is not served: choose 0 (none across connections), 1 (arrival order on each broker), 2 (one total order) or 5 (one total order that keeps each publisher's)"
    )]
    UnsupportedOrder {
        /// The level asked for.
        order: u32,
    },
    /// No cluster can have as many disks.
    #[error(
        "replication factor {factor} is not served: choose 1 (memory alone) to {most} (memory and {disks} disks)",
        most = MAX_REPLICATION_FACTOR,
        disks = in_words(MAX_REPLICATION_FACTOR - 1)
    )]
    UnsupportedReplicationFactor {
        /// The replication factor asked for.
        factor: u8,
    },
    /// The cluster has too few disks for it.
    #[error("{}", too_few_disks(*factor, *disks))]
    TooFewDisks {
        /// The replication factor asked for.
        factor: u8,
        /// Disks of the cluster.
        disks: u8,
    },
    /// Memory keeps as much as it has room for, whatever its age.
    #[error(
        "a topic in memory alone cannot retain by age: ask for --replication-factor 2, so that it is on a disk, or leave out --retention-age"
    )]
    AgeWithoutDisk,
    /// The region has a fixed number of topic records.
    #[error(
        "the cluster holds its limit of {limit} topics: delete some, or start a fresh cluster with more --topics"
    )]
    TableFull {
        /// That number.
        limit: usize,
    },
}

impl TopicError {
    /// How the wire names it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidName { .. } => ErrorCode::InvalidName,
            Self::Exists { .. } => ErrorCode::TopicExists,
            Self::Unknown { .. } => ErrorCode::UnknownTopic,
            Self::Damaged { .. } => ErrorCode::Damaged,
            Self::UnsupportedOrder { .. }
            | Self::MessageLimit { .. }
            | Self::UnsupportedReplicationFactor { .. }
            | Self::TooFewDisks { .. }
            | Self::AgeWithoutDisk => ErrorCode::InvalidArgument,
            Self::TableFull { .. } => ErrorCode::ClusterFull,
        }
    }
}

fn too_few_disks(factor: u8, disks: u8) -> String {
    let needed = factor - 1;
    let missing = match (disks, needed - disks) {
        (0, 1) => "--data DIR".into(),
        (0, many) => format!("{} --data DIR", in_words(many)),
        (_, more) => format!("{} more --data DIR", in_words(more)),
    };
    format!(
        "replication factor {factor} needs {} {}, and the cluster has {}: start it with {missing}, or choose {}",
        in_words(needed),
        if needed == 1 { "disk" } else { "disks" },
        in_words(disks),
        disks + 1
    )
}

/// A number of disks.
fn in_words(disks: u8) -> &'static str {
    const WORDS: [&str; MAX_REPLICATION_FACTOR as usize] = [
        "none", "one", "two", "three", "four", "five", "six", "seven", "eight",
    ];
    WORDS[usize::from(disks)]
}
