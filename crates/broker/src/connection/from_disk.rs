//! What a subscriber reads from disks, piece by piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use embar_frame::Now;
use embar_wire::share::Share;

use crate::disk_bytes::DiskBytes;
use crate::journal::COMMIT_BYTES;

/// Bytes of pieces that one broker holds in memory. A subscriber that finds none left asks again later.
const BYTES_MAX: usize = 256 << 20;
/// A piece that was asked for counts as this large until it is known how large it is: a run of batches is hardly larger.
const ASKED_BYTES: usize = COMMIT_BYTES;

/// The pieces of all subscribers of one broker, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces(Arc<AtomicUsize>);

impl Pieces {
    /// Memory for one more, unless there is too little.
    pub fn take(&self) -> Option<Permit> {
        let before = self.0.fetch_add(ASKED_BYTES, Ordering::Relaxed);
        let mine = Permit {
            all: Arc::clone(&self.0),
            bytes: ASKED_BYTES,
        };
        // What is over the limit goes back with the permit.
        (before + ASKED_BYTES <= BYTES_MAX).then_some(mine)
    }

    /// Whether there is no memory for another one.
    pub fn are_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed) + ASKED_BYTES > BYTES_MAX
    }
}

/// Memory for one piece, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Permit {
    /// Its size, at least 1.
    pub fn mebibytes(&self) -> u32 {
        self.bytes.div_ceil(1 << 20).max(1) as u32
    }

    /// The piece takes so many bytes.
    fn set(&mut self, bytes: usize) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.all.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a subscriber reads from disks: at most one piece that it is being sent, and one that is ready or asked for.
#[derive(Default)]
pub(crate) struct FromDisk {
    /// The piece that it is being sent, and since when.
    pub sending: Option<(Permit, Now)>,
    ready: Option<Ready>,
    asked: Option<Permit>,
    /// Memory has the topic from this position on, as far as was seen.
    pub memory_from: u64,
    /// It asked for the first that there is, and has not got anything: it may begin wherever that is.
    pub begins_anywhere: bool,
}

/// The piece that comes next.
struct Ready {
    from: u64,
    share: Share,
    bytes: DiskBytes,
    next: u64,
    permit: Permit,
}

impl FromDisk {
    /// Of a subscriber that begins where the topic does, or at a position.
    pub fn new(begins_anywhere: bool) -> Self {
        Self {
            begins_anywhere,
            ..Self::default()
        }
    }

    /// Whether a piece is asked for.
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether another piece may be asked for.
    pub fn may_ask(&self) -> bool {
        self.asked.is_none() && self.ready.is_none()
    }

    /// A piece is asked for.
    pub fn ask(&mut self, permit: Permit) {
        self.asked = Some(permit);
    }

    /// Nothing came of what was asked for.
    pub fn came_to_nothing(&mut self) {
        self.asked = None;
    }

    /// What was asked for is there: from this position on, for this share, and where to go on.
    pub fn came(&mut self, from: u64, share: Share, bytes: DiskBytes, next: u64) {
        self.begins_anywhere = false;
        self.ready = self.asked.take().map(|mut permit| {
            permit.set(bytes.memory_bytes());
            Ready {
                from,
                share,
                bytes,
                next,
                permit,
            }
        });
    }

    /// The piece that begins at a position, which is to be sent now, and where to go on. The share may have changed since it was
    /// asked for; then there is none.
    pub fn take(&mut self, from: u64, share: Share, now: Now) -> Option<(DiskBytes, u64)> {
        let ready = self.ready.take()?;
        if (ready.from, ready.share) != (from, share) {
            return None;
        }
        self.sending = (!ready.bytes.is_empty()).then_some((ready.permit, now));
        Some((ready.bytes, ready.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_come_back() {
        let pieces = Pieces::default();
        let mut taken: Vec<_> = std::iter::from_fn(|| pieces.take()).collect();
        assert_eq!(taken.len(), BYTES_MAX / ASKED_BYTES);
        assert!(pieces.take().is_none() && pieces.are_taken());
        // A piece turns out to be smaller, or larger.
        taken[0].set(0);
        assert!(!pieces.are_taken() && pieces.take().is_some());
        taken[0].set(ASKED_BYTES + 1);
        taken[1].set(0);
        assert!(pieces.are_taken() && pieces.take().is_none());
        drop(taken);
        assert!(pieces.take().is_some() && !pieces.are_taken());
    }

    #[test]
    fn a_piece_is_for_the_share_and_the_position_that_it_was_asked_for() {
        let pieces = Pieces::default();
        let mut disk = FromDisk::new(true);
        let ask = |disk: &mut FromDisk| disk.ask(pieces.take().expect("there are some"));
        ask(&mut disk);
        assert!(disk.is_asked() && !disk.may_ask());
        disk.came(5, Share::All, vec![1].into(), 9);
        assert!(!disk.may_ask() && !disk.begins_anywhere);
        let taken = disk.take(5, Share::All, Now(0)).map(|(_, next)| next);
        assert_eq!(taken, Some(9));
        assert!(disk.may_ask() && disk.sending.is_some());
        ask(&mut disk);
        disk.came(9, Share::All, vec![2].into(), 12);
        let own = Share::Own { large_bytes: 1 };
        assert!(disk.take(9, own, Now(0)).is_none());
    }
}
