//! How much brokers took in and sent, step by step, as they count it: of what goes by shared memory no kernel counts the bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use embar_client::Admin;
use embar_diagnose::observed::{Flow, Step};

use super::asking::Asker;
use crate::diagnose::over_time::Total;

/// Brokers are asked so often: each question takes them some microseconds.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// What brokers carried.
#[derive(Default)]
pub(super) struct Carried {
    asked: Option<Instant>,
    came: Total<u32>,
    went: Total<u32>,
    /// Why brokers did not answer.
    silent: BTreeMap<u32, String>,
}

impl Carried {
    /// Asks these brokers, if it is time. What one carried that did not answer is missing until it does again.
    pub(super) fn ask(&mut self, asker: &mut Asker, brokers: &BTreeSet<u32>) {
        let now = Instant::now();
        if self.asked.is_some_and(|asked| now - asked < ASK_EVERY) {
            return;
        }
        self.asked = Some(now);
        for (id, status) in asker.each(brokers, Admin::status) {
            match status {
                Ok(status) => {
                    self.came.count(&id, status.bytes_in);
                    self.went.count(&id, status.bytes_out);
                }
                Err(error) => drop(self.silent.insert(id, error.to_string())),
            }
        }
        // They counted when they were asked, however long the slowest took.
        self.came.see(now);
        self.went.see(now);
    }

    /// Why a broker did not answer, if it was asked and did not.
    pub(super) fn why_silent(&self, broker: u32) -> Option<&str> {
        self.silent.get(&broker).map(String::as_str)
    }

    /// What went this way.
    pub(super) fn steps(&self, flow: Flow) -> Vec<Step> {
        match flow.publishes() {
            true => self.came.steps(),
            false => self.went.steps(),
        }
    }
}
