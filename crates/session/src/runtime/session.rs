//! The handle of a session: what any thread may ask of it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use buffa::{Message as Protobuf, ViewEncode};
use embar_memory::Buffer;
use embar_transport::ring::RoomWait;
use embar_transport::{MemoryBudget, Peer};

use super::clock;
use super::priority::Priority;
use super::session_id::SessionId;
use super::settings::OnFull;
use super::shared::{Shared, request};
use super::stats::SessionStats;
use crate::{Closed, Draft, Redirect, SendError};

/// A session, as its users see it. Cheap to clone; usable from every thread.
///
/// Dropping handles changes nothing: a session lives until one of its ends closes it.
#[derive(Clone)]
pub struct Session(pub(super) Arc<Shared>);

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} with {})", self.id(), self.peer())
    }
}

impl Session {
    /// Names this session in logs and tables.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.0.id
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// How much it matters beside others: see [`ServerBuilder::prioritize`](crate::ServerBuilder::prioritize).
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.0.priority
    }

    /// The [budget](crate::Settings::budget) that it and others share.
    #[must_use]
    pub fn budget(&self) -> &MemoryBudget {
        &self.0.group.budget
    }

    /// How the session ended; `None` while it has not.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        self.0.ended.get()
    }

    /// What is done at a full ring from now on.
    pub fn set_on_full(&self, policy: OnFull) {
        self.0.set_on_full(policy);
    }

    /// Async code has it from now on: no send of it blocks, whatever the policy is.
    pub(super) fn never_block(&self) {
        self.0.is_async.store(true, Ordering::Relaxed);
    }

    /// Sends a Protobuf message: its size is computed once and it is encoded straight into the
    /// ring. At a full ring the policy decides ([`OnFull`]).
    ///
    /// Ok means that it will be sent unless the session ends first, not that the peer has it.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message is sent then.
    pub fn send<M: Protobuf>(&self, id: u16, message: &M) -> Result<(), SendError> {
        match self.0.sender.send(id, message) {
            Ok(commit) => self.0.committed(commit),
            Err(SendError::Full) => {
                let len = message.encoded_len() as usize;
                let sent = self.0.when_full(len, || self.0.sender.send(id, message))?;
                self.0.committed(sent);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// As [`Session::send`], but never waits, whatever the policy is.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message is sent then.
    pub fn try_send<M: Protobuf>(&self, id: u16, message: &M) -> Result<(), SendError> {
        self.0.committed(self.0.sender.send(id, message)?);
        Ok(())
    }

    /// Sends a Protobuf view, without an owned message; otherwise as [`Session::send`].
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message is sent then.
    pub fn send_view<'a, V: ViewEncode<'a>>(&self, id: u16, view: &V) -> Result<(), SendError> {
        match self.0.sender.send_view(id, view) {
            Ok(commit) => self.0.committed(commit),
            Err(SendError::Full) => {
                let len = view.encoded_len() as usize;
                let sent = self
                    .0
                    .when_full(len, || self.0.sender.send_view(id, view))?;
                self.0.committed(sent);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends a Protobuf message behind the bytes of `prefix`, whose parts follow each other. All of
    /// it is encoded straight into the ring. Never waits, whatever the policy is. For protocols whose
    /// frames say more than the message does; gives the bytes of the frame's content.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the frame is sent then.
    pub fn try_send_prefixed<M: Protobuf>(
        &self,
        id: u16,
        prefix: &[&[u8]],
        message: &M,
    ) -> Result<usize, SendError> {
        let (commit, bytes) = self.0.sender.send_prefixed(id, prefix, message)?;
        self.0.committed(commit);
        Ok(bytes)
    }

    /// As [`Session::try_send_prefixed`], for a view.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the frame is sent then.
    pub fn try_send_view_prefixed<'a, V: ViewEncode<'a>>(
        &self,
        id: u16,
        prefix: &[&[u8]],
        view: &V,
    ) -> Result<usize, SendError> {
        let (commit, bytes) = self.0.sender.send_view_prefixed(id, prefix, view)?;
        self.0.committed(commit);
        Ok(bytes)
    }

    /// Sends `len` bytes that `fill` writes into the ring. The space still holds what an earlier
    /// message left there, so `fill` must write all of it.
    ///
    /// # Errors
    /// [`SendError`]; `fill` is not called then.
    pub fn send_with(
        &self,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let mut draft = self.draft(id, len)?;
        fill(&mut draft);
        self.commit(draft);
        Ok(())
    }

    /// A place of `len` bytes in the ring for a packet, to be filled and committed. Packets leave
    /// in the order in which they were reserved, so an open one holds back all behind it; one held
    /// for longer than `reservation_timeout` ends the session. Dropped, it was never there.
    ///
    /// # Errors
    /// [`SendError`]; waits for room if the policy says so.
    pub fn reserve(&self, id: u16, len: usize) -> Result<Packet<'_>, SendError> {
        let draft = self.draft(id, len)?;
        let session = self;
        Ok(Packet { draft, session })
    }

    /// As [`Session::reserve`], but never waits, whatever the policy is.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_reserve(&self, id: u16, len: usize) -> Result<Packet<'_>, SendError> {
        let draft = self.0.sender.reserve(id, len)?;
        let session = self;
        Ok(Packet { draft, session })
    }

    #[inline]
    fn draft(&self, id: u16, len: usize) -> Result<Draft<'_>, SendError> {
        match self.0.sender.reserve(id, len) {
            Err(SendError::Full) => self.0.when_full(len, || self.0.sender.reserve(id, len)),
            other => other,
        }
    }

    #[inline]
    fn commit(&self, draft: Draft<'_>) {
        let first = draft.commit();
        self.0.committed(first);
    }

    /// Sends a frame whose `body` stays where it is: it is written to the socket from there, right
    /// behind its frame header and `head`, and in the order of all that this thread sends. For
    /// payloads that are larger than the ring, or too large to copy. Returns when the worker has
    /// it on its list; the `Arc` is released when the kernel took all of it.
    ///
    /// The session's protocol must give frames with this id a body ([`Shape::Body`] with the
    /// length of `head`, or [`Shape::HeadThenBody`]).
    ///
    /// [`Shape::Body`]: embar_frame::Shape::Body
    /// [`Shape::HeadThenBody`]: embar_frame::Shape::HeadThenBody
    ///
    /// # Errors
    /// [`SendError`]; [`SendError::Encoding`] if the protocol gives such frames no body.
    pub fn send_body(&self, id: u16, head: &[u8], body: Arc<Buffer>) -> Result<(), SendError> {
        self.0.send_body(id, head, body)
    }

    /// As [`Session::send_body`], but messages need not wait for the body: it goes in chunks
    /// ([`SessionConfig::chunk_bytes`](crate::SessionConfig::chunk_bytes)), and what is in the ring
    /// goes before each of them. Lanes are numbered from 1, and each has twice the share of the one
    /// after it while both have chunks to send, so none starves. A lane that the session does not
    /// have stands for its last one.
    ///
    /// Its beginning comes behind all that this thread sent before. What is sent after it, by
    /// whomever, may come before, between, or behind. Bodies of the same lane come one after the
    /// other; the next begins when the peer has a place for all of this one.
    ///
    /// With lane 0, or with a peer that has no lanes
    /// ([`SessionConfig::body_lanes`](crate::SessionConfig::body_lanes)), it is
    /// [`Session::send_body`], and the ticket cancels nothing.
    ///
    /// # Errors
    /// As [`Session::send_body`]. The head has to leave some 30 bytes of the peer's
    /// `max_frame_bytes`.
    pub fn send_body_on(
        &self,
        lane: u8,
        id: u16,
        head: &[u8],
        body: Arc<Buffer>,
    ) -> Result<BodyTicket, SendError> {
        let number = self.0.send_body_on(lane, id, head, body)?;
        let session = self.clone();
        Ok(BodyTicket { session, number })
    }

    /// Waits until `len` bytes of content fit into the ring, or as many as it holds; for async code.
    /// Who waits for longer comes first.
    #[must_use]
    pub fn room(&self, len: usize) -> Room {
        Room {
            wait: self.0.sender.ring().room_wait(),
            bytes: self.0.bytes_for(len),
        }
    }

    /// Whether `len` bytes of content fit into the ring now, or, where they never do, whether it is empty. Another
    /// thread may be faster.
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        let bytes = self.0.bytes_for(len);
        self.0.sender.ring().has_room(bytes)
    }

    /// Room of the ring, in bytes, without which no message of the peer is delivered:
    /// [`SessionConfig::reply_room`](crate::SessionConfig::reply_room) in numbers. Who sends much that the peer did not
    /// ask for leaves so much free. Otherwise two ends that do so both wait for each other. 0 unless the session is open.
    #[must_use]
    pub fn reply_room(&self) -> usize {
        self.0.sender.reply_room()
    }

    /// Has a message that was left with [`Flow::Pause`](super::Flow::Pause) delivered again.
    pub fn resume(&self) {
        self.0.request(request::RESUME);
    }

    /// Has [`Handler::woken`](super::Handler::woken) called when `wait` is over, on the session's worker and as soon as that has
    /// time. A session has one timer: of two calls, the earlier time counts, and the other is
    /// forgotten. Whoever waits for more asks again in `woken`. Before a session is open, its
    /// handler is not woken.
    pub fn wake_after(&self, wait: Duration) {
        if self.0.wake.set(clock::now().after(wait)) {
            self.0.mark();
        }
    }

    /// Tells the peer that this end asks for nothing new and will close soon; both ends go on.
    pub fn goodbye(&self) {
        self.0.request(request::GOODBYE);
    }

    /// As [`Session::goodbye`], and asks the peer to connect elsewhere: its [`Handler::goodbye`](super::Handler::goodbye) learns the
    /// address, and what follows is its decision. A later goodbye asks for the same.
    pub fn goodbye_to(&self, redirect: &Redirect) {
        *self.0.redirect() = Some(Box::new(redirect.clone()));
        self.0.request(request::GOODBYE);
    }

    /// Closes politely: sends what was committed, then tells the peer. Returns at once; the
    /// handler's `closed` is called when it is over.
    pub fn close(&self) {
        self.0.request(request::CLOSE);
    }

    /// As [`Session::close`], with a reason: the peer learns
    /// [`CloseReason::Refused`](crate::CloseReason::Refused) with this `code` and a text for people, of which
    /// [`MAX_REASON_BYTES`](crate::MAX_REASON_BYTES) go out. Bodies that wait for their turn do not.
    /// Of several calls the first counts.
    pub fn refuse(&self, code: u32, text: &str) {
        let _ = self.0.refusal.set((code, text.to_owned()));
        self.0.request(request::REFUSE);
    }

    /// Closes at once; what was not sent yet is lost.
    pub fn abort(&self) {
        self.0.request(request::ABORT);
    }

    /// Asks the peer for its figures; the answer comes to
    /// [`Handler::status`](super::Handler::status). A question before the answer to the one before
    /// may be answered together with it. A peer whose [`StatusPolicy`](super::StatusPolicy) is `Off` does not
    /// answer.
    pub fn request_status(&self) {
        self.0.request(request::STATUS);
    }

    /// What was done so far, as any thread may read it.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.0.stats()
    }
}

/// A body that was handed over in a lane; see [`Session::send_body_on`]. Dropping it changes nothing.
#[derive(Debug)]
pub struct BodyTicket {
    session: Session,
    number: u64,
}

impl BodyTicket {
    /// What [`Handler::body_refused`](super::Handler::body_refused) calls the body.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Gives the body up, unless its last bytes are on their way: it is released, and the peer's
    /// handler learns that no more of it comes.
    pub fn cancel(self) {
        self.session.0.cancel_body(self.number);
    }
}

/// The wait for room in a session's ring; see [`Session::room`]. Ready as soon as there probably is
/// room (another sender may be faster), and with [`SendError::Closed`] when the session is over. It
/// may be polled again after that, and waits again. Dropped, it leaves its place to the next. Once it is woken, the room is
/// promised to it until it is polled or dropped: one that is kept and not polled keeps the room from others.
#[derive(Debug)]
pub struct Room {
    wait: RoomWait,
    bytes: usize,
}

impl Future for Room {
    type Output = Result<(), SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let bytes = self.bytes;
        let room = self.wait.poll(bytes, cx);
        room.map_err(|_| SendError::Closed)
    }
}

/// A packet being written in the ring; see [`Session::reserve`].
pub struct Packet<'a> {
    draft: Draft<'a>,
    session: &'a Session,
}

impl Packet<'_> {
    /// Publishes the packet: it will be sent.
    pub fn commit(self) {
        self.session.commit(self.draft);
    }
}

impl Deref for Packet<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.draft
    }
}

impl DerefMut for Packet<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.draft
    }
}
