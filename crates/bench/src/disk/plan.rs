//! What `bench disk` is asked to do.

use std::path::PathBuf;

use anyhow::{Result, bail};
use embar_console::size::Size;
use embar_disk::format::ALIGN_BYTES;

/// Most bytes of a write.
const IO_BYTES_MAX: u32 = 64 << 20;
/// Most writes of one trial that are made for their times.
pub const LATENCY_WRITES: u64 = 256;

/// A measurement of one directory.
#[derive(Clone, Debug)]
pub struct DiskPlan {
    /// The directory.
    pub data: PathBuf,
    /// Bytes of a write or read.
    pub io_bytes: Vec<u32>,
    /// Threads, each of which has one on its way.
    pub depths: Vec<u16>,
    /// Bytes of a batch that the journal writes.
    pub batch_bytes: Vec<u32>,
    /// Bytes of each trial.
    pub total_bytes: u64,
    /// Trials of each.
    pub trials: usize,
    /// Trials before that are thrown away.
    pub warmup: usize,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Writes one after the other, each synced, with so many bytes, by so many threads.
    Write {
        /// Bytes of each.
        io_bytes: u32,
        /// Threads.
        depth: u16,
    },
    /// Reads one after the other of what was written.
    Read {
        /// Bytes of each.
        io_bytes: u32,
        /// Threads.
        depth: u16,
    },
    /// Batches by the journal: gathered into commits and written, by three threads that take turns.
    Journal {
        /// Bytes of each batch.
        batch_bytes: u32,
    },
    /// Finding out what a journal of such batches has, as after a power cut.
    Recover {
        /// Bytes of each batch.
        batch_bytes: u32,
    },
}

impl DiskPlan {
    /// Refuses what cannot be measured.
    ///
    /// # Errors
    /// What to ask for instead.
    pub fn validate(&self) -> Result<()> {
        for bytes in &self.io_bytes {
            if *bytes > IO_BYTES_MAX || !(*bytes as usize).is_multiple_of(ALIGN_BYTES) {
                bail!(
                    "--io-size {}: disks are written at multiples of 4KiB, and here up to 64MiB",
                    Size(u64::from(*bytes))
                );
            }
        }
        let largest = self.io_bytes.iter().chain(&self.batch_bytes).max();
        if largest.is_some_and(|largest| self.total_bytes < 4 * u64::from(*largest)) {
            bail!(
                "--size {} is too little for writes of {}: four of them, at least",
                Size(self.total_bytes),
                Size(u64::from(largest.copied().unwrap_or(0)))
            );
        }
        Ok(())
    }

    /// What is measured, in the order of the report.
    pub fn works(&self) -> Vec<Work> {
        let each = |work: &dyn Fn(u32, u16) -> Work| {
            let sizes = self.io_bytes.iter();
            let both = sizes.flat_map(|size| self.depths.iter().map(move |depth| (*size, *depth)));
            both.map(|(size, depth)| work(size, depth))
                .collect::<Vec<_>>()
        };
        let mut works = each(&|io_bytes, depth| Work::Write { io_bytes, depth });
        works.extend(each(&|io_bytes, depth| Work::Read { io_bytes, depth }));
        for &batch_bytes in &self.batch_bytes {
            works.push(Work::Journal { batch_bytes });
            works.push(Work::Recover { batch_bytes });
        }
        works
    }

    /// Bytes of one trial of something: small writes are slow, and fewer of them say as much.
    pub fn bytes_of(&self, work: Work) -> u64 {
        match work {
            Work::Write { io_bytes, depth } => {
                let most = LATENCY_WRITES * u64::from(io_bytes) * u64::from(depth);
                self.total_bytes.min(most).max(u64::from(io_bytes))
            }
            Work::Read { .. } | Work::Journal { .. } | Work::Recover { .. } => self.total_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> DiskPlan {
        DiskPlan {
            data: PathBuf::from("/nowhere"),
            io_bytes: vec![4 << 10, 1 << 20],
            depths: vec![1, 2],
            batch_bytes: vec![2 << 20],
            total_bytes: 64 << 20,
            trials: 3,
            warmup: 1,
        }
    }

    #[test]
    fn what_no_disk_writes_is_refused() {
        assert!(plan().validate().is_ok());
        for io_bytes in [1000, 4097, 128 << 20] {
            let odd = DiskPlan {
                io_bytes: vec![io_bytes],
                ..plan()
            };
            assert!(odd.validate().is_err(), "{io_bytes}");
        }
        let small = DiskPlan {
            total_bytes: 4 << 20,
            ..plan()
        };
        let error = small.validate().expect_err("too little");
        assert!(error.to_string().contains("--size 4MiB"), "{error}");
    }

    #[test]
    fn small_writes_are_few() {
        let works = plan().works();
        assert_eq!(works.len(), 2 * 2 * 2 + 2);
        let small = Work::Write {
            io_bytes: 4 << 10,
            depth: 2,
        };
        assert!(works.contains(&small));
        assert_eq!(plan().bytes_of(small), 2 * 256 * 4096);
    }
}
