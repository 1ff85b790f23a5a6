//! A caller with many operations in flight: it fills a pipeline of the client with one operation of each of its
//! streams, runs the pipeline, and begins again.

use std::time::{Duration, Instant};

use embar_redis::commands::strings::StringCommands;
use embar_redis::pipeline::Pipeline;
use embar_redis::{Client, Error};

use super::plan::Habits;
use super::tally::{CallerTally, Done, Period, Shared};
use super::work::{OperationStream, Value};

/// Fills a pipeline by one operation of each stream, runs it, and again, until it is over.
pub async fn call<V: Value>(
    client: Client,
    mut streams: Vec<OperationStream>,
    habits: Habits,
    shared: &Shared,
) -> CallerTally {
    let mut tally = CallerTally::new();
    let mut pipeline = client.pipeline();
    let mut reads = vec![false; streams.len()];
    let mut ended: Option<Instant> = None;
    while !shared.is_at(Period::Over) {
        let begin = Instant::now();
        let elsewhere = ended.map_or(Duration::ZERO, |ended| begin - ended);
        pipeline.clear();
        for (stream, read) in streams.iter_mut().zip(&mut reads) {
            *read = stream.draw();
            add(&mut pipeline, stream, *read);
        }
        let results = pipeline.run().await;
        let outcome = |index: usize| -> Result<Done, Error> {
            if reads[index] {
                let value = results.read::<Option<V>>(index)?;
                return Ok(Done::read(
                    &streams[index],
                    value.map(|value| value.digest()),
                ));
            }
            results.read::<()>(index)?;
            Ok(Done::Set)
        };
        if shared.is_at(Period::Measured) {
            let done = (0..streams.len()).filter(|index| tally.counts.note(outcome(*index)));
            let done = done.count() as u64;
            tally.was_elsewhere(elsewhere);
            streams.iter().for_each(|it| tally.about(it.number()));
            tally.took(done, begin.elapsed(), shared);
        }
        ended = Some(Instant::now());
        habits.follow().await;
    }
    tally.flush(shared);
    tally
}

fn add(pipeline: &mut Pipeline<'_>, stream: &OperationStream, read: bool) {
    // Results are taken by number.
    if read {
        let _place = pipeline.get::<(), _>(stream.key());
    } else {
        let _place = pipeline.set(stream.key(), stream.value());
    }
}
