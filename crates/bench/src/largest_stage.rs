//! Says in a sentence what limited a run: for the brokers, the publisher and the subscriber, which stage of their
//! pipeline took the largest share of the time, and what happens in that stage.

use embar_meter::{Snapshot, StageRow};
use serde::Serialize;

/// What each stage does, for people who do not know the code.
const MEANING: [(&str, &str); 16] = [
    ("DrainHeader", "waiting for and reading batch headers"),
    ("ReserveBLogSpace", "finding room in the log"),
    (
        "DrainPayloadToBuffer",
        "copying payload from connections into the log, and, by shared memory, checking it",
    ),
    ("VerifyPayload", "checking the checksums of payload"),
    ("GetCXLBuffer", "finding room in the log for staged batches"),
    (
        "CopyAndFlushPayload",
        "copying staged batches into the log, and writing them back",
    ),
    (
        "ReservePBRSlotAndWriteEntry",
        "writing the records of batches",
    ),
    (
        "CompleteBatchInCXL",
        "writing payload back and making batches readable",
    ),
    ("BufferWrite", "copying messages into batches"),
    (
        "WaitForBuffer",
        "waiting until a batch was acknowledged and its buffer free",
    ),
    ("SendPayload", "handing batches to connections"),
    ("WaitForAck", "waiting for acknowledgements"),
    ("Receive", "copying bytes from connections"),
    ("Verify", "checking the checksums of batches"),
    ("Deliver", "handing messages to the reader"),
    ("WaitForBatch", "waiting for batches to arrive"),
];

/// Overlaps with everything else, so its share says nothing about what limits.
const OVERLAPS: &str = "WaitForAck";

/// The largest stage of one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LargestStage {
    /// `brokers`, `publisher` or `subscriber`.
    pub side: &'static str,
    /// Name of the stage.
    pub stage: String,
    /// Its part of that side's pipeline, 0 to 1.
    pub share: f64,
}

impl LargestStage {
    /// `None` when no time was recorded.
    pub fn of(side: &'static str, profile: &Snapshot) -> Option<Self> {
        let stages: Vec<&StageRow> = profile
            .stages
            .iter()
            .filter(|row| row.name != OVERLAPS)
            .collect();
        let total: u64 = stages.iter().map(|row| row.total_ns).sum();
        let largest = stages
            .into_iter()
            .max_by_key(|row| row.total_ns)
            .filter(|row| row.total_ns > 0)?;
        Some(Self {
            side,
            stage: largest.name.clone(),
            share: largest.total_ns as f64 / total as f64,
        })
    }

    fn clause(&self) -> String {
        let verb = if self.side == "brokers" {
            "their"
        } else {
            "its"
        };
        let meaning = MEANING
            .iter()
            .find(|(name, _)| *name == self.stage)
            .map_or("", |(_, meaning)| meaning);
        format!(
            "the {} spent {:.0} % of {verb} pipeline's time in {} ({meaning})",
            self.side,
            self.share * 100.0,
            self.stage
        )
    }
}

/// One sentence about one direction.
pub fn sentence(direction: &str, sides: &[LargestStage]) -> String {
    if sides.is_empty() {
        return format!("{direction}: nothing was timed, so nothing can be said about its limit.");
    }
    let clauses: Vec<String> = sides.iter().map(LargestStage::clause).collect();
    format!("{direction}: {}.", clauses.join(", and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(stages: &[(&str, u64)]) -> Snapshot {
        Snapshot::new(
            "P",
            stages.iter().map(|(name, ns)| ((*name).to_owned(), *ns, 1)),
            [],
        )
    }

    #[test]
    fn the_largest_stage_is_named_with_its_share() {
        let brokers = profile(&[("DrainHeader", 10), ("DrainPayloadToBuffer", 90)]);
        let publisher = profile(&[
            ("SendPayload", 75),
            ("BufferWrite", 25),
            ("WaitForAck", 100_000),
        ]);
        let sides: Vec<_> = [("brokers", &brokers), ("publisher", &publisher)]
            .into_iter()
            .filter_map(|(side, profile)| LargestStage::of(side, profile))
            .collect();
        let text = sentence("Publishing", &sides);
        assert!(
            text.contains("brokers spent 90 % of their pipeline's time in DrainPayloadToBuffer"),
            "{text}"
        );
        assert!(
            text.contains("publisher spent 75 % of its pipeline's time in SendPayload"),
            "{text}"
        );
        assert!(
            text.ends_with('.') && text.matches(". ").count() == 0,
            "one sentence: {text}"
        );
    }

    #[test]
    fn nothing_timed_is_said_so() {
        assert_eq!(
            LargestStage::of("brokers", &profile(&[("DrainHeader", 0)])),
            None
        );
        assert!(sentence("Reading", &[]).contains("nothing was timed"));
    }

    #[test]
    fn every_stage_that_exists_has_a_meaning() {
        let schemas = [
            &embar_broker::profile::SCHEMA,
            &embar_client::profile::publisher::SCHEMA,
            &embar_client::profile::subscriber::SCHEMA,
        ];
        for stage in schemas.iter().flat_map(|schema| schema.stages) {
            assert!(MEANING.iter().any(|(name, _)| name == stage), "{stage}");
        }
    }
}
