//! Brokers that leave for good, and those that end because they were overtaken.

use embar_broker::clock::Timestamp;
use embar_broker::drain::DrainStep;
use embar_broker::heartbeat::Beat;
use embar_broker::shard::Action;
use embar_broker::topics::Topic;
use embar_fabric::records::BrokerState;
use embar_memory::{Outage, Simulated};

use super::{World, with};
use crate::host::Broker;
use crate::violation::{Check, Invariant, ensure};

/// Asks a broker to leave, if it is to be asked.
pub(super) fn ask(row: u16, broker: &mut Broker) -> Check {
    let Some(force) = broker.asked_to_leave.take() else {
        return Ok(());
    };
    let answer = broker.node.leave(force);
    with(|world| {
        world.note(format_args!("broker {row} leaves: {force} {answer:?}"));
        *match (&answer, force) {
            (Err(_), _) => &mut world.figures.stayed,
            (Ok(()), true) => &mut world.figures.forced,
            (Ok(()), false) => return world.others_stay(row),
        } += 1;
        Ok(())
    })
}

/// A beat of a broker, and what comes of it.
pub(super) fn beat(
    row: u16,
    broker: &mut Broker,
    at: Timestamp,
    actions: &mut Vec<Action<Simulated>>,
) -> Check {
    let is_alone = broker.is_alone();
    let leaving = match broker.heartbeat.beat(&broker.node, at, is_alone) {
        Beat::GoesOn(leaving, next) => {
            broker.next_beat = at.now.after(next);
            leaving
        }
        Beat::Overtaken => {
            broker.ends = true;
            return Ok(());
        }
    };
    match leaving {
        DrainStep::None | DrainStep::Wait => {}
        DrainStep::Begin => {
            for thread in &mut broker.threads {
                thread.shard.drain(at, actions);
            }
        }
        DrainStep::Finish => {
            for thread in &mut broker.threads {
                thread.shard.close_all(at, actions);
            }
            broker.node.set_left();
            with(|world| world.has_left(row, broker))?;
        }
    }
    Ok(())
}

/// The process of a broker that has left ends, and that of one that was overtaken: it is to be started
/// again.
pub(super) fn end_if_over(row: u16, broker: &Broker) {
    let left = broker.node.has_left();
    if !left && !broker.ends {
        return;
    }
    with(|world| {
        if let Some(host) = world.host(row).filter(|host| host.lives()) {
            host.power.fail_after(0, Outage::Process);
            world.figures.ended += u64::from(!left);
        }
    });
}

impl World {
    /// A broker that leaves on request leaves another one that takes data, or one that will come back.
    fn others_stay(&self, row: u16) -> Check {
        let raw = self.devices.raw();
        let mut rows = raw.geometry().data_rows();
        let stays = rows.any(|other| {
            let state = raw
                .broker_row(other)
                .found()
                .and_then(|it| it.broker_state());
            let leaves = matches!(state, Some(BrokerState::Draining | BrokerState::Left));
            other != row && state.is_some() && !leaves
        });
        ensure(Invariant::I6, stays || self.figures.forced > 0, || {
            format!("broker {row} leaves, and nobody takes data any more")
        })
    }

    fn has_left(&mut self, row: u16, broker: &Broker) -> Check {
        self.figures.left += 1;
        self.note(format_args!("broker {row} has left"));
        if !broker.node.leaves_empty() {
            return Ok(());
        }
        let is_hurt = |topic: &&Topic| self.oracle.hurt.contains(&(topic.id, Some(row)));
        let kept = self.topics.iter().filter(|topic| !topic.is_ordered());
        for topic in kept.filter(|topic| !is_hurt(topic)) {
            let history = self.oracle.histories.get(&(topic.id, Some(row)));
            let only_there = history.map_or(0..0, |it| it.first..it.next);
            ensure(Invariant::I6, only_there.is_empty(), || {
                format!(
                    "{}: broker {row} has left, and {only_there:?} was only there",
                    topic.name
                )
            })?;
        }
        Ok(())
    }
}
