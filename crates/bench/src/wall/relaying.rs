//! The wall of publishing and reading at once: what threads of this process send comes back to other threads of it.

use std::io::Write;

use anyhow::Result;

use super::drive::{Job, Receivers, WallPlan};
use super::publishing::send;
use super::reading::{drain, hello};
use super::wire::Kind;

impl Receivers {
    pub(super) fn relay(&self, plan: &WallPlan) -> Result<f64> {
        let senders = self.connect(plan, plan.connections_per_receiver)?;
        let followers = self.connect(plan, 1)?;
        let batches = plan.batches_for_each(senders.len());
        let batch = vec![0x5a; plan.batch()];
        let from_each = batches * u64::from(plan.connections_per_receiver) * plan.batch() as u64;
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for mut stream in followers {
            jobs.push(Box::new(move || {
                stream.write_all(&hello(plan, Kind::Follow, from_each).to_bytes())?;
                drain(&mut stream, plan.batch(), from_each, &self.interrupt)
            }));
        }
        for mut stream in senders {
            let batch = &batch;
            jobs.push(Box::new(move || {
                send(&mut stream, plan, Kind::Relay, |stream| {
                    for _ in 0..batches {
                        self.interrupt.check()?;
                        stream.write_all(batch)?;
                    }
                    Ok(())
                })?;
                // The bytes count where they arrive in the end.
                Ok(0)
            }));
        }
        Ok(self.timed(jobs)?.1)
    }
}
