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
    /// Where the server asked it to go, and to wait so long before that, in case it lets the session go.
    sent_to: Option<Address>,
    wait: Duration,
    /// Since when there is no connection.
    since: Instant,
    /// From when on one may be made: the time after which it gives up counts from here.
    wanted_from: Instant,
    /// When the latest connection opened.
    opened_at: Instant,
    attempt: u32,
    /// Attempts since a connection lasted; pauses grow with them.
    in_vain: u32,
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
            sent_to: None,
            wait: Duration::ZERO,
            since: now,
            wanted_from: now,
            opened_at: now,
            attempt: 0,
            in_vain: 0,
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
        self.in_vain = self.in_vain.saturating_add(1);
        let preferred = preferred.or(self.sent_to.take());
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
    pub(crate) fn opened(&mut self, token: Option<Token>, now: Instant) {
        self.token = token;
        self.home = self.trying.take();
        self.was_open = true;
        self.moved = false;
        self.opened_at = now;
        self.attempt = 0;
        (self.sent_to, self.wait) = (None, Duration::ZERO);
    }

    /// The server is leaving, and asks the client to go to this address after this wait. One that is not of the target is
    /// not followed: whom a client trusts is not for a server to say.
    pub(crate) fn is_sent_to(&mut self, address: Option<&str>, wait: Duration) {
        let is_it = |known: &&Address| address.is_some_and(|text| known.to_string() == text);
        self.sent_to = self.target.addresses.iter().find(is_it).cloned();
        self.wait = wait;
    }

    /// A connection that was open is lost.
    pub(crate) fn lost(&mut self, settings: &ConnectorSettings, now: Instant) {
        (self.since, self.wanted_from) = (now, now);
        // A server that takes connections and ends them is none that is there again.
        if now - self.opened_at >= settings.max_pause {
            self.in_vain = 0;
        }
        if !self.moved {
            // The state is still where it was.
            (self.sent_to, self.wait) = (None, Duration::ZERO);
        }
        // From here on what the next server says of it counts.
        if mem::take(&mut self.moved) {
            self.token = None;
            self.home = None;
        }
    }

    /// Plans the next attempt. False: the time for that is over.
    pub(crate) fn retry(&mut self, settings: &ConnectorSettings, now: Instant) -> bool {
        if now - self.wanted_from >= settings.give_up_after {
            return false;
        }
        let (first, most) = (settings.first_pause, settings.max_pause);
        let attempt = self.in_vain.saturating_add(1);
        let pause = backoff::pause(attempt, first, most, fastrand::u32(..));
        let wait = mem::take(&mut self.wait).min(settings.give_up_after);
        if !wait.is_zero() {
            self.wanted_from = after(now, wait);
        }
        self.connect_at = Some(after(now, pause.max(wait)));
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
        let settings = ConnectorSettings::default();
        let stay = settings.stay;
        let target = Target::new(address(1)).or(address(2)).or(address(3));
        let mut plan = Plan::new(target, now);
        assert_eq!(plan.begin(None, stay, now), address(1));
        assert_eq!(plan.begin(None, stay, now), address(2));
        let token = Token::read(&[1; 32]);
        plan.opened(token, now);
        plan.lost(&settings, now);
        let later = now + stay;
        assert_eq!(plan.begin(None, stay, now), address(2));
        assert_eq!(plan.begin(None, stay, now), address(2));
        for port in [3, 1, 2, 3] {
            assert_eq!(plan.begin(None, stay, later), address(port));
        }
        plan.opened(token, now);
        plan.moved = true;
        plan.lost(&settings, later);
        assert_eq!(
            plan.begin(None, stay, later),
            address(1),
            "it was sent away"
        );
        assert_eq!(plan.begin(Some(address(9)), stay, later), address(9));
        plan.opened(token, now);
        plan.lost(&settings, later);
        assert_eq!(plan.begin(None, stay, later), address(9));
    }

    #[test]
    fn the_time_that_a_server_asks_to_wait_is_none_in_which_nobody_was_found() {
        let settings = ConnectorSettings::default();
        let lost_at = Instant::now();
        let wait = settings.give_up_after;
        let mut plan = Plan::new(Target::new(address(1)), lost_at);
        plan.begin(None, settings.stay, lost_at);
        plan.opened(Token::read(&[1; 32]), lost_at);
        plan.is_sent_to(None, wait);
        plan.moved = true;
        plan.lost(&settings, lost_at);
        assert!(plan.retry(&settings, lost_at));
        let back = plan.connect_at.unwrap();
        assert!(back >= lost_at + wait);
        plan.begin(None, settings.stay, back);
        assert!(plan.retry(&settings, back), "it was not there yet");
        assert!(!plan.retry(&settings, lost_at + wait + settings.give_up_after));
    }

    #[test]
    fn pauses_grow_although_a_server_takes_each_connection_and_ends_it() {
        let settings = ConnectorSettings::default();
        let mut now = Instant::now();
        let mut plan = Plan::new(Target::new(address(1)), now);
        let mut pauses = Vec::new();
        for _ in 0..20 {
            plan.begin(None, settings.stay, now);
            plan.opened(Token::read(&[1; 32]), now);
            now += Duration::from_millis(1);
            plan.lost(&settings, now);
            assert!(plan.retry(&settings, now));
            pauses.push(plan.connect_at.unwrap() - now);
        }
        for (number, pause) in pauses.iter().enumerate() {
            let least = settings.first_pause * (1 << number.min(10)) / 2;
            assert!(*pause >= least.min(settings.max_pause / 2), "{pauses:?}");
        }
        plan.begin(None, settings.stay, now);
        plan.opened(Token::read(&[1; 32]), now);
        now += settings.max_pause;
        plan.lost(&settings, now);
        assert!(plan.retry(&settings, now));
        let pause = plan.connect_at.unwrap() - now;
        assert!(pause <= settings.first_pause, "it lasted: {pause:?}");
    }

    #[test]
    fn a_redirect_counts_for_a_session_that_was_let_go_and_within_the_target() {
        let settings = ConnectorSettings::default();
        let now = Instant::now();
        let wait = Duration::from_secs(20);
        let token = Token::read(&[1; 32]);
        let target = Target::new(address(1)).or(address(2)).or(address(3));
        for (text, moved, expected) in [
            ("127.0.0.1:3", true, address(3)),
            ("127.0.0.1:9", true, address(2)),
            ("127.0.0.1:3", false, address(1)),
        ] {
            let mut plan = Plan::new(target.clone(), now);
            plan.begin(None, settings.stay, now);
            plan.opened(token, now);
            plan.is_sent_to(Some(text), wait);
            plan.moved = moved;
            plan.lost(&settings, now);
            assert!(plan.retry(&settings, now));
            let waits = plan.connect_at.unwrap() - now >= wait;
            assert_eq!(waits, moved, "{text}");
            assert_eq!(plan.begin(None, settings.stay, now), expected, "{text}");
            // Once: the pause after that is as any other.
            assert!(plan.retry(&settings, now));
            assert!(plan.connect_at.unwrap() - now < wait);
        }
    }
}
