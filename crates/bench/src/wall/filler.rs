//! The application thread of the walls that work: it copies each message into a batch, and other threads seal the batches
//! and send them.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;

use anyhow::Result;
use embar_console::interrupt::Interrupt;

use super::drive::{BUFFERS_PER_CONNECTION, WallPlan};
use super::stream::Stream;
use super::wire::{BATCH_HEAD_BYTES, seal};
use crate::stamp::Stamper;

/// Some batches, one after the other, and how many of them are to be sent.
type Filled = (Vec<u8>, usize);

/// What the threads that send know of the one that fills. It ends when this is dropped.
pub struct Filler {
    batch: usize,
    full: Mutex<Receiver<Filled>>,
    free: SyncSender<Vec<u8>>,
}

impl Filler {
    /// Starts the thread. It fills so many batches for so many senders; if there is a stamper, with messages that are
    /// numbered and can be verified.
    pub fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        plan: &'scope WallPlan,
        senders: usize,
        batches: u64,
        stamper: Option<Stamper>,
        interrupt: &'scope Interrupt,
    ) -> Self {
        let buffers = senders * BUFFERS_PER_CONNECTION + 1;
        // Both queues hold every buffer there is, so neither ever blocks a sender.
        let (full_in, full) = sync_channel::<Filled>(buffers);
        let (free, free_out) = sync_channel::<Vec<u8>>(buffers);
        for _ in 0..buffers {
            // It is not full.
            let _room = free.send(vec![1; plan.batch() * plan.batches_at_once()]);
        }
        scope.spawn(move || fill(plan, batches, stamper, interrupt, &free_out, &full_in));
        Self {
            batch: plan.batch(),
            full: Mutex::new(full),
            free,
        }
    }

    /// Seals and sends what was handed over next. False: all is sent.
    pub fn send_some(&self, stream: &mut Stream) -> Result<bool> {
        let Some((mut buffer, batches)) = self.next() else {
            return Ok(false);
        };
        for batch in buffer.chunks_exact_mut(self.batch).take(batches) {
            seal(batch);
            stream.write_all(batch)?;
        }
        // The filling thread may be done already.
        let _wanted = self.free.send(buffer);
        Ok(true)
    }

    fn next(&self) -> Option<Filled> {
        let full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.recv().ok()
    }
}

fn fill(
    plan: &WallPlan,
    mut left: u64,
    mut stamper: Option<Stamper>,
    interrupt: &Interrupt,
    free: &Receiver<Vec<u8>>,
    full: &SyncSender<Filled>,
) {
    let message = vec![0x5a; plan.message_bytes as usize];
    let mut sequence = 0;
    while left > 0 {
        let Ok(mut buffer) = free.recv() else { return };
        if interrupt.is_raised() {
            return;
        }
        let batches = plan.batches_at_once().min(left as usize);
        for batch in buffer.chunks_exact_mut(plan.batch()).take(batches) {
            for place in batch[BATCH_HEAD_BYTES..].chunks_exact_mut(message.len()) {
                let message = match &mut stamper {
                    Some(stamper) => stamper.stamp(sequence, 0),
                    None => &message,
                };
                place.copy_from_slice(std::hint::black_box(message));
                sequence += 1;
            }
        }
        left -= batches as u64;
        if full.send((buffer, batches)).is_err() {
            return;
        }
    }
}
