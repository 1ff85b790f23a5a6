//! One connection as a state machine: connecting, the handshake, frames out and frames in.
//!
//! No socket and no clock is in here. The owner of a [`Link`] calls, in this order and as often as needed:
//! [`Link::connect`]; [`Link::connected`] once the driver says so; then [`Link::received`] and [`Link::next_frame`] for
//! what came in, and [`Link::sent`] after each finished send. [`Link::poll`] says what the driver shall do. A link that
//! ends, from either side, ends with [`Link::disconnected`], which the driver calls when it holds no buffer of the
//! link any more; before that the link cannot be connected again.
//!
//! Invariant: at most one send is with the driver (`sending`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

use embar_wire::ack::Ack;
use embar_wire::batch::BatchHeader;
use embar_wire::control::{self, Control, Hello, Role, Welcome};
use embar_wire::decode::{Event, FrameReader};
use embar_wire::frame::PROTOCOL_VERSION;
use embar_wire::limits::Limits;

/// Names one connection of a core. 0 is the control connection; each other lane belongs to one data broker, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(pub u32);

impl Lane {
    /// The connection for metadata and topics.
    pub const CONTROL: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the driver shall do for a link.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkAction {
    /// Connect to the address, then call `connected` or `disconnected`.
    Connect(SocketAddr),
    /// Send these bytes, then call `sent`.
    Send(Vec<u8>),
    /// Receive into this part of the buffer, then hand the buffer to `received`.
    Receive(Vec<u8>, Range<usize>),
    /// Close; call `disconnected` when no buffer is with the system any more.
    Close,
}

/// A frame that came in.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// The handshake is over; comes first, and once.
    Welcome(Welcome),
    /// Batches were acknowledged.
    Ack(Ack<'a>),
    /// A batch begins. What is missing of its payload, [`Link::payload_due`] bytes, is received by the owner.
    Batch {
        /// Its header, checked.
        header: BatchHeader,
        /// The start of the payload.
        early: &'a [u8],
    },
    /// Anything else that is not a batch.
    Control(Control),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not connected, and nothing with the driver.
    Down,
    Connecting,
    /// Connected, Welcome not seen.
    Greeting,
    Up,
    /// Told to close; everything that still comes is ignored.
    Closing,
}

/// Why a link has to be closed: what the peer did wrong, in words.
pub type Violation = String;

/// See the [module](self).
#[derive(Debug)]
pub struct Link {
    state: State,
    name: String,
    next: Option<LinkAction>,
    outbox: VecDeque<Vec<u8>>,
    sending: bool,
    read_ahead: usize,
    reader: FrameReader,
    receiving: bool,
    held: bool,
}

impl Link {
    /// A link that is down. `name` goes into the broker's log; `read_ahead` bytes are asked for at once.
    pub fn new(name: &str, read_ahead: usize) -> Self {
        Self {
            state: State::Down,
            name: name.to_string(),
            next: None,
            outbox: VecDeque::new(),
            sending: false,
            read_ahead,
            reader: FrameReader::new(Limits::default(), read_ahead),
            receiving: false,
            held: false,
        }
    }

    /// True if [`Link::connect`] may be called.
    pub fn is_down(&self) -> bool {
        self.state == State::Down
    }

    /// True once the handshake is over and until the link is closed.
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// True if the link was told to close and is not down yet.
    pub fn is_closing(&self) -> bool {
        self.state == State::Closing
    }

    /// True if a send is with the driver.
    pub fn is_sending(&self) -> bool {
        self.sending
    }

    /// Starts to connect.
    ///
    /// # Panics
    /// If the link is not down.
    pub fn connect(&mut self, address: SocketAddr) {
        assert!(
            self.is_down(),
            "a link is connected again only after it is down"
        );
        self.state = State::Connecting;
        self.next = Some(LinkAction::Connect(address));
    }

    /// The connection stands: says Hello.
    pub fn connected(&mut self) {
        if self.state != State::Connecting {
            return;
        }
        self.state = State::Greeting;
        let hello = Control::Hello(Hello {
            version: PROTOCOL_VERSION,
            role: Role::Client,
            name: self.name.clone(),
        });
        self.send(&hello);
    }

    /// Queues a control frame.
    pub fn send(&mut self, message: &Control) {
        let mut bytes = Vec::new();
        // Names are bounded before they get here, so no request of this crate is too large.
        control::encode(message, &mut bytes)
            .expect("requests are smaller than a control frame may be");
        self.outbox.push_back(bytes);
    }

    /// The driver filled `bytes` more bytes of the buffer it was given.
    pub fn received(&mut self, buffer: Vec<u8>, bytes: usize) {
        if std::mem::take(&mut self.receiving) {
            self.reader.give_back(buffer, bytes);
        }
    }

    /// Stops or resumes receiving, so that the owner may leave frames unread.
    pub fn hold(&mut self, on: bool) {
        self.held = on;
    }

    /// Payload bytes of the batch at hand that the owner has yet to receive.
    pub fn payload_due(&self) -> usize {
        self.reader.payload_due()
    }

    /// The owner received `bytes` bytes of the payload at hand.
    pub fn payload_received(&mut self, bytes: usize) {
        self.reader.payload_received(bytes);
    }

    /// The next whole frame of what came in. Call it until there is none.
    ///
    /// # Errors
    /// What the peer did wrong; close the link then.
    pub fn next_frame(&mut self) -> Result<Option<Incoming<'_>>, Violation> {
        if self.receiving || !matches!(self.state, State::Greeting | State::Up) {
            return Ok(None);
        }
        let up = self.state == State::Up;
        let event = self.reader.next().map_err(|error| error.to_string())?;
        match event {
            None => Ok(None),
            Some(Event::Control(message)) => accept(&mut self.state, message).map(Some),
            Some(_) if !up => Err("something else before Welcome".into()),
            Some(Event::Ack(ack)) => Ok(Some(Incoming::Ack(ack))),
            Some(Event::Batch { header, early }) => Ok(Some(Incoming::Batch { header, early })),
        }
    }

    /// The driver finished a send.
    pub fn sent(&mut self) {
        self.sending = false;
    }

    /// Ends the link. Nothing happens if it is down or ends already.
    pub fn close(&mut self) {
        match self.state {
            State::Down | State::Closing => {}
            State::Connecting if matches!(self.next, Some(LinkAction::Connect(_))) => {
                // The driver never heard of it.
                self.disconnected();
            }
            _ => {
                self.state = State::Closing;
                self.outbox.clear();
                self.next = Some(LinkAction::Close);
            }
        }
    }

    /// The connection is gone, or never came to be, and the driver holds nothing of it.
    pub fn disconnected(&mut self) {
        self.state = State::Down;
        self.next = None;
        self.outbox.clear();
        self.sending = false;
        self.receiving = false;
        self.held = false;
        self.reader = FrameReader::new(Limits::default(), self.read_ahead);
    }

    /// Whether [`Link::poll`] would return something.
    pub fn has_action(&self) -> bool {
        self.next.is_some() || (!self.sending && !self.outbox.is_empty()) || self.wants_bytes()
    }

    fn wants_bytes(&self) -> bool {
        matches!(self.state, State::Greeting | State::Up)
            && !self.receiving
            && !self.held
            && self.reader.payload_due() == 0
    }

    /// Whether the link is up and has nothing else to send, so that its owner may send a batch by
    /// [`Link::start_send`].
    pub fn may_send(&self) -> bool {
        self.is_up() && !self.sending && self.outbox.is_empty()
    }

    /// The owner gives the driver bytes of its own; [`Link::sent`] ends that.
    pub fn start_send(&mut self) {
        debug_assert!(self.may_send(), "one send at a time");
        self.sending = true;
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<LinkAction> {
        if let Some(action) = self.next.take() {
            return Some(action);
        }
        if !self.sending
            && let Some(bytes) = self.outbox.pop_front()
        {
            self.sending = true;
            return Some(LinkAction::Send(bytes));
        }
        if self.wants_bytes() {
            self.receiving = true;
            let (buffer, space) = self.reader.lend();
            return Some(LinkAction::Receive(buffer, space));
        }
        None
    }
}

/// Takes a control message through the handshake.
fn accept<'a>(state: &mut State, message: Control) -> Result<Incoming<'a>, Violation> {
    match (*state, message) {
        (State::Greeting, Control::Welcome(welcome)) => {
            if welcome.version != PROTOCOL_VERSION {
                return Err(format!(
                    "it speaks protocol version {}, this client {PROTOCOL_VERSION}",
                    welcome.version
                ));
            }
            *state = State::Up;
            Ok(Incoming::Welcome(welcome))
        }
        (State::Greeting, message @ Control::Error(_)) => Ok(Incoming::Control(message)),
        (State::Greeting, other) => Err(format!("{:?} before Welcome", other.id())),
        (_, Control::Welcome(_)) => Err("a second Welcome".into()),
        (_, message) => Ok(Incoming::Control(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{frame, welcome};

    /// Feeds bytes as a driver does, and drains what comes of them.
    fn feed(
        link: &mut Link,
        mut bytes: &[u8],
        mut each: impl FnMut(Incoming<'_>),
    ) -> Result<(), Violation> {
        while !bytes.is_empty() {
            let Some(LinkAction::Receive(mut buffer, space)) = link.poll() else {
                return Ok(());
            };
            let count = bytes.len().min(space.len());
            buffer[space.start..space.start + count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            link.received(buffer, count);
            while let Some(incoming) = link.next_frame()? {
                each(incoming);
            }
        }
        Ok(())
    }

    fn connected() -> Link {
        let mut link = Link::new("test", 64);
        link.connect("127.0.0.1:1".parse().expect("an address"));
        assert!(matches!(link.poll(), Some(LinkAction::Connect(_))));
        link.connected();
        assert!(matches!(link.poll(), Some(LinkAction::Send(_))), "Hello");
        link
    }

    #[test]
    fn frames_come_out_whole_however_they_come_in() {
        let mut link = connected();
        let bytes = [
            frame(&welcome(3)),
            frame(&Control::Pong),
            frame(&Control::Pong),
        ]
        .concat();
        let mut seen = Vec::new();
        for piece in bytes.chunks(3) {
            feed(&mut link, piece, |incoming| {
                seen.push(matches!(incoming, Incoming::Welcome(_)))
            })
            .expect("good");
        }
        assert_eq!(seen, [true, false, false]);
        assert!(link.is_up());
    }

    #[test]
    fn one_send_at_a_time() {
        let mut link = connected();
        link.send(&Control::Ping);
        assert!(matches!(link.poll(), Some(LinkAction::Receive(..))));
        assert!(
            !link.has_action() && link.poll().is_none(),
            "Hello is still with the driver"
        );
        link.sent();
        assert_eq!(link.poll(), Some(LinkAction::Send(frame(&Control::Ping))));
    }

    #[test]
    fn anything_but_welcome_first_is_a_violation() {
        assert!(feed(&mut connected(), &frame(&Control::Pong), |_| ()).is_err());
        let mut ack = Vec::new();
        embar_wire::ack::encode_ack(0, None, &[1], &mut ack);
        assert!(feed(&mut connected(), &ack, |_| ()).is_err());
        let twice = [frame(&welcome(1)), frame(&welcome(1))].concat();
        assert!(feed(&mut connected(), &twice, |_| ()).is_err());
    }

    #[test]
    fn a_closing_link_hears_nothing_and_is_down_only_when_the_driver_says_so() {
        let mut link = connected();
        link.close();
        assert_eq!(link.poll(), Some(LinkAction::Close));
        assert!(matches!(link.next_frame(), Ok(None)));
        assert!(!link.is_down() && link.poll().is_none());
        link.disconnected();
        assert!(link.is_down() && !link.has_action());
    }

    #[test]
    fn a_link_closed_before_the_driver_saw_it_is_down_at_once() {
        let mut link = Link::new("test", 64);
        link.connect("127.0.0.1:1".parse().expect("an address"));
        link.close();
        assert!(link.is_down() && link.poll().is_none());
    }

    #[test]
    fn hostile_bytes_give_errors_and_never_panic() {
        let mut random = crate::backoff::Random::new(11);
        for round in 0..2_000u64 {
            let mut link = connected();
            let mut bytes = [frame(&welcome(1)), frame(&Control::Pong)].concat();
            let len = bytes.len() as u64;
            for _ in 0..=round % 4 {
                let at = (random.next_bits() % len) as usize;
                bytes[at] = random.next_bits() as u8;
            }
            // Either outcome is right; a panic is not.
            let _ = feed(&mut link, &bytes, |_| ());
        }
    }
}
