//! One connection of a client's session: from the attempt to make it until it is lost.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use embar_session::{BodyTarget, CloseReason, Closed, Flow, Goodbye, Message, Session, Side};

use crate::dialing::{Attempt, ClientKept, Dialing};
use crate::farewell;
use crate::kept::{Seat, is_control};
use crate::kept_connection::NO_BODIES;
use crate::link::Effect;
use crate::plan::Plan;
use crate::settings::InDoubt;
use crate::state::{End, Restart, State, WhyFresh};
use crate::wire::{Answer, Speaker, Welcome};

/// A connection of a client.
pub(crate) struct DialedConnection {
    dialing: Arc<Dialing>,
    kept: Arc<ClientKept>,
    generation: u64,
    /// The server is leaving, and took no session.
    was_sent_away: bool,
    is_over: bool,
}

impl DialedConnection {
    pub(crate) fn new(dialing: &Arc<Dialing>, attempt: &Attempt) -> Self {
        Self {
            dialing: Arc::clone(dialing),
            kept: Arc::clone(&attempt.kept),
            generation: attempt.generation,
            was_sent_away: false,
            is_over: false,
        }
    }

    /// The server answered: the session begins, or resumes.
    ///
    /// # Errors
    /// What it did wrong.
    fn welcomed(
        &self,
        seat: &mut Seat<Plan>,
        session: &Session,
        welcome: &Welcome<'_>,
    ) -> Result<(), String> {
        let link = self.kept.link();
        let had_token = seat.own.token.is_some();
        let mut restart = None;
        let state = match welcome.answer {
            Answer::Draining => return Ok(()),
            Answer::Resumed if !had_token => {
                return Err("it resumed a session that this end did not ask for".to_owned());
            }
            Answer::Resumed => {
                link.resume(welcome.received)?;
                State::Resumed
            }
            Answer::Fresh(_) if !seat.own.was_open => State::Open,
            Answer::Fresh(why) => {
                let again = self.dialing.settings.in_doubt == InDoubt::SendAgain;
                let (in_doubt, unsent) = link.restart(again);
                seat.inbox.restart();
                let why = if had_token { why } else { WhyFresh::Moved };
                let it = Restart {
                    why,
                    in_doubt,
                    sent_again: again,
                    unsent,
                };
                restart = Some(it);
                State::Restarted(it)
            }
        };
        seat.inbox.told();
        let keeps = welcome.keeps;
        seat.inbox.peer_keeps(keeps.messages, keeps.bytes);
        self.kept.count(seat);
        seat.own.opened(welcome.token, Instant::now());
        let first = state == State::Open;
        seat.live = link.attach(session, self.generation, state);
        if !seat.live {
            return Ok(());
        }
        let greeting = welcome.greeting;
        let fine = self.kept.call(seat, |handler, session| match &restart {
            Some(restart) => handler.restarted(session, restart, greeting),
            None if first => handler.opened(session, greeting),
            None => handler.resumed(session),
        });
        if !fine {
            self.dialing.end(&self.kept, seat, End::Panicked);
        }
        Ok(())
    }
}

impl embar_session::Handler for DialedConnection {
    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        let mut seat = self.kept.seat();
        if seat.generation != self.generation {
            return self.kept.link().turn_away(session);
        }
        let welcome = Welcome::read(greeting);
        if let Ok(welcome) = &welcome
            && matches!(welcome.answer, Answer::Draining)
        {
            self.was_sent_away = true;
            return session.close();
        }
        let done = welcome.and_then(|welcome| self.welcomed(&mut seat, session, &welcome));
        if let Err(text) = done {
            let end = End::BadPeer { text };
            farewell::part(session, &end);
            self.dialing.end(&self.kept, &mut seat, end);
        }
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if !is_control(&message) {
            return self.kept.message(self.generation, session, message);
        }
        let said = message.payload();
        if self.kept.control(self.generation, said, Speaker::Server) == Effect::Left {
            self.kept.seat().own.moved = true;
        }
        Flow::Continue
    }

    fn body(&mut self, _: &Session, _: u16, _: &[u8], _: usize) -> BodyTarget {
        BodyTarget::Refuse(NO_BODIES.to_owned())
    }

    fn woken(&mut self, _: &Session) {
        self.kept.woken(self.generation);
    }

    fn goodbye(&mut self, _: &Session, goodbye: &Goodbye<'_>) {
        let mut seat = self.kept.seat();
        if seat.generation == self.generation {
            seat.own.is_sent_to(goodbye.redirect, goodbye.after);
        }
        drop(seat);
        self.kept.link().leave(self.generation);
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        self.is_over = true;
        let sent_away = self.was_sent_away;
        self.dialing
            .lost(&self.kept, self.generation, why, sent_away);
    }
}

/// An attempt that could not even be begun ends without a word.
impl Drop for DialedConnection {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let why = Closed {
            by: Side::Local,
            reason: CloseReason::Io(io::ErrorKind::Other),
            code: 0,
            text: "a connect could not be begun: for want of memory or descriptors, at the client's max_sessions, or with an address that the system does not take".to_owned(),
        };
        self.dialing.lost(&self.kept, self.generation, &why, false);
    }
}
