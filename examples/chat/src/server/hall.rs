//! The room as all sessions share it. Whoever changes it tells all members under the same lock, so all of them get all
//! lines in one order. Nobody waits for anybody under it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use buffa::Message as _;
use embar_session::{Broadcast, Lag, Session};

use crate::packets::{
    Join, JoinedView, LINE_MAX, LeftView, MemberId, PresentView, SayView, clean, id,
};
use crate::room::Room;

/// Longest [`Said`](crate::packets::Said), with its name and its numbers.
const SAID_MAX: usize = LINE_MAX + 200;

/// A room, and who listens to it.
pub struct Hall {
    inside: Mutex<Inside>,
    /// Those who have all lines. A send to it fails for nobody: who reads too slowly is dropped, and then
    /// [`Handler::closed`](embar_session::Handler::closed) follows.
    all: Broadcast,
}

struct Inside {
    room: Room,
    /// By which its members are here.
    sessions: BTreeMap<MemberId, Session>,
    /// The next server is told the room as it is now, so it does not change any more.
    is_frozen: bool,
    /// Who left in the meantime.
    leaving: Vec<Leaving>,
}

struct Leaving {
    visit: u64,
    member: MemberId,
    why: String,
}

/// The room is frozen: ask again.
#[derive(Debug)]
pub struct Frozen;

impl Hall {
    /// A room that is frozen at first.
    pub fn new(room: Room) -> Self {
        Self {
            inside: Mutex::new(Inside {
                room,
                sessions: BTreeMap::new(),
                is_frozen: true,
                leaving: Vec::new(),
            }),
            all: Broadcast::new(),
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next server has to know. From here on nothing is said, and nobody comes in.
    pub fn freeze(&self) -> Vec<u8> {
        let mut inside = self.inside();
        inside.is_frozen = true;
        inside.room.state().encode_to_vec()
    }

    /// Everything goes on.
    pub fn thaw(&self) {
        let mut inside = self.inside();
        inside.is_frozen = false;
        for leaving in std::mem::take(&mut inside.leaving) {
            inside.leave(&self.all, &leaving);
        }
    }

    /// Lets a member in, and says from which line on it has to [catch up](Self::catch_up). The inner error is for the
    /// member.
    pub fn enter(
        &self,
        session: &Session,
        member: MemberId,
        join: &Join,
    ) -> Result<Result<u64, String>, Frozen> {
        let mut inside = self.inside();
        if inside.is_frozen {
            return Err(Frozen);
        }
        let entered = match inside.room.enter(session.id().get(), member, join) {
            Ok(entered) => entered,
            Err(why) => return Ok(Err(why)),
        };
        if entered.is_news {
            let joined = JoinedView { name: &join.name };
            let _ = self.all.send_view(id::JOINED, &joined);
        }
        if let Some(earlier) = inside.sessions.insert(member, session.clone()) {
            // The member has lost it, which this end may not have noticed.
            earlier.abort();
        }
        let _ = session.send(id::WELCOME, &entered.welcome);
        Ok(Ok(entered.welcome.after))
    }

    /// Sends the lines behind the one `after` while the session has room. Returns true when there are no more; then the
    /// member gets all that follows.
    pub fn catch_up(&self, session: &Session, member: MemberId, after: &mut u64) -> bool {
        let inside = self.inside();
        for said in inside.room.lines_after(*after) {
            // It also leaves room for what the session needs to be read.
            if !session.has_room(SAID_MAX + session.reply_room())
                || session.send(id::SAID, said).is_err()
            {
                return false;
            }
            *after = said.line;
        }
        let names = inside.room.others(member).into_iter().collect();
        let _ = session.send_view(id::PRESENT, &PresentView { names });
        self.all.join(session, Lag::Close);
        true
    }

    /// A line for all, unless it came before.
    pub fn say(
        &self,
        session: &Session,
        member: MemberId,
        say: &SayView<'_>,
    ) -> Result<(), Frozen> {
        let mut inside = self.inside();
        if inside.is_frozen {
            return Err(Frozen);
        }
        let text = clean(say.text);
        if let Some(said) = inside
            .room
            .say(session.id().get(), member, say.number, &text)
        {
            let _ = self.all.send(id::SAID, said);
        }
        Ok(())
    }

    /// A session ended; `why` is empty if its member said goodbye.
    pub fn leave(&self, session: &Session, member: MemberId, why: String) {
        let visit = session.id().get();
        let leaving = Leaving { visit, member, why };
        let mut inside = self.inside();
        match inside.is_frozen {
            // The next server waits for that member to come back, and says so if it does not.
            true => inside.leaving.push(leaving),
            false => inside.leave(&self.all, &leaving),
        }
    }

    /// Tells of those who were here before this server, and have not come back in time.
    pub fn give_up(&self) {
        let mut inside = self.inside();
        if inside.is_frozen {
            return;
        }
        for name in inside.room.give_up() {
            let why = "it did not come back";
            let _ = self.all.send_view(id::LEFT, &LeftView { name: &name, why });
        }
    }
}

impl Inside {
    fn leave(&mut self, all: &Broadcast, leaving: &Leaving) {
        if let Some(name) = self.room.leave(leaving.visit, leaving.member) {
            self.sessions.remove(&leaving.member);
            let why = &leaving.why;
            let _ = all.send_view(id::LEFT, &LeftView { name, why });
        }
    }
}
