//! The world with those who play it: what the ticks and the handlers of all players share.
//!
//! One lock is held for a moment by each of them. Nobody waits while holding it: what is sent under it fails at a full
//! buffer instead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use buffa::Message as _;
use embar_resume::Resumable;

use crate::protocol::{Direction, FoundView, UNREAD_MAX, id};
use crate::world::{BadMove, Secret, Taken, World};

/// Cheap to clone.
#[derive(Clone)]
pub struct Arena(Arc<Mutex<Inner>>);

struct Inner {
    world: World,
    /// Of those who play, by their players.
    seats: HashMap<u32, Seat>,
    /// The world is on its way from or to another process: what happened to it here could be lost.
    is_frozen: bool,
}

/// Where a player is played from.
struct Seat {
    session: Resumable,
    /// It has a connection.
    is_there: bool,
    /// One of its moves came when there was no room, and is to come again.
    is_paused: bool,
    /// The number of the last find that it was sent.
    told: u64,
}

impl Arena {
    /// One in which nobody plays yet, and that stands still until it is told to [go on](Self::thaw).
    pub fn new(mut world: World) -> Self {
        world.all_away();
        Self(Arc::new(Mutex::new(Inner {
            world,
            seats: HashMap::new(),
            is_frozen: true,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ticks that have passed, and players that there are.
    pub fn figures(&self) -> (u64, usize) {
        let inner = self.lock();
        (inner.world.tick(), inner.world.players())
    }

    /// Somebody comes, or comes back, and plays from this session from now on. Who played the same player until now plays it
    /// no more. Gives the player; true: it is a new one. Who slips in while the world is frozen is soon sent on, and new to the
    /// next server, too.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn enter(
        &self,
        session: &Resumable,
        name: &str,
        secret: &Secret,
    ) -> Result<(u32, bool), String> {
        let mut inner = self.lock();
        let (player, is_new) = inner.world.enter(name, secret)?;
        let seat = Seat {
            session: session.clone(),
            is_there: false,
            is_paused: false,
            told: 0,
        };
        let before = inner.seats.insert(player, seat);
        drop(inner);
        if let Some(before) = before {
            before.session.refuse(1, "you play from elsewhere now");
        }
        Ok((player, is_new))
    }

    /// Its session has a connection, or has none. Without one its player stays: the session may be taken up again.
    pub fn is_there(&self, player: u32, session: &Resumable, is_there: bool) {
        if let Some(seat) = self.lock().seat(player, session) {
            seat.is_there = is_there;
        }
    }

    /// The session is over; `for_good`: so is the game, for this player.
    pub fn stand_up(&self, player: u32, session: &Resumable, for_good: bool) {
        let mut inner = self.lock();
        if inner.seat(player, session).is_none() {
            return;
        }
        inner.seats.remove(&player);
        if for_good && !inner.is_frozen {
            inner.world.leave(player);
        } else {
            inner.world.away(player);
        }
    }

    /// A move came. With [`Taken::Full`] it has to come again, and its session is told when.
    ///
    /// # Errors
    /// It is none.
    pub fn take(
        &self,
        player: u32,
        session: &Resumable,
        number: u64,
        direction: Direction,
        heard: u64,
    ) -> Result<Taken, BadMove> {
        let mut inner = self.lock();
        let is_frozen = inner.is_frozen;
        let Some(seat) = inner.seat(player, session) else {
            // Somebody else plays it, and this session is about to end.
            return Ok(Taken::Full);
        };
        seat.is_paused = true;
        if is_frozen {
            return Ok(Taken::Full);
        }
        let taken = inner.world.take(player, number, direction, heard)?;
        if taken != Taken::Full
            && let Some(seat) = inner.seat(player, session)
        {
            seat.is_paused = false;
        }
        Ok(taken)
    }

    /// A tick passes, and those who play learn of it. Who is slow has a snapshot less, and nobody waits for it.
    pub fn tick(&self) {
        let mut inner = self.lock();
        if inner.is_frozen {
            return;
        }
        let Inner { world, seats, .. } = &mut *inner;
        world.step();
        let mut there = Vec::with_capacity(seats.len());
        let mut go_on = Vec::new();
        for (player, seat) in seats.iter_mut().filter(|(_, seat)| seat.is_there) {
            there.push(seat.session.clone());
            for find in world.finds_after(*player, seat.told) {
                let found = FoundView {
                    number: find.number,
                    points: find.points,
                    ..FoundView::default()
                };
                // At a full buffer it is told after a later tick.
                if seat.session.send_view(id::FOUND, &found).is_err() {
                    break;
                }
                seat.told = find.number;
            }
            if seat.is_paused && world.has_room(*player) {
                seat.is_paused = false;
                go_on.push(seat.session.clone());
            }
        }
        let snapshot = world.snapshot();
        drop(inner);
        let snapshot = snapshot.encode_to_vec();
        for session in there {
            if session.unacknowledged() < UNREAD_MAX {
                let fill = |to: &mut [u8]| to.copy_from_slice(&snapshot);
                let _ = session.send_with(id::SNAPSHOT, snapshot.len(), fill);
            }
        }
        for session in go_on {
            session.go_on();
        }
    }

    /// Stops the world, and gives all of it. Moves that come from now on are not taken, and not acknowledged.
    pub fn freeze(&self) -> Vec<u8> {
        let mut inner = self.lock();
        inner.is_frozen = true;
        inner.world.to_bytes()
    }

    pub fn is_frozen(&self) -> bool {
        self.lock().is_frozen
    }

    /// The world goes on here.
    pub fn thaw(&self) {
        self.lock().is_frozen = false;
    }
}

impl Inner {
    /// If it is this session from which the player is played.
    fn seat(&mut self, player: u32, session: &Resumable) -> Option<&mut Seat> {
        let seat = self.seats.get_mut(&player)?;
        (seat.session.id() == session.id()).then_some(seat)
    }
}
