//! Trials of a publisher over TCP while another client publishes as fast as it can.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use embar_client::{Publisher, Transport};
use embar_meter::random::filler;
use embar_supervise::work::Abort;

use super::{Ours, SILENCE_MAX};
use crate::plan::BenchPlan;
use crate::publish;
use crate::walls::plan::Case;

/// Messages of the neighbour between two looks at whether to stop.
const LOOK_EVERY: u64 = 256;

impl Ours {
    /// MiB/s of a publisher by TCP while a neighbour publishes by `other`, each to a topic of its own.
    pub fn beside(&self, case: Case, order: u32, other: Transport, abort: &Abort) -> Result<f64> {
        let plan = self.plan_of(case, order);
        let beside = BenchPlan {
            topic: format!("{}-beside", plan.topic),
            transport: other,
            ..plan.clone()
        };
        let admin = self.connector.admin()?;
        publish::create_topic(&admin, &beside)?;
        let (neighbour, reporter) = publish::open(&beside, &self.connector_of(&beside), true)?;
        let done = AtomicBool::new(false);
        let (begun, begins) = sync_channel(1);
        let rate = thread::scope(|scope| {
            let (neighbour, beside, done) = (&neighbour, &beside, &done);
            let busy = scope.spawn(move || keep_publishing(neighbour, beside, done, &begun));
            // Without word of it the neighbour failed, and says why.
            let rate = match begins.recv_timeout(SILENCE_MAX) {
                Ok(()) => self.publish(&plan, false, abort),
                Err(_) => Err(anyhow!("the neighbour did not begin")),
            };
            done.store(true, Ordering::Relaxed);
            let kept = busy.join();
            kept.map_err(|_| anyhow!("the neighbour panicked"))??;
            rate
        })?;
        neighbour.close().context("the neighbour's messages")?;
        drop(reporter);
        self.delete(&plan.topic)?;
        self.delete(&beside.topic)?;
        Ok(rate)
    }
}

fn keep_publishing(
    publisher: &Publisher,
    plan: &BenchPlan,
    done: &AtomicBool,
    begun: &SyncSender<()>,
) -> Result<()> {
    let message = filler(plan.message_bytes as usize);
    while !done.load(Ordering::Relaxed) {
        for _ in 0..LOOK_EVERY {
            publisher.publish(&message)?;
        }
        // It is heard once.
        let _ = begun.try_send(());
    }
    Ok(())
}
