//! Which topics and chains are on the disk.

use std::collections::BTreeSet;

use embar_disk::Chain as ChainName;
use embar_disk::format::Run;
use embar_memory::Memory;

use super::due::Due;
use super::{Writer, chain_of};
use crate::journal::chain::Chain;
use crate::topics::Topic;

impl<M: Memory> Writer<M> {
    /// Takes in which topics are on the disk.
    pub(super) fn refresh_topics(&mut self) {
        self.topics.refresh();
        for gone in self.topics.take_gone() {
            self.forget(gone);
        }
        for moved in self.topics.take_moved() {
            self.follow_move(moved);
        }
        let new = self.topics.iter();
        let new = new.filter(|topic| topic.all_disks() & self.bit() != 0);
        let new = new.filter(|topic| self.chains_of(topic.id).next().is_none());
        let new: Vec<Topic> = new.cloned().collect();
        for topic in &new {
            self.take_topic(topic);
        }
        if !new.is_empty() {
            self.say_frontiers_if_full();
        }
    }

    fn bit(&self) -> u8 {
        1 << self.number
    }

    /// A topic is to be on this disk, or was, before another disk took its place. Then what is here stays, for readers, and they
    /// are told also if it is nothing.
    fn take_topic(&mut self, topic: &Topic) {
        let is_over = topic.disks & self.bit() == 0;
        let names = match topic.is_ordered() {
            true => vec![chain_of(topic.id)],
            false => self.indexes.follow(topic.id),
        };
        let is_moved = topic.moves > 0 && !is_over;
        if is_moved && !names.iter().all(|name| self.adopt(*name)) {
            // It cannot be read at the moment, and is looked at again.
            return;
        }
        if topic.id > self.highest_id {
            self.highest_id = topic.id;
            self.due.push_back(Due::TopicIds);
        }
        self.due.push_back(Due::Topic(topic.id));
        for name in names {
            let next = self.journal.next_of(name);
            let mut chain = Chain::new(&self.region, name, next);
            chain.is_over = is_over;
            chain.is_queued = true;
            self.chains.insert(name, chain);
            self.turns.push_back(name);
            self.due.push_back(Due::Chain(name));
        }
    }

    /// A disk of a topic has taken the place of another, perhaps of this one.
    fn follow_move(&mut self, topic: u32) {
        let names: Vec<ChainName> = self.chains_of(topic).collect();
        let Some(topic) = self.topics.by_id(topic).filter(|_| !names.is_empty()) else {
            return;
        };
        let is_over = topic.disks & self.bit() == 0;
        self.due.push_back(Due::Topic(topic.id));
        for name in names {
            if let Some(chain) = self.chains.get_mut(&name) {
                chain.is_over |= is_over;
            }
        }
    }

    /// The chains of a topic.
    pub(super) fn chains_of(&self, topic: u32) -> impl Iterator<Item = ChainName> {
        let [first, last] = [0, Run::ORDERED].map(|row| ChainName { topic, row });
        self.chains.range(first..=last).map(|(name, _)| *name)
    }

    /// A topic is gone.
    pub(super) fn forget(&mut self, topic: u32) {
        let mut chains: BTreeSet<ChainName> = self.chains_of(topic).collect();
        // It may be about to be taken once more.
        let known = self.firsts.keys().filter(|chain| chain.topic == topic);
        chains.extend(known);
        if chains.is_empty() {
            return;
        }
        for chain in chains {
            self.chains.remove(&chain);
            self.firsts.remove(&chain);
            self.synced.remove(&chain);
            self.indexes.unfollow(chain);
        }
        self.journal.forget(topic);
        self.looks_what_is_kept = true;
        self.due.push_back(Due::NoTopic(topic));
        let gone = self.sessions.retain(|_, known| known.row.chain != topic);
        self.due.extend(gone.into_iter().map(Due::NoSession));
    }
}
