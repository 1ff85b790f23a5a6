//! The sending half of a session's core: says what to send next. That is what was committed to the
//! send ring, bodies between that, and at last CLOSE.
//!
//! Invariants
//! - A body, or CLOSE, is handed out only while the core has the right to send (`Right`), at a
//!   place where a frame ends: nothing is committed and unsent, or the core's own span was sent to
//!   its end.
//! - What the core owes (PONG, PING, GOODBYE, STATUS) takes room in the ring once, however often it
//!   comes to owe it.

use std::io;
use std::mem;

use embar_frame::Protocol;
use embar_transport::buffer::Head;
use embar_transport::ring::SendSpan;
use embar_transport::{Body, Memory, Pieces, SendBuf};

use super::ending::Ending;
use super::frames::{OwnId, cut, frame, put};
use super::{SessionCore, State, Step};
use crate::config::SendLimits;
use crate::proto::{GoodbyeView, PingView};
use crate::reason::CloseReason;
use crate::redirect::Redirect;
use crate::sender::SendError;

/// The right to write to the connection, as far as the core has it.
enum Right {
    /// It has not.
    None,
    /// Held without a span.
    Corked,
    /// Held by a span that was sent to its end, or failed.
    Spent(SendSpan),
}

/// Frames of the session layer that are to go as soon as there is room.
#[derive(Debug, Default)]
pub(super) struct Owed {
    pub pong: Option<u64>,
    pub ping: bool,
    pub goodbye: Option<String>,
    pub status: bool,
    /// What is seldom owed: the question above, and answers to bodies in lanes.
    pub rare: bool,
}

/// What is on its way out.
pub(super) struct Output<M: Memory> {
    /// A send of the core is out.
    pub sending: bool,
    right: Right,
    /// To follow what is committed.
    pub body: Option<(Vec<u8>, Body<M>)>,
    /// It is out, or the rest of it is to go next.
    body_out: bool,
    /// What is left of a body that goes in steps; nothing goes before it.
    rest: Option<SendBuf<M>>,
    /// Bytes of that which were counted.
    stepped: usize,
    /// Without pieces: the room of the latest that were sent.
    spare: Option<Box<Pieces<M>>>,
    /// CLOSE is out, or was sent.
    close_sent: bool,
    /// Nothing can be sent any more.
    failed: bool,
    pub owed: Owed,
    /// Of the goodbyes.
    redirect: Option<Box<Redirect>>,
    pub limits: SendLimits,
    pub bodies: u64,
}

impl<M: Memory> Output<M> {
    pub fn new() -> Self {
        Self {
            sending: false,
            right: Right::None,
            body: None,
            body_out: false,
            rest: None,
            stepped: 0,
            spare: None,
            close_sent: false,
            failed: false,
            owed: Owed::default(),
            redirect: None,
            limits: SendLimits {
                max_frame_bytes: 0,
                max_body_bytes: 0,
                body_lanes: 0,
            },
            bodies: 0,
        }
    }

    /// Has `say` say the goodbye that is owed, if one is.
    fn goodbye<T>(&self, say: impl FnOnce(&GoodbyeView<'_>) -> T) -> Option<T> {
        let text = self.owed.goodbye.as_ref()?;
        let redirect = self.redirect.as_deref();
        Some(say(&GoodbyeView {
            text,
            redirect: redirect.map_or("", |it| &it.address),
            delay_ms: redirect.map_or(0, |it| it.after_ms),
        }))
    }

    /// Forgets what is not out.
    pub fn drop_pending(&mut self) {
        self.body = None;
        if self.rest.take().is_some() {
            self.body_out = false;
        }
        self.owed = Owed::default();
    }
}

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// Whether [`SessionCore::send_body`] may be called: the session is open, and the body before
    /// was handed to the connection in full.
    #[must_use]
    pub fn may_send_body(&self) -> bool {
        let output = &self.output;
        self.is_open() && !output.failed && !output.body_out && output.body.is_none()
    }

    /// Whether bytes of a body may still be handed to the connection. A body that [goes in
    /// steps](SendBuf::goes_in_steps) comes back by [`SessionCore::sent`] after each of them: as
    /// long as this is true, the next [`SessionCore::poll`] goes on with it. An owner that finds
    /// its bytes gone calls [`SessionCore::close`] before, and no more of it leaves.
    #[must_use]
    pub fn is_sending_body(&self) -> bool {
        self.output.body_out || self.output.body.is_some()
    }

    /// Room for the pieces of a body, with none in it: that of the body before, if it is sent.
    #[must_use]
    pub fn pieces(&mut self) -> Box<Pieces<M>> {
        self.output.spare.take().unwrap_or_default()
    }

    /// Sends whole frames that lie elsewhere, behind what is committed: `head` (may be empty)
    /// directly before `body`, and together they must be whole frames that the peer accepts. When
    /// [`SessionCore::may_send_body`] is true again, they were handed over.
    ///
    /// # Panics
    /// Unless [`SessionCore::may_send_body`].
    pub fn send_body(&mut self, head: Vec<u8>, body: Body<M>) {
        assert!(self.may_send_body(), "one body at a time, while open");
        self.output.body = Some((head, body));
        self.output.bodies += 1;
    }

    /// Holds the right to send, so that what is committed from now on goes out together: the next
    /// [`SessionCore::poll`] uses it or gives it up. False if another thread sends.
    pub fn cork(&mut self) -> bool {
        match self.output.right {
            Right::None if self.output.sending => false,
            Right::None => {
                let corked = self.ring().cork();
                if corked {
                    self.output.right = Right::Corked;
                }
                corked
            }
            Right::Corked | Right::Spent(_) => true,
        }
    }

    /// Whether the core has the right to send by [`SessionCore::cork`] alone: nothing is out, and
    /// neither a body nor CLOSE is to follow, so what the ring holds may be written from elsewhere
    /// on this thread ([`SendRing::span_in_cork`](embar_transport::ring::SendRing::span_in_cork)).
    #[must_use]
    pub fn is_merely_corked(&self) -> bool {
        let output = &self.output;
        let alone = !output.sending && !self.is_sending_body() && !output.close_sent;
        alone && matches!(output.right, Right::Corked)
    }

    /// As [`Sender::wants_right`](crate::Sender::wants_right).
    #[must_use]
    pub fn wants_right(&self) -> bool {
        self.sender.wants_right()
    }

    /// Says that this end is about to finish, and that the peer should ask for nothing new. The
    /// session goes on until one end finishes it.
    pub fn goodbye(&mut self, text: &str) {
        self.output.owed.goodbye = Some(cut(text).to_owned());
    }

    /// As [`SessionCore::goodbye`], and asks the peer to connect elsewhere. Each later goodbye asks for the same, unless it has a redirect of
    /// its own.
    pub fn goodbye_to(&mut self, redirect: Option<Box<Redirect>>, text: &str) {
        if redirect.is_some() {
            self.output.redirect = redirect;
        }
        self.goodbye(text);
    }

    /// Asks the peer for its state; it answers with
    /// [`Incoming::StatusReply`](crate::Incoming::StatusReply) if it wants to.
    pub fn request_status(&mut self) {
        self.output.owed.status = true;
        self.output.owed.rare = true;
    }

    /// Answers [`Incoming::Status`](crate::Incoming::Status) with `len` bytes that `fill` writes.
    ///
    /// # Errors
    /// As [`Sender::send_with`](crate::Sender::send_with).
    pub fn reply_status(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let Some(limits) = self.limits() else {
            return Err(SendError::Closed);
        };
        let max = limits.max_frame_bytes;
        if len > max as usize {
            return Err(SendError::TooLong { bytes: len, max });
        }
        let mut draft = self.sender.draft(OwnId::StatusReply.number(), 0, len)?;
        fill(&mut draft);
        let _ = draft.commit_uncounted();
        Ok(())
    }

    /// Measures the round trip now.
    pub fn ping(&mut self) {
        self.output.owed.ping = true;
    }

    /// Puts what the core owes into the ring, as far as there is room.
    pub(super) fn pay_owed(&mut self) {
        if !self.is_open() {
            return;
        }
        let (sender, clock) = (&self.sender, self.clock);
        let waits = self.output.sending || self.output.rest.is_some();
        let owed = &mut self.output.owed;
        let ping = |token| PingView {
            token,
            ..Default::default()
        };
        // Behind a send that the peer does not take, each of its PINGs would have an answer in the ring, until that is full.
        if let Some(token) = owed.pong.filter(|_| !waits)
            && put(sender, OwnId::Pong, &ping(token))
        {
            owed.pong = None;
        }
        if owed.ping {
            let token = self.timers.token(clock);
            owed.ping = !put(sender, OwnId::Ping, &ping(token));
        }
        if owed.rare {
            self.pay_rare();
        }
        let sender = &self.sender;
        let said = self
            .output
            .goodbye(|view| put(sender, OwnId::Goodbye, view));
        if said == Some(true) {
            self.output.owed.goodbye = None;
        }
    }

    /// A goodbye for which the ring had no room yet, or no time, as bytes of its own: what comes next is the end.
    pub(super) fn owed_goodbye(&mut self) -> Option<Vec<u8>> {
        if !self.is_open() {
            return None;
        }
        let frame = |view: &GoodbyeView<'_>| frame(OwnId::Goodbye, view, P::CHECKED);
        let said = self.output.goodbye(frame);
        self.output.owed.goodbye = None;
        said
    }

    #[cold]
    fn pay_rare(&mut self) {
        let owed = &mut self.output.owed;
        if owed.status {
            owed.status = !put(&self.sender, OwnId::Status, &GoodbyeView::default());
        }
        let asked = !owed.status;
        self.output.owed.rare = !(self.answer_bodies() && asked);
    }

    /// The send to ask for, if there is one.
    pub(super) fn poll_send(&mut self) -> Option<SendBuf<M>> {
        let output = &self.output;
        if output.sending || output.failed || output.close_sent {
            return None;
        }
        let buf = if output.rest.is_some() {
            self.output.rest.take()
        } else if output.body.is_some() {
            self.poll_body()
        } else if let Some(span) = self.take_span() {
            Some(SendBuf::ring(span, Body::Empty))
        } else {
            self.poll_close()
        };
        self.output.sending = buf.is_some();
        buf
    }

    /// What is committed, with the right to send it.
    fn take_span(&mut self) -> Option<SendSpan> {
        match mem::replace(&mut self.output.right, Right::None) {
            Right::None => self.ring().span(),
            Right::Corked => self.ring().uncork(),
            Right::Spent(span) => {
                drop(span);
                self.ring().span()
            }
        }
    }

    /// Takes the right to send if the core does not have it, and says so if it cannot.
    fn take_right(&mut self) -> bool {
        let mut have = !matches!(self.output.right, Right::None) || self.cork();
        if !have {
            self.sender.set_wanted(true);
            // The thread that had it may have finished between the attempt and the request.
            have = self.cork();
        }
        if have {
            self.sender.set_wanted(false);
        }
        have
    }

    fn poll_body(&mut self) -> Option<SendBuf<M>> {
        if !self.take_right() {
            return None;
        }
        // Behind a span that was sent to its end, a frame ends, whatever is committed since.
        let spent = matches!(self.output.right, Right::Spent(_));
        let span = match !spent && self.ring().has_committed() {
            true => Some(self.take_span()?),
            false => None,
        };
        let (head, body) = self.output.body.take()?;
        self.output.body_out = true;
        Some(match span {
            None => SendBuf::new(head, body),
            Some(span) if head.is_empty() => SendBuf::ring(span, body),
            Some(span) => {
                // The span alone, first; the right stays with the core until the body is out.
                self.output.body_out = false;
                self.output.body = Some((head, body));
                SendBuf::ring(span, Body::Empty)
            }
        })
    }

    /// CLOSE, once all else is sent.
    fn poll_close(&mut self) -> Option<SendBuf<M>> {
        let State::Ending(Ending {
            close_frame, wait, ..
        }) = &mut self.state
        else {
            return None;
        };
        if close_frame.is_empty() {
            return None;
        }
        // Open reservations are waited for, unless one of them is the reason; and so is what
        // another thread is sending, which has us polled when it is done if it knows that we wait.
        if *wait && self.sender.ring().queued() > 0 {
            self.sender.set_wanted(true);
            if self.sender.ring().queued() > 0 {
                return None;
            }
        }
        let frame = mem::take(close_frame);
        if !self.take_right() || self.ring().has_committed() {
            if let State::Ending(ending) = &mut self.state {
                ending.close_frame = frame;
            }
            return self
                .take_span()
                .map(|span| SendBuf::ring(span, Body::Empty));
        }
        self.output.close_sent = true;
        Some(SendBuf::heap(frame))
    }

    /// Whether nothing more will be sent.
    fn is_drained(&self) -> bool {
        !self.output.sending && (self.output.close_sent || self.output.failed)
    }

    /// What follows when all is sent.
    pub(super) fn poll_end(&mut self) -> Option<Step<M>> {
        let drained = self.is_drained();
        let State::Ending(ending) = &mut self.state else {
            return None;
        };
        if !drained {
            return None;
        }
        if self.input.end.is_some() || self.output.failed {
            self.cut();
            self.close_due = false;
            return Some(Step::Close);
        }
        if mem::replace(&mut ending.write_closed, true) {
            return None;
        }
        Some(Step::ShutdownWrite)
    }

    pub(super) fn sent_buffer(&mut self, buf: SendBuf<M>, result: &io::Result<()>) {
        debug_assert!(self.output.sending, "no send is out");
        self.output.sending = false;
        self.sender.wrote(buf.sent() - self.output.stepped);
        if result.is_ok() && buf.remaining() > 0 && !matches!(self.state, State::Over) {
            self.output.stepped = buf.sent();
            self.output.rest = Some(buf);
            return;
        }
        self.output.stepped = 0;
        self.output.body_out = false;
        let (head, body) = buf.into_parts();
        if let Body::Pieces(mut pieces) = body {
            pieces.clear();
            self.output.spare = Some(pieces);
        }
        if let Head::Ring(span) = head {
            // While a body waits, nothing else gets between.
            if result.is_err() || self.output.body.is_some() {
                self.output.right = Right::Spent(span);
            }
        } else if matches!(self.output.right, Right::Spent(_)) && result.is_ok() {
            // The body went where that span ended. What is committed since then comes before the
            // next body.
            self.output.right = Right::None;
        }
        if let Err(error) = result {
            self.output.failed = true;
            // What the peer said last may still lie in the connection.
            if !self.input.receiving {
                self.input.end.get_or_insert(CloseReason::from(error));
            } else {
                self.timers.write_failed(self.clock, error.into());
            }
        }
    }
}
