//! The calls that one session has in flight, and the frames that end them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use embar_session::{MemoryBudget, SendError, Session};
use embar_transport::waiters::wake;

use super::counts::Counts;
use super::outbox::{End, Outbox, Shares};
use super::settings::RouterSettings;
use super::slot::{Running, Slot, Wakers};
use crate::outgoing::{Nothing, Outgoing};
use crate::protocol::{CallNumber, CreditFrame, EndFrame, RequestFrame, frame};
use crate::{Code, Status};

/// Slots that are made together, when the first of them is used: a quiet session has few.
const CHUNK: usize = 16;
/// Slots that were made together.
type Chunk = Box<[Mutex<Slot>]>;

/// What a frame takes of a ring beside its content.
const FRAME_HEADER_BYTES: usize = 8;

/// No call waits for longer, so that no sum of times overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The calls of a session.
pub(super) struct Calls {
    pub(super) session: Session,
    pub(super) counts: Arc<Counts>,
    max_in_flight: usize,
    chunks: Box<[OnceLock<Chunk>]>,
    outbox: Outbox,
    /// What replies in the outbox may take.
    waiting: MemoryBudget,
}

impl Calls {
    pub(super) fn new(
        session: &Session,
        settings: &RouterSettings,
        counts: &Arc<Counts>,
    ) -> Arc<Self> {
        let max_in_flight = settings.in_flight() as usize;
        Arc::new(Self {
            session: session.clone(),
            counts: Arc::clone(counts),
            max_in_flight,
            chunks: (0..max_in_flight.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            outbox: Outbox::default(),
            waiting: MemoryBudget::new(settings.max_waiting_bytes),
        })
    }

    /// A slot that was used; none for a number that never was.
    fn slot(&self, index: u32) -> Option<MutexGuard<'_, Slot>> {
        let index = index as usize;
        let slot = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        Some(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn each_slot(&self) -> impl Iterator<Item = MutexGuard<'_, Slot>> {
        let slots = self.chunks.iter().filter_map(OnceLock::get).flatten();
        slots.map(|slot| slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks a call that runs something.
    pub(super) fn with<T>(
        &self,
        number: CallNumber,
        ask: impl FnOnce(&mut Running) -> T,
    ) -> Option<T> {
        let mut slot = self.slot(number.slot)?;
        slot.running(number.generation).map(ask)
    }

    /// Begins a call; gives its deadline.
    pub(super) fn open(
        &self,
        request: &RequestFrame<'_>,
        route: usize,
    ) -> Result<Option<Instant>, Status> {
        let index = request.call.slot as usize;
        if index >= self.max_in_flight {
            return Err(Status::resource_exhausted(format!(
                "a session may have {} calls in flight: this one is beyond",
                self.max_in_flight
            )));
        }
        self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Mutex::default()).collect());
        let began = Instant::now();
        let left = Duration::from_micros(request.time_left_us).min(LONGEST);
        let deadline = (request.time_left_us > 0).then(|| began + left);
        let credit = request.credit.unwrap_or_default();
        let opened = self.slot(request.call.slot).and_then(|mut slot| {
            slot.open(request.call.generation, route, began, deadline, credit)
        });
        opened.ok_or_else(|| {
            Status::failed_precondition(
                "the slot of this call has another one: use a slot again after its end",
            )
        })?;
        if deadline.is_some() {
            self.session.wake_after(left);
        }
        Ok(deadline)
    }

    /// Ends a call: its slot is free for the next.
    pub(super) fn close(&self, number: CallNumber) -> Option<Running> {
        self.slot(number.slot)?.close(number.generation)
    }

    /// The caller gave a call up.
    pub(super) fn cancel(&self, number: CallNumber) {
        let wakers = self.with(number, |call| call.give_up(Code::Cancelled));
        wakers.into_iter().for_each(wake_all);
    }

    /// The caller of a stream takes more of it.
    pub(super) fn credit(&self, grant: &CreditFrame) {
        let waker = self.with(grant.call, |call| call.add_credit(grant.credit));
        if let Some(Some(waker)) = waker {
            wake(waker);
        }
    }

    /// Before the session's next request: what waits for room comes first. Whether all of it is in the ring.
    pub(super) fn send_waiting(&self) -> bool {
        if !self.outbox.is_empty() {
            self.outbox.flush(&self.session, |end| self.leaves(end));
        }
        self.outbox.is_empty()
    }

    /// Whether all ends are in the ring.
    pub(super) fn has_sent_all(&self) -> bool {
        self.outbox.is_empty()
    }

    /// An end that waited is about to leave: its slot is free for the next.
    fn leaves(&self, end: &End) {
        if let Some(mut slot) = end.slot.and_then(|slot| self.slot(slot)) {
            slot.end_left();
        }
    }

    /// The session's timer: ends calls whose time is over, and sends what found no room.
    pub(super) fn woken(&self) {
        self.outbox.woken(&self.session, |end| self.leaves(end));
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for mut slot in self.each_slot() {
            let Some(call) = slot.any() else {
                continue;
            };
            match call.deadline {
                Some(deadline) if deadline <= now => {
                    let wakers = call.give_up(Code::DeadlineExceeded);
                    drop(slot);
                    wake_all(wakers);
                }
                Some(deadline) => next = Some(next.map_or(deadline, |next| next.min(deadline))),
                None => {}
            }
        }
        if let Some(next) = next {
            self.session.wake_after(next.saturating_duration_since(now));
        }
    }

    /// The session is over: nobody waits for anything.
    pub(super) fn end(&self) {
        for mut slot in self.each_slot() {
            if let Some(call) = slot.any() {
                let wakers = call.give_up(Code::Cancelled);
                drop(slot);
                wake_all(wakers);
            }
        }
    }

    /// Sends the end of a call or, with `stream`, of a stream. Gives the code of what was sent.
    pub(super) fn send_end(
        &self,
        number: CallNumber,
        stream: bool,
        end: Result<impl Outgoing, Status>,
    ) -> Code {
        let id = if stream { frame::END } else { frame::REPLY };
        let status = match end {
            Ok(message) => match self.send(number, id, Code::Ok, ("", &[]), &message) {
                Ok(()) => return Code::Ok,
                Err(status) => status,
            },
            Err(status) => status,
        };
        let (code, words) = (status.code(), status.on_the_wire());
        if self.send(number, id, code, words, &Nothing).is_err() {
            // A peer that takes no text still learns the code.
            let _ = self.send(number, id, code, ("", &[]), &Nothing);
        }
        code
    }

    /// An error: the peer takes no frame that is as long, or there is no memory for it to wait in.
    fn send(
        &self,
        number: CallNumber,
        id: u16,
        code: Code,
        (text, details): (&str, &[u8]),
        message: &impl Outgoing,
    ) -> Result<(), Status> {
        let prefix = EndFrame::prefix(number, code, text);
        let parts = [&prefix[..], text.as_bytes(), details];
        match message.try_send(&self.session, id, &parts) {
            Err(SendError::Full) => {
                let before: usize = parts.iter().map(|part| part.len()).sum();
                let bytes = before + message.encoded_bytes();
                let shares = self.may_wait(code, bytes)?;
                let mut content = Vec::with_capacity(bytes);
                parts
                    .iter()
                    .for_each(|part| content.extend_from_slice(part));
                message.append_to(&mut content);
                self.wait_for_room(number, id, content, shares);
                Ok(())
            }
            Err(SendError::TooLong { bytes, max }) => Err(Status::resource_exhausted(format!(
                "the reply has {bytes} bytes, and the caller takes {max}: answer with a stream, \
                 or raise the limits of its session"
            ))),
            // Nothing of it was sent, and the caller waits.
            Err(error @ SendError::Encoding) => Err(Status::internal(error.to_string())),
            // Of a session that is over, the caller knows.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whether an end of `bytes` may wait for room in the ring; a reply takes its shares of the memory.
    fn may_wait(&self, code: Code, bytes: usize) -> Result<Option<Shares>, Status> {
        if bytes + FRAME_HEADER_BYTES > self.session.reply_room() {
            return Err(Status::resource_exhausted(format!(
                "the caller reads too slowly for a reply of {bytes} bytes: raise the server's send_ring_bytes to twice that, or answer with a stream"
            )));
        }
        if code != Code::Ok {
            return Ok(None);
        }
        let no_memory = |_| {
            Status::resource_exhausted(format!(
                "the caller reads too slowly, and the server has no memory for {bytes} more bytes of replies that wait"
            ))
        };
        let own = self.waiting.try_reserve(bytes).map_err(no_memory)?;
        let of_all = self.session.budget().try_reserve(bytes);
        Ok(Some([own, of_all.map_err(no_memory)?]))
    }

    /// Has an end wait for room in the ring.
    fn wait_for_room(&self, number: CallNumber, id: u16, content: Vec<u8>, shares: Option<Shares>) {
        let slot = self.slot(number.slot).map(|mut slot| {
            slot.end_waits();
            number.slot
        });
        let end = End {
            slot,
            id,
            content,
            _shares: shares,
        };
        self.outbox.push(&self.session, end);
    }
}

fn wake_all(wakers: Wakers) {
    wakers.into_iter().flatten().for_each(wake);
}
