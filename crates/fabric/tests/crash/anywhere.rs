//! Dying before every single access of a call, in both ways.

use std::sync::Arc;

use embar_fabric::{Geometry, Region};
use embar_memory::{Device, Faults, Outage, Power, Simulated};

use crate::common::{Cluster, small};

/// More accesses than any call here takes.
const ACCESSES_MAX: u64 = 5000;

/// The life of the process that is going to die.
pub struct Life<'a> {
    control: &'a Device,
    power: Power,
    accesses: u64,
    outage: Outage,
}

impl Life<'_> {
    /// From now on its accesses are counted.
    pub fn begin_to_end(&self) {
        self.power.fail_after(self.accesses, self.outage);
    }

    /// Control memory loses a line.
    pub fn lose(&self, at: u64) {
        self.control.damage(at, |line| line.fill(0xC3));
    }

    /// What was done before this call is done for good: others may have learned of it.
    pub fn lasts(&self) -> bool {
        self.power.failed().is_none()
    }
}

/// A head, one data broker and a standby, with little of everything.
pub fn geometry() -> Geometry {
    Geometry {
        brokers: 3,
        topics: 2,
        lanes: 1,
        index_pages: 1,
        payload_bytes: 64 << 10,
        goi_pages: 8,
        ..small()
    }
}

/// Lets a process die before its first access, its second, and so on, until one survives. After
/// each death others look, given what the dead one had promised.
pub fn die_anywhere<P>(
    live: impl Fn(&Region<Simulated>, &Life) -> P,
    look: impl Fn(&dyn Fn() -> Region<Simulated>, P),
) {
    for outage in [Outage::Host, Outage::Process] {
        let survived = (0..ACCESSES_MAX).find(|accesses| dies(*accesses, outage, &live, &look));
        let survived = survived.expect("a call that ends");
        assert!(survived > 0, "nothing was tried");
    }
}

/// True if it did not die.
fn dies<P>(
    accesses: u64,
    outage: Outage,
    live: &impl Fn(&Region<Simulated>, &Life) -> P,
    look: &impl Fn(&dyn Fn() -> Region<Simulated>, P),
) -> bool {
    let cluster = Cluster::seeded(&geometry(), accesses + 1);
    let power = Power::default();
    let on = |seed: u64, power: &Power| {
        let control = cluster.control.host_on(seed, Faults::default(), power);
        let payload_files = cluster.payload_files.iter();
        let payload_files = payload_files
            .map(|payload_file| Arc::new(payload_file.host(seed)))
            .collect();
        let control = Arc::new(control);
        let region = Region::from_parts(Arc::clone(&control), payload_files).expect("formatted");
        (control, region)
    };
    let (control, region) = on(accesses * 2 + 1, &power);
    let life = Life {
        control: &cluster.control,
        power: power.clone(),
        accesses,
        outage,
    };
    let promised = live(&region, &life);
    let survived = life.lasts();
    control.settle_outage();
    let seed = std::cell::Cell::new(1000 + accesses);
    let another_host = || {
        seed.set(seed.get() + 1);
        on(seed.get(), &Power::default()).1
    };
    look(&another_host, promised);
    survived
}
