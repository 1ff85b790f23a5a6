//! The wall of publishing and reading at once: what threads of this process send comes back to other threads of it.

use std::io::Write;
use std::thread;

use anyhow::Result;

use super::drive::{Job, Receivers, WallPlan};
use super::filler::Filler;
use super::publishing::send;
use super::reading::{Reading, drain, hello, receive};
use super::verifying::VerifyingThread;
use super::wire::Kind;
use crate::stamp::Stamper;

impl Receivers {
    pub(super) fn relay_bare(&self, plan: &WallPlan) -> Result<f64> {
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

    /// One thread stamps and copies each message, three checksum each batch (who sends it, who relays it, who reads it),
    /// and one verifies each message.
    pub(super) fn relay_working(&self, plan: &WallPlan) -> Result<f64> {
        let senders = self.connect(plan, plan.connections_per_receiver)?;
        let followers = self.connect(plan, 1)?;
        let at_once = plan.batches_at_once() as u64;
        // Whole buffers for each sender: so each receiving process gets as much as its follower waits for.
        let buffers = plan.batches_for_each(senders.len()).div_ceil(at_once);
        let batches = buffers * at_once * senders.len() as u64;
        let from_each = batches / followers.len() as u64 * plan.batch() as u64;
        let stamper = Stamper::new(plan.message_bytes as usize);
        let rate = thread::scope(|scope| {
            let threads = senders.len();
            let interrupt = &self.interrupt;
            let filler = Filler::start(scope, plan, threads, batches, Some(stamper), interrupt);
            let messages = batches * plan.messages_per_batch();
            let verifying = VerifyingThread::start(scope, plan, followers.len(), messages);
            let mut jobs: Vec<Job<'_>> = Vec::new();
            for stream in followers {
                let exchange = verifying.exchange();
                jobs.push(Box::new(move || {
                    let readings = vec![Reading::new(stream, plan, from_each)];
                    let hello = hello(plan, Kind::Follow, from_each);
                    receive(readings, hello, interrupt, |buffer, len| {
                        exchange.hand_over(buffer, len)
                    })
                }));
            }
            for mut stream in senders {
                let filler = &filler;
                jobs.push(Box::new(move || {
                    send(&mut stream, plan, Kind::RelayChecked, |stream| {
                        for _ in 0..buffers {
                            interrupt.check()?;
                            filler.send_some(stream)?;
                        }
                        Ok(())
                    })?;
                    Ok(0)
                }));
            }
            let rate = self.timed(jobs);
            verifying.join()?;
            rate
        })?;
        Ok(rate.1 * plan.message_share())
    }
}
