//! The handle of a session that survives its connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use buffa::{Message as Protobuf, SizeCache, ViewEncode};
use embar_session::{Address, Peer, SendError, Side};

use crate::link::Link;
use crate::state::{End, State};

/// A session over all of its connections. Cheap to clone; usable from every thread.
///
/// What is sent is kept until the peer has acknowledged it, and goes out on as many connections as that takes. Sends of
/// several threads to one session wait for each other. Dropping handles changes nothing.
#[derive(Clone)]
pub struct Resumable(pub(crate) Arc<Link>);

impl fmt::Debug for Resumable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resumable({})", self.id())
    }
}

impl Resumable {
    /// Its number among all of this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.0.state()
    }

    /// Waits until `done` says so of its state, it is over, or the time is; returns how it stands then. A handler must
    /// not wait: there this returns at once.
    pub fn wait_until(&self, timeout: Duration, done: impl FnMut(&State) -> bool) -> State {
        self.0.wait_until(timeout, done)
    }

    /// The other end of its connection, if it has one.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.0.peer()
    }

    /// Messages sent that the peer has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> u64 {
        self.0.unacknowledged()
    }

    /// Sends a Protobuf message: it is encoded once, into the replay buffer, and copied from there into the ring of the
    /// connection, or of the next one. At a full buffer the policy decides ([`Replay::on_full`](crate::Replay::on_full)).
    ///
    /// Ok means that the peer gets it within the window, exactly once, unless the session ends first.
    ///
    /// # Errors
    /// [`SendError`]; nothing of the message is sent then. [`SendError::Full`] is about the replay buffer.
    pub fn send<M: Protobuf>(&self, id: u16, message: &M) -> Result<(), SendError> {
        self.encode(
            id,
            |sizes| message.compute_size(sizes),
            |sizes, out| message.write_to(sizes, out),
        )
    }

    /// Sends a Protobuf view, without an owned message; otherwise as [`Resumable::send`].
    ///
    /// # Errors
    /// As [`Resumable::send`].
    pub fn send_view<'a, V: ViewEncode<'a>>(&self, id: u16, view: &V) -> Result<(), SendError> {
        self.encode(
            id,
            |sizes| view.compute_size(sizes),
            |sizes, out| view.write_to(sizes, out),
        )
    }

    fn encode(
        &self,
        id: u16,
        size: impl FnOnce(&mut SizeCache) -> u32,
        write: impl FnOnce(&mut SizeCache, &mut Vec<u8>),
    ) -> Result<(), SendError> {
        let mut inner = self.0.lock();
        let mut sizes = SizeCache::with_spill_buffer(std::mem::take(&mut inner.spill));
        let len = size(&mut sizes) as usize;
        let mut inner = self.0.make_room(inner, id, len)?;
        let taken = self
            .0
            .put(&mut inner, id, len, |out| write(&mut sizes, out));
        inner.spill = sizes.into_spill_buffer();
        taken
    }

    /// Sends `len` bytes that `fill` writes; they are zero before. `fill` must not send to the same session.
    ///
    /// # Errors
    /// As [`Resumable::send`]; `fill` is not called if there is no room.
    pub fn send_with(
        &self,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let mut inner = self.0.make_room(self.0.lock(), id, len)?;
        self.0.put(&mut inner, id, len, |out| {
            let start = out.len();
            out.resize(start + len, 0);
            fill(&mut out[start..]);
        })
    }

    /// Closes politely: nothing more may be sent, and the session ends when the peer has acknowledged all that was, at the
    /// latest after [`Replay::close_within`](crate::Replay::close_within). Returns at once. What the peer sends after it
    /// has heard of the end is not delivered.
    pub fn close(&self) {
        self.0.close();
    }

    /// Ends the session with a reason, which the peer learns if it is there: [`End::Refused`]. What is on its way may be
    /// lost.
    pub fn refuse(&self, code: u32, text: &str) {
        self.0.kill(End::Refused {
            by: Side::Local,
            code,
            text: text.to_owned(),
        });
    }

    /// Has a message that was left with [`Flow::Pause`](embar_session::Flow::Pause) delivered again: what
    /// [`Session::resume`](embar_session::Session::resume) does for a session without this crate.
    pub fn go_on(&self) {
        self.0.go_on();
    }

    /// Has [`Handler::woken`](crate::Handler::woken) called when `wait` is over; while there is no connection, as soon as
    /// there is one again. A session has one timer: of two calls, the earlier time counts, and the other is forgotten.
    pub fn wake_after(&self, wait: Duration) {
        self.0.wake_after(wait);
    }

    /// At a client: the next connection goes to this address, and after that to those it has. For a server's hint, say in
    /// a message, where to go when it ends. A redirect in its goodbye is followed without this, to addresses of the
    /// [`Target`](crate::Target).
    pub fn prefer(&self, address: impl Into<Address>) {
        self.0.set_next_address(address.into());
    }
}
