//! The option by which a topic gets its replication factor, for whichever command makes one.

use clap::builder::RangedI64ValueParser;
use embar_wire::limits::MAX_REPLICATION_FACTOR;

/// Reads a replication factor that a topic can have.
pub fn replication_factor() -> RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=i64::from(MAX_REPLICATION_FACTOR))
}
