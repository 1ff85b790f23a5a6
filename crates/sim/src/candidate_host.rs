//! A simulated host's candidate for sequencing: the broker's own code, and the checks of each of its turns.

use std::sync::Arc;

use embar_broker::BrokerConfig;
use embar_broker::candidacy::{Candidacy, Due, Outcome, Turn};
use embar_fabric::{Claim, Region};
use embar_frame::Now;
use embar_memory::Simulated;
use embar_order::{Figures, Sequencer};

use crate::lease::{SequencerCheck, WatchCheck};
use crate::violation::Check;

/// A candidate for sequencer, as it runs on a host.
pub struct CandidateHost {
    candidacy: Candidacy<Simulated>,
    /// Batches that the sequencer holds back at most.
    held_max: u32,
    sequencer_check: SequencerCheck,
    watch_check: WatchCheck,
    /// It takes over at its next turn, even from a candidate that lives.
    pub challenges: bool,
}

impl CandidateHost {
    /// A candidate that watches from now on. `raw` is the region on the devices.
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
            sequencer_check: SequencerCheck::default(),
            watch_check: WatchCheck::new(raw, claim.row()),
            challenges: false,
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
        let challenges = before.is_none() && self.challenges;
        if before.is_none() {
            self.watch_check.look();
        }
        let alive = |row| self.watch_check.note_alive(row, alive(row));
        let turn = if challenges {
            self.candidacy.take_over(now, &alive)
        } else {
            self.candidacy.turn(now, &alive)
        };
        let judged = match (&turn.outcome, before, self.figures()) {
            (Outcome::Stepped { .. }, Some(before), Some(after)) => {
                self.sequencer_check.judge(before, after, self.held_max)
            }
            (Outcome::TookOver { .. } | Outcome::Failed(_), ..) if !challenges => {
                self.sequencer_check = SequencerCheck::default();
                self.watch_check.judge()
            }
            _ => {
                self.sequencer_check = SequencerCheck::default();
                Ok(())
            }
        };
        self.challenges &= self.sequencer().is_none();
        (turn, judged)
    }

    /// When its next turn is due, on its own clock: if nothing wakes it, and if something does.
    pub fn next_at(&self, due: Due, now: Now) -> (Now, Now) {
        match due {
            Due::Now => (now, now),
            Due::After(wait) => (now.after(wait), now.after(wait)),
            Due::OnWakeup => (now.after(self.candidacy.rest(now)), now),
        }
    }
}
