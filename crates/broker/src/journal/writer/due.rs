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
        let room = self.region.geometry().sessions;
        let is_here = |place: u32, known: &KnownSession| match self.session(place) {
            Some(now) => now.row.in_use == 1 && known.is_same(&now),
            // Its row is just being stored, and the next segment looks again: a session that is forgotten by that would begin anew.
            None => place < room,
        };
        // In a region that was restored, a session has another place if two disks had one each at the same.
        let mut elsewhere: Vec<(u32, KnownSession)> = Vec::new();
        if sessions.iter().any(|(place, known)| !is_here(place, known)) {
            for place in 0..self.region.geometry().sessions {
                let now = self.session(place).filter(|now| now.row.in_use == 1);
                let known = now.and_then(|now| {
                    let (at, known) = sessions.of(now.row.chain, now.row.producer)?;
                    (at != place && known.is_same(&now)).then_some(*known)
                });
                elsewhere.extend(known.map(|known| (place, known)));
            }
        }
        sessions.retain(is_here);
        for (place, known) in elsewhere {
            sessions.put(place, known);
        }
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
