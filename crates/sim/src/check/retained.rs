//! Checks what a broker says of the bytes in its log: as many can be read on the device, and a full log keeps messages
//! in all but small shares of its bytes.

use embar_broker::log::LogUsage;
use embar_broker::topics::Topic;
use embar_memory::payload::UNIT_BYTES;

use crate::host::Broker;
use crate::oracle::Oracle;
use crate::violation::{Check, Invariant, ensure};

/// What a broker says of its topics of orders 0 and 1 is what can be read on the device; its bytes add up.
pub fn is_so(row: u16, broker: &Broker, topics: &[Topic], oracle: &Oracle) -> Check {
    let log = broker.node.log();
    let is_hurt = |topic: &&Topic| oracle.hurt.contains(&(topic.id, Some(row)));
    let kept = topics.iter().filter(|topic| !topic.is_ordered());
    for topic in kept.filter(|topic| !is_hurt(topic)) {
        let Some(history) = oracle.histories.get(&(topic.id, Some(row))) else {
            continue;
        };
        let there = history.batches.range(history.first..);
        let there: u64 = there.map(|(_, visible)| u64::from(visible.len)).sum();
        let said = log.topic_stats(topic.id).map_or(0, |kept| kept.bytes);
        ensure(Invariant::I9, said == there, || {
            format!(
                "{}: broker {row} counts {said} bytes, and {there} can be read",
                topic.name
            )
        })?;
    }
    let all = log.usage();
    let sum = all.readable_bytes + all.pending_bytes + all.dead_bytes;
    let sum = sum + all.unfilled_bytes + all.free_bytes;
    ensure(Invariant::I9, sum == all.total_bytes, || {
        format!("the bytes of broker {row} do not add up: {all:?}")
    })
}

/// Whether a log is full: there is room for one extent at most.
pub fn is_full(all: &LogUsage) -> bool {
    all.free_bytes <= UNIT_BYTES
}

/// What can be read of a log that is full is all but the shares of what it is full of otherwise: each
/// of them is below its own. Its extents are of the smallest size.
pub fn keeps_its_share(row: u16, all: &LogUsage, topics: u64, batch_bytes: u64) -> Check {
    let extents = all.total_bytes / UNIT_BYTES;
    let parts = [
        ("claimed", all.receiving_bytes, all.total_bytes / 8),
        // Late by three sixteenths, and the extent in which that began.
        (
            "dead",
            all.dead_bytes,
            all.total_bytes / 16 * 3 + UNIT_BYTES,
        ),
        // The extents that are being filled, and the ends of others, in which a batch did not fit.
        (
            "unfilled",
            all.unfilled_bytes,
            topics * UNIT_BYTES + extents * batch_bytes,
        ),
        // What is evicted for one extent is one.
        ("free", all.free_bytes, UNIT_BYTES),
    ];
    for (what, bytes, most) in parts {
        ensure(Invariant::I9, bytes <= most, || {
            format!("{bytes} bytes of broker {row} are {what}, above {most}: {all:?}")
        })?;
    }
    Ok(())
}
