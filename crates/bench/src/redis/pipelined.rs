//! Many operations at a time, by the client's own pipelines.

use std::time::Instant;

use embar_redis::commands::strings::StringCommands;
use embar_redis::pipeline::Pipeline;
use embar_redis::{Client, Error};

use super::tally::{Done, Phase, Shared, Tally};
use super::work::{Lane, Value};

/// Fills a pipeline by one operation of each lane, runs it, and again, until it is over.
pub async fn call<V: Value>(client: Client, mut lanes: Vec<Lane>, shared: &Shared) -> Tally {
    let mut tally = Tally::new();
    let mut pipeline = client.pipeline();
    let mut reads = vec![false; lanes.len()];
    while !shared.is_at(Phase::Over) {
        let begin = Instant::now();
        pipeline.clear();
        for (lane, read) in lanes.iter_mut().zip(&mut reads) {
            *read = lane.draw();
            add(&mut pipeline, lane, *read);
        }
        let results = pipeline.run().await;
        let outcome = |index: usize| -> Result<Done, Error> {
            if reads[index] {
                let value = results.read::<Option<V>>(index)?;
                return Ok(Done::read(&lanes[index], value.map(|value| value.seen())));
            }
            results.read::<()>(index)?;
            Ok(Done::Set)
        };
        if shared.is_at(Phase::Measured) {
            let done = (0..lanes.len()).filter(|index| tally.counts.note(outcome(*index)));
            let done = done.count() as u64;
            tally.took(done, begin.elapsed(), shared);
        }
    }
    tally.flush(shared);
    tally
}

fn add(pipeline: &mut Pipeline<'_>, lane: &Lane, read: bool) {
    // Results are taken by number.
    if read {
        let _place = pipeline.get::<(), _>(lane.key());
    } else {
        let _place = pipeline.set(lane.key(), lane.value());
    }
}
