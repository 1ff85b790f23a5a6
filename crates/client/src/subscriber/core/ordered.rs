//! The part of the subscriber's core for topics with one order over all brokers: any broker can serve all messages, so
//! it subscribes at one of them, and at another one when that connection ends. Others may help it (`helpers`).

use embar_frame::Now;

use super::super::channel::{Role, SubscribeChannel};
use super::super::model::Start;
use super::SubscriberCore;
use super::helpers::LAST_RANK;
use crate::directory::TopicRequest;
use crate::error::SettingError;
use crate::peer::Phase;

impl SubscriberCore {
    /// Whether there is one order over all brokers; `None` before it is known, and then it is asked for.
    pub(super) fn learn_order(&mut self, now: Now) -> Option<bool> {
        if self.ordered.is_none() {
            let Some(order) = self.directory.topic_order() else {
                // The broker that was asked may be slow to hear of the topic. The head knows.
                self.directory.request_topic(TopicRequest::Describe, now);
                return None;
            };
            let ordered = order.is_total();
            if let Err(error) = self.check_start(ordered) {
                self.fail(error, now);
                return None;
            }
            self.ordered = Some(ordered);
        }
        self.ordered
    }

    fn check_start(&self, ordered: bool) -> Result<(), SettingError> {
        let Start::Positions(positions) = &self.config.start else {
            return Ok(());
        };
        if positions.is_empty() || positions.position().is_some() == ordered {
            return Ok(());
        }
        let topic = &self.config.topic;
        let rule = if ordered {
            format!("topic {topic:?} has one order over all brokers: give one number")
        } else {
            format!("each broker of topic {topic:?} counts its own offsets: give BROKER:OFFSET,...")
        };
        Err(SettingError::new("from", positions, rule))
    }

    /// Subscribes at a broker that is ready, where the last one stood, if there is no connection.
    pub(super) fn choose_broker(&mut self, now: Now) {
        let is_served = self
            .channels
            .iter()
            .any(|it| it.role == Role::Serves && it.peer.phase != Phase::Parked);
        if self.ordered != Some(true) || self.ended.is_some() || is_served {
            return;
        }
        let channels = self.channels.iter().enumerate();
        let is_free = |it: &SubscribeChannel| match it.role {
            Role::Free | Role::Serves => true,
            // The cluster said that it is not ready before it was connected.
            Role::Helps => it.peer.phase == Phase::Parked,
            Role::Leaves => false,
        };
        let ready = channels.filter(|(_, it)| is_free(it) && it.peer.is_ready());
        let next =
            ready.min_by_key(|(_, channel)| (channel.peer.not_before().max(now), channel.rank));
        let Some((next, channel)) = next else { return };
        let is_worse = |than: &SubscribeChannel| {
            let held_up = |it: &SubscribeChannel| it.rank >= LAST_RANK;
            channel.peer.not_before() > now || held_up(channel) && !held_up(than)
        };
        let mut leaving = self.channels.iter().filter(|it| it.role == Role::Leaves);
        if leaving.any(|it| it.peer.is_ready() && is_worse(it)) {
            // That one comes free in a moment.
            return;
        }
        if let Some(last) = self.chosen.replace(next)
            && let Ok([from, to]) = self.channels.get_disjoint_mut([last, next])
        {
            to.take_over(from);
            if from.role == Role::Serves {
                from.role = Role::Free;
            }
        }
        let channel = &mut self.channels[next];
        channel.serve(self.merge.next());
        let limit = self.config.idle_timeout;
        channel.peer.connection.set_idle_timeout(limit);
        channel.lost_since.get_or_insert(now);
        channel.peer.choose(now);
        channel.peer.tick(now);
    }
}
