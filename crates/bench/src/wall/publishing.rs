//! The walls of publishing: threads of this process send batches, one write for each, and receiving processes take them.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use super::drive::{BUFFERS_PER_CONNECTION, Job, Receivers, WallPlan};
use super::stream::Stream;
use super::wire::{ANSWER_BYTES, BATCH_HEAD_BYTES, Hello, Kind, seal};

/// Some batches, one after the other, and how many of them are to be sent.
type Filled = (Vec<u8>, usize);

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
        let buffers = senders * BUFFERS_PER_CONNECTION + 1;
        let batch = plan.batch();
        // Both queues hold every buffer there is, so neither ever blocks a sender.
        let (full_in, full_out) = sync_channel::<Filled>(buffers);
        let (free_in, free_out) = sync_channel::<Vec<u8>>(buffers);
        for _ in 0..buffers {
            free_in.send(vec![1; batch * plan.batches_at_once()])?;
        }
        let full_out = Mutex::new(full_out);
        // Both ends that the senders use go with this closure: if the senders fail, the filler is not left waiting.
        thread::scope(move |scope| {
            let (free_in, full_out) = (free_in, full_out);
            scope.spawn(move || self.fill_batches(plan, &free_out, &full_in));
            self.publish(plan, Kind::Check, |stream| {
                while let Some((mut buffer, batches)) = next_of(&full_out) {
                    for batch in buffer.chunks_exact_mut(batch).take(batches) {
                        seal(batch);
                        stream.write_all(batch)?;
                    }
                    // The filler may be done already.
                    let _wanted = free_in.send(buffer);
                }
                Ok(())
            })
        })
        .map(|rate| rate * plan.message_share())
    }

    /// The application thread: one copy of each message.
    fn fill_batches(&self, plan: &WallPlan, free: &Receiver<Vec<u8>>, full: &SyncSender<Filled>) {
        let message = vec![0x5a; plan.message_bytes as usize];
        let mut left = plan.batches_for_each(1);
        while left > 0 {
            let Ok(mut buffer) = free.recv() else { return };
            if self.interrupt.is_raised() {
                return;
            }
            let batches = plan.batches_at_once().min(left as usize);
            for batch in buffer.chunks_exact_mut(plan.batch()).take(batches) {
                for place in batch[BATCH_HEAD_BYTES..].chunks_exact_mut(message.len()) {
                    place.copy_from_slice(std::hint::black_box(&message));
                }
            }
            left -= batches as u64;
            if full.send((buffer, batches)).is_err() {
                return;
            }
        }
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

fn next_of(queue: &Mutex<Receiver<Filled>>) -> Option<Filled> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .recv()
        .ok()
}
