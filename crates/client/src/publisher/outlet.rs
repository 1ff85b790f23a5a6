//! Which sends are with callers instead of with the channels' own threads.
//!
//! The core gives out one send of a connection at a time, to whoever asks first under the lock: the channel's thread, or
//! a thread that has just submitted a batch. To the latter it is lent: that thread sends without the lock, once and never
//! blocking, and reports. What the connection did not take goes on in the channel's reactor.
//!
//! Invariants:
//! - While a loan is out, or something is left of it, the core counts a send. So it gives out no other, and the bytes of
//!   a connection keep their order.
//! - The end of a connection is reported to the core when no loan of it is out, and nothing is left of one.

use embar_frame::Now;
use embar_transport::{DirectSend, SendBuf};

use super::core::PublisherCore;
use crate::connection::ChannelId;

/// A caller sends no more than this by itself into a socket, and only while nothing is in flight there: it would copy for
/// long, while the channel's thread could. By shared memory it names to the broker what may be as long as it likes.
const SOCKET_SEND_MAX: u64 = 64 << 10;

/// How callers reach the connection of one channel.
#[derive(Default)]
struct Outlet {
    /// There while the connection stands.
    direct: Option<DirectSend>,
    /// A loan is out.
    lent: bool,
    /// What was left of the latest, for the channel's thread.
    rest: Option<SendBuf>,
    /// The channel's thread waits for the loan, to report the end of the connection.
    ending: bool,
}

impl Outlet {
    /// Whether the channel's thread has to do something.
    fn has_work(&self) -> bool {
        self.rest.is_some() || (self.ending && !self.lent)
    }
}

/// What the publisher's lock guards: the core, and the ways around its channels' threads.
pub(super) struct State {
    pub(super) core: PublisherCore,
    /// By index of the channel among those to data brokers.
    outlets: Vec<Outlet>,
}

impl State {
    pub(super) fn new(core: PublisherCore) -> Self {
        Self {
            core,
            outlets: Vec::new(),
        }
    }

    /// The connection of `channel` stands, and callers may send on it.
    pub(super) fn open_outlet(&mut self, channel: ChannelId, direct: Option<DirectSend>) {
        let Some(index) = channel.data_index() else {
            return;
        };
        if self.outlets.len() <= index {
            self.outlets.resize_with(index + 1, Outlet::default);
        }
        self.outlets[index].direct = direct;
    }

    /// The connection of `channel` has ended; false if its end cannot be reported yet, because a loan is out. The
    /// channel's thread is woken when it is back.
    pub(super) fn close_outlet(&mut self, channel: ChannelId) -> bool {
        let Some(outlet) = outlet(&mut self.outlets, channel) else {
            return true;
        };
        outlet.direct = None;
        outlet.ending = outlet.lent;
        if outlet.lent {
            return false;
        }
        if let Some(rest) = outlet.rest.take() {
            self.core.cut_short(channel, &rest);
        }
        true
    }

    /// What a caller could not send, for the reactor of `channel`.
    pub(super) fn take_rest(&mut self, channel: ChannelId) -> Option<SendBuf> {
        outlet(&mut self.outlets, channel)?.rest.take()
    }

    /// Whether the thread of `channel` has to do something.
    pub(super) fn has_work(&mut self, channel: ChannelId) -> bool {
        let own = outlet(&mut self.outlets, channel).is_some_and(|outlet| outlet.has_work());
        own || self.core.has_action(channel)
    }

    /// The send of the channel that was given a batch last, if that batch can go at once.
    pub(super) fn lend(&mut self, now: Now) -> Option<Lent> {
        let channel = self.core.last_channel();
        let outlet = outlet(&mut self.outlets, channel)?;
        let direct = outlet.direct.clone()?;
        let (most, busy) = match direct.is_shm() && self.core.names_batches(channel) {
            true => (u64::MAX, true),
            false => (SOCKET_SEND_MAX, false),
        };
        let buf = self.core.poll_send(channel, most, busy, now)?;
        outlet.lent = true;
        Some(Lent {
            channel,
            direct,
            buf,
        })
    }

    /// A loan is over; what was not sent is for the channel's thread.
    pub(super) fn returned(&mut self, channel: ChannelId, rest: Option<SendBuf>) {
        if let Some(outlet) = outlet(&mut self.outlets, channel) {
            outlet.lent = false;
            outlet.rest = rest;
        }
    }
}

fn outlet(outlets: &mut [Outlet], channel: ChannelId) -> Option<&mut Outlet> {
    outlets.get_mut(channel.data_index()?)
}

/// A send that the core gave out to a caller.
pub(super) struct Lent {
    pub(super) channel: ChannelId,
    pub(super) direct: DirectSend,
    pub(super) buf: SendBuf,
}
