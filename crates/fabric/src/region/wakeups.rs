//! A region's named pipes, by which threads of its processes wake each other, and the flags that say which threads
//! sleep.

use std::path::PathBuf;
use std::sync::Arc;

use embar_memory::{Mapped, Memory};

use super::Region;
use crate::error::RegionError;
use crate::sleep_flag::SleepFlag;
use crate::wakeup::{Notifier, Wakeup};

impl Region<Mapped> {
    /// What others wake a thread of this process with; `number` is that of its lane, or
    /// [`Region::sequencer_thread`].
    ///
    /// # Errors
    /// When the pipe cannot be made, or the region lives in no directory.
    pub fn wakeup(&self, row: u16, number: u16) -> Result<Wakeup, RegionError> {
        let Some(dir) = self.dir() else {
            return Err(RegionError::NotFound {
                dir: PathBuf::new(),
            });
        };
        Wakeup::open(dir, row, number)
    }

    /// What wakes threads of other processes.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.dir())
    }
}

impl<M: Memory> Region<M> {
    /// The flag that shows whether a thread sleeps; `number` is that of its lane, or
    /// [`Region::sequencer_thread`].
    pub fn sleep_flag(&self, row: u16, number: u16) -> SleepFlag<M> {
        let at = self.parts.layout.sleeper(row, number);
        SleepFlag::new(Arc::clone(&self.parts.control), at)
    }

    /// The number of the sequencer's thread among the threads of a row: it comes behind those of the lanes.
    pub fn sequencer_thread(&self) -> u16 {
        self.geometry().lanes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use embar_memory::Coherence;

    use super::*;
    use crate::geometry::Geometry;

    #[test]
    fn wakeups_go_with_the_region_that_they_are_in() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("region");
        let geometry = Geometry {
            index_pages: 1,
            payload_bytes: 64 << 10,
            ..Geometry::default()
        };
        let region = Region::create(&dir, &geometry, Coherence::Coherent).unwrap();
        let wakeup = region.wakeup(1, 0).unwrap();
        region.notifier().notify(1, 0);
        drop((wakeup, region));
        Region::remove(&dir).unwrap();
        assert!(!dir.exists());
    }
}
