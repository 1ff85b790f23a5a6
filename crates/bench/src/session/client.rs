//! The client of `bench session`: sends messages on one session, checks every echo, and records what became of each
//! message.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use buffa::MessageView as _;
use embar_session::{BodyStore, Closed, Flow, Handler, Message, SendError, Session};

use super::copying::{self, Arrived, COUNT, ECHO, Packet, START};
use super::pace::Pace;
use super::payloads::Payloads;
use super::plan::Phase;
use super::proto::CountView;
use super::record::{Clock, Record};

/// What sessions report to the thread that waits for them.
#[derive(Debug)]
pub enum SessionEvent {
    /// All its messages came back.
    Done(Record),
    /// The server counted its messages.
    Counted {
        /// Messages that were right.
        right: u64,
        /// Messages that were not.
        wrong: u64,
        /// When the count arrived.
        at: u64,
    },
    /// It ended: this is its last event.
    Closed {
        /// The number of the session.
        session: u32,
        /// Its record, unless it was handed over before.
        record: Option<Record>,
        /// Why it ended.
        why: String,
    },
}

/// Asks on one session.
pub struct EchoClient {
    /// The number of the session, from 0.
    pub session: u32,
    /// How messages are sent and received.
    pub phase: Phase,
    /// What messages carry.
    pub payloads: Arc<Payloads>,
    /// Messages to keep under way.
    pub in_flight: usize,
    /// When messages leave; without it one leaves when another comes back.
    pub pace: Option<Arc<Pace>>,
    /// What became of the messages, until it is handed over.
    pub record: Option<Record>,
    /// The clock of the record.
    pub clock: Clock,
    /// Echoes so far, for the thread that watches the run.
    pub progress: Arc<AtomicU64>,
    /// The thread that waits for the run.
    pub events: Sender<SessionEvent>,
}

impl EchoClient {
    fn report(&self, event: SessionEvent) {
        // No thread waits any more when the bench was given up.
        let _received = self.events.send(event);
    }

    /// Sends as many as may be under way. A full ring is no error: there is more room when an echo comes.
    fn fill(&mut self, session: &Session, now: u64) {
        let Some(record) = &mut self.record else {
            return;
        };
        while record.under_way() < self.in_flight {
            let Some(sequence) = record.next_to_send() else {
                return;
            };
            match copying::send(
                self.phase.send,
                session,
                &self.payloads.echo(self.session, sequence),
            ) {
                Ok(()) => record.sent(now),
                Err(SendError::Full) if record.under_way() > 0 => return,
                Err(_) => return session.abort(),
            }
        }
    }

    fn echoed(&mut self, session: &Session, arrived: Result<Arrived<'_>, buffa::DecodeError>) {
        let now = self.clock.now();
        let Some(record) = &mut self.record else {
            return;
        };
        let expected = record.next_to_arrive();
        if let Some(pace) = &self.pace {
            record.sent(pace.due(self.session, expected));
        }
        let right = arrived.is_ok_and(|arrived| {
            let (sequence, payload) = arrived.parts();
            self.payloads
                .is_right(self.session, expected, sequence, payload)
        });
        record.arrived(now, right);
        self.progress.store(expected, Ordering::Relaxed);
        if self.pace.is_none() {
            self.fill(session, now);
        }
        if let Some(record) = self.record.take_if(|record| record.is_complete()) {
            self.report(SessionEvent::Done(record));
        }
    }
}

impl Handler for EchoClient {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        match message.id() {
            ECHO => self.echoed(session, Arrived::from_ring(self.phase.receive, &message)),
            START => self.fill(session, self.clock.now()),
            COUNT => match CountView::decode_view(message.payload()) {
                Ok(count) => self.report(SessionEvent::Counted {
                    right: count.right,
                    wrong: count.wrong,
                    at: self.clock.now(),
                }),
                Err(_) => session.abort(),
            },
            _ => session.abort(),
        }
        Flow::Continue
    }

    fn body_done(&mut self, session: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        let _one_piece = range;
        let bytes = store.into_heap().unwrap_or_default();
        self.echoed(session, Arrived::from_packet(&Packet { id, bytes }));
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let now = self.clock.now();
        let mut record = self.record.take();
        if let Some(record) = &mut record {
            if let Some(pace) = &self.pace {
                pace.add_due(self.session, record, now);
            }
            record.close(now);
        }
        self.report(SessionEvent::Closed {
            session: self.session,
            record,
            why: why.to_string(),
        });
    }
}
