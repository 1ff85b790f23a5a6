//! What other processes keep of ordered topics. Brokers evict, and raise their windows; sequencers give up
//! what they have no room for, and raise the starts in their roots. The same positions are gone here then.
//!
//! The log looks only at topics that one of them announced.

use embar_fabric::geometry::topic_record_of;
use embar_fabric::news::News;
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_fabric::{NewsReader, SharedNews};
use embar_memory::Memory;
use embar_order::{ChangedChains, Term};

use super::Log;

/// The announcements of other brokers and of the sequencer, and this broker's own.
pub(super) struct RemoteWindows<M: Memory> {
    announcements: SharedNews<M>,
    windows: Vec<NewsReader<M>>,
    given_up: ChangedChains<M>,
    /// Topics to look at again: those of which others keep less than this broker has read yet.
    topics: Vec<u32>,
}

impl<M: Memory> RemoteWindows<M> {
    pub fn new(region: &Region<M>, claim: &Claim) -> Self {
        let others = region.geometry().data_rows();
        let others = others.filter(|row| *row != claim.row());
        Self {
            announcements: region.window_news_writer(claim),
            windows: others.map(|row| region.news(News::Windows(row))).collect(),
            given_up: ChangedChains::of_given_up(),
            topics: Vec::new(),
        }
    }

    /// Where this broker announces the windows that it raises.
    pub fn announcements(&self) -> &SharedNews<M> {
        &self.announcements
    }

    /// Appends the topics that were announced. False when it may be any.
    fn collect(&mut self, region: &Region<M>, term: Option<Term>, topics: &mut Vec<u32>) -> bool {
        let mut is_complete = true;
        for news in &mut self.windows {
            is_complete &= news.take(topics);
        }
        if let Some(term) = term {
            is_complete &= self.given_up.take(region, term, topics);
        }
        is_complete
    }
}

impl<M: Memory> Log<M> {
    /// Takes in what other brokers have evicted, and what the sequencer has given up.
    pub fn refresh_windows(&mut self) {
        let term = self.term();
        let mut topics = std::mem::take(&mut self.remote_windows.topics);
        if !self.remote_windows.collect(&self.region, term, &mut topics) {
            topics.clear();
            topics.extend(self.ordered.keys());
        }
        topics.sort_unstable();
        topics.dedup();
        topics.retain(|topic| !self.refresh_window(*topic, term));
        self.remote_windows.topics = topics;
    }

    /// False if the topic is to be looked at again.
    fn refresh_window(&mut self, id: u32, term: Option<Term>) -> bool {
        let topic_record = topic_record_of(id);
        let first = self.first_kept_by_all(id);
        let given_up = term.and_then(|term| {
            let root = self.region.goi_root(term.area, topic_record).found()?;
            (root.chain == id && root.epoch == term.epoch).then_some(root.first)
        });
        let lasts = || term.is_some_and(|term| term.lasts(&self.region));
        let first = match given_up {
            // What a sequencer stores counts for as long as its term lasts.
            Some(given_up) if given_up > first && lasts() => given_up,
            _ => first,
        };
        let Some(topic) = self.ordered.get_mut(&id) else {
            return true;
        };
        if first > topic.next {
            // The participant is behind, and no news would make it look when nothing is ordered any more.
            self.order.participant.look_again(id);
            return false;
        }
        if first > topic.first {
            topic.raise_first(first);
            self.evictions += 1;
            self.update_size(id);
        }
        true
    }

    /// The first position that all brokers keep of a topic.
    pub(super) fn first_kept_by_all(&self, id: u32) -> u64 {
        let rows = self.region.geometry().data_rows();
        let windows = rows.filter_map(|row| self.region.window(row, topic_record_of(id)).found());
        let of_topic = windows.filter(|window| window.chain == id);
        of_topic.map(|window| window.first).max().unwrap_or(0)
    }
}
