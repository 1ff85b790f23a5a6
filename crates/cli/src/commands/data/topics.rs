//! The topics that a disk has, by their ids.

use std::collections::BTreeMap;

use embar_broker::journal::facts::{ABOUT_SESSION, ABOUT_TOPIC, decode_topic};
use embar_broker::topics::Topic;
use embar_disk::Chain;
use embar_disk::format::Run;

/// All facts of a disk, by what they are about and their key.
pub type Facts = BTreeMap<(u16, u64), Vec<u8>>;

/// Topics by their ids.
#[derive(Clone, Debug, Default)]
pub struct Topics(BTreeMap<u32, Topic>);

impl Topics {
    /// Those that the facts name.
    pub fn of(facts: &Facts) -> Self {
        let topics = about(facts, ABOUT_TOPIC).filter_map(|bytes| decode_topic(bytes));
        Self(topics.map(|topic| (topic.id, topic)).collect())
    }

    /// The topic of an id; `None` if it was deleted, or its fact cannot be read.
    pub fn get(&self, id: u32) -> Option<&Topic> {
        self.0.get(&id)
    }

    /// Its name.
    pub fn name(&self, id: u32) -> Option<&str> {
        self.get(id).map(|topic| topic.name.as_str())
    }

    /// What people call a chain.
    pub fn called(&self, chain: Chain) -> String {
        let name = match self.name(chain.topic) {
            Some(name) => name.to_owned(),
            None => format!("topic {}", chain.topic),
        };
        match broker_of(chain) {
            Some(broker) => format!("{name} of broker {broker}"),
            None => name,
        }
    }
}

/// The broker of a chain at orders 0 and 1.
pub fn broker_of(chain: Chain) -> Option<u16> {
    (chain.row != Run::ORDERED).then_some(chain.row)
}

/// How many sessions of publishers the facts name.
pub fn sessions(facts: &Facts) -> usize {
    about(facts, ABOUT_SESSION).count()
}

fn about(facts: &Facts, about: u16) -> impl Iterator<Item = &Vec<u8>> {
    let range = (about, 0)..=(about, u64::MAX);
    facts.range(range).map(|(_, bytes)| bytes)
}
