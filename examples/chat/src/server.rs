//! The server: one room, and a handler for each member of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use embar_session::{Address, OnFull, Server, Settings};

use crate::print;
use crate::room::PRESENT_MAX;

mod hall;
mod member;
mod succession;

/// How long members have, when the server stops, to take what was said.
const FAREWELL: Duration = Duration::from_secs(2);
/// Members who do not come back to a new server within this time are told of.
const RETURN: Duration = Duration::from_secs(20);
/// How often it is looked who has not come back.
const LOOK: Duration = Duration::from_secs(1);

enum Event {
    /// Ctrl-C.
    Stop,
    /// Another server has the room.
    Replaced,
}

fn settings() -> Settings {
    let mut settings = Settings::default().with(|settings| {
        // Also in a full room a member may come back before its session that is lost has ended.
        settings.max_sessions = PRESENT_MAX * 2;
        // A member who does not read has 64 KiB in the kernel and 256 KiB in the ring, about a
        // hundred full lines; then that member is dropped, and nobody else notices.
        settings.on_full = OnFull::Close;
    });
    settings.sockets.send_buffer_bytes = Some(64 << 10);
    settings
}

/// Serves until the process is asked to stop, or another one takes its place.
pub fn run(address: &Address, hand_over: Option<PathBuf>) -> anyhow::Result<()> {
    let (server, hall) = succession::start(&settings(), address, hand_over.as_deref())?;
    let are_back_by = Instant::now() + RETURN;
    let mut signals = crate::stop_signals()?;
    print(&format!("listening on {}; Ctrl-C stops", server.address()));
    let server = Arc::new(server);
    let (events, happened) = channel();
    if let Some(path) = hand_over {
        let (server, hall, events) = (Arc::clone(&server), Arc::clone(&hall), events.clone());
        thread::spawn(move || {
            succession::offer(&server, &hall, &path);
            drop(server);
            let _ = events.send(Event::Replaced);
        });
    }
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            let _ = events.send(Event::Stop);
        }
    });
    let is_replaced = loop {
        match happened.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) if Instant::now() < are_back_by => {}
            Err(RecvTimeoutError::Timeout) => hall.give_up(),
            Ok(Event::Replaced) => break true,
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break false,
        }
    };
    match is_replaced {
        true => move_out(server),
        false => close(&server),
    }
    Ok(())
}

/// The members go to the next server. The reason with which their sessions end tells them to connect again, also those
/// who came just now.
fn move_out(server: Arc<Server>) {
    print("another server took the place of this one");
    if let Some(server) = Arc::into_inner(server) {
        server.shutdown(FAREWELL);
    }
}

/// The room closes, for all.
fn close(server: &Server) {
    server.stop_accepting();
    for session in server.sessions() {
        session.close();
    }
    let patience = Instant::now() + FAREWELL;
    while server.stats().sessions > 0 && Instant::now() < patience {
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests;
