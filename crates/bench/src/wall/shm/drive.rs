//! Runs the trials of the walls of shared memory.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use embar_console::interrupt::Interrupt;
use embar_console::size::mib_per_s;

use super::messages::{Shape, sum};
use super::passing::{Passing, Way};
use super::pieces::Pieces;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShmWall {
    /// One thread puts messages into batches; another one copies each batch past the caches into a warm ring, and
    /// checksums what it copies.
    PublishBare,
    /// As `PublishBare`; the first thread also writes past the caches. It is faster where the two processors share no
    /// cache, and slower where they do.
    PublishStreamed,
    /// One thread puts messages into a warm ring past the caches, and checksums them; another one looks at the records
    /// only.
    PublishInPlace,
    /// As `PublishBare`; also a third thread touches each byte of the ring, once it is there.
    PublishFollowed,
    /// One thread touches each byte of the ring.
    Pass,
}

/// What is passed.
#[derive(Clone, Copy, Debug)]
pub struct ShmPlan {
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Bytes of all messages of a trial.
    pub total_bytes: u64,
}

/// The memory of the walls, and what may end a trial.
pub struct SharedMemory {
    ring: Pieces,
    batches: Pieces,
    batch_bytes: u32,
    interrupt: Interrupt,
}

impl SharedMemory {
    /// Maps and touches a ring of `ring_bytes` for batches of `batch_bytes`.
    pub fn new(ring_bytes: u64, batch_bytes: u32, interrupt: &Interrupt) -> Result<Self> {
        Ok(Self {
            ring: Pieces::new(ring_bytes, batch_bytes)?,
            batches: Pieces::new(1, batch_bytes)?,
            batch_bytes,
            interrupt: interrupt.clone(),
        })
    }

    /// Runs one trial; returns MiB of message values per second.
    pub fn run(&self, wall: ShmWall, plan: &ShmPlan) -> Result<f64> {
        let shape = Shape::new(self.batch_bytes, plan.message_bytes)
            .context("a batch has no room for a message")?;
        let batches = (plan.total_bytes / shape.value_bytes()).max(1);
        let way = match wall {
            ShmWall::PublishBare => Way::Copied,
            ShmWall::PublishStreamed => Way::Streamed,
            ShmWall::PublishInPlace => Way::InPlace,
            ShmWall::PublishFollowed => Way::CopiedAndFollowed,
            ShmWall::Pass => return self.pass(shape, batches),
        };
        let passing = Passing {
            way,
            shape,
            number: batches,
            ring: &self.ring,
            batches: &self.batches,
            interrupt: &self.interrupt,
        };
        Ok(mib_per_s(batches * shape.value_bytes(), passing.run()?))
    }

    /// Reads what so many batches would fill of the ring, from its start on and on.
    fn pass(&self, shape: Shape, batches: u64) -> Result<f64> {
        let (started, mut all) = (Instant::now(), 0u64);
        for number in 0..batches {
            all = all.wrapping_add(self.ring.with(number, |bytes| sum(&bytes[..shape.used()])));
        }
        std::hint::black_box(all);
        let elapsed = started.elapsed();
        self.interrupt.check()?;
        ensure!(elapsed > Duration::ZERO, "nothing was read");
        Ok(mib_per_s(batches * shape.value_bytes(), elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wall_measures_batches_of_each_size() {
        let memory = SharedMemory::new(16 << 20, 64 << 10, &Interrupt::default()).expect("memory");
        for message_bytes in [64, 1024] {
            let plan = ShmPlan {
                message_bytes,
                total_bytes: 2 << 20,
            };
            for wall in [
                ShmWall::PublishBare,
                ShmWall::PublishStreamed,
                ShmWall::PublishInPlace,
                ShmWall::PublishFollowed,
                ShmWall::Pass,
            ] {
                let rate = memory.run(wall, &plan).expect("measured");
                assert!(rate.is_finite() && rate > 0.0, "{wall:?}: {rate}");
            }
        }
    }

    #[test]
    fn a_message_larger_than_a_batch_is_refused() {
        let memory = SharedMemory::new(16 << 20, 64 << 10, &Interrupt::default()).expect("memory");
        let plan = ShmPlan {
            message_bytes: 64 << 10,
            total_bytes: 1 << 20,
        };
        let error = memory.run(ShmWall::Pass, &plan).expect_err("too large");
        assert!(error.to_string().contains("no room"), "{error}");
    }
}
