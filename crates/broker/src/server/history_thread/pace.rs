//! Reads extents of one disk, and leaves the disk to its writer when both want it.
//!
//! Many large reads at once keep writes waiting: with some schedulers of the kernel for tens of milliseconds, and everywhere they
//! take their share of what the disk can do. So while the disk is written, a broker reads one small part after the other. When these
//! take longer than they do on a disk that nobody writes, the writer wants all of it, and the broker rests between them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use embar_disk::format::Before;
use embar_disk::history::{Extent, HistoryError};
use embar_disk::{AlignedBuffer, Directory};
use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_order::Leadership;

use super::super::counted::counted;

/// A disk counts as written for so long after a commit.
const WRITTEN_FOR: Duration = Duration::from_millis(200);
/// Bytes of each part that is read of a disk that is written.
const PART_BYTES: usize = 1 << 20;
/// What the last read counts for in how long reads take while nobody writes.
const WEIGHT: f64 = 0.2;
/// A part that takes so many times as long as that was kept waiting...
const SLOW: f64 = 2.0;
/// ...and then the broker rests for so many times as long as it took, at most for this time.
const REST: u32 = 8;
const REST_MAX: Duration = Duration::from_millis(50);

/// The reads of one broker from one disk.
pub(super) struct Pace {
    region: Region<Mapped>,
    disk: u16,
    state: Mutex<State>,
    /// Held while a part is read of a disk that is written.
    turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// How much counted when it was last looked at, and since when.
    seen: Option<(Before, Instant)>,
    /// Nanoseconds for a byte while nobody writes: about as many as the last reads took, or fewer.
    quiet: Option<f64>,
}

impl State {
    /// Whether the disk is written, given how much of it counts.
    fn is_written(&mut self, counts: Option<Before>, now: Instant) -> bool {
        let Some(counts) = counts else {
            return false;
        };
        match self.seen {
            Some((seen, since)) if seen == counts => now.duration_since(since) < WRITTEN_FOR,
            Some(_) => {
                self.seen = Some((counts, now));
                true
            }
            None => {
                // How long ago that was nobody knows.
                let long_ago = now.checked_sub(WRITTEN_FOR).unwrap_or(now);
                self.seen = Some((counts, long_ago));
                false
            }
        }
    }

    /// So many bytes took so long while nobody wrote.
    fn was_quiet(&mut self, bytes: usize, took: Duration) {
        let each = each_byte(bytes, took);
        let quiet = self
            .quiet
            .map_or(each, |quiet| quiet + (each - quiet) * WEIGHT);
        self.quiet = Some(quiet);
    }

    /// So many bytes took so long while the disk was written: how long to rest.
    fn rest_after(&mut self, bytes: usize, took: Duration) -> Duration {
        let each = each_byte(bytes, took);
        let quiet = self.quiet.map_or(each, |quiet| quiet.min(each));
        self.quiet = Some(quiet);
        match each > SLOW * quiet {
            true => (took * REST).min(REST_MAX),
            false => Duration::ZERO,
        }
    }
}

fn each_byte(bytes: usize, took: Duration) -> f64 {
    took.as_nanos() as f64 / bytes.max(1) as f64
}

impl Pace {
    pub fn new(region: &Region<Mapped>, disk: u16) -> Self {
        Self {
            region: region.clone(),
            disk,
            state: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    /// Reads an extent. The buffer has room for just that.
    pub fn read(
        &self,
        directory: &Directory,
        extent: &Extent,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), HistoryError> {
        if !self.is_written() {
            let began = Instant::now();
            let read = extent.read(directory, buffer);
            self.state().was_quiet(extent.bytes(), began.elapsed());
            return read;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        extent.read_in_parts(directory, buffer, PART_BYTES, &mut |bytes, took| {
            let rest = self.state().rest_after(bytes, took);
            if !rest.is_zero() && self.is_written() {
                thread::sleep(rest);
            }
        })
    }

    fn is_written(&self) -> bool {
        let term = Leadership::observe(&self.region).term;
        let counts = term.and_then(|term| counted(&self.region, term, self.disk));
        self.state().is_written(counts, Instant::now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_written_for_a_while_after_each_commit() {
        let mut state = State::default();
        let start = Instant::now() + WRITTEN_FOR;
        let at = |ms| start + Duration::from_millis(ms);
        let before = |(number, commits)| Before {
            number,
            nonce: 1,
            commits,
            crc: 0,
        };
        let seen = [
            (None, 0, false),
            (Some((3, 7)), 1, false),
            (Some((3, 7)), 2, false),
            (Some((3, 8)), 3, true),
            (Some((3, 8)), 202, true),
            (Some((3, 8)), 203, false),
            (Some((4, 0)), 204, true),
        ];
        for (counts, ms, expected) in seen {
            let is_written = state.is_written(counts.map(before), at(ms));
            assert_eq!(is_written, expected, "{ms}");
        }
    }

    #[test]
    fn who_is_kept_waiting_rests() {
        let mut state = State::default();
        let ms = Duration::from_millis;
        // One read of many was fast, because it was in a cache.
        state.was_quiet(1 << 20, Duration::from_micros(100));
        (0..40).for_each(|_| state.was_quiet(1 << 20, ms(1)));
        let rests = [(1, 0), (3, 24), (1, 0), (1000, 50)];
        for (took, rest) in rests {
            assert_eq!(state.rest_after(1 << 20, ms(took)), ms(rest), "{took}");
        }
    }
}
