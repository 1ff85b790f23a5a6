//! Decides when the checkers look at what: after which turns, and at which topics, connections and bytes.

use embar_memory::canary::without_canary;

use super::World;
use super::clients::GREEDY;
use embar_broker::topics::Topic;

use crate::check::bounds;
use crate::check::device::Moment;
use crate::check::retained;
use crate::host::Broker;
use crate::violation::{Check, Invariant, ensure};

/// The index is looked at at least every so many turns, even if the broker claims that nothing changed.
const LOOK_EVERY: u64 = 16;
/// All retained bytes are looked at every so many turns.
const REREAD_EVERY: u64 = 256;

/// A broker's first and next offset of each topic, by the topic's id.
pub(super) fn claims(broker: &Broker, topics: &[Topic]) -> Vec<(u32, u64, u64)> {
    if !broker.node.takes_data() {
        return Vec::new();
    }
    let log = broker.node.log();
    let kept = topics
        .iter()
        .map(|t| (t.id, log.topic_stats(t.id).unwrap_or_default()));
    kept.map(|(id, kept)| (id, kept.first, kept.next)).collect()
}

impl World {
    /// Looks at a row's own topics.
    pub(super) fn look(&mut self, row: u16, moment: Moment) -> Check {
        match self.inspectors.get_mut(&row) {
            Some(inspector) => {
                without_canary(|| inspector.look(&self.topics, &mut self.oracle, moment))
            }
            None => Ok(()),
        }
    }

    /// Looks at what is ordered.
    pub(super) fn look_at_order(&mut self) -> Check {
        without_canary(|| self.orders.look(&self.topics, &mut self.oracle))
    }

    /// Looks at a row after something that may have changed it.
    pub(super) fn look_if_changed(&mut self, row: u16, claimed: Vec<(u32, u64, u64)>) -> Check {
        let Some(host) = self.host_mut(row) else {
            return Ok(());
        };
        if std::mem::replace(&mut host.claimed, claimed) == host.claimed {
            return Ok(());
        }
        self.look(row, Moment::Turn)
    }

    pub(super) fn look_after_turn(&mut self, row: u16, broker: &Broker) -> Check {
        if broker.node.takes_data() {
            bounds::broker(broker, &self.plan)?;
        }
        self.look_at_connections(row, broker)?;
        self.look_at_order()?;
        self.look_if_changed(row, claims(broker, &self.topics))?;
        if broker.node.takes_data() && broker.serves {
            retained::is_so(row, broker, &self.topics, &self.oracle)?;
            if self.plan.keeps_full {
                self.look_at_shares(row, broker)?;
            }
        }
        self.looks += 1;
        if self.looks.is_multiple_of(LOOK_EVERY) {
            self.look(row, Moment::Turn)?;
        }
        if self.looks.is_multiple_of(REREAD_EVERY) {
            self.reread()?;
        }
        self.agree(row, broker.serves)
    }

    /// No publisher waits for long, where nothing is wrong.
    pub(super) fn check_waits(&mut self) -> Check {
        let Some(most) = self.plan.longest_wait_ns else {
            return Ok(());
        };
        let now = self.now;
        let publishers = self.actors.iter_mut().filter_map(|it| it.as_publisher());
        let since = publishers.filter_map(|it| it.waits_since()).min();
        let waits = since.map_or(0, |since| now - since.0);
        ensure(Invariant::I10, waits <= most, || {
            format!("a publisher waits for {waits} ns, more than {most}, for what others claim")
        })
    }

    /// No host has more connections than are its share.
    fn look_at_connections(&mut self, row: u16, broker: &Broker) -> Check {
        // What was decided and is not done yet is not known to the network.
        if self.plan.floods.is_empty() || !broker.undone.is_empty() {
            return Ok(());
        }
        let count = self.network.open_from(row, Some(GREEDY));
        let share = bounds::share_of_connections(&self.plan);
        self.figures.crowded += u64::from(count >= self.plan.config.max_connections / 2);
        ensure(Invariant::I9, count <= share, || {
            format!("one host has {count} connections to broker {row}, more than {share}")
        })
    }

    /// A log that was full once stays full.
    fn look_at_shares(&mut self, row: u16, broker: &Broker) -> Check {
        let all = broker.node.log().usage();
        let topics = self.topics.len() as u64;
        let batch = u64::from(self.plan.config.max_batch_bytes);
        let Some(host) = self.host_mut(row) else {
            return Ok(());
        };
        host.log_is_full |= retained::is_full(&all);
        if !host.log_is_full {
            return Ok(());
        }
        self.figures.full += 1;
        retained::keeps_its_share(row, &all, topics, batch)
    }

    /// All bytes that are kept.
    pub(super) fn reread(&self) -> Check {
        for inspector in self.inspectors.values() {
            inspector.reread(&self.topics, &self.oracle)?;
        }
        self.orders.reread(&self.topics, &self.oracle)
    }

    /// What a broker serves its own readers is what other hosts find on the device; of what is ordered
    /// it may not have seen all.
    pub(super) fn agree(&self, row: u16, serves: bool) -> Check {
        let Some(host) = self.host(row) else {
            return Ok(());
        };
        for (topic, (_, first, next)) in self.topics.iter().zip(&host.claimed) {
            let counted = self.oracle.counted(topic.id, row);
            if self.oracle.hurt.contains(&counted) {
                continue;
            }
            let seen = self.oracle.histories.get(&counted);
            let seen = seen.map_or((0, 0), |h| (h.first, h.next));
            let ordered = counted.1.is_none();
            let agrees = if ordered {
                *next <= seen.1 && *first <= seen.0
            } else {
                seen == (*first, *next) || (!serves && next == first)
            };
            let invariant = if ordered {
                Invariant::I8
            } else {
                Invariant::I7
            };
            ensure(invariant, agrees, || {
                format!(
                    "{}: broker {row} keeps {first}..{next}, the device says {seen:?}",
                    topic.name
                )
            })?;
        }
        Ok(())
    }
}
