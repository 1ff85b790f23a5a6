//! The client: lines of the terminal go out, what others say comes in.

use std::io::{self, BufRead};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use buffa::Message as _;
use embar_session::{Address, Client, Closed, Flow, Handler, Message, OnFull, Session};

use crate::packets::{
    Join, JoinedView, LINE_MAX, LeftView, PresentView, SaidView, SayView, check_name, clean, id,
};
use crate::print;

/// How long the server has to take what was said last.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the server may take to read on when the ring is full.
const PATIENCE: Duration = Duration::from_secs(10);

enum Event {
    /// End of input, or Ctrl-C.
    Leave,
    Over(Closed),
}

/// Shows what the server says.
struct Screen(Sender<Event>);

impl Handler for Screen {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        match line(&message) {
            Some(line) => print(&clean_line(&line)),
            // Not a server of ours.
            None => session.abort(),
        }
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.0.send(Event::Over(why.clone()));
    }
}

/// A packet as people read it; `None` if it cannot be read.
fn line(message: &Message<'_>) -> Option<String> {
    Some(match message.id() {
        id::SAID => {
            let said: SaidView<'_> = message.decode().ok()?;
            format!("{}: {}", said.name, said.text)
        }
        id::JOINED => {
            let joined: JoinedView<'_> = message.decode().ok()?;
            format!("* {} joined", joined.name)
        }
        id::LEFT => {
            let left: LeftView<'_> = message.decode().ok()?;
            match left.why {
                "" => format!("* {} left", left.name),
                why => format!("* {} is gone: {why}", left.name),
            }
        }
        id::PRESENT => {
            let present: PresentView<'_> = message.decode().ok()?;
            let names: Vec<&str> = present.names.iter().copied().collect();
            match names.as_slice() {
                [] => "* nobody else is here yet".to_owned(),
                names => format!("* here: {}", names.join(", ")),
            }
        }
        _ => return None,
    })
}

/// Control characters out; names in front and long lists are no reason to cut anything.
fn clean_line(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).collect()
}

/// Sends every line of the terminal, until there are no more.
fn read_lines(session: &Session) {
    // Nobody can type faster than the server reads, and what is piped in is all sent.
    session.set_on_full(OnFull::Wait { timeout: PATIENCE });
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
        if text.is_empty() {
            continue;
        }
        if session.send_view(id::SAY, &SayView { text }).is_err() {
            return;
        }
    }
}

/// Joins the room and stays until one of both ends is done.
pub fn run(address: Address, name: &str) -> anyhow::Result<()> {
    check_name(name).map_err(anyhow::Error::msg)?;
    let mut signals = crate::stop_signals()?;
    let (events, happened) = channel();
    let client = Client::new()?;
    let join = Join {
        name: name.to_owned(),
    };
    let connecting = client.open(&address, &join.encode_to_vec(), Screen(events.clone()));
    let session = connecting
        .wait()
        .map_err(|why| anyhow::anyhow!("cannot join at {address}: {why}"))?;
    {
        let (session, events) = (session.clone(), events.clone());
        thread::spawn(move || {
            read_lines(&session);
            let _ = events.send(Event::Leave);
        });
    }
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            let _ = events.send(Event::Leave);
        }
    });
    if let Event::Over(why) = happened.recv()? {
        anyhow::bail!("the chat is over: {why}");
    }
    // What was said is still sent; then the server is told.
    session.close();
    let _ = happened.recv_timeout(FAREWELL);
    Ok(())
}
