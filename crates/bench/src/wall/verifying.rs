//! The application thread of the walls that read: it takes over all batches and verifies each message.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::drive::{BUFFERS_PER_CONNECTION, WallPlan};
use super::wire::BATCH_HEAD_BYTES;
use crate::stamp::Verifier;

/// The thread. It ends when everybody who hands over to it is gone.
pub struct VerifyingThread<'scope> {
    thread: ScopedJoinHandle<'scope, Result<()>>,
    exchange: Exchange,
}

/// Full buffers to the thread, and empty ones back.
#[derive(Clone)]
pub struct Exchange {
    full: Sender<Vec<u8>>,
    free: Arc<Mutex<Receiver<Vec<u8>>>>,
}

impl<'scope> VerifyingThread<'scope> {
    /// Starts it for batches that come over so many connections, with messages of numbers below `messages`.
    pub fn start(
        scope: &'scope Scope<'scope, '_>,
        plan: &'scope WallPlan,
        connections: usize,
        messages: u64,
    ) -> Self {
        let buffers = connections * (BUFFERS_PER_CONNECTION + 1);
        let (full, full_out) = channel::<Vec<u8>>();
        // It holds every buffer there is, so it never blocks the thread.
        let (free_in, free) = sync_channel::<Vec<u8>>(2 * buffers);
        for _ in 0..buffers {
            // It is not full.
            let _room = free_in.send(vec![1; plan.batch() * plan.batches_at_once()]);
        }
        Self {
            thread: scope.spawn(move || verify(plan, messages, &full_out, &free_in)),
            exchange: Exchange {
                full,
                free: Arc::new(Mutex::new(free)),
            },
        }
    }

    /// For a thread that hands over.
    pub fn exchange(&self) -> Exchange {
        self.exchange.clone()
    }

    /// Waits for its end; an error if a message was damaged.
    pub fn join(self) -> Result<()> {
        let Self { thread, exchange } = self;
        drop(exchange);
        thread
            .join()
            .map_err(|_| anyhow!("the verifying thread panicked"))?
    }
}

impl Exchange {
    /// Hands over the first `len` bytes of a buffer, which are whole batches, and takes another one as large.
    pub fn hand_over(&self, mut buffer: Vec<u8>, len: usize) -> Result<Vec<u8>> {
        let whole = buffer.len();
        buffer.truncate(len);
        let over = "the verifying thread ended early";
        self.full.send(buffer).ok().context(over)?;
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = free.recv().ok().context(over)?;
        buffer.resize(whole, 1);
        Ok(buffer)
    }
}

fn verify(
    plan: &WallPlan,
    messages: u64,
    full: &Receiver<Vec<u8>>,
    free: &SyncSender<Vec<u8>>,
) -> Result<()> {
    let message_bytes = plan.message_bytes as usize;
    let mut verifier = Verifier::new(message_bytes, messages);
    while let Ok(buffer) = full.recv() {
        for batch in buffer.chunks_exact(plan.batch()) {
            for message in batch[BATCH_HEAD_BYTES..].chunks_exact(message_bytes) {
                let is_sound = verifier.check(message).is_some();
                ensure!(is_sound, "a message of the wall is damaged");
            }
        }
        // The reading threads may be done already.
        let _wanted = free.send(buffer);
    }
    Ok(())
}
