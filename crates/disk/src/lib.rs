//! One disk of the log: a journal of commits in segments.
//!
//! What a disk keeps of all topics is one *journal*. Its parts are files of a fixed size, the *segments*. In a segment
//! *commits* follow each other: each is written at once, is never written again, and counts once it is synced. A commit
//! holds *runs*: batches of one chain that follow each other, as readers get them, or one *fact* (a topic, a session, the
//! next position of a chain). A segment begins with all facts that hold then, so older segments may go at any time.
//!
//! ```text
//! segment   | header | commit 0 | commit 1 | commit 2 | ...
//! commit    | header, 64 bytes | run | run | ... | table, 32 bytes for each run | padding to 4 KiB |
//! run       | batch header, payload | batch header, payload | ...      or the bytes of a fact
//! ```
//!
//! [`Journal`] says what to write where; [`recover`](recover::recover) reads what was left. Neither knows files: they work on a
//! [`Storage`], which is a [`Directory`] or, in tests, a [`Simulated`] disk that loses, tears and flips what was not
//! synced.
//!
//! A [`DiskView`] is a directory that is only looked at; [`verify`](verify::verify) reads all of it, and says what is damaged.
//!
//! [`open_disks`] opens the directories that are the disks of a log. A file in each, `identity`, says which disk of which log
//! it is, and another, `lock`, which cluster uses it.
//!
//! Invariants
//! - A byte that was written is never written again: whatever a crash tears was never counted. Only the batches of a topic that
//!   is gone are [given back](give_back()), in a segment that is over; headers and tables of commits stay.
//! - Each commit names the checksum of the one before it, and how many were synced when it was made. So one that is torn can
//!   be told from one that was lost after it counted.
//! - A term has segments of its own. Each names the segment of the term before, and how many of its commits count. What a
//!   deposed writer adds behind them does not exist.

#![forbid(unsafe_code)]

mod aligned;
mod bits;
mod directory;
mod disk;
mod error;
pub mod format;
mod give_back;
pub mod history;
mod indexing;
mod journal;
mod names;
mod open;
mod positions;
pub mod recover;
mod region_lock;
pub mod repair;
pub mod scan;
mod simulated;
mod storage;
mod take_back;
pub mod verify;
mod view;
mod window;

pub use aligned::AlignedBuffer;
pub use directory::{Directory, is_scarce};
pub use disk::Disk;
pub use error::DiskError;
pub use format::Chain;
pub use give_back::give_back;
pub use journal::{
    Commit, CommitBuilder, Journal, Position, Progress, Refused, begin_segment, keep_reserve,
    make_segment, prepare_segment, store_index, take_reserve,
};
pub use names::RESERVE;
pub use open::{OpenOptions, open_disks};
pub use positions::Positions;
pub use region_lock::{DirectoryUser, RegionName};
pub use simulated::{Simulated, SimulatedFile};
pub use storage::{Storage, StoredFile};
pub use view::{DirectoryLock, DiskView, ViewError};
