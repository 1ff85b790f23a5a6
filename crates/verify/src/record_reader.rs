//! Reads what one publishing process reports, and hands it to the checks.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use super::ack_check::MessageRange;
use super::record::{RECORD_BYTES, Record};
use super::shared::Shared;
use super::stamp::Origin;
use super::violation::Kind;

/// How a publishing process ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublisherEnd {
    /// Messages published, as far as the process reported them.
    pub published: u64,
    /// Whether it ended in good order.
    pub in_good_order: bool,
}

/// Reads the records of one process.
pub struct RecordReader {
    origin: Origin,
    shared: Arc<Shared>,
    /// The number of the first message of batches whose outcome is not known.
    began: HashMap<u64, u64>,
    /// Outcomes that came before the beginning of their batch: two threads of the process write.
    early: HashMap<u64, Record>,
    /// The latest batch that began, and its first message.
    latest: Option<(u64, u64)>,
    /// The batch and the message behind the latest batch, once its outcome tells how long it is.
    next: Option<(u64, u64)>,
    ended: PublisherEnd,
}

impl Drop for RecordReader {
    fn drop(&mut self) {
        if thread::panicking() {
            self.fail("its records could not be entered: the verifier panicked");
        }
    }
}

impl RecordReader {
    /// For a process that has written nothing yet.
    pub fn new(origin: Origin, shared: Arc<Shared>) -> Self {
        Self {
            origin,
            shared,
            began: HashMap::new(),
            early: HashMap::new(),
            latest: None,
            next: Some((0, 0)),
            ended: PublisherEnd::default(),
        }
    }

    /// Reads until the process has ended.
    pub fn read_all(mut self, mut output: impl Read) -> PublisherEnd {
        let mut bytes = [0; RECORD_BYTES];
        while output.read_exact(&mut bytes).is_ok() {
            match Record::from_bytes(&bytes) {
                Some(record) => self.enter(record),
                None => self.fail("it wrote something else than records"),
            }
        }
        self.finish();
        self.ended
    }

    fn enter(&mut self, record: Record) {
        match record {
            Record::Announced { below } => self.shared.checker().announced(self.origin, below),
            Record::Began { batch, number } => {
                let before = self.latest.map_or(0, |(_, number)| number);
                let messages = number.saturating_sub(before);
                self.shared.checker().begun(self.origin, messages);
                self.ended.published = number + 1;
                (self.latest, self.next) = (Some((batch, number)), None);
                self.began.insert(batch, number);
                if let Some(outcome) = self.early.remove(&batch) {
                    self.enter(outcome);
                }
            }
            Record::Acknowledged {
                batch, messages, ..
            }
            | Record::Sent { batch, messages }
            | Record::NotStored { batch, messages }
            | Record::GivenUp { batch, messages } => match self.began.remove(&batch) {
                None => drop(self.early.insert(batch, record)),
                Some(number) => self.resolve(record, batch, number, messages),
            },
            Record::Ended { published } => {
                self.ended = PublisherEnd {
                    published,
                    in_good_order: true,
                };
                self.shared.checker().ended(self.origin, published);
            }
        }
    }

    /// A process that was killed may not have reported the batch that it began last: it is the one behind the batch before
    /// it. If the end of that is not known, the acknowledgement says nothing.
    fn finish(&mut self) {
        if let Some((batch, number)) = self.next
            && let Some(outcome) = self.early.remove(&batch)
        {
            self.enter(Record::Began { batch, number });
            self.enter(outcome);
        }
        if self.ended.in_good_order && !self.early.is_empty() {
            self.fail("it reported outcomes of batches that it never began");
        }
        self.shared.checker().gone(self.origin);
    }

    fn resolve(&mut self, outcome: Record, batch: u64, number: u64, messages: u32) {
        let count = u64::from(messages);
        if self.latest == Some((batch, number)) {
            self.next = Some((batch + 1, number + count));
        }
        let range = MessageRange {
            origin: self.origin,
            number,
            count,
        };
        let shared = &self.shared;
        match outcome {
            Record::GivenUp { .. } => {
                shared.given_up.fetch_add(range.count, Ordering::Relaxed);
                return shared.checker().given_up(range);
            }
            Record::NotStored { .. } => {
                shared.not_stored.fetch_add(range.count, Ordering::Relaxed);
                return shared.checker().not_stored(range);
            }
            _ => {}
        }
        shared
            .acknowledged
            .fetch_add(range.count, Ordering::Relaxed);
        let publisher = self.origin.publisher;
        shared.gaps().acknowledged(publisher, Instant::now());
        if let Record::Acknowledged { position, .. } = outcome {
            if position.is_none() {
                shared.unplaced.fetch_add(range.count, Ordering::Relaxed);
            }
            // Before anything that takes time: the message must be readable at once.
            if let Some(position) = position {
                shared.set_latest(range, position);
            }
            shared.checker().acknowledged(range, position);
        }
    }

    fn fail(&self, what: &str) {
        let text = format_args!("{}: {what}", self.origin);
        self.shared.checker().fail(Kind::Failure, text);
    }
}

#[cfg(test)]
mod tests {
    use embar_client::Position;

    use super::super::checker::REFERENCE_READER;
    use super::super::retention_model::RetentionModel;
    use super::super::stamp::Stamp;
    use super::*;

    const ORIGIN: Origin = Origin {
        publisher: 0,
        instance: 0,
    };

    fn shared() -> Arc<Shared> {
        let plan = super::super::plan::tests::plan();
        let retention = RetentionModel::new(u64::MAX, u64::MAX, 1);
        Arc::new(Shared::new(&plan, retention).expect("a thread"))
    }

    fn acknowledged(batch: u64, messages: u32, offset: u64) -> Record {
        let position = Some(Position {
            broker: None,
            offset,
        });
        Record::Acknowledged {
            batch,
            messages,
            position,
        }
    }

    /// The violations when the process wrote these records and ended, and only the first `seen` of its messages are there.
    fn broken(records: &[Record], seen: u64) -> (u64, PublisherEnd) {
        let shared = shared();
        let bytes: Vec<u8> = records.iter().flat_map(|it| it.to_bytes()).collect();
        let end = RecordReader::new(ORIGIN, shared.clone()).read_all(&bytes[..]);
        let mut checker = shared.checker();
        for offset in 0..seen {
            let position = Position {
                broker: None,
                offset,
            };
            let stamp = Stamp {
                origin: ORIGIN,
                number: offset,
            };
            checker.read(REFERENCE_READER, &[(position, Some(stamp))]);
        }
        checker.finish(None);
        (checker.violations().total, end)
    }

    const BEGUN: [Record; 2] = [
        Record::Announced { below: 256 },
        Record::Began {
            batch: 0,
            number: 0,
        },
    ];

    #[test]
    fn an_outcome_may_come_before_its_batch() {
        let [announced, began] = BEGUN;
        let records = [announced, acknowledged(0, 3, 0), began];
        assert_eq!(broken(&records, 3).0, 0);
        assert_ne!(broken(&records, 2).0, 0, "the third is not there");
    }

    #[test]
    fn an_acknowledged_batch_counts_although_its_beginning_is_missing() {
        let records = [&BEGUN[..], &[acknowledged(0, 3, 0), acknowledged(1, 1, 3)]].concat();
        assert_eq!(broken(&records, 4).0, 0);
        assert_ne!(broken(&records, 3).0, 0, "the fourth is not there");
        let first = [BEGUN[0], acknowledged(0, 1, 0)];
        assert_eq!(broken(&first, 1).0, 0);
        assert_ne!(broken(&first, 0).0, 0);
        // The length of the batch before is not known.
        let after_a_gap = [&BEGUN[..], &[acknowledged(1, 1, 3)]].concat();
        assert_eq!(broken(&after_a_gap, 3).0, 0);
    }

    #[test]
    fn a_publisher_that_ended_has_reported_everything() {
        let ended = Record::Ended { published: 3 };
        let good = [&BEGUN[..], &[acknowledged(0, 3, 0), ended]].concat();
        let (violations, end) = broken(&good, 3);
        assert_eq!((violations, end.published, end.in_good_order), (0, 3, true));
        let odd = [&good[..], &[acknowledged(7, 1, 3)]].concat();
        assert_eq!(broken(&odd, 3).0, 1);
    }
}
