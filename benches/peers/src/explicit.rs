//! Callers that put their operations into one pipeline of the client, run it, and begin again.

use crate::clients::Embar;
use crate::measure::Worker;
use embar_redis::prelude::*;
use std::time::Instant;

/// One caller. The latency of each operation is that of the pipeline it went with.
pub async fn call(mut lanes: Vec<Worker<Embar>>) -> Vec<Worker<Embar>> {
    let client = lanes[0].client.clone();
    let mut pipeline = client.pipeline();
    let mut reads = vec![false; lanes.len()];
    while !lanes[0].is_over() {
        let begin = Instant::now();
        pipeline.clear();
        for (worker, read) in lanes.iter_mut().zip(&mut reads) {
            *read = worker.lane.draw();
            // Results are taken by number.
            if *read {
                let _place = pipeline.get::<(), _>(worker.lane.key());
            } else {
                let _place = pipeline.set(worker.lane.key(), worker.lane.value());
            }
        }
        let results = pipeline.run().await;
        for (index, (worker, read)) in lanes.iter_mut().zip(&reads).enumerate() {
            let outcome = match read {
                true => results.read::<Option<Vec<u8>>>(index).map(Some),
                false => results.read::<()>(index).map(|()| None),
            };
            worker.note(outcome.map_err(Into::into), begin.elapsed());
        }
    }
    lanes
}
