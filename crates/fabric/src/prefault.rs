//! Has the kernel supply all pages of a process's part of a region before the process serves. Otherwise the first
//! access to every 4 KiB costs a page fault, and a broker takes in batches far more slowly than into memory that was
//! used before.

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use embar_memory::{Exclusive, Mapped, Memory};

use crate::error::RegionError;
use crate::region::Region;

/// Bytes that one thread makes present at a time, between two reports of progress.
const CHUNK_BYTES: u64 = 32 << 20;

impl Region<Mapped> {
    /// Makes the control file and, when the row takes data, its payload file present and writable in this
    /// process, with up to `threads` threads at once.
    ///
    /// `progress(done, total)` counts bytes and is called from those threads after every 32 MiB.
    /// Fails when the kernel is out of memory.
    ///
    /// # Panics
    /// While there is a [`PayloadFile`](embar_memory::PayloadFile) of the row, which alone may touch its pages.
    pub fn prefault(
        &self,
        row: u16,
        threads: usize,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(), RegionError> {
        let payload = self.payload_memory(row).map(Exclusive::take);
        let memories = std::iter::once(self.control_memory());
        let memories = memories.chain(payload.as_ref().map(Exclusive::get));
        let chunks: Vec<(&Mapped, u64, u64)> = memories.flat_map(chunks_of).collect();
        let total = chunks.iter().map(|(_, _, len)| len).sum();
        let threads = threads.clamp(1, chunks.len().max(1));
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let failure: Mutex<Option<io::Error>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                // Relaxed: the counters order nothing; joining the threads orders what they did.
                scope.spawn(|| {
                    while let Some((memory, at, len)) =
                        chunks.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        if let Err(e) = memory.populate(*at, *len) {
                            // The others stop at their next chunk.
                            next.store(chunks.len(), Ordering::Relaxed);
                            *failure.lock().expect("no thread panics while it is held") = Some(e);
                            return;
                        }
                        progress(done.fetch_add(*len, Ordering::Relaxed) + len, total);
                    }
                });
            }
        });
        match failure
            .into_inner()
            .expect("no thread panics while it is held")
        {
            None => Ok(()),
            Some(source) => {
                let path = self.dir().map_or_else(PathBuf::new, ToOwned::to_owned);
                Err(RegionError::Io {
                    doing: "making present the memory of",
                    path,
                    source,
                })
            }
        }
    }
}

fn chunks_of(memory: &Mapped) -> impl Iterator<Item = (&Mapped, u64, u64)> {
    let starts = (0..memory.len()).step_by(CHUNK_BYTES as usize);
    starts.map(move |at| (memory, at, CHUNK_BYTES.min(memory.len() - at)))
}
