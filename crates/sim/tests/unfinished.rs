//! Batches that begin and do not end must not push out those that were acknowledged.

mod life;

use embar_broker::log::AdmitError;
use embar_sim::host::Devices;
use embar_sim::oracle::Oracle;
use embar_sim::random::Random;
use life::{Life, alone};

#[test]
fn more_unfinished_batches_than_index_pages_evict_nothing() {
    let mut random = Random::new(1);
    let mut plan = alone(&mut random);
    plan.geometry.index_pages = 8;
    plan.geometry.payload_bytes = 1 << 20;
    let devices = Devices::format(&plan, &mut random);
    let mut life = Life::begin(&devices, random.bits());
    let topic = life.create_topic();
    life.append(&topic, 0, &mut Oracle::default());
    let mut begun = Vec::new();
    let refused = loop {
        match life.log.reserve(topic.id, 128) {
            Ok(claimed) => begun.push(claimed),
            Err(refused) => break refused,
        }
        assert!(begun.len() < 100, "the index has 8 pages");
    };
    assert_eq!(refused, AdmitError::Congested);
    assert_eq!(
        life.log.topic_stats(topic.id).map(|e| (e.first, e.batches)),
        Some((0, 1))
    );
    begun
        .into_iter()
        .for_each(|claimed| life.log.abandon(claimed));
    assert!(life.log.reserve(topic.id, 128).is_ok(), "room comes back");
}
