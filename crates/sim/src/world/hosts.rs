//! Starts the brokers and candidates of simulated hosts, and clears away those that died. Most of these start again
//! later.

use std::sync::Arc;

use embar_broker::places::HEAD;
use embar_memory::{Outage, Power};

use super::looks::claims;
use super::{World, set_alive, shortage, with};
use crate::candidate_host::CandidateHost;
use crate::check::device::Moment;
use crate::host::{Broker, Host, Memories};
use crate::violation::{Check, Invariant, ensure};

/// Accesses to memory after which an outage strikes at the latest.
pub(super) const FUSE_MAX: u64 = 20_000;
/// A host that is dead comes back within this, in nanoseconds.
const BACK_WITHIN_NS: u64 = 3_000_000_000;

/// A spare joins within this, in nanoseconds.
const JOINS_WITHIN_NS: u64 = 5_000_000_000;

/// All start but the spares, and the head creates the topics: the others are to hear of them.
pub(super) fn begin() -> Check {
    for row in with(|world| world.rows()) {
        if with(|world| world.joins_later(row)) {
            continue;
        }
        start(row)?;
    }
    let (head, plan, wall) = with(|world| {
        let head = world.host_mut(HEAD).and_then(|host| host.broker.take());
        let head = head.expect("it has just started");
        (head, world.plan.clone(), world.at(HEAD).wall)
    });
    let topics = head.create_topics(&plan, wall);
    if head.node.takes_data() {
        let mut log = head.node.log();
        topics.iter().for_each(|topic| log.open_topic(topic));
    }
    with(|world| {
        for topic in &topics {
            world.oracle.enter(topic);
        }
        world.topics = topics;
        if let Some(host) = world.host_mut(HEAD) {
            host.broker = Some(head);
        }
    });
    Ok(())
}

/// A new incarnation of a row. It may die while it recovers.
pub(super) fn start(row: u16) -> Check {
    if with(|world| world.cannot_start(row)) {
        return Ok(());
    }
    let power = Power::default();
    let (memories, machine, raw, plan, at) = with(|world| {
        let dies = !world.topics.is_empty() && !world.healed && world.plan.faults.crash > 0;
        if dies && world.random.one_in(6) {
            let (fuse, outage) = (world.random.size(FUSE_MAX), world.any_outage());
            power.fail_after(fuse, outage);
        }
        let (machine, memories) = world.any_machine(row, &power);
        let raw = world.devices.raw();
        (memories, machine, raw, world.plan.clone(), world.at(row))
    });
    let region = memories.region();
    set_alive(row, true);
    let is_new = region.incarnation(row) == 0;
    with(|world| {
        let joins = is_new && !world.topics.is_empty();
        world.figures.joined += u64::from(joins);
        let mut host = Host::new(power.clone(), machine, memories);
        host.busy = 1;
        world.may_fail(&mut host);
        world.hosts[usize::from(row)] = Some(host);
    });
    let claim = Arc::new(region.claim_unlocked(row));
    let candidate = region
        .geometry()
        .area_of(row)
        .map(|_| CandidateHost::new(&region, raw, &claim, &plan.config, at.now));
    let alive = move |other| shortage::is_alive(row, other);
    let broker = Broker::start(region, &claim, &plan, alive, at);
    with(|world| {
        let claimed = claims(&broker, &world.topics);
        let recovered = broker.recovered;
        let Some(host) = world.host_mut(row) else {
            return Ok(());
        };
        host.busy -= 1;
        host.broker = Some(Box::new(broker));
        host.candidate = candidate.map(Box::new);
        host.claimed = claimed;
        if !host.lives() {
            return Ok(());
        }
        world.note(format_args!(
            "incarnation {} of broker {row} starts: {recovered:?}",
            claim.incarnation()
        ));
        let is_whole = recovered.damaged == 0 || !world.oracle.hurt.is_empty();
        ensure(Invariant::I6, is_whole, || {
            format!("recovery of broker {row} finds damage: {recovered:?}")
        })?;
        world.look(row, Moment::Birth)?;
        world.agree(row, false)
    })?;
    reap_hosts()
}

/// Whether the host of a row is dead, or about to be reaped.
pub(super) fn has_died(row: u16) -> bool {
    with(|world| world.host(row).is_none_or(|host| !host.lives()))
}

/// Hosts whose power has failed, and that are in the middle of nothing any more, go.
pub(super) fn reap_hosts() -> Check {
    for row in with(|world| world.rows()) {
        let dead = with(|world| {
            let host = world.host(row)?;
            let over = !host.lives() && host.busy == 0;
            over.then(|| world.hosts[usize::from(row)].take())?
        });
        if let Some(host) = dead {
            reap(row, host)?;
        }
    }
    Ok(())
}

fn reap(row: u16, mut host: Host) -> Check {
    let (broker, candidate) = (host.broker.take(), host.candidate.take());
    with(|world| {
        // The buffers that the network holds point into its memory.
        let now = world.now;
        world.network.broker_died(row, now);
    });
    // Its caches settle before any host can know that it is gone.
    let machine = host.machine;
    let (outage, memories) = host.end();
    drop((broker, candidate));
    set_alive(row, false);
    with(|world| {
        world.machines[usize::from(row)][machine] = Some(memories);
        let takes_data = world.plan.geometry.takes_data(row);
        let figures = &mut world.figures;
        *match (takes_data, outage) {
            (true, Outage::Host) => &mut figures.broker_host_crashes,
            (true, Outage::Process) => &mut figures.broker_process_crashes,
            (false, Outage::Host) => &mut figures.candidate_host_crashes,
            (false, Outage::Process) => &mut figures.candidate_process_crashes,
        } += 1;
        world.restart_at[usize::from(row)] = world.now + world.random.size(BACK_WITHIN_NS);
        world.note(format_args!("broker {row} dies: {outage:?}"));
        if row == HEAD {
            world.meet_last_created();
        }
        world.look(row, Moment::Death)?;
        world.look_at_order()?;
        world.reread()
    })
}

impl World {
    fn joins_later(&mut self, row: u16) -> bool {
        let later = self.plan.geometry.is_spare(row);
        if later {
            self.restart_at[usize::from(row)] = self.now + self.random.size(JOINS_WITHIN_NS);
        }
        later
    }

    /// One of the two hosts on which a row's process may be, and its memories. What an earlier one left
    /// in its caches is old by now, if the row was elsewhere since.
    fn any_machine(&mut self, row: u16, power: &Power) -> (usize, Memories) {
        let (machine, seed) = (self.random.below(2) as usize, self.random.bits());
        let before = &self.machines[usize::from(row)][machine];
        let Some(before) = before else {
            return (machine, self.devices.host(seed, power));
        };
        self.figures.warm_starts += 1;
        (machine, before.next_process(seed, power))
    }

    pub(super) fn any_outage(&mut self) -> Outage {
        if self.random.one_in(2) {
            Outage::Host
        } else {
            Outage::Process
        }
    }
}
