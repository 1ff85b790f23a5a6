//! What can go wrong with a region, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a region could not be created, opened, claimed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// There is no region.
    #[error("there is no region at {}: start the head broker first, or name its --region", .dir.display())]
    NotFound {
        /// The directory that was asked for.
        dir: PathBuf,
    },
    /// There is one already, or something else is in the way.
    #[error("{} already holds files: recover or remove that region, or use another --region", .dir.display())]
    Exists {
        /// The directory that was asked for.
        dir: PathBuf,
    },
    /// Live processes hold it, or the row that was claimed.
    #[error("region {} is in use by {}: stop them, or use another --region", .dir.display(), Holders(.rows))]
    InUse {
        /// The region's directory.
        dir: PathBuf,
        /// The rows held, each with the process id that its holder wrote (0 when unknown).
        rows: Vec<(u16, u32)>,
    },
    /// Its layout is of another version of this program.
    #[error("region {} has layout version {found}, this program uses {ours}: use the program that made it, or discard the region with --fresh", .dir.display())]
    OtherVersion {
        /// The region's directory.
        dir: PathBuf,
        /// The version found.
        found: u32,
        /// The version this program reads and writes.
        ours: u32,
    },
    /// It is not a region, or not a complete one.
    #[error("region {} is damaged ({what}): remove it, or discard it with --fresh, and start again", .dir.display())]
    Damaged {
        /// The region's directory.
        dir: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file system cannot hold it. Nothing was left behind.
    #[error("no space for the region in {}: it needs {} MiB, {} MiB are available; ask for a smaller region, or free or enlarge that file system (containers: --shm-size)", .dir.display(), .needed.div_ceil(1 << 20), .available >> 20)]
    NoSpace {
        /// Bytes the region needs.
        needed: u64,
        /// Bytes the file system has.
        available: u64,
        /// The directory that was asked for.
        dir: PathBuf,
    },
    /// The file system cannot hold the payload of a broker that joins. The place is free as before.
    #[error("no space for broker {row} in {}: its payload needs {} MiB, {} MiB are available; free or enlarge that file system (containers: --shm-size)", .dir.display(), .needed.div_ceil(1 << 20), .available >> 20)]
    NoSpaceForBroker {
        /// The row that was claimed.
        row: u16,
        /// Bytes that its payload file needs.
        needed: u64,
        /// Bytes the file system has.
        available: u64,
        /// The region's directory.
        dir: PathBuf,
    },
    /// It belongs to another user.
    #[error("no permission for {}: regions are private to their user; run as that user, or use another --region", .path.display())]
    Permissions {
        /// The file or directory that was refused.
        path: PathBuf,
    },
    /// The geometry asked for is impossible.
    #[error("impossible region: {what}")]
    InvalidGeometry {
        /// What is wrong, and the limits.
        what: String,
    },
    /// The kernel refused something else.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// `row 1 (pid 77), row 2 (pid 78)`.
struct Holders<'a>(&'a [(u16, u32)]);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the process that is creating it");
        }
        for (i, (row, pid)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}row {row} (pid {pid})")?;
        }
        Ok(())
    }
}

impl RegionError {
    /// An error of the kernel; the one kind that has words of its own is picked out.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permissions { path },
            _ => Self::Io {
                doing,
                path,
                source,
            },
        }
    }

    /// A region that fails validation; `dir` is empty for one that has no directory.
    pub(crate) fn damaged(dir: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Damaged {
            dir: dir.into(),
            what: what.into(),
        }
    }
}
