//! The player's side: moves go out with their numbers, finds and snapshots come in. It connects again by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use buffa::{Message as _, MessageView as _};
use embar_resume::{Connector, ConnectorSettings, Handler, InDoubt, Restart, Resumable, Target};
use embar_session::{Address, Client, Flow, Message, SendError};

use crate::protocol::{
    Direction, FoundView, Join, MoveView, SECRET_BYTES, SnapshotView, WelcomeView, id,
};

/// A player who waits for its server wants to play on at once.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Gets each snapshot that is newer than all before.
pub trait Eyes: Send + 'static {
    /// `so_far` is what became of the player until then.
    fn see(&mut self, so_far: &Tally, snapshot: &SnapshotView<'_>);
}

/// What became of a player so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Its id.
    pub me: u32,
    /// Of the newest snapshot.
    tick: u64,
    /// The number of its last find, and so how many there were.
    pub finds: u64,
    /// Finds of which it was not told.
    pub finds_lost: u64,
    /// How often it came to another server.
    pub restarts: u32,
}

impl Tally {
    fn greet(&mut self, greeting: &[u8]) -> bool {
        let Ok(welcome) = WelcomeView::decode_view(greeting) else {
            return false;
        };
        self.me = welcome.player;
        if welcome.is_new {
            // The world before is lost, with all that was found in it.
            (self.tick, self.finds) = (0, 0);
        }
        true
    }

    fn find(&mut self, number: u64) {
        // What a server sent before it was replaced may come once more.
        if number > self.finds {
            self.finds_lost += number - self.finds - 1;
            self.finds = number;
        }
    }
}

/// Plays one player.
pub struct Pilot {
    session: Resumable,
    tally: Arc<Mutex<Tally>>,
    /// The number of the last move.
    sent: u64,
}

impl Pilot {
    /// Joins as soon as there is a server.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn join(
        connector: &Connector,
        address: &Address,
        name: &str,
        eyes: impl Eyes,
    ) -> anyhow::Result<Self> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret)?;
        let join = Join {
            name: name.to_owned(),
            secret: secret.to_vec(),
        };
        let target = Target::new(address).greeting(join.encode_to_vec());
        let tally = Arc::default();
        let ears = Ears {
            tally: Arc::clone(&tally),
            eyes,
        };
        Ok(Self {
            session: connector.open(target, ears),
            tally,
            sent: 0,
        })
    }

    /// Moves by one step; without a connection it waits for one. Returns the number of the move.
    ///
    /// # Errors
    /// Nothing was sent: too much waits already, or the session is over.
    pub fn go(&mut self, direction: Direction) -> Result<u64, SendError> {
        let number = self.sent + 1;
        let it = MoveView {
            number,
            direction: direction.into(),
            heard: self.tally().finds,
            ..MoveView::default()
        };
        self.session.send_view(id::MOVE, &it)?;
        self.sent = number;
        Ok(number)
    }

    /// Moves so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    pub fn tally(&self) -> Tally {
        *lock(&self.tally)
    }

    pub fn session(&self) -> &Resumable {
        &self.session
    }
}

struct Ears<E> {
    tally: Arc<Mutex<Tally>>,
    eyes: E,
}

impl<E: Eyes> Ears<E> {
    /// `None`: it is not of a server of ours.
    fn hear(&mut self, message: &Message<'_>) -> Option<()> {
        let mut tally = lock(&self.tally);
        match message.id() {
            id::FOUND => tally.find(message.decode::<FoundView<'_>>().ok()?.number),
            id::SNAPSHOT => {
                let snapshot: SnapshotView<'_> = message.decode().ok()?;
                // One that had not left when a connection was lost comes after newer ones.
                if snapshot.tick > tally.tick {
                    tally.tick = snapshot.tick;
                    let so_far = *tally;
                    drop(tally);
                    self.eyes.see(&so_far, &snapshot);
                }
            }
            _ => return None,
        }
        Some(())
    }
}

impl<E: Eyes> Handler for Ears<E> {
    fn opened(&mut self, session: &Resumable, greeting: &[u8]) {
        if !lock(&self.tally).greet(greeting) {
            session.refuse(1, "this is no server of the game");
        }
    }

    fn restarted(&mut self, session: &Resumable, _: &Restart, greeting: &[u8]) {
        lock(&self.tally).restarts += 1;
        self.opened(session, greeting);
    }

    fn message(&mut self, session: &Resumable, message: Message<'_>) -> Flow {
        if self.hear(&message).is_none() {
            session.refuse(1, "this is no server of the game");
        }
        Flow::Continue
    }
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects players, and connects them again.
///
/// What is in doubt when a server is gone is sent again: the next one has its world, which knows the numbers of the moves
/// that it has.
///
/// # Errors
/// No threads can be made.
pub fn connector() -> anyhow::Result<Connector> {
    let settings = ConnectorSettings::default().with(|settings| {
        settings.in_doubt = InDoubt::SendAgain;
        settings.max_pause = PAUSE_MAX;
    });
    Ok(Connector::new(Client::new()?, settings)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Welcome;

    #[test]
    fn finds_count_once_and_gaps_are_noticed() {
        let mut tally = Tally::default();
        for number in [1, 2, 2, 1, 3] {
            tally.find(number);
        }
        assert_eq!((tally.finds, tally.finds_lost), (3, 0));
        tally.find(6);
        assert_eq!((tally.finds, tally.finds_lost), (6, 2));
        let mut welcome = Welcome {
            player: 4,
            ..Welcome::default()
        };
        assert!(tally.greet(&welcome.encode_to_vec()));
        assert_eq!((tally.me, tally.finds), (4, 6));
        welcome.is_new = true;
        assert!(tally.greet(&welcome.encode_to_vec()));
        assert_eq!(tally.finds, 0);
        assert!(!tally.greet(b"HTTP/1.1"));
    }
}
