//! Reads which chains the sequencer announced as changed, so that no reader has to look at all of them.

use embar_fabric::news::News;
use embar_fabric::{NewsReader, Region};
use embar_memory::Memory;

use crate::leadership::Term;

/// Reads the news of the candidate that leads.
#[derive(Debug)]
pub struct ChangedChains<M> {
    /// Which of an area's news it reads.
    news: fn(u16) -> News,
    reader: Option<(Term, NewsReader<M>)>,
}

impl<M: Memory> ChangedChains<M> {
    /// The chains that have grown.
    pub fn of_order() -> Self {
        Self {
            news: News::Order,
            reader: None,
        }
    }

    /// The chains of which the sequencer gave something up.
    pub fn of_given_up() -> Self {
        Self {
            news: News::GivenUp,
            reader: None,
        }
    }

    /// The chains of which more is on a disk.
    pub fn of_frontiers() -> Self {
        Self {
            news: News::Frontiers,
            reader: None,
        }
    }

    /// Appends the chains that were announced since the last call. False when any chain may have changed, as in a
    /// term that is new here: then the caller looks at all of them, after this call.
    #[must_use = "when it is false, everything is to be looked at"]
    pub fn take(&mut self, region: &Region<M>, term: Term, chains: &mut Vec<u32>) -> bool {
        match &mut self.reader {
            Some((of, reader)) if *of == term => reader.take(chains),
            _ => {
                let reader = region.news((self.news)(term.area));
                let (_, reader) = self.reader.insert((term, reader));
                reader.take(chains)
            }
        }
    }
}
