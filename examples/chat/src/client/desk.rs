//! Where the threads of a client meet: the stay, and the session that there is at the moment.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use embar_session::Session;

use super::stay::{Gap, Heard, Stay};
use crate::packets::{Join, SaidView, SayView, Welcome, id};

pub struct Desk {
    inside: Mutex<Inside>,
    /// Something was said.
    said: Condvar,
}

struct Inside {
    stay: Stay,
    /// The one that is in.
    session: Option<Session>,
}

impl Desk {
    pub fn new(stay: Stay) -> Self {
        let session = None;
        Self {
            inside: Mutex::new(Inside { stay, session }),
            said: Condvar::new(),
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn join(&self) -> Join {
        self.inside().stay.join()
    }

    pub fn was_in(&self) -> bool {
        self.inside().stay.was_in()
    }

    /// Says again what may not have been heard, and from now on what is typed.
    pub fn welcome(&self, session: &Session, welcome: &Welcome) -> Gap {
        let mut inside = self.inside();
        let gap = inside.stay.welcome(welcome);
        inside.session = Some(session.clone());
        let Inside { stay, session } = &mut *inside;
        for say in stay.unsaid() {
            send(session, &say);
        }
        self.said.notify_all();
        gap
    }

    pub fn said(&self, said: &SaidView<'_>) -> Heard {
        let heard = self.inside().stay.said(said);
        self.said.notify_all();
        heard
    }

    /// A line that was typed: waits until there is room for it.
    pub fn type_line(&self, text: &str) {
        let inside = self.inside();
        let inside = self.said.wait_while(inside, |it| it.stay.is_full());
        let mut inside = inside.unwrap_or_else(PoisonError::into_inner);
        inside.stay.type_line(text);
        let Inside { stay, session } = &mut *inside;
        if let Some(say) = stay.unsaid().next_back() {
            send(session, &say);
        }
    }

    pub fn lost(&self) {
        self.inside().session = None;
    }

    /// Waits until all is said; returns how many lines are not.
    pub fn all_said(&self, patience: Duration) -> usize {
        let inside = self.inside();
        let waited = self
            .said
            .wait_timeout_while(inside, patience, |it| it.stay.unsaid().len() > 0);
        let (inside, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inside.stay.unsaid().len()
    }
}

/// No line goes before one that did not go.
fn send(to: &mut Option<Session>, say: &SayView<'_>) {
    if let Some(session) = to
        && session.send_view(id::SAY, say).is_err()
    {
        session.abort();
        *to = None;
    }
}
