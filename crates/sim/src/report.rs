//! The result of running one seed.

use std::collections::BTreeMap;

use crate::figures::{Damaged, Figures};
use crate::violation::Violation;

/// What came of it.
#[derive(Debug)]
pub struct Report {
    /// Equal for equal runs.
    pub hash: u64,
    /// What the run of a cluster went through.
    pub figures: Figures,
    /// What the run of a smaller world went through.
    pub seen: BTreeMap<&'static str, u64>,
    /// What memory of a cluster was damaged.
    pub damaged: Damaged,
    /// The first broken rule.
    pub result: Result<(), Violation>,
    /// The trace, if it was asked for.
    pub lines: Vec<String>,
}
