//! What the server says, as people read it.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use buffa::Message as _;
use embar_session::{Closed, Flow, Handler, Message, Session};

use super::Event;
use super::desk::Desk;
use super::stay::Gap;
use crate::packets::{JoinedView, LeftView, PresentView, SaidView, Welcome, id};
use crate::print;

/// One session of the client.
pub struct Screen {
    pub desk: Arc<Desk>,
    pub events: Sender<Event>,
    pub is_open: bool,
}

impl Handler for Screen {
    fn opened(&mut self, _: &Session, _: &[u8]) {
        self.is_open = true;
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        match self.line(session, &message) {
            Some(line) if line.is_empty() => {}
            // Control characters out; names in front and long lists are no reason to cut anything.
            Some(line) => print(&line.replace(char::is_control, "")),
            None => session.refuse(0, "that is no server of this chat"),
        }
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        // Else who connects is told.
        if self.is_open {
            self.desk.lost();
            let _ = self.events.send(Event::Over(why.clone()));
        }
    }
}

impl Screen {
    /// What is to be shown of a message, if anything; `None` if it cannot be read.
    fn line(&self, session: &Session, message: &Message<'_>) -> Option<String> {
        Some(match message.id() {
            id::WELCOME => {
                let welcome = Welcome::decode_from_slice(message.payload()).ok()?;
                match self.desk.welcome(session, &welcome) {
                    Gap::None => String::new(),
                    Gap::Lines(count) => forgotten(count),
                    Gap::All => "* the room is a new one; what was said before is forgotten".into(),
                }
            }
            id::SAID => {
                let said: SaidView<'_> = message.decode().ok()?;
                let heard = self.desk.said(&said);
                if heard.missed > 0 {
                    print(&forgotten(heard.missed));
                }
                match heard.is_shown {
                    true => format!("{}: {}", said.name, said.text),
                    false => String::new(),
                }
            }
            id::PRESENT => {
                let present: PresentView<'_> = message.decode().ok()?;
                let _ = self.events.send(Event::In);
                let names: Vec<&str> = present.names.iter().copied().collect();
                match names.as_slice() {
                    [] => "* nobody else is here yet".to_owned(),
                    names => format!("* here: {}", names.join(", ")),
                }
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
            _ => return None,
        })
    }
}

fn forgotten(lines: u64) -> String {
    match lines {
        1 => "* a line is forgotten here".to_owned(),
        _ => format!("* {lines} lines are forgotten here"),
    }
}
