//! A candidate: it watches the sequencer, takes over, and sequences until it is deposed.

use std::panic::panic_any;
use std::sync::Arc;

use embar_fabric::{Claim, PbrRecord, Region};
use embar_memory::Simulated;
use embar_order::sequencer::Intact;
use embar_order::{Candidate, Sequencer, TakeoverError};

use super::ask;
use super::bytes::checksum;
use crate::lease::{Patience, Vigil};

/// See the module.
pub struct Seat {
    row: u16,
    claim: Arc<Claim>,
    region: Region<Simulated>,
    watch: Candidate,
    vigil: Vigil,
    sequencer: Option<Sequencer<Simulated>>,
    patience: Patience,
    held_max: u32,
    /// It takes over at its next step, whoever leads.
    pub usurp: bool,
}

impl Seat {
    /// The next incarnation of a row.
    pub fn start(region: Region<Simulated>, row: u16) -> Self {
        Self {
            row,
            claim: Arc::new(region.claim_unlocked(row)),
            region,
            watch: Candidate::new(ask::plan(|plan| plan.lease_ns), ask::now()),
            vigil: Vigil::new(ask::raw(), row),
            sequencer: None,
            patience: Patience::default(),
            held_max: ask::plan(|plan| plan.limits.held),
            usurp: false,
        }
    }

    /// Whether it sequences not, or not any more.
    pub fn watches(&self) -> bool {
        self.sequencer.is_none()
    }

    pub fn step(&mut self) {
        let Some(sequencer) = &mut self.sequencer else {
            let (region, now) = (&self.region, ask::now());
            self.vigil.look();
            let alive = |row| self.vigil.hears(row, ask::alive(row));
            let due = self.watch.should_take_over(region, now, &alive);
            if due
                && ask::alive(self.row)
                && let Err(violation) = self.vigil.judge()
            {
                panic_any(violation);
            }
            if due || self.usurp {
                self.take_over();
            }
            return;
        };
        if ask::one_in(3) && !sequencer.beat(&ask::alive) {
            ask::saw("sequencers deposed");
            ask::note(|| format!("candidate {} is deposed", self.row));
            self.sequencer = None;
            return;
        }
        if ask::one_in(10) {
            sequencer.retain_chains(&ask::exists);
        }
        let before = sequencer.core().figures();
        let step = sequencer.step(ask::now(), &ask::exists);
        let after = sequencer.core().figures();
        if let Err(violation) = self.patience.judge(before, after, self.held_max) {
            panic_any(violation);
        }
        ask::saw_many("batches ordered", step.ordered as u64);
    }

    fn take_over(&mut self) {
        ask::begins_takeover(self.row);
        ask::note(|| format!("candidate {} takes over", self.row));
        ask::perhaps_fail(self.row);
        let region = self.region.clone();
        let intact: Intact = Box::new(move |row, record| is_intact(&region, row, record));
        let limits = ask::plan(|plan| plan.limits.clone());
        let sequencer =
            Sequencer::take_over(&self.region, &self.claim, &limits, &ask::exists, intact);
        if !ask::alive(self.row) {
            // Nobody hears of what the dead believe to lead.
            return ask::saw("takeovers that died");
        }
        ask::ends_takeover(self.row);
        match sequencer {
            Ok(sequencer) => {
                ask::note(|| format!("candidate {} leads: {}", self.row, sequencer.epoch()));
                ask::saw("takeovers");
                ask::begins_term(self.row, sequencer.epoch());
                self.sequencer = Some(sequencer);
                self.patience = Patience::default();
                self.usurp = false;
            }
            Err(TakeoverError::Overtaken) => ask::saw("takeovers overtaken"),
            Err(error) => panic!("candidate {}: {error}", self.row),
        }
    }
}

fn is_intact(region: &Region<Simulated>, row: u16, record: &PbrRecord) -> bool {
    let Some(foreign) = region.foreign(row, record.blog_at, record.len) else {
        return false;
    };
    let mut bytes = vec![0; foreign.len()];
    foreign.invalidate();
    foreign.copy_to(0, &mut bytes);
    let intact = checksum(&bytes) == record.payload_crc;
    ask::saw(if intact {
        "left and intact"
    } else {
        "left and used again"
    });
    intact
}
