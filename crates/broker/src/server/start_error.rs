//! Why a broker does not start.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use embar_disk::DiskError;
use embar_disk::recover::RecoverError;
use embar_fabric::error::RegionError;
use embar_fabric::geometry::{Geometry, ROWS_MAX};
use embar_transport::socket::SocketError;

use crate::config::ConfigError;
use crate::journal::SeedError;
use crate::places::RowError;

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A cluster needs a head and at least one broker that takes data.
    #[error(
        "a cluster needs a head and at least one broker that takes data: ask for 2 or more, not {brokers}"
    )]
    TooFewBrokers {
        /// How many were asked for.
        brokers: u16,
    },
    /// A region has no rows for so many processes.
    #[error("brokers, spares and standbys together are {rows}: a region has rows for {ROWS_MAX}")]
    TooManyBrokers {
        /// How many were asked for.
        rows: u32,
    },
    /// The row that was asked for is none that this broker may take.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The shared memory could not be created or joined.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A directory cannot be a disk of the log.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The region knows another disk of this number.
    #[error(
        "{} is another disk {number} than the one that the cluster has written to: give that one, or, when it is lost, start with --fresh, which restores the log from the disks that are left", .dir.display()
    )]
    OtherDisk {
        /// The directory.
        dir: PathBuf,
        /// The disk's number.
        number: u16,
    },
    /// Another region's cluster has written to the disk since this one's did.
    #[error(
        "{} was written by the cluster of another region since this one's last had it: what is in memory here is older than what is there. Start with --fresh, which discards the memory and restores the log from its disks", .dir.display()
    )]
    OtherRegion {
        /// The directory.
        dir: PathBuf,
    },
    /// What a disk has cannot be read.
    #[error("{}: {error}", .dir.display())]
    Journal {
        /// The disk's directory.
        dir: PathBuf,
        /// What is wrong.
        error: RecoverError,
    },
    /// The region has no place for what the disks have.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// The region has places for another number of disks.
    #[error(
        "the region was made for {made_for} disk(s), and {given} were given: give each process of the cluster the directories that its head has (--data)"
    )]
    OtherDisks {
        /// Disks that it has places for.
        made_for: u16,
        /// Directories that this process was given.
        given: u16,
    },
    /// The address is taken or not ours.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A region is there, of another size or for another number of brokers.
    #[error("{} holds the region of another cluster, with {found_mib} MiB for {found_topics} topics, {found_brokers} brokers, {found_spares} spares, {found_standbys} standbys and {found_disks} disks: start with these numbers to take over its data, or, when nobody uses it, with --fresh to discard it", .dir.display())]
    OtherShape {
        /// The region's directory.
        dir: PathBuf,
        /// Its size in MiB.
        found_mib: u64,
        /// Its brokers, the head included and the standbys not.
        found_brokers: u16,
        /// Its standbys.
        found_standbys: u16,
        /// The places it keeps for brokers that join.
        found_spares: u16,
        /// Its topics.
        found_topics: u16,
        /// Its disks.
        found_disks: u16,
    },
    /// No candidate sequences, so the batches of ordered topics would get no positions.
    #[error(
        "no sequencer has been active for {waited:?}: start the head or a standby; one that runs says in its log why it does not take over"
    )]
    NoSequencer {
        /// How long one was waited for.
        waited: Duration,
    },
    /// Nobody answers where the head should be.
    #[error("no head answers at {head}: {why}; start it, or give the address of one that runs")]
    NoHead {
        /// The address that was given.
        head: SocketAddr,
        /// What the kernel said, or that no answer came in time.
        why: String,
    },
    /// The head did not let this broker in.
    #[error("cannot join the cluster at {head}: {why}")]
    Join {
        /// The head's address.
        head: SocketAddr,
        /// What it said, or how its region cannot be used.
        why: String,
    },
    /// A thread, an epoll set or an event counter could not be made.
    #[error("cannot start the network threads: {0}")]
    Io(#[from] io::Error),
}

impl StartError {
    /// A region in this directory has not the shape that was asked for.
    #[must_use]
    pub fn other_shape(dir: &Path, found: &Geometry) -> Self {
        Self::OtherShape {
            dir: dir.to_owned(),
            found_mib: found.total_bytes() >> 20,
            found_brokers: found.brokers - found.standbys - found.spares,
            found_standbys: found.standbys,
            found_spares: found.spares,
            found_topics: found.topics,
            found_disks: found.disks,
        }
    }
}
