//! A server replaces another: it takes the listener and the room.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use buffa::Message as _;
use embar_session::hand_over::{self, HandOverError};
use embar_session::{
    Address, Listener, Plain, Server, ServerBuilder, Settings, SocketError, StartError,
};

use super::hall::Hall;
use super::member::Member;
use crate::packets::RoomState;
use crate::print;
use crate::room::Room;

/// How long a new server waits for an old one that offers.
const TAKE_PATIENCE: Duration = Duration::from_secs(30);
/// Members who do not come back to a new server within this time are told of.
const RETURN: Duration = Duration::from_secs(20);

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
    match (serve(builder().listen(address), &hall), path) {
        (Err(why), Some(path)) if is_in_use(&why) => {
            take(builder(), path).with_context(|| format!("{why}, and it was not handed over"))
        }
        (server, _) => {
            hall.thaw();
            Ok((server?, hall))
        }
    }
}

pub fn serve(builder: ServerBuilder<Plain>, hall: &Arc<Hall>) -> Result<Server, StartError> {
    let hall = Arc::clone(hall);
    builder.start(move |_peer| Member::new(&hall))
}

fn is_in_use(why: &StartError) -> bool {
    matches!(why, StartError::Listen(SocketError::Listen { source, .. })
        if source.kind() == ErrorKind::AddrInUse)
}

fn take(builder: ServerBuilder<Plain>, path: &Path) -> anyhow::Result<(Server, Arc<Hall>)> {
    let mut taken = hand_over::take(path, TAKE_PATIENCE)?;
    let state = RoomState::decode_from_slice(&taken.state())?;
    let room = Room::from_state(state, Instant::now() + RETURN).map_err(anyhow::Error::msg)?;
    let hall = Arc::new(Hall::new(room));
    let listeners: Vec<Listener> = taken.listeners();
    let builder = listeners.into_iter().fold(builder, ServerBuilder::listener);
    let server = serve(builder, &hall)?;
    // Until here the old server may go on, so nothing was said in this one.
    match taken.ready() {
        // It has read that this one is ready, or will.
        Ok(()) | Err(HandOverError::TimedOut) => hall.thaw(),
        Err(why) => return Err(why.into()),
    }
    print("took the place of another server");
    Ok((server, hall))
}

/// Offers the room to the next server until one is ready; until then, this one goes on.
pub fn offer(server: &Server, hall: &Hall, path: &Path) -> Result<(), HandOverError> {
    loop {
        let state = || Ok(hall.freeze());
        let offered = hand_over::offer_with_state(server, path, Duration::MAX, state);
        let Err(why) = offered else { return Ok(()) };
        hall.thaw();
        match why {
            HandOverError::NotReady(_) => print(&why.to_string()),
            _ => return Err(why),
        }
    }
}
