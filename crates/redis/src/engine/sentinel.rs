//! Sentinels: whom they name as the primary, and when they say that this changes.
//!
//! Reading order: `report` (what a sentinel says), `known` (which sentinels there are, and which are watched), `watch`
//! (hears from one), and `reading` (asks several, and decides whom to believe as the nodes of a cluster are believed).

mod known;
pub(super) mod reading;
mod report;
mod watch;
