//! One connection of a server's session: from its greeting until it is lost.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

use embar_session::{BodyTarget, CloseReason, Closed, Flow, Message, Peer, Session, Side};

use crate::farewell::{self, end_of};
use crate::handler::Handler;
use crate::keeping::Keeping;
use crate::kept::{Kept, Seat, is_control};
use crate::state::{End, State, WhyFresh};
use crate::table::{ServerKept, ServerSide};
use crate::token::{TOKEN_BYTES, Token, Tokens};
use crate::wire::{Answer, Hello, MAX_PROGRAM_GREETING_BYTES, Speaker, Welcome, code};

/// Makes the handler of a session that begins.
pub(crate) type MakeHandler = dyn Fn(&Peer) -> Box<dyn Handler> + Send + Sync;

/// A connection to a server that keeps its sessions; made by [`Keeper::handlers`](crate::Keeper::handlers).
pub struct KeptConnection {
    keeping: Arc<Keeping>,
    make: Arc<MakeHandler>,
    peer: Peer,
    line: Option<Line>,
}

/// Which session it is a connection of.
struct Line {
    kept: Arc<ServerKept>,
    generation: u64,
    resumed: bool,
}

/// Why a session does not resume.
enum Instead {
    Fresh(WhyFresh),
    Refuse(String),
}

impl KeptConnection {
    pub(crate) fn new(keeping: &Arc<Keeping>, make: &Arc<MakeHandler>, peer: Peer) -> Self {
        Self {
            keeping: Arc::clone(keeping),
            make: Arc::clone(make),
            peer,
            line: None,
        }
    }

    fn welcome<'a>(&self, answer: Answer, token: Option<Token>, greeting: &'a [u8]) -> Welcome<'a> {
        let window = self.keeping.settings.resume_window.as_millis();
        Welcome {
            answer,
            token,
            received: 0,
            keeps: self.keeping.settings.replay.keeps(),
            window_ms: u64::try_from(window).unwrap_or(u64::MAX),
            greeting,
        }
    }

    fn resume(&mut self, hello: &Hello<'_>, token: &[u8]) -> Result<Vec<u8>, Instead> {
        let shown = Token::read(token).ok_or(Instead::Fresh(WhyFresh::Unknown))?;
        let found = self.keeping.table().find(&shown.name);
        let kept = found.map_err(Instead::Fresh)?;
        let mut seat = kept.seat();
        if !seat.own.tokens.accept(&shown.secret) {
            return Err(Instead::Fresh(WhyFresh::OldToken));
        }
        if seat.handler.is_none() || kept.is_broken() {
            return Err(Instead::Fresh(WhyFresh::Ended));
        }
        // A server that was stopped finds several attempts, and its workers do not take them in their order.
        if hello.attempt != 0 && hello.attempt <= seat.own.attempt {
            let text = "a later connection of this client is here";
            return Err(Instead::Refuse(text.to_owned()));
        }
        let link = kept.link();
        let next = random_token().map_err(Instead::Refuse)?;
        link.check(hello.received).map_err(Instead::Refuse)?;
        self.keeping.unsuspend(&kept, &mut seat);
        seat.own.attempt = hello.attempt;
        seat.generation += 1;
        let before = link.begin(seat.generation);
        // Checked above, and nobody else acknowledges without the seat.
        link.resume(hello.received).map_err(Instead::Refuse)?;
        let token = seat.own.tokens.rotate(shown.secret, next.secret);
        seat.inbox.told();
        seat.inbox
            .peer_keeps(hello.keeps.messages, hello.keeps.bytes);
        let answer = Welcome {
            received: seat.inbox.number(),
            ..self.welcome(Answer::Resumed, Some(token), &[])
        };
        self.line = Some(Line {
            kept: Arc::clone(&kept),
            generation: seat.generation,
            resumed: true,
        });
        let mut fine = true;
        if let Some(before) = before {
            farewell::part(&before, &End::TakenOver);
            let why = Closed {
                by: Side::Local,
                reason: CloseReason::Refused,
                code: code::TAKEN_OVER,
                text: End::TakenOver.to_string(),
            };
            fine = self.tell_suspended(&kept, &mut seat, &why);
        }
        if !fine {
            self.keeping.end(&kept, &mut seat, End::Panicked);
            return Err(Instead::Fresh(WhyFresh::Ended));
        }
        Ok(answer.to_bytes())
    }

    /// False: the handler panicked.
    fn tell_suspended(&self, kept: &ServerKept, seat: &mut Seat<ServerSide>, why: &Closed) -> bool {
        if !std::mem::take(&mut seat.live) {
            return true;
        }
        kept.link().stands(State::Resuming {
            attempt: 0,
            since: Instant::now(),
        });
        kept.call(seat, |handler, session| handler.suspended(session, why))
    }

    fn begin(&mut self, hello: &Hello<'_>, why: WhyFresh) -> Result<Vec<u8>, String> {
        if self.keeping.is_draining() {
            return Ok(self.welcome(Answer::Draining, None, &[]).to_bytes());
        }
        let token = random_token()?;
        let own = ServerSide {
            name: token.name,
            tokens: Tokens::new(token),
            attempt: hello.attempt,
            suspended: None,
        };
        let replay = &self.keeping.settings.replay;
        let handler = (self.make)(&self.peer);
        let kept = Arc::new(Kept::new(handler, replay, &self.keeping.schedule, own));
        let mut seat = kept.seat();
        let greeting = greet(&kept, &mut seat, hello.greeting)?;
        seat.generation = 1;
        seat.inbox
            .peer_keeps(hello.keeps.messages, hello.keeps.bytes);
        kept.link().begin(1);
        self.keeping.table().enter(token.name, &kept);
        self.line = Some(Line {
            kept: Arc::clone(&kept),
            generation: 1,
            resumed: false,
        });
        let answer = self.welcome(Answer::Fresh(why), Some(token), &greeting);
        Ok(answer.to_bytes())
    }
}

impl embar_session::Handler for KeptConnection {
    fn greeted(&mut self, _: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
        let hello = Hello::read(greeting)?;
        let why = match hello.token {
            None => WhyFresh::New,
            Some(token) => match self.resume(&hello, token) {
                Ok(answer) => return Ok(answer),
                Err(Instead::Fresh(why)) => why,
                Err(Instead::Refuse(text)) => return Err(text),
            },
        };
        self.begin(&hello, why)
    }

    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        let Some(line) = &self.line else {
            // It was told to go elsewhere.
            return session.close();
        };
        let mut seat = line.kept.seat();
        if seat.generation != line.generation {
            return line.kept.link().turn_away(session);
        }
        let state = if line.resumed {
            State::Resumed
        } else {
            State::Open
        };
        let link = line.kept.link();
        seat.live = link.attach(session, line.generation, state);
        if !seat.live {
            return;
        }
        let fine = line.kept.call(&mut seat, |handler, session| {
            if line.resumed {
                handler.resumed(session);
            } else if let Ok(hello) = Hello::read(greeting) {
                handler.opened(session, hello.greeting);
            }
        });
        if !fine {
            self.keeping.end(&line.kept, &mut seat, End::Panicked);
        } else if self.keeping.is_draining() {
            session.goodbye();
        }
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let Some(line) = &self.line else {
            return Flow::Continue;
        };
        if !is_control(&message) {
            return line.kept.message(line.generation, session, message);
        }
        let mut seat = line.kept.seat();
        if seat.generation == line.generation {
            // Whoever speaks on this connection has read its greeting.
            seat.own.tokens.confirmed();
        }
        drop(seat);
        let said = message.payload();
        line.kept.control(line.generation, said, Speaker::Client);
        Flow::Continue
    }

    fn body(&mut self, _: &Session, _: u16, _: &[u8], _: usize) -> BodyTarget {
        BodyTarget::Refuse(NO_BODIES.to_owned())
    }

    fn woken(&mut self, _: &Session) {
        if let Some(line) = &self.line {
            line.kept.woken(line.generation);
        }
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let Some(line) = self.line.take() else {
            return;
        };
        let kept = &line.kept;
        let mut seat = kept.seat();
        if seat.generation != line.generation || seat.handler.is_none() {
            return;
        }
        kept.link().lost(line.generation);
        let outlook = kept.link().outlook();
        let done = outlook.is_done();
        let finished = || End::Finished { by: Side::Local };
        let mut end = outlook.kill.or_else(|| kept.panicked());
        end = end.or_else(|| end_of(why));
        end = end.or_else(|| done.then(finished));
        // A client that stops forgets its token.
        if why.reason == CloseReason::Shutdown && why.by == Side::Peer {
            end.get_or_insert(End::Finished { by: Side::Peer });
        }
        let is_let_go = outlook.is_left && outlook.unacknowledged == 0;
        if is_let_go && matches!(end, Some(End::Finished { .. })) {
            end = Some(End::Moved);
        }
        if end.is_none() && !self.tell_suspended(kept, &mut seat, why) {
            end = Some(End::Panicked);
        }
        match end {
            Some(end) => self.keeping.end(kept, &mut seat, end),
            None => self.keeping.suspend(kept, &mut seat, &self.peer),
        }
    }
}

/// Asks the handler whether it wants its client. If not, what has a handle of the session learns that.
fn greet(
    kept: &ServerKept,
    seat: &mut Seat<ServerSide>,
    greeting: &[u8],
) -> Result<Vec<u8>, String> {
    let Some(handler) = seat.handler.as_mut() else {
        return Err(String::new());
    };
    let link = kept.link();
    let asked = || handler.greeted(&kept.session, greeting);
    let answer = catch_unwind(AssertUnwindSafe(asked)).unwrap_or_else(|panic| {
        link.end(End::Panicked);
        resume_unwind(panic)
    });
    let answer = match answer {
        Ok(answer) if answer.len() > MAX_PROGRAM_GREETING_BYTES => {
            Err("the server's greeting is too long".to_owned())
        }
        answer => answer,
    };
    answer.inspect_err(|text| {
        link.end(End::Refused {
            by: Side::Local,
            code: 0,
            text: text.clone(),
        });
    })
}

/// Why a body ends a session that resumes.
pub(crate) const NO_BODIES: &str = "sessions that resume carry no bodies: send messages";

fn random_token() -> Result<Token, String> {
    let mut bytes = [0; TOKEN_BYTES];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| format!("the system gives no random numbers: {error}"))?;
    Token::read(&bytes).ok_or_else(String::new)
}
