//! What others keep of ordered topics: brokers evict, and tell of it by their windows; sequencers give up
//! what they have no room for, and tell of it by their roots. The same positions are gone here.
//!
//! Only topics that somebody told of are looked at.

use embar_fabric::geometry::cell_of;
use embar_fabric::news::News;
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_fabric::{NewsReader, SharedNews};
use embar_memory::Memory;
use embar_order::{ChangedChains, Term};

use super::Log;

/// What others tell, and what this broker tells them.
pub(super) struct Elsewhere<M: Memory> {
    told: SharedNews<M>,
    windows: Vec<NewsReader<M>>,
    given_up: ChangedChains<M>,
    /// Topics to look at: those of which others keep less than this broker has read yet.
    topics: Vec<u32>,
}

impl<M: Memory> Elsewhere<M> {
    pub fn new(region: &Region<M>, claim: &Claim) -> Self {
        let others = region.geometry().data_rows();
        let others = others.filter(|row| *row != claim.row());
        Self {
            told: region.window_news_writer(claim),
            windows: others.map(|row| region.news(News::Windows(row))).collect(),
            given_up: ChangedChains::of_given_up(),
            topics: Vec::new(),
        }
    }

    /// By which others hear of the windows that this broker raises.
    pub fn told(&self) -> &SharedNews<M> {
        &self.told
    }

    /// Appends the topics that were told of. False when it may be any.
    fn listen(&mut self, region: &Region<M>, term: Option<Term>, topics: &mut Vec<u32>) -> bool {
        let mut all_told = true;
        for news in &mut self.windows {
            all_told &= news.take(topics);
        }
        if let Some(term) = term {
            all_told &= self.given_up.take(region, term, topics);
        }
        all_told
    }
}

impl<M: Memory> Log<M> {
    /// Takes in what other brokers have evicted, and what the sequencer has given up.
    pub fn refresh_windows(&mut self) {
        let term = self.term();
        let mut topics = std::mem::take(&mut self.elsewhere.topics);
        if !self.elsewhere.listen(&self.region, term, &mut topics) {
            topics.clear();
            topics.extend(self.ordered.keys());
        }
        topics.sort_unstable();
        topics.dedup();
        topics.retain(|topic| !self.refresh_window(*topic, term));
        self.elsewhere.topics = topics;
    }

    /// False if it is to be looked at again.
    fn refresh_window(&mut self, id: u32, term: Option<Term>) -> bool {
        let cell = cell_of(id);
        let first = self.first_elsewhere(id);
        let given_up = term.and_then(|term| {
            let root = self.region.goi_root(term.area, cell).found()?;
            (root.chain == id && root.epoch == term.epoch).then_some(root.first)
        });
        let lasts = || term.is_some_and(|term| term.lasts(&self.region));
        let first = match given_up {
            // What a sequencer says counts while it is the one.
            Some(given_up) if given_up > first && lasts() => given_up,
            _ => first,
        };
        let Some(topic) = self.ordered.get_mut(&id) else {
            return true;
        };
        if first > topic.next {
            // The follower is behind. It is not told of it when nothing is ordered any more.
            self.ordering.participant.look_again(id);
            return false;
        }
        if first > topic.first {
            topic.raise_first(first);
            self.evictions += 1;
            self.resized(id);
        }
        true
    }

    /// The first position that all brokers keep of a topic.
    pub(super) fn first_elsewhere(&self, id: u32) -> u64 {
        let rows = self.region.geometry().data_rows();
        let windows = rows.filter_map(|row| self.region.window(row, cell_of(id)).found());
        let of_topic = windows.filter(|window| window.chain == id);
        of_topic.map(|window| window.first).max().unwrap_or(0)
    }
}
