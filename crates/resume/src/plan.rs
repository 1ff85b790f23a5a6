//! When and where a client connects next.

use std::mem;
use std::time::{Duration, Instant};

use embar_session::Address;

use crate::backoff;
use crate::schedule::after;
use crate::settings::ConnectorSettings;
use crate::state::State;
use crate::target::Target;
use crate::token::Token;

/// What a client keeps of a session beside its handler.
pub(crate) struct Plan {
    pub(crate) target: Target,
    /// Of the server that has the session's state.
    pub(crate) token: Option<Token>,
    /// That server's address.
    home: Option<Address>,
    /// The address of the attempt at hand.
    trying: Option<Address>,
    next_of_target: usize,
    /// It has been open.
    pub(crate) was_open: bool,
    /// The server let it go, and nothing is in doubt.
    pub(crate) moved: bool,
    /// Since when there is no connection.
    since: Instant,
    attempt: u32,
    /// When the next attempt begins, if one is to.
    pub(crate) connect_at: Option<Instant>,
}

impl Plan {
    pub(crate) fn new(target: Target, now: Instant) -> Self {
        Self {
            target,
            token: None,
            home: None,
            trying: None,
            next_of_target: 0,
            was_open: false,
            moved: false,
            since: now,
            attempt: 0,
            connect_at: Some(now),
        }
    }

    /// Begins an attempt: where to connect.
    pub(crate) fn begin(
        &mut self,
        preferred: Option<Address>,
        stay: Duration,
        now: Instant,
    ) -> Address {
        self.connect_at = None;
        self.attempt = self.attempt.saturating_add(1);
        let home = self.home.clone();
        let stays = self.token.is_some() && now - self.since < stay;
        let address = preferred.or(home.filter(|_| stays));
        let address = address.unwrap_or_else(|| {
            let all = &self.target.addresses;
            let address = all[self.next_of_target % all.len()].clone();
            self.next_of_target += 1;
            address
        });
        self.trying = Some(address.clone());
        address
    }

    /// The session is open.
    pub(crate) fn opened(&mut self, token: Option<Token>) {
        self.token = token;
        self.home = self.trying.take();
        self.was_open = true;
        self.moved = false;
        self.attempt = 0;
    }

    /// A connection that was open is lost.
    pub(crate) fn lost(&mut self, now: Instant) {
        self.since = now;
        // From here on what the next server says of it counts.
        if mem::take(&mut self.moved) {
            self.token = None;
            self.home = None;
        }
    }

    /// Plans the next attempt. False: the time for that is over.
    pub(crate) fn retry(&mut self, settings: &ConnectorSettings, now: Instant) -> bool {
        if now - self.since >= settings.give_up_after {
            return false;
        }
        let (first, most) = (settings.first_pause, settings.max_pause);
        let attempt = self.attempt.saturating_add(1);
        let pause = backoff::pause(attempt, first, most, fastrand::u32(..));
        self.connect_at = Some(after(now, pause));
        true
    }

    /// How the session stands without a connection.
    pub(crate) fn state(&self) -> State {
        let attempt = self.attempt;
        if self.was_open {
            let since = self.since;
            State::Resuming { attempt, since }
        } else {
            State::Connecting { attempt }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address::Tcp(([127, 0, 0, 1], port).into())
    }

    #[test]
    fn the_server_with_the_state_comes_first_and_then_all_in_turn() {
        let now = Instant::now();
        let stay = Duration::from_secs(5);
        let target = Target::new(address(1)).or(address(2)).or(address(3));
        let mut plan = Plan::new(target, now);
        assert_eq!(plan.begin(None, stay, now), address(1));
        assert_eq!(plan.begin(None, stay, now), address(2));
        let token = Token::read(&[1; 32]);
        plan.opened(token);
        plan.lost(now);
        let later = now + stay;
        assert_eq!(plan.begin(None, stay, now), address(2));
        assert_eq!(plan.begin(None, stay, now), address(2));
        for port in [3, 1, 2, 3] {
            assert_eq!(plan.begin(None, stay, later), address(port));
        }
        plan.opened(token);
        plan.moved = true;
        plan.lost(later);
        assert_eq!(
            plan.begin(None, stay, later),
            address(1),
            "it was sent away"
        );
        assert_eq!(plan.begin(Some(address(9)), stay, later), address(9));
        plan.opened(token);
        plan.lost(later);
        assert_eq!(plan.begin(None, stay, later), address(9));
    }
}
