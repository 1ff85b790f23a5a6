//! Gathers the index of a segment, commit by commit.

use crate::format::{IndexEntry, Run, RunKind};

/// The entries of an index that is being made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexing {
    /// Those of all commits so far.
    pub entries: Vec<IndexEntry>,
    says_all: bool,
}

impl Indexing {
    /// Adds the runs of a commit that begins at `at`. With some commit, all facts have been said.
    pub fn add(&mut self, runs: &[Run], at: u64, completes_facts: bool) {
        // Where a chain goes on elsewhere is said after all facts were.
        let listed = runs.iter().filter(|run| match run.kind {
            RunKind::Batches => true,
            RunKind::Next => self.says_all,
            RunKind::Fact => false,
        });
        self.entries
            .extend(listed.map(|run| IndexEntry::new(run, at)));
        self.says_all |= completes_facts;
    }
}
