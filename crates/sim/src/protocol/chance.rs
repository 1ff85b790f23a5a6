//! One step of the world itself: time passes, chance makes processes crash, pause or take over, and publishers send.

use embar_fabric::geometry::TOPICS_MAX;
use embar_memory::Outage;

use super::plan::STEP_NS;
use super::process::ProcessKind;
use super::publisher::Publisher;
use super::world::World;

impl World {
    /// Time passes, chance strikes, and publishers do something.
    pub fn tick(&mut self) {
        self.step += 1;
        self.now += self.random.below(2 * STEP_NS);
        if self.rough {
            self.strike();
        }
        let mut sends = Vec::new();
        let brokers = self.brokers();
        for _ in 0..2 {
            let chosen = self.random.below(self.publishers.len() as u64) as usize;
            let publisher = &mut self.publishers[chosen];
            publisher.step(&brokers, &mut self.oracle, &mut self.random, &mut sends);
        }
        for (to, request) in sends {
            let row = self.slots[to].row().expect("brokers have rows");
            let queue = self.requests.entry(row).or_default();
            // Connections are not ordered among each other.
            let at = self.random.below(queue.len() as u64 + 1) as usize;
            queue.insert(at, request);
        }
    }

    /// Brokers that publishers can reach: place and life.
    fn brokers(&self) -> Vec<(usize, u64)> {
        let slots = self.slots.iter().enumerate();
        let brokers =
            slots.filter(|(_, it)| matches!(it.kind, ProcessKind::Broker(_)) && it.lives());
        brokers.map(|(place, slot)| (place, slot.life)).collect()
    }

    fn strike(&mut self) {
        let count = self.slots.len() as u64;
        if self.random.one_in(self.plan.crash) {
            let place = self.random.below(count) as usize;
            let outage = *self.random.pick(&[Outage::Host, Outage::Process]);
            let accesses = self.random.below(3000);
            if let Some(host) = &self.slots[place].host
                && self.slots[place].lives()
            {
                host.power.fail_after(accesses, outage);
            }
        }
        if self.random.one_in(self.plan.pause) {
            let place = self.random.below(count) as usize;
            self.slots[place].paused_until = self.step + self.random.between(5, 150);
            self.count("pauses", 1);
        }
        if self.random.one_in(self.plan.challenge) {
            let place = self.random.below(count) as usize;
            if let Some(process) = self.slots[place].process.as_mut() {
                process.challenge();
            }
        }
        if self.random.one_in(self.plan.restart_client) {
            let chosen = self.random.below(self.publishers.len() as u64) as usize;
            if self.publishers[chosen].restart(&mut self.random) {
                self.count("clients restarted", 1);
                self.note(|| format!("publisher {chosen} restarts"));
            }
        }
        if self.random.one_in(self.plan.delete) && self.oracle.chains.len() > 1 {
            self.delete_chain();
        }
    }

    /// A chain goes, and another takes its topic record.
    fn delete_chain(&mut self) {
        let chains: Vec<(u32, u8)> = self
            .oracle
            .chains
            .iter()
            .map(|(chain, order)| (*chain, order.level))
            .collect();
        let (chain, level) = *self.random.pick(&chains);
        self.oracle.chains.remove(&chain);
        let publishers = self.publishers.iter_mut().filter(|it| it.chain == chain);
        publishers.for_each(Publisher::stop);
        self.make_chain((chain + u32::from(TOPICS_MAX), level));
        self.count("chains deleted", 1);
        self.note(|| format!("chain {chain} is deleted"));
    }

    /// From here on nothing fails.
    pub fn calm_down(&mut self) {
        self.rough = false;
        self.plan_interruption();
        for slot in &mut self.slots {
            slot.paused_until = 0;
            if let Some(host) = &slot.host
                && host.power.failed().is_none()
            {
                host.power.fail_after(u64::MAX, Outage::Host);
            }
        }
    }
}
