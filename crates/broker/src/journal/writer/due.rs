//! What a writer says of topics, chains and sessions beside their batches.

use embar_disk::{Chain as ChainName, CommitBuilder, Progress, Refused};
use embar_memory::Memory;

use super::Writer;
use crate::journal::facts::{
    ABOUT_SESSION, ABOUT_TOPIC, ABOUT_TOPIC_IDS, encode_session, encode_topic_ids,
};
use crate::journal::sessions::KnownSession;

/// What is to be said.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    FirstKept,
    TopicIds,
    Topic(u32),
    Chain(ChainName),
    NoTopic(u32),
    Session(u32),
    NoSession(u32),
}

/// What a commit says of which somebody waits until it counts.
#[derive(Default)]
pub(super) struct Said {
    /// Which segment is the first that is kept.
    pub first_kept: bool,
    /// Topics that are not on the disk any more.
    pub gone: Vec<u32>,
}

impl<M: Memory> Writer<M> {
    /// Says what is due, as far as there is room.
    pub(super) fn say_facts(&mut self, builder: &mut CommitBuilder) -> Said {
        let mut all = Said::default();
        while let Some(due) = self.due.front() {
            let said = match *due {
                Due::FirstKept => self.journal.say_first_kept(builder),
                Due::TopicIds => {
                    builder.fact(ABOUT_TOPIC_IDS, 0, &encode_topic_ids(self.highest_id))
                }
                Due::Topic(id) => match self.topics.by_id(id) {
                    Some(topic) => builder.fact(ABOUT_TOPIC, id.into(), &topic.encode()),
                    None => Ok(()),
                },
                Due::Chain(chain) if self.chains.contains_key(&chain) => {
                    let next = self.journal.next_of(chain);
                    builder.next(&Progress { chain, next })
                }
                Due::Chain(_) => Ok(()),
                Due::NoTopic(id) => builder.fact(ABOUT_TOPIC, id.into(), &[]),
                Due::Session(place) => match self.sessions.get(place) {
                    Some(known) => say_session(builder, place, known),
                    None => Ok(()),
                },
                // Another one may have the place by now, and was said.
                Due::NoSession(place) => match self.sessions.get(place) {
                    Some(_) => Ok(()),
                    None => builder.fact(ABOUT_SESSION, place.into(), &[]),
                },
            };
            match said {
                Ok(()) => {
                    match *due {
                        Due::FirstKept => all.first_kept = true,
                        Due::NoTopic(topic) => all.gone.push(topic),
                        _ => {}
                    }
                    self.due.pop_front();
                }
                Err(Refused::Full | Refused::Damaged) => break,
            }
        }
        all
    }

    /// Forgets sessions that are over.
    pub(super) fn prune_sessions(&mut self) {
        let mut sessions = std::mem::take(&mut self.sessions);
        sessions.retain(|place, known| {
            self.session(place).is_some_and(|now| {
                let same = now.row.in_use == 1 && now.row.first_epoch == known.row.first_epoch;
                same && (now.row.chain, now.row.producer) == (known.row.chain, known.row.producer)
            })
        });
        self.sessions = sessions;
    }
}

pub(super) fn say_session(
    builder: &mut CommitBuilder,
    place: u32,
    known: &KnownSession,
) -> Result<(), Refused> {
    let bytes = encode_session(&known.row, &known.owner);
    builder.fact(ABOUT_SESSION, place.into(), &bytes)
}
