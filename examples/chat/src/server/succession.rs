//! A server replaces another: it takes the listener and the room.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use buffa::Message as _;
use embar_session::hand_over::{self, HandOverError};
use embar_session::{Address, Listener, Plain, Server, ServerBuilder, Settings, StartError};

use super::hall::Hall;
use super::member::Member;
use crate::packets::RoomState;
use crate::print;
use crate::room::Room;

/// How long a new server tries to listen, or to take over from an old one.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits for an offer before it tries again to listen: the old server may have ended.
const TAKE_PATIENCE: Duration = Duration::from_secs(1);
const PAUSE_TO_TAKE: Duration = Duration::from_millis(200);
const PAUSE_TO_OFFER: Duration = Duration::from_secs(1);

/// Serves at `address`. If another process does and has a hand-over at `path`, this one takes its place.
pub fn start(
    settings: &Settings,
    address: &Address,
    path: Option<&Path>,
) -> anyhow::Result<(Server, Arc<Hall>)> {
    // Any number but 0.
    let id = getrandom::u64()? | 1;
    let hall = Arc::new(Hall::new(Room::new(id)));
    let builder = || Server::builder().settings(settings.clone());
    let deadline = Instant::now() + PATIENCE;
    loop {
        match (serve(builder().listen(address), &hall), path) {
            (Err(StartError::Listen(why)), Some(path)) if why.is_in_use() => {
                match take(builder(), path) {
                    Err(why) if Instant::now() < deadline && may_pass(&why) => {
                        if !nobody_offers(&why) {
                            print(&why.to_string());
                        }
                    }
                    taken => {
                        return taken.with_context(|| format!("{why}, and it was not handed over"));
                    }
                }
            }
            (server, _) => {
                hall.thaw();
                return Ok((server?, hall));
            }
        }
        thread::sleep(PAUSE_TO_TAKE);
    }
}

fn may_pass(why: &anyhow::Error) -> bool {
    why.downcast_ref().is_some_and(HandOverError::may_pass)
}

fn nobody_offers(why: &anyhow::Error) -> bool {
    matches!(why.downcast_ref(), Some(HandOverError::TimedOut))
}

pub fn serve(builder: ServerBuilder<Plain>, hall: &Arc<Hall>) -> Result<Server, StartError> {
    let hall = Arc::clone(hall);
    builder.start(move |_peer| Member::new(&hall))
}

fn take(builder: ServerBuilder<Plain>, path: &Path) -> anyhow::Result<(Server, Arc<Hall>)> {
    let mut taken = hand_over::take(path, TAKE_PATIENCE)?;
    let state = RoomState::decode_from_slice(&taken.state())?;
    let room = Room::from_state(state).map_err(anyhow::Error::msg)?;
    let hall = Arc::new(Hall::new(room));
    let listeners: Vec<Listener> = taken.listeners();
    let builder = listeners.into_iter().fold(builder, ServerBuilder::listener);
    let server = serve(builder, &hall)?;
    taken.ready()?;
    // Until here the old server may go on, so nothing was said in this one.
    hall.thaw();
    print("took the place of another server");
    Ok((server, hall))
}

/// Offers the room to the next server until one is ready; until then, this one goes on. Returns whether one is; otherwise this one has stopped.
pub fn offer(server: &Server, hall: &Hall, path: &Path) -> bool {
    loop {
        let state = || Ok(hall.freeze());
        let offered = hand_over::offer_with_state(server, path, Duration::MAX, state);
        let Err(why) = offered else { return true };
        hall.thaw();
        if let HandOverError::NoListeners = why {
            return false;
        }
        print(&format!("not replaced: {why}"));
        thread::sleep(PAUSE_TO_OFFER);
    }
}
