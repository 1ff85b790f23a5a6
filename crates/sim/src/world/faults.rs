//! Chooses at each step, by chance, what goes wrong: hosts crash, pause or take over, connections break, clients start
//! anew, brokers leave, topics are replaced.

use embar_broker::places::HEAD;
use embar_frame::Now;

use super::World;
use super::hosts::FUSE_MAX;
use super::turns::any_pause;
use crate::violation::Check;

const SECOND_NS: u64 = 1_000_000_000;

impl World {
    pub(super) fn inject(&mut self) -> Check {
        let faults = self.plan.faults;
        if self.random.one_in(faults.crash) {
            self.crash();
        }
        self.disturb_connections();
        if self.random.one_in(faults.leave) {
            self.leave();
        }
        if self.random.one_in(faults.delete) {
            self.replace_topic();
        }
        if self.random.one_in(faults.pause) {
            self.pause();
        }
        if self.random.one_in(faults.challenge) {
            self.challenge();
        }
        self.disturb_clients();
        if self.random.one_in(faults.jump) {
            let row = self.any_row();
            self.clocks[usize::from(row)].jump(&mut self.random);
            self.note(format_args!("the clocks of broker {row} jump"));
            self.figures.jumps += 1;
        }
        if self.random.one_in(faults.shortage) {
            self.run_short();
        }
        if self.random.one_in(faults.flip) {
            self.flip();
        }
        if self.random.one_in(faults.lose) {
            self.lose()?;
        }
        Ok(())
    }

    fn disturb_connections(&mut self) {
        let (faults, now) = (self.plan.faults, self.now);
        if self.random.one_in(faults.cut)
            && let Some(id) = self.any_connection()
        {
            self.note(format_args!("connection {id} is cut"));
            self.figures.cuts += 1;
            self.network.cut(id, now);
        }
        if self.random.one_in(faults.half_open)
            && let Some(id) = self.any_connection()
        {
            self.note(format_args!(
                "connection {id} is cut, and one end hears nothing"
            ));
            self.figures.half_open += 1;
            self.network.half_open(id, now);
        }
        if self.random.one_in(faults.stall)
            && let Some(id) = self.any_connection()
        {
            let until = now + self.random.size(15 * SECOND_NS);
            self.note(format_args!("connection {id} stalls until {until}"));
            self.figures.stalls += 1;
            self.network.stall(id, until);
        }
    }

    fn disturb_clients(&mut self) {
        let (faults, now) = (self.plan.faults, self.now);
        if self.random.one_in(faults.resubscribe) {
            let actor = self.random.below(self.actors.len() as u64) as usize;
            self.resubscribe(actor);
        }
        if self.random.one_in(faults.rebirth) {
            let actor = self.random.below(self.actors.len() as u64) as usize;
            self.rebirth(actor);
        }
        if self.random.one_in(faults.freeze) {
            let actor = self.random.below(self.actors.len() as u64) as usize;
            let until = now + any_pause(&mut self.random);
            self.note(format_args!("actor {actor} stands still until {until}"));
            self.frozen.insert(actor, until);
            self.figures.frozen += 1;
        }
    }

    pub(super) fn any_row(&mut self) -> u16 {
        self.random.below(self.plan.geometry.brokers.into()) as u16
    }

    /// At once, or in the middle of what it does next.
    fn crash(&mut self) {
        let (row, outage) = (self.any_row(), self.any_outage());
        let fuse = if self.random.one_in(4) {
            0
        } else {
            self.random.size(FUSE_MAX)
        };
        if let Some(host) = self.host(row) {
            host.power.fail_after(fuse, outage);
        }
    }

    /// A data broker is asked to leave, where a cluster goes on without it.
    fn leave(&mut self) {
        let (row, force) = (self.any_row(), self.random.one_in(2));
        if row == HEAD || !self.plan.geometry.takes_data(row) {
            return;
        }
        let broker = self.host_mut(row).and_then(|host| host.broker.as_mut());
        if let Some(broker) = broker.filter(|it| it.serves && !it.node.is_leaving()) {
            broker.asked_to_leave = Some(force);
            self.note(format_args!("broker {row} is asked to leave"));
        }
    }

    /// A topic is deleted, and another one takes its topic record, maybe with its name.
    fn replace_topic(&mut self) {
        if self.topics.is_empty() {
            return;
        }
        let topic = self.random.pick(&self.topics).clone();
        let name = if self.random.one_in(2) {
            topic.name.clone()
        } else {
            format!("topic-{}", 10 + self.figures.deleted)
        };
        let head = self.host_mut(HEAD).and_then(|host| host.broker.as_mut());
        if let Some(head) = head.filter(|head| head.serves) {
            head.asked_to_replace = Some((topic, name));
        }
    }

    fn pause(&mut self) {
        let row = self.any_row();
        let until = self.now + any_pause(&mut self.random);
        if let Some(host) = self.host_mut(row) {
            host.paused_until = until;
            self.figures.pauses += 1;
            self.note(format_args!("broker {row} pauses until {until}"));
        }
    }

    fn challenge(&mut self) {
        let row = self.any_row();
        if let Some(candidate) = self.host_mut(row).and_then(|host| host.candidate.as_mut())
            && candidate.sequencer().is_none()
        {
            candidate.challenges = true;
            self.note(format_args!("broker {row} is about to take over"));
        }
    }

    fn any_connection(&mut self) -> Option<u32> {
        let ids = self.network.ids();
        (!ids.is_empty()).then(|| *self.random.pick(&ids))
    }

    /// What the process sent before still arrives; it learns of no answer.
    fn rebirth(&mut self, actor: usize) {
        let now = Now(self.now);
        let Some(publisher) = self.actors[actor].as_publisher() else {
            return;
        };
        if !publisher.begins_anew(&mut self.oracle, now) {
            return;
        }
        self.trace
            .event(now, format_args!("actor {actor} is another process"));
        self.figures.reborn += 1;
        self.dismiss(actor);
    }

    fn resubscribe(&mut self, actor: usize) {
        let now = Now(self.now);
        if let Some(subscriber) = self.actors[actor].as_subscriber() {
            self.trace
                .event(now, format_args!("actor {actor} starts over"));
            subscriber.start_over(&self.oracle, now);
        }
        self.dismiss_if_moved(actor);
    }
}
