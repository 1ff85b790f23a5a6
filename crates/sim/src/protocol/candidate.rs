//! A candidate: it watches the sequencer, takes over, and sequences until it is deposed.

use std::panic::panic_any;
use std::sync::Arc;

use embar_fabric::{Claim, PbrRecord, Region};
use embar_memory::Simulated;
use embar_order::sequencer::Intact;
use embar_order::{LeaderWatch, Sequencer, TakeoverError};

use super::bytes::checksum;
use super::env;
use super::oracle::OrderOracle;
use super::process::Process;
use crate::lease::{SequencerCheck, WatchCheck};

/// One incarnation of a candidate.
pub struct Candidate {
    row: u16,
    claim: Arc<Claim>,
    region: Region<Simulated>,
    watch: LeaderWatch,
    watch_check: WatchCheck,
    sequencer: Option<Sequencer<Simulated>>,
    sequencer_check: SequencerCheck,
    held_max: u32,
    /// It takes over at its next step, even from a candidate that lives.
    challenges: bool,
}

impl Candidate {
    /// The next incarnation of a row.
    pub fn start(region: Region<Simulated>, row: u16) -> Self {
        Self {
            row,
            claim: Arc::new(region.claim_unlocked(row)),
            region,
            watch: LeaderWatch::new(env::plan(|plan| plan.lease_ns), env::now()),
            watch_check: WatchCheck::new(env::raw(), row),
            sequencer: None,
            sequencer_check: SequencerCheck::default(),
            held_max: env::plan(|plan| plan.limits.held),
            challenges: false,
        }
    }

    fn take_over(&mut self) {
        env::begins_takeover(self.row);
        env::note(|| format!("candidate {} takes over", self.row));
        env::perhaps_fail(self.row);
        let region = self.region.clone();
        let intact: Intact = Box::new(move |row, record| is_intact(&region, row, record));
        let limits = env::plan(|plan| plan.limits.clone());
        let sequencer =
            Sequencer::take_over(&self.region, &self.claim, &limits, &env::exists, intact);
        if !env::alive(self.row) {
            // A dead process that believes to lead reaches no one.
            return env::count("takeovers that died");
        }
        env::ends_takeover(self.row);
        match sequencer {
            Ok(sequencer) => {
                env::note(|| format!("candidate {} leads: {}", self.row, sequencer.epoch()));
                env::count("takeovers");
                env::begins_term(self.row, sequencer.epoch());
                self.sequencer = Some(sequencer);
                self.sequencer_check = SequencerCheck::default();
                self.challenges = false;
            }
            Err(TakeoverError::Overtaken) => env::count("takeovers overtaken"),
            Err(error) => panic!("candidate {}: {error}", self.row),
        }
    }
}

impl Process for Candidate {
    fn step(&mut self) {
        let Some(sequencer) = &mut self.sequencer else {
            let (region, now) = (&self.region, env::now());
            self.watch_check.look();
            let alive = |row| self.watch_check.note_alive(row, env::alive(row));
            let due = self.watch.should_take_over(region, now, &alive);
            if due
                && env::alive(self.row)
                && let Err(violation) = self.watch_check.judge()
            {
                panic_any(violation);
            }
            if due || self.challenges {
                self.take_over();
            }
            return;
        };
        if env::one_in(3) && !sequencer.beat(&env::alive) {
            env::count("sequencers deposed");
            env::note(|| format!("candidate {} is deposed", self.row));
            self.sequencer = None;
            return;
        }
        if env::one_in(10) {
            sequencer.retain_chains(&env::exists);
        }
        let before = sequencer.core().figures();
        let step = sequencer.step(env::now(), &env::exists);
        let after = sequencer.core().figures();
        if let Err(violation) = self.sequencer_check.judge(before, after, self.held_max) {
            panic_any(violation);
        }
        env::count_many("batches ordered", step.ordered as u64);
    }

    fn is_finished(&self, _: &OrderOracle) -> bool {
        true
    }

    fn state(&self, _: &OrderOracle) -> String {
        format!("leads: {}", self.sequencer.is_some())
    }

    fn watches(&self) -> bool {
        self.sequencer.is_none()
    }

    fn challenge(&mut self) {
        self.challenges = true;
    }
}

fn is_intact(region: &Region<Simulated>, row: u16, record: &PbrRecord) -> bool {
    let Some(foreign) = region.foreign(row, record.payload_at, record.len) else {
        return false;
    };
    let mut bytes = vec![0; foreign.len()];
    foreign.invalidate();
    foreign.copy_to(0, &mut bytes);
    let intact = checksum(&bytes) == record.payload_crc;
    env::count(if intact {
        "left and intact"
    } else {
        "left and used again"
    });
    intact
}
