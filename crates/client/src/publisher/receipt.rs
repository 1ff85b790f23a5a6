//! Tickets and what became of them.
//!
//! A ticket is a batch number and an index, so it costs nothing per message; this book keeps one entry per batch. It
//! keeps the entries of the last [`KEPT_BATCHES`] batches, and of every older batch that is not resolved yet (there are
//! no more of those than batch buffers).

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_wire::control::ErrorCode;

use crate::error::{ClientError, PublishError};
use crate::wake::{WakeList, block_on};

/// Outcomes are kept for this many batches.
pub const KEPT_BATCHES: usize = 65_536;

/// Names one published message until its outcome is forgotten. 16 bytes, free to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    pub(crate) batch: u64,
    pub(crate) index: u32,
}

impl Ticket {
    /// The batch the message went into, counted from 0 per publisher.
    pub fn batch(self) -> u64 {
        self.batch
    }

    /// The message's place in its batch.
    pub fn index(self) -> u32 {
        self.index
    }
}

/// Where a message is stored: at orders 0 and 1 a broker and an offset in its part of the topic, at orders 2 and 5 one
/// number, its place in the one order of the topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The broker that counts the offset; `None` where there is one order over all brokers.
    pub broker: Option<u32>,
    /// Its offset there, or its place in the order of the topic.
    pub offset: u64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.broker {
            Some(broker) => write!(f, "offset {} of broker {broker}", self.offset),
            None => write!(f, "position {}", self.offset),
        }
    }
}

/// Why a batch was not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It may be stored or not.
    InDoubt,
    /// A broker refused it, or to go on with the connection it was on, for a reason that resending cannot mend; it is not
    /// stored.
    Refused(ErrorCode),
    /// No broker took it in time; it is not stored.
    TimedOut,
    /// The publisher was closed before.
    Closed,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Stored and acknowledged; the offset is that of its first message.
    Stored(Position),
    /// Stored, once, and acknowledged, but nobody knows any more where.
    StoredSomewhere,
    /// Handed to the kernel; with acks 0 nothing more is ever known.
    Sent,
    /// Not stored, or not known to be.
    Failed(Failure),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Pending,
    Done(Outcome),
}

struct OutcomeTable {
    /// The batch number of `states[0]`.
    first: u64,
    states: VecDeque<State>,
    /// Every batch below is resolved.
    resolved_below: u64,
    waiting: HashMap<u64, WakeList>,
    flushing: WakeList,
    lost_messages: u64,
    first_loss: Option<Failure>,
    /// Set once nothing will ever be resolved any more.
    ended: Option<ClientError>,
}

/// Lets a thread that waits for the outcome of a batch do what brings it, instead of being woken by who does.
pub(crate) trait Helper: Send + Sync {
    /// Does so until `is_over` says that the wait is over, or `deadline` has passed. It may return early, or at once; then
    /// others do it.
    fn help(
        &self,
        batch: u64,
        deadline: Option<Instant>,
        is_over: &mut dyn FnMut(&mut Context<'_>) -> bool,
    );

    /// Somebody waits, and does not do so by itself.
    fn hurry(&self);
}

/// The outcomes of one publisher's batches.
pub(crate) struct Receipts {
    book: Mutex<OutcomeTable>,
    delivery_timeout: Duration,
    helper: OnceLock<Weak<dyn Helper>>,
}

impl Receipts {
    pub(crate) fn new(delivery_timeout: Duration) -> Self {
        Self {
            book: Mutex::new(OutcomeTable {
                first: 0,
                states: VecDeque::with_capacity(KEPT_BATCHES),
                resolved_below: 0,
                waiting: HashMap::new(),
                flushing: WakeList::default(),
                lost_messages: 0,
                first_loss: None,
                ended: None,
            }),
            delivery_timeout,
            helper: OnceLock::new(),
        }
    }

    /// Threads that wait are helped by this from now on.
    pub(crate) fn set_helper(&self, helper: Weak<dyn Helper>) {
        let _once = self.helper.set(helper);
    }

    /// Somebody waits for an outcome, and brings it about by nothing.
    fn hurry(&self) {
        if let Some(helper) = self.helper.get().and_then(Weak::upgrade) {
            helper.hurry();
        }
    }

    /// Whether anybody waits for an outcome.
    pub(crate) fn has_waiters(&self) -> bool {
        let book = self.book();
        !book.waiting.is_empty() || !book.flushing.is_empty()
    }

    /// The number of a batch that gets its first message now.
    pub(crate) fn open_batch(&self) -> u64 {
        let mut book = self.book();
        while book.states.len() >= KEPT_BATCHES && book.first < book.resolved_below {
            book.states.pop_front();
            book.first += 1;
        }
        book.states.push_back(State::Pending);
        book.first + book.states.len() as u64 - 1
    }

    /// The batch's outcome is known. Each batch is resolved once.
    pub(crate) fn resolve(&self, batch: u64, messages: u32, outcome: Outcome) {
        let (waiting, flushing) = {
            let mut book = self.book();
            let index = (batch - book.first) as usize;
            book.states[index] = State::Done(outcome);
            if let Outcome::Failed(failure) = outcome {
                book.lost_messages += u64::from(messages);
                book.first_loss.get_or_insert(failure);
            }
            let waiting = book.waiting.remove(&batch);
            let mut flushing = WakeList::default();
            if book.advance() {
                flushing = book.flushing.take();
            }
            (waiting, flushing)
        };
        if let Some(waiting) = waiting {
            waiting.wake_all();
        }
        flushing.wake_all();
    }

    /// Nothing will be resolved any more: everyone who waits, now or later, is told `why`.
    pub(crate) fn end(&self, why: ClientError) {
        let (waiting, flushing) = {
            let mut book = self.book();
            book.ended.get_or_insert(why);
            (std::mem::take(&mut book.waiting), book.flushing.take())
        };
        for list in waiting.into_values() {
            list.wake_all();
        }
        flushing.wake_all();
    }

    /// Batches that are not resolved.
    pub(crate) fn unresolved(&self) -> usize {
        let book = self.book();
        let from = (book.resolved_below - book.first) as usize;
        book.states
            .iter()
            .skip(from)
            .filter(|state| **state == State::Pending)
            .count()
    }

    fn poll_ticket(
        &self,
        ticket: Ticket,
        context: &Context<'_>,
    ) -> Poll<Result<Position, PublishError>> {
        let mut book = self.book();
        let state = ticket
            .batch
            .checked_sub(book.first)
            .and_then(|index| book.states.get(usize::try_from(index).ok()?).copied());
        match (state, &book.ended) {
            (None, _) => Poll::Ready(Err(PublishError::ForgottenTicket { kept: KEPT_BATCHES })),
            (Some(State::Done(Outcome::Stored(base))), _) => {
                // A broker may have said any number.
                let offset = base.offset.checked_add(ticket.index.into());
                let broker = base.broker;
                let position = offset.map(|offset| Position { broker, offset });
                Poll::Ready(position.ok_or(PublishError::PositionUnknown))
            }
            (Some(State::Done(Outcome::StoredSomewhere)), _) => {
                Poll::Ready(Err(PublishError::PositionUnknown))
            }
            (Some(State::Done(Outcome::Sent)), _) => {
                Poll::Ready(Err(PublishError::NotAcknowledged))
            }
            (Some(State::Done(Outcome::Failed(failure))), _) => {
                Poll::Ready(Err(self.explain(failure)))
            }
            (Some(State::Pending), Some(why)) => Poll::Ready(Err(why.clone().into())),
            (Some(State::Pending), None) => {
                book.waiting
                    .entry(ticket.batch)
                    .or_default()
                    .register(context);
                Poll::Pending
            }
        }
    }

    fn poll_flush(&self, up_to: u64, context: &Context<'_>) -> Poll<Result<(), PublishError>> {
        let mut book = self.book();
        if book.resolved_below < up_to {
            if let Some(why) = &book.ended {
                return Poll::Ready(Err(PublishError::Ended(why.clone())));
            }
            book.flushing.register(context);
            return Poll::Pending;
        }
        let messages = std::mem::take(&mut book.lost_messages);
        Poll::Ready(match book.first_loss.take() {
            None => Ok(()),
            Some(failure) => Err(PublishError::Lost {
                messages,
                source: Box::new(self.explain(failure)),
            }),
        })
    }

    pub(crate) fn explain(&self, failure: Failure) -> PublishError {
        match failure {
            Failure::InDoubt => PublishError::InDoubt,
            Failure::Refused(code) => PublishError::Client(ClientError::Refused {
                code,
                message: "the broker closed the connection that carried the batch".into(),
            }),
            Failure::TimedOut => PublishError::Expired {
                limit: self.delivery_timeout,
            },
            Failure::Closed => PublishError::Client(ClientError::Closed),
        }
    }

    fn book(&self) -> MutexGuard<'_, OutcomeTable> {
        // Every step leaves the book valid, so a panic of another holder spoils nothing.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutcomeTable {
    /// Moves `resolved_below` over what is resolved; true if it moved.
    fn advance(&mut self) -> bool {
        let before = self.resolved_below;
        while let Some(State::Done(_)) =
            self.states.get((self.resolved_below - self.first) as usize)
        {
            self.resolved_below += 1;
        }
        self.resolved_below != before
    }
}

/// What becomes of one message: await it, or block with [`Receipt::wait`].
#[must_use = "a receipt says nothing until it is awaited or waited for"]
pub struct Receipt {
    receipts: Arc<Receipts>,
    ticket: Ticket,
}

impl Receipt {
    pub(crate) fn new(receipts: Arc<Receipts>, ticket: Ticket) -> Self {
        Self { receipts, ticket }
    }

    /// Blocks until the outcome is known.
    ///
    /// # Errors
    /// [`PublishError::Expired`], [`PublishError::InDoubt`], [`PublishError::PositionUnknown`],
    /// [`PublishError::NotAcknowledged`], [`PublishError::ForgottenTicket`], or why the publisher ended.
    pub fn wait(self) -> Result<Position, PublishError> {
        self.wait_until(None)
            .unwrap_or(Err(PublishError::Client(ClientError::Closed)))
    }

    /// As [`Receipt::wait`], but it blocks no longer than `limit`.
    ///
    /// # Errors
    /// As [`Receipt::wait`]; [`PublishError::Pending`] when the outcome is still open.
    pub fn wait_timeout(self, limit: Duration) -> Result<Position, PublishError> {
        self.wait_until(Some(Instant::now() + limit))
            .unwrap_or_else(|| {
                Err(PublishError::Pending {
                    what: "the acknowledgement",
                    limit,
                    hint: ": it may still come, ask again with the same ticket".into(),
                })
            })
    }
}

impl Receipt {
    fn wait_until(self, deadline: Option<Instant>) -> Option<Result<Position, PublishError>> {
        let helper = self.receipts.helper.get().and_then(Weak::upgrade);
        if let Some(helper) = helper {
            let mut outcome = None;
            helper.help(self.ticket.batch, deadline, &mut |context| {
                match self.receipts.poll_ticket(self.ticket, context) {
                    Poll::Ready(result) => outcome = Some(result),
                    Poll::Pending => {}
                }
                outcome.is_some()
            });
            if outcome.is_some() {
                return outcome;
            }
        }
        block_on(self, deadline)
    }
}

impl Future for Receipt {
    type Output = Result<Position, PublishError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.receipts.poll_ticket(self.ticket, context);
        if polled.is_pending() {
            self.receipts.hurry();
        }
        polled
    }
}

/// Done when every batch sealed before it is resolved.
pub(crate) struct Flush {
    receipts: Arc<Receipts>,
    up_to: u64,
}

impl Flush {
    /// Waits for all batches that were opened before this call; the caller has sealed them.
    pub(crate) fn new(receipts: &Arc<Receipts>) -> Self {
        let up_to = {
            let book = receipts.book();
            book.first + book.states.len() as u64
        };
        Self {
            receipts: receipts.clone(),
            up_to,
        }
    }
}

impl Future for Flush {
    type Output = Result<(), PublishError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.receipts.poll_flush(self.up_to, context);
        if polled.is_pending() {
            self.receipts.hurry();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipts() -> Arc<Receipts> {
        Arc::new(Receipts::new(Duration::from_secs(1)))
    }

    fn stored(offset: u64) -> Outcome {
        let broker = Some(2);
        Outcome::Stored(Position { broker, offset })
    }

    fn ask(receipts: &Arc<Receipts>, batch: u64, index: u32) -> Result<Position, PublishError> {
        Receipt::new(receipts.clone(), Ticket { batch, index })
            .wait_timeout(Duration::from_millis(1))
    }

    #[test]
    fn a_ticket_resolves_to_base_plus_index() {
        let receipts = receipts();
        assert_eq!((receipts.open_batch(), receipts.open_batch()), (0, 1));
        receipts.resolve(1, 4, stored(100));
        assert_eq!(
            ask(&receipts, 1, 3),
            Ok(Position {
                broker: Some(2),
                offset: 103
            })
        );
        assert!(matches!(
            ask(&receipts, 0, 0),
            Err(PublishError::Pending { .. })
        ));
        assert!(matches!(
            ask(&receipts, 2, 0),
            Err(PublishError::ForgottenTicket { .. })
        ));
    }

    #[test]
    fn a_position_that_cannot_be_is_not_told() {
        let receipts = receipts();
        let batch = receipts.open_batch();
        receipts.resolve(batch, 2, stored(u64::MAX));
        assert!(ask(&receipts, batch, 0).is_ok());
        assert_eq!(ask(&receipts, batch, 1), Err(PublishError::PositionUnknown));
    }

    #[test]
    fn what_is_stored_somewhere_is_no_loss() {
        let receipts = receipts();
        let batch = receipts.open_batch();
        receipts.resolve(batch, 2, Outcome::StoredSomewhere);
        assert_eq!(ask(&receipts, batch, 1), Err(PublishError::PositionUnknown));
        assert_eq!(block_on(Flush::new(&receipts), None), Some(Ok(())));
    }

    #[test]
    fn one_who_waits_is_woken_by_another_thread() {
        let receipts = receipts();
        let batch = receipts.open_batch();
        let waiter = Receipt::new(receipts.clone(), Ticket { batch, index: 1 });
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| waiter.wait());
            receipts.resolve(batch, 2, stored(7));
            assert_eq!(
                waiter.join().expect("no panic"),
                Ok(Position {
                    broker: Some(2),
                    offset: 8
                })
            );
        });
    }

    #[test]
    fn flush_waits_for_earlier_batches_only_and_reports_a_loss_once() {
        let receipts = receipts();
        let flush = |limit| {
            block_on(
                Flush::new(&receipts),
                Some(Instant::now() + Duration::from_millis(limit)),
            )
        };
        assert_eq!(flush(1), Some(Ok(())));
        receipts.open_batch();
        receipts.open_batch();
        let early = Flush::new(&receipts);
        receipts.open_batch();
        receipts.resolve(1, 5, Outcome::Failed(Failure::InDoubt));
        assert_eq!(flush(1), None, "batch 0 is open");
        receipts.resolve(0, 5, stored(0));
        assert_eq!(
            block_on(early, None),
            Some(Err(PublishError::Lost {
                messages: 5,
                source: Box::new(PublishError::InDoubt)
            })),
            "batch 2 came later"
        );
        receipts.resolve(2, 5, stored(5));
        assert_eq!(flush(1), Some(Ok(())));
    }

    #[test]
    fn the_end_answers_what_is_open_and_keeps_what_is_known() {
        let receipts = receipts();
        receipts.open_batch();
        receipts.open_batch();
        receipts.resolve(0, 1, stored(1));
        assert_eq!(receipts.unresolved(), 1);
        receipts.end(ClientError::Closed);
        assert!(ask(&receipts, 0, 0).is_ok());
        assert_eq!(ask(&receipts, 1, 0), Err(ClientError::Closed.into()));
        assert_eq!(
            block_on(Flush::new(&receipts), None),
            Some(Err(PublishError::Ended(ClientError::Closed)))
        );
    }

    #[test]
    fn old_outcomes_are_forgotten_and_open_batches_are_not() {
        let receipts = receipts();
        for batch in 0..KEPT_BATCHES as u64 + 10 {
            assert_eq!(receipts.open_batch(), batch);
            if batch != 5 {
                receipts.resolve(batch, 1, stored(batch));
            }
        }
        assert!(matches!(
            ask(&receipts, 4, 0),
            Err(PublishError::ForgottenTicket { .. })
        ));
        assert!(
            matches!(ask(&receipts, 5, 0), Err(PublishError::Pending { .. })),
            "still open"
        );
        receipts.resolve(5, 1, stored(5));
        receipts.open_batch();
        assert!(matches!(
            ask(&receipts, 9, 0),
            Err(PublishError::ForgottenTicket { .. })
        ));
        assert!(ask(&receipts, KEPT_BATCHES as u64 + 9, 0).is_ok());
    }
}
