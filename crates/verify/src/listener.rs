//! What one publishing process tells, entered into the books.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use super::books::Books;
use super::ledger::Run;
use super::record::{RECORD_BYTES, Record};
use super::stamp::Origin;
use super::trail::Place;
use super::violation::Kind;

/// What a listener heard in all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// Messages published, as far as it was told.
    pub published: u64,
    /// Whether the publisher ended in good order.
    pub ended: bool,
}

/// Hears one process and enters what it says.
pub struct Listener {
    origin: Origin,
    books: Arc<Books>,
    /// The number of the first message of batches whose outcome is not known.
    began: HashMap<u64, u64>,
    /// Outcomes that came before it was said what is in the batch: two threads write.
    early: HashMap<u64, Record>,
    /// The latest batch that began, and its first message.
    latest: Option<(u64, u64)>,
    /// The batch and the message behind the latest one, once the outcome of that tells how long it is.
    next: Option<(u64, u64)>,
    heard: Heard,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if thread::panicking() {
            self.fail("what it told could not be entered: the verifier panicked");
        }
    }
}

impl Listener {
    /// Of a process that has said nothing yet.
    pub fn new(origin: Origin, books: Arc<Books>) -> Self {
        Self {
            origin,
            books,
            began: HashMap::new(),
            early: HashMap::new(),
            latest: None,
            next: Some((0, 0)),
            heard: Heard::default(),
        }
    }

    /// Until the process has ended.
    pub fn listen(mut self, mut output: impl Read) -> Heard {
        let mut bytes = [0; RECORD_BYTES];
        while output.read_exact(&mut bytes).is_ok() {
            match Record::from_bytes(&bytes) {
                Some(record) => self.enter(record),
                None => self.fail("it wrote something else than records"),
            }
        }
        self.end();
        self.heard
    }

    fn enter(&mut self, record: Record) {
        match record {
            Record::Announced { below } => self.books.checker().announced(self.origin, below),
            Record::Began { batch, number } => {
                let before = self.latest.map_or(0, |(_, number)| number);
                let messages = number.saturating_sub(before);
                self.books.checker().begun(self.origin, messages);
                self.heard.published = number + 1;
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
                Some(number) => self.settle(record, batch, number, messages),
            },
            Record::Ended { published } => {
                self.heard = Heard {
                    published,
                    ended: true,
                };
                self.books.checker().ended(self.origin, published);
            }
        }
    }

    /// A process that was killed may have had no time to say what is in the batch that it began last: it is the one behind
    /// the batch before it. If nobody knows where that ended, the acknowledgement tells nothing.
    fn end(&mut self) {
        if let Some((batch, number)) = self.next
            && let Some(outcome) = self.early.remove(&batch)
        {
            self.enter(Record::Began { batch, number });
            self.enter(outcome);
        }
        if self.heard.ended && !self.early.is_empty() {
            self.fail("it told what became of batches that it never began");
        }
        self.books.checker().gone(self.origin);
    }

    fn settle(&mut self, outcome: Record, batch: u64, number: u64, messages: u32) {
        let count = u64::from(messages);
        if self.latest == Some((batch, number)) {
            self.next = Some((batch + 1, number + count));
        }
        let run = Run {
            origin: self.origin,
            number,
            count,
        };
        let books = &self.books;
        match outcome {
            Record::GivenUp { .. } => {
                books.given_up.fetch_add(run.count, Ordering::Relaxed);
                return books.checker().given_up(run);
            }
            Record::NotStored { .. } => {
                books.not_stored.fetch_add(run.count, Ordering::Relaxed);
                return books.checker().not_stored(run);
            }
            _ => {}
        }
        books.acknowledged.fetch_add(run.count, Ordering::Relaxed);
        let publisher = self.origin.publisher;
        books.gaps().acknowledged(publisher, Instant::now());
        if let Record::Acknowledged { position, .. } = outcome {
            if position.is_none() {
                books.unplaced.fetch_add(run.count, Ordering::Relaxed);
            }
            let place = position.map(|position| Place {
                broker: position.broker,
                offset: position.offset,
            });
            // Before anything that takes time: it must be there at once.
            if let Some(place) = place {
                books.set_latest(run, place);
            }
            books.checker().acknowledged(run, place);
        }
    }

    fn fail(&self, what: &str) {
        let text = format_args!("{}: {what}", self.origin);
        self.books.checker().fail(Kind::Failure, text);
    }
}

#[cfg(test)]
mod tests {
    use embar_client::Position;

    use super::super::checker::CHIEF;
    use super::super::room::Room;
    use super::super::stamp::Stamp;
    use super::*;

    const ORIGIN: Origin = Origin {
        publisher: 0,
        instance: 0,
    };

    fn books() -> Arc<Books> {
        let plan = super::super::plan::tests::plan();
        Arc::new(Books::new(&plan, Room::new(u64::MAX, u64::MAX, 1)))
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

    /// What is broken when the process said this and ended, and only the first `seen` of its messages are there.
    fn broken(records: &[Record], seen: u64) -> (u64, Heard) {
        let books = books();
        let bytes: Vec<u8> = records.iter().flat_map(|it| it.to_bytes()).collect();
        let heard = Listener::new(ORIGIN, books.clone()).listen(&bytes[..]);
        let mut checker = books.checker();
        for offset in 0..seen {
            let place = Place {
                broker: None,
                offset,
            };
            let stamp = Stamp {
                origin: ORIGIN,
                number: offset,
            };
            checker.read(CHIEF, &[(place, Some(stamp))]);
        }
        checker.finish(None);
        (checker.violations().total, heard)
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
    fn what_was_acknowledged_counts_also_when_the_publisher_died_before_it_could_say_what_it_was() {
        let records = [&BEGUN[..], &[acknowledged(0, 3, 0), acknowledged(1, 1, 3)]].concat();
        assert_eq!(broken(&records, 4).0, 0);
        assert_ne!(broken(&records, 3).0, 0, "the fourth is not there");
        let first = [BEGUN[0], acknowledged(0, 1, 0)];
        assert_eq!(broken(&first, 1).0, 0);
        assert_ne!(broken(&first, 0).0, 0);
        // How long the batch before was is not known.
        let after_a_gap = [&BEGUN[..], &[acknowledged(1, 1, 3)]].concat();
        assert_eq!(broken(&after_a_gap, 3).0, 0);
    }

    #[test]
    fn a_publisher_that_ended_has_said_all() {
        let ended = Record::Ended { published: 3 };
        let good = [&BEGUN[..], &[acknowledged(0, 3, 0), ended]].concat();
        let (violations, heard) = broken(&good, 3);
        assert_eq!((violations, heard.published, heard.ended), (0, 3, true));
        let odd = [&good[..], &[acknowledged(7, 1, 3)]].concat();
        assert_eq!(broken(&odd, 3).0, 1);
    }
}
