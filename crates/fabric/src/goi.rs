//! The global order index: one record per ordered batch, in pages that belong to one chain and one
//! epoch each, in the area of the candidate that sequenced it.
//!
//! The first line of a page says whose it is, where it begins and what page comes before it, which
//! may lie in another area; then come [`PAGE_RECORDS`] records and one slot for the link to the page
//! that follows in the same area and epoch. All of a page's slots carry its generation as their lap;
//! publishing a header, to open a page or to release it, starts the next one.
//!
//! A page is opened before it is linked and linked before anything is published in it, so a reader that
//! follows the records finds the next page, or nothing yet. [`GoiRoot`] leads to the first page of
//! an epoch that is still there, and to the page before the epoch.
//!
//! *What is missing was lost where something follows it.* A header is in memory before a root or a link names
//! the page, and before a slot of it is written; all records are before their page's link; and roots and
//! links lead elsewhere before a page is given back. Where memory is coherent, records become visible in
//! their order. Elsewhere those since the last fence come in any order: of a page that is not linked yet,
//! a crash may leave any of them, and where the first is missing, the order ends.
//!
//! [`GoiRoot`]: crate::records::GoiRoot

mod reader;
mod writer;

pub use reader::GoiReader;
pub use writer::{ChainStart, GoiFull, GoiWriter};

use crate::pages::PAGE_SLOTS;

/// Records of a GOI page.
pub const PAGE_RECORDS: u32 = PAGE_SLOTS - 1;
/// The slot of a page's link.
const LINK_SLOT: u32 = PAGE_RECORDS;

/// Names a page in one of its uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRef {
    /// The area it lies in.
    pub area: u16,
    /// Its number there.
    pub page: u32,
    /// Which use of it.
    pub generation: u32,
}
