//! The handler of one player's session, over all of its connections.

use buffa::{Message as _, MessageView as _};
use embar_resume::{End, Ended, Handler, Resumable};
use embar_session::{Closed, Flow, Message, Side};

use crate::arena::Arena;
use crate::protocol::{JoinView, MoveView, Welcome, check_join, id};
use crate::world::{BadMove, Taken};

/// With which a server ends the session of who breaks the rules.
const BROKE_THE_RULES: u32 = 2;

pub struct Guest {
    arena: Arena,
    /// Once it is let in.
    player: Option<u32>,
}

impl Guest {
    pub fn new(arena: &Arena) -> Self {
        Self {
            arena: arena.clone(),
            player: None,
        }
    }

    fn take(&self, session: &Resumable, message: &Message<'_>) -> Result<Taken, BadMove> {
        let (Some(player), id::MOVE) = (self.player, message.id()) else {
            return Err(BadMove);
        };
        let it: MoveView<'_> = message.decode().map_err(|_| BadMove)?;
        let direction = it.direction.as_known().ok_or(BadMove)?;
        self.arena
            .take(player, session, it.number, direction, it.heard)
    }
}

impl Handler for Guest {
    fn greeted(&mut self, session: &Resumable, greeting: &[u8]) -> Result<Vec<u8>, String> {
        let join = JoinView::decode_view(greeting).map_err(|error| error.to_string())?;
        check_join(&join)?;
        let secret = join.secret.try_into().map_err(|_| "a secret is short")?;
        let (player, is_new) = self.arena.enter(session, join.name, secret)?;
        self.player = Some(player);
        let welcome = Welcome { player, is_new };
        Ok(welcome.encode_to_vec())
    }

    fn opened(&mut self, session: &Resumable, _: &[u8]) {
        if let Some(player) = self.player {
            self.arena.is_there(player, session, true);
        }
    }

    fn message(&mut self, session: &Resumable, message: Message<'_>) -> Flow {
        match self.take(session, &message) {
            Ok(Taken::Waits | Taken::Again) => Flow::Continue,
            Ok(Taken::Full) => Flow::Pause,
            Err(why) => {
                session.refuse(BROKE_THE_RULES, &why.to_string());
                Flow::Continue
            }
        }
    }

    fn suspended(&mut self, session: &Resumable, _: &Closed) {
        if let Some(player) = self.player {
            self.arena.is_there(player, session, false);
        }
    }

    fn resumed(&mut self, session: &Resumable) {
        self.opened(session, &[]);
    }

    fn closed(&mut self, session: &Resumable, ended: &Ended) {
        let Some(player) = self.player else { return };
        let for_good = match &ended.why {
            End::Finished { by } => *by == Side::Peer,
            End::Refused { code, .. } => *code == BROKE_THE_RULES,
            _ => false,
        };
        self.arena.stand_up(player, session, for_good);
    }
}
