//! What the publisher waits for, looked up when somebody asks.

use embar_frame::Now;

use super::super::channel::PublishChannel;
use super::PublisherCore;
use crate::peer::Phase;
use crate::wait::{Party, Wait, WaitReason};

impl PublisherCore {
    /// Whom it waits for: to be opened, or to store what was submitted. `None` while there is nothing to wait for.
    pub fn waiting_for(&self, now: Now) -> Option<Wait> {
        if self.failed.is_some() {
            return None;
        }
        if !self.opened {
            let left = self.open_by?.since(now);
            return Some(Wait {
                parties: self.absent(),
                elapsed: self.config.open_timeout.saturating_sub(left),
                remaining: Some(left),
            });
        }
        let oldest = self.oldest_open()?;
        // What has a number is sent for as long as it takes.
        let is_numbered = self.session.as_ref().is_some_and(|it| !it.is_idle());
        let expires = oldest.after(self.config.delivery_timeout);
        Some(Wait {
            parties: self.awaited(),
            elapsed: now.since(self.stored_at().map_or(oldest, |at| at.max(oldest))),
            remaining: (!is_numbered).then(|| expires.since(now)),
        })
    }

    /// When the oldest batch was sealed that is not resolved.
    fn oldest_open(&self) -> Option<Now> {
        let carried = self
            .channels
            .iter()
            .filter_map(|channel| channel.in_flight.oldest());
        let assigned = self.channels.iter().flat_map(PublishChannel::assigned);
        let kept = assigned
            .chain(self.resend.values())
            .chain(self.queued.front());
        kept.map(|batch| batch.sealed_at).chain(carried).min()
    }

    /// Who is to store what is not resolved.
    fn awaited(&self) -> Vec<Party> {
        let is_open = |channel: &PublishChannel| channel.peer.phase == Phase::Open;
        if self.session.is_some() && self.channels.iter().any(is_open) && self.nobody_sequences() {
            return vec![Party {
                broker: None,
                address: None,
                reason: WaitReason::NoSequencer,
            }];
        }
        let carrying = |channel: &&PublishChannel| !channel.in_flight.is_empty();
        let refusing = |channel: &&PublishChannel| channel.peer.refusal_code().is_some();
        let open = || self.channels.iter().filter(|channel| is_open(channel));
        let answers = open().filter(carrying).chain(open().filter(refusing));
        let parties = distinct(answers.map(|channel| {
            let reason = match channel.peer.refusal_code() {
                Some(code) => WaitReason::of(code),
                None if channel.in_flight.is_sending() => WaitReason::NotReading,
                None => WaitReason::Acknowledgement,
            };
            channel.peer.party(reason)
        }));
        match parties.is_empty() {
            true => self.absent(),
            false => parties,
        }
    }

    /// Whether that is the last that was heard of the sequencer: what is stored has its place from one.
    fn nobody_sequences(&self) -> bool {
        let cluster = self.directory.cluster();
        let told = cluster.is_some_and(|it| it.sequencer.is_none());
        told && self.stored_at() <= self.directory.refreshed_at()
    }

    /// When a batch was last stored.
    fn stored_at(&self) -> Option<Now> {
        self.channels
            .iter()
            .map(|channel| channel.in_flight.stored_at())
            .max()
    }

    /// Who has no connection that can be used.
    fn absent(&self) -> Vec<Party> {
        if let Some(head) = self.directory.awaited_head() {
            return vec![head];
        }
        if self.directory.cluster().is_none() {
            return self.directory.parties();
        }
        let channels = self.channels.iter().map(|channel| &channel.peer);
        let absent = channels.filter(|peer| peer.phase != Phase::Open && !peer.has_left());
        let parties = distinct(absent.map(|peer| peer.party(peer.reason())));
        match parties.is_empty() {
            // Whoever is there is on the way to do what is asked, and nobody else is in the cluster.
            true => vec![Party {
                broker: None,
                address: None,
                reason: WaitReason::NotReady,
            }],
            false => parties,
        }
    }
}

/// A broker may have several channels.
fn distinct(parties: impl Iterator<Item = Party>) -> Vec<Party> {
    let mut parties: Vec<Party> = parties.collect();
    parties.sort_by_key(|party| party.broker);
    parties.dedup_by_key(|party| party.broker);
    parties
}
