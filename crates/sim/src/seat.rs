//! A candidate of a host: the broker's own, and what the simulator asks of it.

use std::sync::Arc;

use embar_broker::BrokerConfig;
use embar_broker::candidacy::{Candidacy, Due, Outcome, Turn};
use embar_fabric::{Claim, Region};
use embar_memory::Simulated;
use embar_order::{Figures, Sequencer};
use embar_wire::time::Now;

use crate::lease::{Patience, Vigil};
use crate::violation::Check;

/// See the module.
pub struct Seat {
    candidacy: Candidacy<Simulated>,
    /// Batches that the sequencer holds back at most.
    held_max: u32,
    patience: Patience,
    vigil: Vigil,
    /// It takes over at its next turn, whoever leads.
    pub usurps: bool,
}

impl Seat {
    /// A seat that watches from now on. `raw` is the region on the devices.
    pub fn new(
        region: &Region<Simulated>,
        raw: Region<Simulated>,
        claim: &Arc<Claim>,
        config: &BrokerConfig,
        now: Now,
    ) -> Self {
        Self {
            candidacy: Candidacy::new(region, claim, config, now),
            held_max: config.held_batches,
            patience: Patience::default(),
            vigil: Vigil::new(raw, claim.row()),
            usurps: false,
        }
    }

    /// The sequencer, while it is one.
    pub fn sequencer(&self) -> Option<&Sequencer<Simulated>> {
        self.candidacy.sequencer()
    }

    /// What its sequencer has counted, while it is one.
    pub fn figures(&self) -> Option<Figures> {
        Some(self.sequencer()?.core().figures())
    }

    /// Does what is due, and judges it.
    pub fn turn(&mut self, now: Now, alive: &dyn Fn(u16) -> bool) -> (Turn, Check) {
        let before = self.figures();
        let usurps = before.is_none() && self.usurps;
        if before.is_none() {
            self.vigil.look();
        }
        let alive = |row| self.vigil.hears(row, alive(row));
        let turn = if usurps {
            self.candidacy.take_over(now, &alive)
        } else {
            self.candidacy.turn(now, &alive)
        };
        let judged = match (&turn.outcome, before, self.figures()) {
            (Outcome::Stepped { .. }, Some(before), Some(after)) => {
                self.patience.judge(before, after, self.held_max)
            }
            (Outcome::TookOver { .. } | Outcome::Failed(_), ..) if !usurps => {
                self.patience = Patience::default();
                self.vigil.judge()
            }
            _ => {
                self.patience = Patience::default();
                Ok(())
            }
        };
        self.usurps &= self.sequencer().is_none();
        (turn, judged)
    }

    /// When its next turn is due if nobody rings, on its own clock; and when it hears who does.
    pub fn next_at(&self, due: Due, now: Now) -> (Now, Now) {
        match due {
            Due::Now => (now, now),
            Due::After(wait) => (now.after(wait), now.after(wait)),
            Due::Rung => (now.after(self.candidacy.rest(now)), now),
        }
    }
}
