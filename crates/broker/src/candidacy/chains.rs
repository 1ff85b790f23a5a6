//! Tells the sequencer which chains exist. A chain exists as long as its topic does, so the sequencer asks the topic
//! table.

use std::cell::RefCell;

use embar_fabric::region::Region;
use embar_memory::Memory;
use embar_order::{MayGiveUp, Term};

use crate::log::frontier;
use crate::topics::{Topic, TopicTable};

/// The topic table, as the sequencer asks it.
pub(super) struct Chains<M: Memory> {
    topics: RefCell<TopicTable<M>>,
}

impl<M: Memory> Chains<M> {
    pub fn of(region: &Region<M>) -> Self {
        Self {
            topics: RefCell::new(TopicTable::attach(region, None)),
        }
    }

    /// Whether the topic of a chain exists. A topic that the table lacks may be newer than the table's last refresh.
    /// So only a refresh shows that it was deleted.
    pub fn exists(&self, chain: u32) -> bool {
        let mut topics = self.topics.borrow_mut();
        if topics.by_id(chain).is_none() {
            topics.refresh();
        }
        topics.by_id(chain).is_some()
    }

    /// Whether it exists, and its batches get their places from the sequencer.
    pub fn is_ordered(&self, chain: u32) -> bool {
        self.exists(chain) && {
            let topics = self.topics.borrow();
            topics.by_id(chain).is_some_and(Topic::is_ordered)
        }
    }

    pub fn name(&self, chain: u32) -> Option<String> {
        let topics = self.topics.borrow();
        topics.by_id(chain).map(|topic| topic.name.clone())
    }

    /// The chains whose topics were deleted since the last call.
    pub fn refresh(&self) -> Vec<u32> {
        let mut topics = self.topics.borrow_mut();
        topics.refresh();
        topics.take_gone()
    }
}

/// Whether the order of a chain may be given up below a position: of a topic that is on disks, if all of them have it.
pub(super) fn may_give_up<M: Memory>(region: &Region<M>, term: Term) -> MayGiveUp {
    let topics = RefCell::new(TopicTable::attach(region, None));
    let region = region.clone();
    Box::new(move |chain, end| {
        let mut topics = topics.borrow_mut();
        topics.refresh();
        let disks = topics.by_id(chain).map_or(0, |topic| topic.disks);
        disks == 0
            || frontier(&region, term, (chain, 0), disks).is_some_and(|(_, next)| end <= next)
    })
}
