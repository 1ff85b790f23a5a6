//! Gathers the index of a segment, commit by commit.

use std::collections::BTreeMap;

use crate::format::{Chain, CommitHeader, IndexEntry, Part, Run, RunKind, add_to};

/// The entries of an index that is being made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexing {
    /// Those of all commits so far.
    pub entries: Vec<IndexEntry>,
    /// What they have of each chain.
    pub chains: BTreeMap<Chain, Part>,
    says_all: bool,
    /// By chain, the next position that the segment says.
    nexts: BTreeMap<Chain, u64>,
}

impl Indexing {
    /// Adds the runs of a commit that begins at `at`.
    pub fn add(&mut self, header: &CommitHeader, runs: &[Run], at: u64) {
        self.add_runs(runs, at, header.time, header.completes_facts);
    }

    /// Adds the runs of a commit that begins at `at` and was made at `time`. With some commit, all facts have been said.
    pub fn add_runs(&mut self, runs: &[Run], at: u64, time: u64, completes_facts: bool) {
        for run in runs.iter().filter(|run| run.kind != RunKind::Fact) {
            let chain = Chain {
                topic: run.chain,
                row: run.row,
            };
            let next = self.nexts.insert(chain, run.end());
            // Where a chain goes on elsewhere is said after all facts were, or after it was said where it is.
            let is_elsewhere = self.says_all || next.is_some_and(|next| next < run.first);
            if run.kind == RunKind::Batches || is_elsewhere {
                let entry = IndexEntry::new(run, at, time);
                add_to(&mut self.chains, &entry);
                self.entries.push(entry);
            }
        }
        self.says_all |= completes_facts;
    }
}
