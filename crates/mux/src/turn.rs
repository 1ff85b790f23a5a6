//! A caller that waits until its command may go: first for its turn among the commands in flight, then for room.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use embar_transport::ring::RoomWait;
use embar_transport::waiters::Place;

use crate::in_flight::TurnTaken;
use crate::shared::Shared;

/// A caller's place among those who wait to submit a command; see
/// [`Connection::poll_submit`](crate::Connection::poll_submit). Dropped, it leaves its place to the next. A caller
/// that was woken and neither polls nor drops it keeps one of the connection's places for commands.
#[derive(Default)]
pub struct Turn(Option<Box<WaitingCaller>>);

impl Turn {
    /// Whether the caller does not wait.
    pub(crate) fn is_unused(&self) -> bool {
        self.0.is_none()
    }

    /// The wait at this connection; one at another connection is over.
    pub(crate) fn at(&mut self, shared: &Arc<Shared>) -> &mut WaitingCaller {
        let known = self.0.take();
        let here = known.filter(|known| Arc::ptr_eq(&known.shared, shared));
        self.0
            .insert(here.unwrap_or_else(|| Box::new(WaitingCaller::new(shared))))
    }

    /// Waits no more.
    pub fn end(&mut self) {
        self.0 = None;
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_unused() {
            "Turn(unused)"
        } else {
            "Turn(waiting)"
        })
    }
}

/// What a caller waits for at one connection.
pub(crate) struct WaitingCaller {
    shared: Arc<Shared>,
    place: Option<Place>,
    turn: Option<TurnTaken>,
    /// Its place among those with large commands.
    large: Option<Place>,
    ring: RoomWait,
}

impl WaitingCaller {
    fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            place: None,
            turn: None,
            large: None,
            ring: shared.ring.room_wait(),
        }
    }

    /// Ready when a command of `len` bytes is worth an attempt, counted as in flight: how many others are. `None`:
    /// the connection is over.
    pub fn poll_enter(&mut self, len: usize, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        let shared = &*self.shared;
        if self.turn.is_none() {
            let turn = ready!(shared.in_flight.poll_turn(&mut self.place, cx));
            self.turn = turn;
            if self.turn.is_none() {
                return Poll::Ready(None);
            }
        }
        let in_ring = match shared.is_large(len) {
            true => {
                ready!(shared.larges.poll_room(len, &mut self.large, cx));
                0
            }
            false => len,
        };
        // Whether there is room or the ring is closed, the attempt tells.
        let _ = ready!(self.ring.poll(in_ring, cx));
        let turn = self.turn.take();
        Poll::Ready(turn.map(|turn| shared.in_flight.use_turn(turn)))
    }

    /// The attempt found no room: another caller was faster.
    pub fn keep_turn(&mut self) {
        self.turn = Some(self.shared.in_flight.keep_turn());
    }
}

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.shared.in_flight.stop_waiting(place);
        }
        if let Some(place) = self.large {
            self.shared.larges.stop_waiting(place);
        }
        if let Some(turn) = self.turn.take() {
            self.shared.in_flight.give_back(turn);
        }
    }
}
