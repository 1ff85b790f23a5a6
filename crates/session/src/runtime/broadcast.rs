//! One message for many sessions: encoded once, and copied into the ring of each.
//!
//! Invariants
//! - Nothing here blocks, and no user code runs under a lock: the message is encoded before.
//! - Whoever locks a broadcast's members may lock a session's memberships or what waits for it, never
//!   the other way round.
//! - The caller writes to no socket unless a ring is full and nobody writes from it: the workers of
//!   the members do, each woken once for a batch of members.

use std::fmt;
use std::sync::Arc;

use buffa::{Message as Protobuf, ViewEncode};
use embar_transport::ring::Commit;

use super::latest::{Kind, MAX_WAITING, Put};
use super::session::Session;
use super::shared::{Shared, request};
use super::worker_marks::Wakes;
use crate::SendError;
use frame::Frame;
use members::{Member, Members};

mod frame;
mod members;

/// Members that are served under one lock, and for which a worker is woken once. Who joins or
/// leaves meanwhile waits for as long as that takes.
const BATCH: usize = 256;

/// What becomes of a message for a member whose send ring is full: nobody asked for it, so it leaves
/// [`Session::reply_room`] free, for answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lag {
    /// The member does not get it. The default.
    #[default]
    Skip,
    /// It waits outside of the ring, in the place of an older one of its kind, and goes into the
    /// ring when there is room. Its kind is the message id, or the key that the sender gives
    /// ([`Cast::keyed`]), of this broadcast. While something waits, all later messages of such
    /// broadcasts wait behind it, so what a member gets is in the order in which it was sent, with
    /// gaps. Of one session at most [`Broadcast::MAX_WAITING`] messages wait, and they count in its
    /// [budget](crate::Settings::budget); what is beyond that is skipped.
    Latest,
    /// The session closes with [`CloseReason::Full`](crate::CloseReason::Full).
    Close,
}

/// What became of one message, in members. Those that have it in their rings get it unless their sessions end first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// It is in their rings.
    pub sent: usize,
    /// It waits for room ([`Lag::Latest`]).
    pub waiting: usize,
    /// Of those for which it waits: where it took the place of an older one, which is not sent.
    pub replaced: usize,
    /// They do not get it: their rings are full ([`Lag::Skip`]), too much waits for them, or they are not
    /// open yet.
    pub skipped: usize,
    /// Their sessions close because of it ([`Lag::Close`]).
    pub closed: usize,
    /// It is longer than what their peers accept, or than their rings.
    pub too_long: usize,
}

/// Sessions that get messages together: a room, a channel, all who watch a game. A handle, cheap
/// to clone and usable from every thread, also from handlers.
///
/// Members may be sessions of several servers and clients of the process, and a session may be a
/// member of many broadcasts. A session that ends is no member any more. When the last handle is
/// dropped, nobody is.
///
/// What one thread sends arrives at each member in that order. What it sends while a session joins
/// or leaves may or may not be for that session.
#[derive(Clone, Default)]
pub struct Broadcast(Arc<Members>);

impl fmt::Debug for Broadcast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broadcast({} members)", self.len())
    }
}

impl Broadcast {
    /// Most messages that wait for room in one session, of all its broadcasts ([`Lag::Latest`]).
    pub const MAX_WAITING: usize = MAX_WAITING;

    /// Without members.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a session a member, or changes what happens when it lags. False: it is over. One that is not
    /// open yet is skipped until it is.
    pub fn join(&self, session: &Session, lag: Lag) -> bool {
        self.0.join(session, lag)
    }

    /// Ends a membership. False: there was none. What waits for room in the session still goes
    /// there.
    pub fn leave(&self, session: &Session) -> bool {
        self.0.leave(session)
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends a Protobuf message to all members.
    ///
    /// # Errors
    /// [`SendError::ReservedId`] and [`SendError::Encoding`]; nobody gets anything then. What one
    /// member does not get is in the [`Delivery`].
    pub fn send<M: Protobuf>(&self, id: u16, message: &M) -> Result<Delivery, SendError> {
        self.cast().send(id, message)
    }

    /// Sends a Protobuf view to all members; otherwise as [`Broadcast::send`].
    ///
    /// # Errors
    /// As [`Broadcast::send`].
    pub fn send_view<'v, V: ViewEncode<'v>>(
        &self,
        id: u16,
        view: &V,
    ) -> Result<Delivery, SendError> {
        self.cast().send_view(id, view)
    }

    /// Sends these bytes to all members; otherwise as [`Broadcast::send`].
    ///
    /// # Errors
    /// As [`Broadcast::send`].
    pub fn send_bytes(&self, id: u16, content: &[u8]) -> Result<Delivery, SendError> {
        self.cast().send_bytes(id, content)
    }

    /// Sends to all members but one, who may be none.
    pub fn except<'a>(&'a self, session: &'a Session) -> Cast<'a> {
        self.cast().except(session)
    }

    /// Sends messages of the kind `key`: see [`Lag::Latest`].
    pub fn keyed(&self, key: u64) -> Cast<'_> {
        self.cast().keyed(key)
    }

    fn cast(&self) -> Cast<'_> {
        Cast {
            members: &self.0,
            except: None,
            key: None,
        }
    }
}

/// How a message is sent: see [`Broadcast::except`] and [`Broadcast::keyed`].
#[derive(Clone, Copy)]
#[must_use = "nothing is sent yet"]
pub struct Cast<'a> {
    members: &'a Arc<Members>,
    except: Option<&'a Session>,
    key: Option<u64>,
}

impl fmt::Debug for Cast<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cast(except {:?}, key {:?})", self.except, self.key)
    }
}

impl<'a> Cast<'a> {
    /// As [`Broadcast::except`].
    pub fn except(mut self, session: &'a Session) -> Self {
        self.except = Some(session);
        self
    }

    /// As [`Broadcast::keyed`].
    pub fn keyed(mut self, key: u64) -> Self {
        self.key = Some(key);
        self
    }

    /// As [`Broadcast::send`].
    ///
    /// # Errors
    /// As [`Broadcast::send`].
    pub fn send<M: Protobuf>(self, id: u16, message: &M) -> Result<Delivery, SendError> {
        let frame = Frame::encode(
            id,
            |sizes| message.compute_size(sizes),
            |sizes, out| message.write_to(sizes, out),
        )?;
        Ok(self.commit(&frame))
    }

    /// As [`Broadcast::send_view`].
    ///
    /// # Errors
    /// As [`Broadcast::send`].
    pub fn send_view<'v, V: ViewEncode<'v>>(
        self,
        id: u16,
        view: &V,
    ) -> Result<Delivery, SendError> {
        let frame = Frame::encode(
            id,
            |sizes| view.compute_size(sizes),
            |sizes, out| view.write_to(sizes, out),
        )?;
        Ok(self.commit(&frame))
    }

    /// As [`Broadcast::send_bytes`].
    ///
    /// # Errors
    /// As [`Broadcast::send`].
    pub fn send_bytes(self, id: u16, content: &[u8]) -> Result<Delivery, SendError> {
        Ok(self.commit(&Frame::copy(id, content)?))
    }

    fn commit(self, frame: &Frame) -> Delivery {
        let kind = Kind {
            broadcast: self.members.number(),
            key: self.key.ok_or_else(|| frame.id()),
        };
        let except = self.except.map(Session::id);
        let mut delivery = Delivery::default();
        let mut wakes = Wakes::default();
        let mut round = self.members.round();
        let mut late = Vec::new();
        while let Some(batch) = self.members.next_batch(&mut round, BATCH) {
            for member in batch.members() {
                if except == Some(member.session.id()) {
                    continue;
                }
                match give(member, frame, &mut wakes) {
                    Ok(()) => delivery.sent += 1,
                    Err(error) => late.push((member.session.clone(), member.lag, error)),
                }
            }
            drop(batch);
            // Not under the lock: to make room may wake who waits for it.
            for (session, lag, error) in late.drain(..) {
                give_late(
                    &session.0,
                    lag,
                    frame,
                    kind,
                    error,
                    &mut delivery,
                    &mut wakes,
                );
            }
            wakes.wake();
        }
        delivery
    }
}

/// One message for one member, if there is room.
#[inline]
fn give(member: &Member, frame: &Frame, wakes: &mut Wakes) -> Result<(), SendError> {
    let shared = &*member.session.0;
    if member.lag == Lag::Latest && shared.latest.any() {
        // What waits is sent as it is.
        shared.sender.check(frame.id(), frame.content_len())?;
        return Err(SendError::Full);
    }
    put(shared, frame, wakes)
}

#[inline]
fn put(shared: &Shared, frame: &Frame, wakes: &mut Wakes) -> Result<(), SendError> {
    let sender = &shared.sender;
    let bytes = frame.bytes(sender.is_checked());
    if sender.send_frame(frame.id(), frame.content_len(), bytes)? == Commit::First {
        shared.mark_later(wakes);
    }
    Ok(())
}

/// One message for one member whose ring did not take it.
#[cold]
fn give_late(
    shared: &Shared,
    lag: Lag,
    frame: &Frame,
    kind: Kind,
    error: SendError,
    delivery: &mut Delivery,
    wakes: &mut Wakes,
) {
    match error {
        SendError::Full => {}
        // It is no member any more as soon as its worker has told its handler.
        SendError::Closed => return,
        SendError::TooLong { .. } => {
            delivery.too_long += 1;
            return shared.counters.missed_broadcasts.add(1);
        }
        SendError::NotOpen | SendError::ReservedId { .. } | SendError::Encoding => {
            delivery.skipped += 1;
            return shared.counters.missed_broadcasts.add(1);
        }
    }
    // The ring may be full because its worker has not come to it, rather than because its peer does
    // not read.
    if lag != Lag::Latest || !shared.latest.any() {
        shared.counters.times_full.add(1);
        write_now(shared);
        if put(shared, frame, wakes).is_ok() {
            delivery.sent += 1;
            return;
        }
    }
    match lag {
        Lag::Skip => delivery.skipped += 1,
        Lag::Close => {
            shared.request(request::FULL);
            delivery.closed += 1;
        }
        Lag::Latest => match wait(shared, frame, kind) {
            Put::Waits => {
                delivery.waiting += 1;
                return;
            }
            Put::Replaced => {
                delivery.waiting += 1;
                delivery.replaced += 1;
            }
            Put::Refused => delivery.skipped += 1,
        },
    }
    shared.counters.missed_broadcasts.add(1);
}

fn wait(shared: &Shared, frame: &Frame, kind: Kind) -> Put {
    let bytes = frame.shared(shared.sender.is_checked());
    let put = shared.latest.put(kind, &shared.group.budget, bytes);
    if put == Put::Waits {
        // The worker waits for room.
        shared.request(request::LATEST);
    }
    put
}

/// Tries to write what a full ring holds, right now, unless somebody does.
fn write_now(shared: &Shared) {
    if shared.is_on_worker() {
        shared.flush_here();
    } else if let Some(direct) = shared.direct.get() {
        shared.write(direct);
    }
}
