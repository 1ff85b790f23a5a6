//! Follows the facts and the chains of a journal, commit by commit.

use std::collections::BTreeMap;

use embar_wire::batch::BatchHeader;

use crate::format::Chain;
use crate::format::{BatchRun, Run, RunKind, SegmentIndex};
use crate::scan::Found;

/// What [`recover`](super::recover) comes upon, in the order in which it was written.
#[derive(Clone, Copy, Debug)]
pub enum Sight<'a> {
    /// A batch of a broker's row, or of [`Run::ORDERED`](crate::format::Run::ORDERED).
    Batch(u16, &'a BatchHeader),
    /// A fact: what it is about, its key, and its bytes; none if it does not hold any more.
    Fact(u16, u64, &'a [u8]),
}

/// A chain goes on behind where it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The chain.
    pub chain: Chain,
    /// The position that comes next.
    pub expected: u64,
    /// The position that is there.
    pub found: u64,
}

/// What holds at a point of the journal.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// By chain, the position that comes next.
    pub chains: BTreeMap<Chain, u64>,
    /// By what they are about, and their key.
    pub facts: BTreeMap<(u16, u64), Vec<u8>>,
}

/// Follows the facts and the chains of a journal.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// What holds.
    pub state: State,
    /// What the present segment says, until it has said all: then nothing else holds.
    said: Option<State>,
}

impl Replay {
    /// What comes next is of another segment.
    pub fn begin_segment(&mut self) {
        self.said = Some(State::default());
    }

    /// Takes in a commit, of which `bytes` are all.
    pub fn take(
        &mut self,
        found: &Found,
        bytes: &[u8],
        see: &mut dyn FnMut(Sight<'_>),
    ) -> Result<(), Gap> {
        for run in &found.runs {
            let run_bytes = &bytes[run.at as usize..(run.at + run.bytes) as usize];
            self.take_run(run, run_bytes, see)?;
        }
        self.end_commit(found.header.completes_facts);
        Ok(())
    }

    /// Takes in one run of a commit.
    pub fn take_run(
        &mut self,
        run: &Run,
        bytes: &[u8],
        see: &mut dyn FnMut(Sight<'_>),
    ) -> Result<(), Gap> {
        match run.kind {
            RunKind::Batches => self.batches(run, bytes, see)?,
            RunKind::Fact => {
                self.each(|state| state.fact(run, bytes));
                see(Sight::Fact(run.row, run.first, bytes));
            }
            RunKind::Next => self.each(|state| state.next(run)),
        }
        Ok(())
    }

    /// All runs of a commit were taken in, which perhaps completes the facts.
    pub fn end_commit(&mut self, completes_facts: bool) {
        if completes_facts && let Some(said) = self.said.take() {
            self.state = said;
        }
    }

    /// Something of the present segment cannot be read: what was said in those before it goes on to hold.
    pub fn miss(&mut self) {
        self.said = None;
    }

    /// A chain goes on at a position, or behind it, whatever came before.
    pub fn skip_to(&mut self, chain: Chain, next: u64) {
        self.each(|state| state.batches(chain, next));
    }

    /// Takes in a segment before the one that says all facts, of which only the index is known.
    pub fn pass(&mut self, index: &SegmentIndex) -> Result<(), Gap> {
        for entry in &index.entries {
            let chain = Chain {
                topic: entry.topic,
                row: entry.row,
            };
            if entry.count == 0 {
                self.state.chains.insert(chain, entry.first);
                continue;
            }
            self.goes_on(chain, entry.first)?;
            self.state.batches(chain, entry.end());
        }
        Ok(())
    }

    /// A chain that nothing was said of begins where it is first seen: what came before was removed with its segments. Who takes
    /// over may write again what the one before had written.
    pub fn goes_on(&self, chain: Chain, found: u64) -> Result<(), Gap> {
        let expected = self.state.chains.get(&chain).copied().unwrap_or(found);
        match found > expected {
            true => Err(Gap {
                chain,
                expected,
                found,
            }),
            false => Ok(()),
        }
    }

    fn each(&mut self, apply: impl Fn(&mut State)) {
        apply(&mut self.state);
        if let Some(said) = &mut self.said {
            apply(said);
        }
    }

    fn batches(
        &mut self,
        run: &Run,
        bytes: &[u8],
        see: &mut dyn FnMut(Sight<'_>),
    ) -> Result<(), Gap> {
        let chain = chain_of(run);
        self.goes_on(chain, run.first)?;
        self.each(|state| state.batches(chain, run.end()));
        for (header, _) in BatchRun::new(run, bytes) {
            see(Sight::Batch(run.row, &header));
        }
        Ok(())
    }
}

impl State {
    fn fact(&mut self, run: &Run, bytes: &[u8]) {
        let key = (run.row, run.first);
        match bytes {
            [] => drop(self.facts.remove(&key)),
            bytes => drop(self.facts.insert(key, bytes.to_vec())),
        }
    }

    fn batches(&mut self, chain: Chain, end: u64) {
        let next = self.chains.entry(chain).or_insert(end);
        *next = end.max(*next);
    }

    fn next(&mut self, run: &Run) {
        self.chains.insert(chain_of(run), run.first);
    }
}

/// The chain of a run that is no fact.
pub(crate) fn chain_of(run: &Run) -> Chain {
    Chain {
        topic: run.chain,
        row: run.row,
    }
}
