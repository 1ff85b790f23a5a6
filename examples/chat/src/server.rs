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
    let (ends, end) = channel();
    let offering = hand_over.map(|path| {
        let (server, hall, ends) = (Arc::clone(&server), Arc::clone(&hall), ends.clone());
        thread::spawn(move || {
            let is_replaced = succession::offer(&server, &hall, &path);
            drop(server);
            let _ = ends.send(());
            is_replaced
        })
    });
    thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            let _ = ends.send(());
        }
        // Who asks twice does not want to wait, also not for somebody who takes the room.
        if signals.next().is_some() {
            std::process::exit(1);
        }
    });
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(LOOK) {
        if Instant::now() >= are_back_by {
            hall.give_up();
        }
    }
    // Who is about to take the room gets it, and otherwise nobody does any more.
    server.stop_accepting();
    let is_replaced = offering.is_some_and(|it| it.join().unwrap_or_default());
    match is_replaced {
        true => print("another server took the place of this one"),
        false => close(&server),
    }
    // The reason with which sessions end here tells members to connect again, also those who came just now.
    if let Some(server) = Arc::into_inner(server) {
        server.shutdown(FAREWELL);
    }
    Ok(())
}

/// The room closes, for all.
fn close(server: &Server) {
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
