//! What becomes of the bytes of a log: what a broker says of them is what can be read on the device, and they add up.

use embar_broker::topics::Topic;

use crate::books::Books;
use crate::host::Broker;
use crate::violation::{Check, Invariant, ensure};

/// What a broker says of its topics of orders 0 and 1 is what can be read on the device; its bytes add up.
pub fn is_so(row: u16, broker: &Broker, topics: &[Topic], books: &Books) -> Check {
    let log = broker.node.log();
    for topic in topics.iter().filter(|topic| !topic.is_ordered()) {
        let Some(history) = books.histories.get(&(topic.id, Some(row))) else {
            continue;
        };
        let there = history.batches.range(history.first..);
        let there: u64 = there.map(|(_, visible)| u64::from(visible.len)).sum();
        let said = log.kept(topic.id).map_or(0, |kept| kept.bytes);
        ensure(Invariant::I9, said == there, || {
            format!(
                "{}: broker {row} counts {said} bytes, and {there} can be read",
                topic.name
            )
        })?;
    }
    let all = log.use_of();
    let sum = all.readable_bytes + all.pending_bytes + all.dead_bytes;
    let sum = sum + all.unfilled_bytes + all.free_bytes;
    ensure(Invariant::I9, sum == all.total_bytes, || {
        format!("the bytes of broker {row} do not add up: {all:?}")
    })
}
