//! The walls of publishing: threads of this process send batches, one write for each, and receiving processes take them.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use super::drive::{Job, Receivers, WallPlan};
use super::filler::Filler;
use super::stream::Stream;
use super::wire::{ANSWER_BYTES, Hello, Kind};

impl Receivers {
    pub(super) fn publish_bare(&self, plan: &WallPlan) -> Result<f64> {
        let batches = AtomicU64::new(plan.batches_for_each(1));
        let batch = vec![0x5a; plan.batch()];
        self.publish(plan, Kind::Take, |stream| {
            while take_one(&batches) && !self.interrupt.is_raised() {
                stream.write_all(&batch)?;
            }
            Ok(())
        })
    }

    pub(super) fn publish_working(&self, plan: &WallPlan) -> Result<f64> {
        let senders = self.places.len() * usize::from(plan.connections_per_receiver);
        let batches = plan.batches_for_each(1);
        let rate = thread::scope(|scope| {
            let filler = Filler::start(scope, plan, senders, batches, None, &self.interrupt);
            self.publish(plan, Kind::Check, |stream| {
                while filler.send_some(stream)? {}
                Ok(())
            })
        })?;
        Ok(rate * plan.message_share())
    }

    fn publish(
        &self,
        plan: &WallPlan,
        kind: Kind,
        sender: impl Fn(&mut Stream) -> Result<()> + Sync,
    ) -> Result<f64> {
        let streams = self.connect(plan, plan.connections_per_receiver)?;
        let sender = &sender;
        let jobs = streams.into_iter().map(|mut stream| -> Job<'_> {
            Box::new(move || send(&mut stream, plan, kind, sender))
        });
        let (bytes, rate) = self.timed(jobs.collect())?;
        let expected = plan.batches_for_each(1) * plan.batch() as u64;
        ensure!(bytes == expected, "{bytes} bytes arrived of {expected}");
        Ok(rate)
    }
}

/// Says hello, sends, and returns how many bytes the receiving process took.
pub(super) fn send(
    stream: &mut Stream,
    plan: &WallPlan,
    kind: Kind,
    sender: impl Fn(&mut Stream) -> Result<()>,
) -> Result<u64> {
    let hello = Hello {
        kind,
        batch_bytes: plan.batch() as u32,
        bytes: 0,
    };
    stream.write_all(&hello.to_bytes())?;
    sender(stream)?;
    stream.finish()?;
    answer(stream)
}

/// The number that a receiving process answers with.
pub(super) fn answer(stream: &mut Stream) -> Result<u64> {
    let mut answer = [0; ANSWER_BYTES];
    stream
        .read_exact(&mut answer)
        .context("a receiver refused the bytes, or died")?;
    Ok(u64::from_le_bytes(answer))
}

fn take_one(left: &AtomicU64) -> bool {
    left.try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        .is_ok()
}
