//! One session of the server: a member on its way in, behind, or in the room.

use std::sync::Arc;
use std::time::Duration;

use buffa::Message as _;
use embar_session::{CloseReason, Closed, Flow, Handler, Message, Session};

use super::hall::{Frozen, Hall};
use crate::packets::{Join, MemberId, SayView, check_name, id};

/// When to ask again in a room that is frozen, or send more to somebody who is behind.
const SOON: Duration = Duration::from_millis(10);

/// All calls come from one thread, one after the other.
pub struct Member {
    hall: Arc<Hall>,
    join: Join,
    id: MemberId,
    stage: Stage,
}

enum Stage {
    Outside,
    /// In the room, and missing what was said after this line.
    Behind(u64),
    UpToDate,
    Refused,
}

impl Member {
    pub fn new(hall: &Arc<Hall>) -> Self {
        Self {
            hall: Arc::clone(hall),
            join: Join::default(),
            id: MemberId::default(),
            stage: Stage::Outside,
        }
    }

    /// As far in as it gets now.
    fn go_in(&mut self, session: &Session) {
        if let Stage::Outside = self.stage {
            match self.hall.enter(session, self.id, &self.join) {
                Ok(Ok(after)) => self.stage = Stage::Behind(after),
                Ok(Err(why)) => {
                    session.refuse(0, &why);
                    self.stage = Stage::Refused;
                }
                Err(Frozen) => session.wake_after(SOON),
            }
        }
        if let Stage::Behind(after) = &mut self.stage {
            match self.hall.catch_up(session, self.id, after) {
                true => self.stage = Stage::UpToDate,
                false => session.wake_after(SOON),
            }
        }
    }
}

impl Handler for Member {
    /// The handshake: an `Err` here is what the client's connect ends with. Whether the room has a place is
    /// decided when it is not frozen.
    fn greeted(&mut self, _: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
        self.join = Join::decode_from_slice(greeting).map_err(|error| error.to_string())?;
        check_name(&self.join.name)?;
        let id = self.join.member.as_slice().try_into();
        self.id = id.map_err(|_| "a member has an id of 16 bytes")?;
        Ok(Vec::new())
    }

    fn opened(&mut self, session: &Session, _: &[u8]) {
        self.go_in(session);
    }

    /// A line: it is read where the kernel put it, and encoded once for all.
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let (id::SAY, Ok(say)) = (message.id(), message.decode::<SayView<'_>>()) else {
            // Not one of ours.
            session.abort();
            return Flow::Continue;
        };
        // Who is on the way in is not in yet.
        let is_in = !matches!(self.stage, Stage::Outside);
        if is_in && self.hall.say(session, self.id, &say).is_ok() {
            return Flow::Continue;
        }
        // It stays in the ring, and comes again.
        session.wake_after(SOON);
        Flow::Pause
    }

    fn woken(&mut self, session: &Session) {
        self.go_in(session);
        session.resume();
    }

    fn closed(&mut self, session: &Session, why: &Closed) {
        let why = match why.reason {
            CloseReason::Finished => String::new(),
            reason => reason.to_string(),
        };
        self.hall.leave(session, self.id, why);
    }
}
