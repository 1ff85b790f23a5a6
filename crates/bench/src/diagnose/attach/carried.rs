//! How much brokers took in and sent, step by step, as they count it: of what goes by shared memory no kernel counts the bytes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use embar_client::Admin;
use embar_diagnose::observed::{Flow, Step};

use super::asking::Asker;
use crate::diagnose::over_time::OverTime;

/// Brokers are asked so often: each question takes them some microseconds.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// What brokers carried.
#[derive(Default)]
pub(super) struct Carried {
    asked: Option<Instant>,
    came: OverTime,
    went: OverTime,
}

impl Carried {
    /// Asks these brokers, if it is time. One that does not answer is missing in one step.
    pub(super) fn ask(&mut self, asker: &mut Asker, brokers: &BTreeSet<u32>) {
        let now = Instant::now();
        if self.asked.is_some_and(|asked| now - asked < ASK_EVERY) {
            return;
        }
        self.asked = Some(now);
        let (mut came, mut went) = (0, 0);
        for (_, status) in asker.each(brokers, Admin::status) {
            if let Ok(status) = status {
                came += status.bytes_in;
                went += status.bytes_out;
            }
        }
        let now = Instant::now();
        self.came.see(came, now);
        self.went.see(went, now);
    }

    /// What went this way.
    pub(super) fn steps(&self, flow: Flow) -> Vec<Step> {
        match flow.publishes() {
            true => self.came.steps(),
            false => self.went.steps(),
        }
    }
}
