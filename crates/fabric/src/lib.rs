//! Memory shared by processes, and by hosts that need not be cache-coherent.
//!
//! A [`Region`] is a directory of mapped files: one control file of typed 64-byte records, each
//! with exactly one writer, and one payload file per data broker. Publishing a record costs a store, a
//! write-back of its line and a fence; observing one costs an invalidate and a load. On coherent
//! memory both shrink to a release store and an acquire load.
//!
//! This crate never knows what a topic or a message is (a *chain* is a number), never waits, never
//! starts a thread that outlives a call, and never follows an offset before it checked it. The memory
//! itself, and the payload in it, are in [`embar_memory`].
//!
//! Reading order: [`slot`] (publish and observe one record), [`records`] and [`layout`] (what lies
//! where), [`region`] and [`owner`] (directories, and who owns which row), then the structures:
//! [`lane`], [`index`], [`window`], [`topic_record`], [`rows`], [`goi`], [`news`], [`notice`], [`sessions`] and
//! [`sleep_flag`] and [`wakeup`].
//!
//! ```
//! use embar_fabric::{Geometry, Region};
//! use embar_memory::Coherence;
//!
//! # let tmp = tempfile::tempdir()?;
//! # let dir = tmp.path().join("region");
//! let geometry = Geometry { payload_bytes: 1 << 20, index_pages: 16, ..Geometry::default() };
//! let region = Region::create(&dir, &geometry, Coherence::Coherent)?;
//! let claim = region.claim(1)?;
//!
//! let payload = region.payload_file(&claim);
//! let mut extent = payload.allocate(64 << 10).expect("all of it is free");
//! let mut reservation = extent.reserve(5).expect("a fresh extent has room");
//! reservation.write(0, b"hello");
//! let span = reservation.commit();
//! assert_eq!(span.as_slice(), b"hello");
//! # drop((span, extent, payload, claim, region));
//! Region::remove(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod crc;
pub mod error;
pub mod frontier;
pub mod geometry;
pub mod goi;
pub mod index;
pub mod lane;
pub mod layout;
pub mod news;
pub mod notice;
pub mod owner;
mod pages;
mod prefault;
pub mod records;
pub mod region;
mod ring;
pub mod rows;
pub mod sessions;
mod sizing;
pub mod sleep_flag;
pub mod slot;
mod superblock;
mod sync;
pub mod topic_record;
pub mod wakeup;
pub mod window;

pub use error::RegionError;
pub use frontier::FrontierTable;
pub use geometry::Geometry;
pub use goi::{ChainStart, GoiFull, GoiReader, GoiWriter, PageRef};
pub use index::{IndexCursor, IndexFollower, IndexFull, IndexReader, IndexWriter, RecordLost};
pub use lane::{LaneReader, LaneWriter};
pub use layout::Layout;
pub use news::{NewsReader, NewsWriter, SharedNews};
pub use notice::{NoticeReader, NoticeWriter};
pub use owner::Claim;
pub use records::{
    Attached, BrokerRow, BrokerState, ControlRow, DiskRow, DiskState, Frontier, GoiPage, GoiRecord,
    GoiRoot, IndexRecord, LaneGrant, LaneStart, NewsCount, NewsLine, Notice, NoticeKind, PbrKind,
    PbrRecord, Secret, SequencerRow, SequencerState, SessionOwner, SessionRow, Window,
};
pub use region::{Probe, Region};
pub use rows::RowWriter;
pub use sessions::SessionTable;
pub use sizing::ClusterShape;
pub use sleep_flag::SleepFlag;
pub use slot::Seen;
pub use topic_record::{TopicRecordReader, TopicRecordTooLarge, TopicRecordWriter};
pub use wakeup::{Notifier, Wakeup};
pub use window::WindowWriter;
