//! Gathers the index of a segment, commit by commit.

use std::collections::BTreeMap;

use crate::format::{Chain, IndexEntry, Run, RunKind};

/// The entries of an index that is being made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexing {
    /// Those of all commits so far.
    pub entries: Vec<IndexEntry>,
    says_all: bool,
    /// By chain, the next position that the segment says.
    nexts: BTreeMap<Chain, u64>,
}

impl Indexing {
    /// Adds the runs of a commit that begins at `at`. With some commit, all facts have been said.
    pub fn add(&mut self, runs: &[Run], at: u64, completes_facts: bool) {
        for run in runs.iter().filter(|run| run.kind != RunKind::Fact) {
            let chain = Chain {
                topic: run.chain,
                row: run.row,
            };
            let next = self.nexts.insert(chain, run.end());
            // Where a chain goes on elsewhere is said after all facts were, or after it was said where it is.
            let is_elsewhere = self.says_all || next.is_some_and(|next| next < run.first);
            if run.kind == RunKind::Batches || is_elsewhere {
                self.entries.push(IndexEntry::new(run, at));
            }
        }
        self.says_all |= completes_facts;
    }
}
