//! What is to be remembered of commands that did not go well at once, and when they go out again.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use embar_mux::CloseReason;

use crate::attempt::Target;
use crate::command::Class;
use crate::error::Error;
use crate::resp::ServerError;

/// What was wrong last with a command.
#[derive(Debug, Clone)]
pub(super) enum Problem {
    /// The server did not execute it, and said why.
    Said(ServerError),
    /// No server took it.
    NotTaken(String),
}

impl Problem {
    pub fn text(&self) -> &str {
        match self {
            Self::Said(error) => &error.text,
            Self::NotTaken(why) => why,
        }
    }
}

/// What a run remembers of a command that did not go well at once.
pub(super) struct Trouble {
    /// How often the run has paused for it.
    pub pauses: u32,
    pub redirects: u32,
    /// Where the last redirect leads.
    pub target: Option<Target>,
    pub problem: Problem,
    /// Why an earlier attempt has no reply, if the server may have executed it.
    pub unknown: Option<CloseReason>,
}

impl Trouble {
    pub fn new(problem: Problem) -> Self {
        Self {
            pauses: 0,
            redirects: 0,
            target: None,
            problem,
            unknown: None,
        }
    }

    /// The error of a command that ends with `error`: an earlier attempt may have been executed although
    /// the last one was not.
    pub fn failed(&mut self, class: Class, error: Error) -> Error {
        match self.unknown.take() {
            Some(reason) if class == Class::Write && !error.may_have_executed() => {
                Error::UnknownOutcome(reason)
            }
            _ => error,
        }
    }

    /// The error of a command whose time is over while no server has it.
    pub fn at_deadline(&self) -> Error {
        match self.problem.clone() {
            Problem::Said(error) => error.into(),
            Problem::NotTaken(why) => Error::Unavailable { why },
        }
    }
}

/// Commands that wait until it is time to send them again.
///
/// Those of one slot never overtake each other: while one of them waits, the others wait with it.
#[derive(Default)]
pub(super) struct Parked {
    due: BTreeMap<Instant, Vec<usize>>,
    /// Until when the commands of a slot wait. Times that are over mean nothing.
    slots: HashMap<u16, Instant>,
}

impl Parked {
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Until when commands of this slot have to wait, if any does now.
    pub fn held_until(&self, slot: u16, now: Instant) -> Option<Instant> {
        self.slots.get(&slot).copied().filter(|until| *until > now)
    }

    /// Parks a command up to that time, or up to the one for which its slot waits.
    pub fn park(&mut self, index: usize, slot: Option<u16>, at: Instant) {
        let mut until = at;
        if let Some(slot) = slot {
            let known = self.slots.entry(slot).or_insert(at);
            *known = at.max(*known);
            until = *known;
        }
        self.due.entry(until).or_default().push(index);
    }

    /// When the next ones are due.
    pub fn next(&self) -> Option<Instant> {
        self.due.first_key_value().map(|(at, _)| *at)
    }

    /// Moves the commands that are due to `ready`.
    pub fn take_due(&mut self, now: Instant, ready: &mut Vec<usize>) {
        while let Some(first) = self.due.first_entry()
            && *first.key() <= now
        {
            ready.append(&mut first.remove());
        }
        if self.due.is_empty() {
            self.slots.clear();
        }
    }

    /// Moves all commands to `ready`.
    pub fn take_all(&mut self, ready: &mut Vec<usize>) {
        for (_, mut commands) in std::mem::take(&mut self.due) {
            ready.append(&mut commands);
        }
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn commands_of_a_slot_wait_for_those_before_them() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut parked = Parked::default();
        assert_eq!(parked.held_until(1, start), None);
        parked.park(0, Some(1), at(20));
        parked.park(1, Some(2), at(5));
        // It would be due earlier than the one before it.
        parked.park(2, Some(1), at(10));
        parked.park(3, None, at(5));
        parked.park(4, Some(1), at(30));
        assert_eq!(parked.held_until(1, at(10)), Some(at(30)));
        assert_eq!(parked.held_until(2, at(10)), None, "it is over");
        let due = |parked: &mut Parked, ms| {
            let mut ready = Vec::new();
            parked.take_due(at(ms), &mut ready);
            ready
        };
        assert_eq!(parked.next(), Some(at(5)));
        assert_eq!(due(&mut parked, 4), []);
        assert_eq!(due(&mut parked, 10), [1, 3]);
        assert_eq!(due(&mut parked, 29), [0, 2]);
        parked.park(5, Some(3), at(40));
        let mut all = Vec::new();
        parked.take_all(&mut all);
        assert_eq!(all, [4, 5]);
        assert!(parked.is_empty() && parked.next().is_none());
        assert_eq!(parked.held_until(3, at(30)), None);
    }

    #[test]
    fn the_last_error_is_the_servers_own_and_does_not_hide_an_unknown_outcome() {
        let said = ServerError::new("LOADING");
        let mut trouble = Trouble::new(Problem::Said(said.clone()));
        assert_eq!(trouble.at_deadline(), Error::Server(said));
        let why = "refused".to_owned();
        trouble.problem = Problem::NotTaken(why.clone());
        let error = trouble.at_deadline();
        assert_eq!(error, Error::Unavailable { why });
        let write = Class::Write;
        assert_eq!(trouble.failed(write, error.clone()), error);
        for (class, is_hidden) in [(Class::Read, false), (write, true)] {
            trouble.unknown = Some(CloseReason::Silent);
            let unknown = Error::UnknownOutcome(CloseReason::Silent);
            let expected = if is_hidden { unknown } else { error.clone() };
            assert_eq!(trouble.failed(class, error.clone()), expected);
        }
        trouble.unknown = Some(CloseReason::Silent);
        assert_eq!(trouble.failed(write, Error::TimedOut), Error::TimedOut);
    }
}
