//! The client: lines of the terminal go out, what others say comes in, also when the server is replaced.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use buffa::Message as _;
use embar_session::{Address, Client, CloseReason, Closed, Session};

use crate::packets::{LINE_MAX, MemberId, check_name, clean};
use crate::print;
use connection::{Outage, may_pass};
use desk::Desk;
use screen::Screen;
use stay::Stay;

mod connection;
mod desk;
mod screen;
mod stay;

/// How long the server has to take what was said last.
const FAREWELL: Duration = Duration::from_secs(10);

enum Event {
    /// It is in the room, and has all lines.
    In,
    /// The session ended.
    Over(Closed),
    /// End of input, or Ctrl-C; what was typed before is said, or too late.
    Leave,
}

/// Types every line of the terminal, until there are no more.
fn read_lines(desk: &Desk) {
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end does not grow for ever: it is sent in pieces.
        let mut piece = io::Read::take(&mut input, LINE_MAX as u64);
        if !matches!(piece.read_until(b'\n', &mut line), Ok(1..)) {
            return;
        }
        let text = String::from_utf8_lossy(&line);
        let text = &*clean(&text);
        if !text.is_empty() {
            desk.type_line(text);
        }
    }
}

/// Has `wait` end the stay, when what was typed until then is said.
fn leave_after(
    desk: &Arc<Desk>,
    events: &Sender<Event>,
    wait: impl FnOnce(&Desk) + Send + 'static,
) {
    let (desk, events) = (Arc::clone(desk), events.clone());
    thread::spawn(move || {
        wait(&desk);
        desk.all_said(FAREWELL);
        let _ = events.send(Event::Leave);
    });
}

/// Joins the room and stays until one of both ends is done.
pub fn run(address: &Address, name: &str) -> anyhow::Result<()> {
    check_name(name).map_err(anyhow::Error::msg)?;
    let mut signals = crate::stop_signals()?;
    let mut member = MemberId::default();
    getrandom::fill(&mut member)?;
    let desk = Arc::new(Desk::new(Stay::new(name, member)));
    let (events, happened) = channel();
    leave_after(&desk, &events, read_lines);
    leave_after(&desk, &events, move |_| {
        signals.forever().next();
    });
    stay(address, &desk, &events, &happened)?;
    match desk.all_said(Duration::ZERO) {
        0 => Ok(()),
        unsaid => bail!("{unsaid} lines may not be said"),
    }
}

/// Returns when somebody wants to leave.
fn stay(
    address: &Address,
    desk: &Arc<Desk>,
    events: &Sender<Event>,
    happened: &Receiver<Event>,
) -> anyhow::Result<()> {
    let client = Client::new()?;
    let mut outage = Outage::default();
    loop {
        let screen = Screen {
            desk: Arc::clone(desk),
            events: events.clone(),
            is_open: false,
        };
        let connecting = client.open(address, &desk.join().encode_to_vec(), screen);
        let why = match connecting.wait() {
            Ok(session) => match one_session(&session, happened, &mut outage) {
                Some(why) => why,
                None => return Ok(()),
            },
            Err(why) => why,
        };
        // A room that is moving has not let it in yet; else the address may be wrong, or the name.
        if !desk.was_in() && why.reason != CloseReason::Shutdown {
            bail!("cannot join at {address}: {why}");
        }
        let is_first = outage.begins();
        let pause = match outage.pause(Instant::now()) {
            Some(pause) if may_pass(&why) => pause,
            _ => bail!("the chat is over: {why}"),
        };
        if is_first && desk.was_in() {
            print(&format!(
                "* the connection is lost ({why}): connecting again"
            ));
        }
        if let Ok(Event::Leave) = happened.recv_timeout(pause) {
            return Ok(());
        }
    }
}

/// Returns why it ended; none if somebody wants to leave.
fn one_session(
    session: &Session,
    happened: &Receiver<Event>,
    outage: &mut Outage,
) -> Option<Closed> {
    loop {
        match happened.recv() {
            Ok(Event::In) => *outage = Outage::default(),
            Ok(Event::Over(why)) => return Some(why),
            Ok(Event::Leave) | Err(_) => {
                session.close();
                let _ = happened.recv_timeout(FAREWELL);
                return None;
            }
        }
    }
}
