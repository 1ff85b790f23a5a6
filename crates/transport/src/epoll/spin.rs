//! The reactor spins, if asked to: before it sleeps, it tries for a while to receive. An answer
//! that comes within microseconds then costs no wake-up, at the price of a busy core.

use std::io;
use std::time::{Duration, Instant};

use embar_memory::Mapped;

use super::{Entry, Epoll};
use crate::{Completion, Token};

/// So many outstanding receives are tried one by one; of more the kernel knows better which to try.
const FEW: usize = 4;

/// Rounds of tries between two looks at the clock, and at everything else that may have happened.
const TRIES_PER_LOOK: u32 = 16;

/// The same where streams by shared memory alone are tried, which takes no system calls; so many in all.
const TRIES_PER_LOOK_SHM: u32 = 256;

/// What spinning needs to know.
#[derive(Default)]
pub(super) struct Spin {
    limit: Duration,
    /// Connections that had a receive outstanding since spinning was switched on, each once.
    receivers: Vec<Token>,
    /// Those that have none are sorted out when there are so many.
    sort_out_at: usize,
}

impl Spin {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    #[inline]
    pub(super) fn add(&mut self, token: Token) {
        self.receivers.push(token);
    }
}

/// Rounds of tries of so many receives and of so many streams by shared memory, before the kernel is asked once more: the more there
/// are to try, the fewer rounds, so that what only the kernel knows is not found later for it.
fn rounds_per_look(receivers: usize, hot: usize) -> u32 {
    let most = match (receivers, hot) {
        (0, 1..) => TRIES_PER_LOOK_SHM,
        _ => TRIES_PER_LOOK,
    };
    let each = TRIES_PER_LOOK_SHM as usize / hot.max(1);
    most.min(each.max(1) as u32)
}

impl Epoll {
    /// Before a wait that would block, tries the outstanding receives (those submitted from now
    /// on, while there are few; else it asks the kernel without waiting) and looks for a wake, for
    /// up to `limit`. Zero, the default, switches it off.
    pub fn set_spin(&mut self, limit: Duration) {
        self.spin.limit = limit;
    }

    /// True: something was appended to `out`.
    pub(super) fn spin(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<bool> {
        let limit = timeout.map_or(self.spin.limit, |most| most.min(self.spin.limit));
        let tries = match self.few_receivers() {
            true => rounds_per_look(self.spin.receivers.len(), self.hot.len()),
            false => 0,
        };
        let before = out.len();
        let mut started = None;
        loop {
            for _ in 0..tries {
                self.try_receivers(out);
                self.try_hot(out);
                if self.sleeper.take_awake() {
                    out.push(Completion::Woken);
                }
                if out.len() > before {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            self.look(Some(Duration::ZERO), out)?;
            self.run_round(out);
            self.try_hot(out);
            if out.len() > before {
                return Ok(true);
            }
            let started = *started.get_or_insert_with(Instant::now);
            if started.elapsed() >= limit {
                return Ok(false);
            }
        }
    }

    fn few_receivers(&mut self) -> bool {
        let Self { spin, entries, .. } = self;
        if spin.receivers.len() > FEW && spin.receivers.len() >= spin.sort_out_at {
            spin.receivers
                .retain(|&token| match entries.get_mut(token) {
                    Some(Entry::Stream(connection)) => {
                        connection.listed = connection.recv.is_some();
                        connection.listed
                    }
                    _ => false,
                });
            spin.sort_out_at = 2 * spin.receivers.len();
        }
        spin.receivers.len() <= FEW
    }

    fn try_receivers(&mut self, out: &mut Vec<Completion<Mapped>>) {
        for &token in &self.spin.receivers {
            if let Some(Entry::Stream(connection)) = self.entries.get_mut(token)
                && !connection.connecting
                && let Some(received) = connection.recv_now(token, &mut self.counters)
            {
                self.outstanding -= 1;
                out.push(received);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn between_two_looks_all_streams_together_are_tried_as_often_as_one() {
        assert_eq!(rounds_per_look(0, 1), TRIES_PER_LOOK_SHM);
        // Receives take a call each.
        assert_eq!(rounds_per_look(1, 0), TRIES_PER_LOOK);
        assert_eq!(rounds_per_look(4, 1), TRIES_PER_LOOK);
        for receivers in [0, 1, 4] {
            for hot in [2, 3, 100, 256] {
                let rounds = rounds_per_look(receivers, hot) as usize;
                assert!(rounds * hot <= TRIES_PER_LOOK_SHM as usize, "{hot}");
            }
            for hot in [200, 257, 100_000, usize::MAX] {
                assert_eq!(rounds_per_look(receivers, hot), 1);
            }
        }
    }
}
