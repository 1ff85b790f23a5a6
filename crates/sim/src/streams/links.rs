//! The connections of a run: both sides of each, with processes and views of their own.

use std::sync::Arc;

use embar_memory::{Device, Faults, Power};

use super::liar::Liar;
use super::plan::Link;
use super::pool::POOL_BYTES;
use super::side::{Side, Views};
use super::world::{Process, Slot, World};
use crate::random::Random;

/// Makes all connections of a run.
pub fn connect_all(world: &mut World) {
    for link in &world.plan.links {
        let sides = connect(world.slots.len(), link, &mut world.random);
        world.slots.extend(sides);
    }
}

/// Both sides of a connection, the first at `place`.
fn connect(place: usize, link: &Link, random: &mut Random) -> [Slot; 2] {
    let outboxes = link.sizes.map(|sizes| Device::blank(sizes.outbox_bytes()));
    let pools = [(); 2].map(|()| Device::new(POOL_BYTES, random.bits()));
    [0, 1].map(|which| {
        let (power, other) = (Power::default(), which ^ 1);
        let mut view = |of: &Device| Arc::new(of.host_on(random.bits(), Faults::default(), &power));
        let views = Views {
            own: view(&outboxes[which]),
            peer: view(&outboxes[other]),
            own_pool: view(&pools[which]),
            peer_pool: view(&pools[other]),
        };
        let (lies, place) = (link.lies && which == 1, place + which);
        let process: Box<dyn Process> = if lies {
            let sizes = link.sizes[which];
            Box::new(Liar::new(place, &views, sizes, random.fork()))
        } else {
            let sizes = [link.sizes[which], link.sizes[other]];
            let bytes = link.bytes[which];
            Box::new(Side::new(place, &views, sizes, bytes, random.fork()))
        };
        let Views {
            own,
            peer,
            own_pool,
            peer_pool,
        } = views;
        Slot::new(process, lies, power, vec![own, peer, own_pool, peer_pool])
    })
}
