//! Chains that a sequencer told of, so that nobody has to look at all of them.

use embar_fabric::news::News;
use embar_fabric::{NewsReader, Region};
use embar_memory::Memory;

use crate::leadership::Term;

/// Listens to the news of whoever leads.
#[derive(Debug)]
pub struct ChangedChains<M> {
    /// Which of an area's news.
    news: fn(u16) -> News,
    reader: Option<(Term, NewsReader<M>)>,
}

impl<M: Memory> ChangedChains<M> {
    /// Of chains that have grown.
    pub fn of_order() -> Self {
        Self {
            news: News::Order,
            reader: None,
        }
    }

    /// Of chains of which something was given up.
    pub fn of_given_up() -> Self {
        Self {
            news: News::GivenUp,
            reader: None,
        }
    }

    /// Appends the chains that were told of since the last call. False when any may have changed: so
    /// it is with a term that is new here, and the caller looks at all of them, after this call.
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
