//! Who is turned away first while a server fills up.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_transport::Peer;

/// How much a session matters beside others of its server: see
/// [`ServerBuilder::prioritize`](crate::ServerBuilder::prioritize).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// The first to be turned away: spectators, crawlers, trials.
    Low,
    /// All sessions of a server that gives no priorities, and of clients.
    #[default]
    Normal,
    /// Turned away at the limits themselves: operators, paying players.
    High,
}

/// What a server keeps from lower priorities, in percent of its limits. The limits are
/// [`Settings::max_sessions`](crate::Settings::max_sessions), the
/// [budget](crate::Settings::budget) of memory, and
/// [what bodies may take of it](crate::Settings::body_budget_bytes).
///
/// It only ever turns away who comes new, and refuses bodies before their memory is taken. No session ends for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reserve {
    /// Kept from [`Priority::Low`]; at most 99. Default 20.
    pub from_low: u8,
    /// Kept from [`Priority::Normal`], too; no more than `from_low`. Default 5.
    pub from_normal: u8,
}

impl Default for Reserve {
    fn default() -> Self {
        Self {
            from_low: 20,
            from_normal: 5,
        }
    }
}

impl Reserve {
    /// Nothing is kept from anybody.
    pub(super) const NONE: Self = Self {
        from_low: 0,
        from_normal: 0,
    };

    /// This reserve with what `change` does to it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// # Errors
    /// `InvalidInput` where lower priorities get more than higher ones, or nothing.
    pub(super) fn check(self) -> io::Result<()> {
        if self.from_normal <= self.from_low && self.from_low <= 99 {
            return Ok(());
        }
        let text = "a reserve keeps at most 99 percent from low priorities, and no more from normal ones than from low ones";
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    /// How far sessions of `priority` may fill what has `limit` places or bytes. At least one is open to all.
    pub(super) fn open_to(self, priority: Priority, limit: usize) -> usize {
        let kept = match priority {
            Priority::Low => self.from_low,
            Priority::Normal => self.from_normal,
            Priority::High => 0,
        };
        // Hundredths first: a limit may be anything up to usize::MAX.
        let open = usize::from(100 - kept.min(100));
        let part = limit / 100 * open + limit % 100 * open / 100;
        part.max(limit.min(1))
    }
}

/// The priority of who connected, by its address and its greeting.
type PriorityOf = dyn Fn(&Peer, &[u8]) -> Priority + Send + Sync;

/// Which sessions have which priority, and what that is worth.
pub(super) struct Priorities {
    pub(super) reserve: Reserve,
    pub(super) of: Box<PriorityOf>,
}

impl Priorities {
    /// The priority of a peer that has greeted; a low one, if the user's code panics.
    pub(super) fn of(&self, peer: &Peer, greeting: &[u8]) -> Priority {
        catch_unwind(AssertUnwindSafe(|| (self.of)(peer, greeting))).unwrap_or_else(|_| {
            tracing::error!(%peer, "a panic where a peer was to get its priority: it has a low one");
            Priority::Low
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_priorities_fill_less_and_nobody_is_kept_out_of_all() {
        let reserve = Reserve::default();
        let open = |limit: usize| {
            [Priority::Low, Priority::Normal, Priority::High]
                .map(|priority| reserve.open_to(priority, limit))
        };
        assert_eq!(open(1000), [800, 950, 1000]);
        assert_eq!(open(10), [8, 9, 10]);
        assert_eq!(open(1), [1, 1, 1]);
        assert_eq!(open(0), [0, 0, 0]);
        let [low, normal, high] = open(usize::MAX);
        assert!(low < normal && normal < high && high == usize::MAX);
        assert_eq!(Reserve::NONE.open_to(Priority::Low, 7), 7);
    }

    #[test]
    fn a_reserve_that_prefers_lower_priorities_is_refused() {
        let of = |from_low: u8, from_normal: u8| Reserve {
            from_low,
            from_normal,
        };
        assert!(Reserve::default().check().is_ok() && Reserve::NONE.check().is_ok());
        assert!(of(99, 99).check().is_ok());
        assert!(of(100, 5).check().is_err());
        assert!(of(5, 6).check().is_err());
    }
}
