//! Memory for rings, kept for reuse: mapping it and touching it for the first time is what a new
//! connection would otherwise pay for.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::raw::Mirror;

/// The largest ring, bytes: positions are 32 bits wide and must distinguish full from empty.
const CAPACITY_MAX: usize = 1 << 30;

struct Pool {
    capacity: usize,
    keep: usize,
    idle: Mutex<Vec<Mirror>>,
}

/// Makes rings of one size, and keeps the memory of a few that are over. Cheap to clone.
///
/// A ring takes no memory before it is used, then as much as it ever held at once (a send ring: in
/// the long run all of it), and two of the process's mappings (`vm.max_map_count`).
#[derive(Clone)]
pub struct RingPool(Arc<Pool>);

impl RingPool {
    /// For rings of `capacity` bytes, a power of two from the page size to 1 GiB; keeps the memory
    /// of at most `keep` of them that are not in use.
    ///
    /// # Errors
    /// `InvalidInput` for another capacity.
    pub fn new(capacity: usize, keep: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        if !capacity.is_power_of_two() || capacity < page || capacity > CAPACITY_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a ring cannot have {capacity} bytes: choose a power of two from {page} to {CAPACITY_MAX}"
                ),
            ));
        }
        Ok(Self(Arc::new(Pool {
            capacity,
            keep,
            idle: Mutex::new(Vec::new()),
        })))
    }

    /// Bytes of each ring.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Rings' worth of memory kept at the moment.
    pub fn idle(&self) -> usize {
        self.idle_mirrors().len()
    }

    pub(super) fn lease(&self) -> io::Result<Lease> {
        let idle = self.idle_mirrors().pop();
        let mirror = match idle {
            Some(mirror) => mirror,
            None => Mirror::new(self.0.capacity)?,
        };
        Ok(Lease {
            mirror: Some(mirror),
            touched: AtomicUsize::new(0),
            pool: self.clone(),
        })
    }

    fn idle_mirrors(&self) -> std::sync::MutexGuard<'_, Vec<Mirror>> {
        // A push or a pop does not leave a vector half done.
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RingPool({} idle of {} bytes)",
            self.idle(),
            self.0.capacity
        )
    }
}

/// The memory of one ring. It goes back to the pool when the last who shares it is gone, as zeros:
/// its next user finds nothing of this one.
pub(super) struct Lease {
    /// There until it is given back.
    mirror: Option<Mirror>,
    /// Nothing was written at or behind it.
    touched: AtomicUsize,
    pool: RingPool,
}

impl Lease {
    #[inline]
    pub(super) fn mirror(&self) -> &Mirror {
        self.mirror.as_ref().expect("the memory is still leased")
    }

    /// Says that bytes were written up to `position`.
    pub(super) fn touch(&self, position: usize) {
        // Relaxed, like the load: the drop of the last share is synchronised with all others.
        if position > self.touched.load(Ordering::Relaxed) {
            self.touched.fetch_max(position, Ordering::Relaxed);
        }
    }
}

impl Lease {
    /// Gives the memory back to the pool, once.
    pub(super) fn give_back(&mut self) {
        let Some(mut mirror) = self.mirror.take() else {
            return;
        };
        if self.pool.idle() >= self.pool.0.keep {
            return;
        }
        mirror.clear(*self.touched.get_mut());
        let mut idle = self.pool.idle_mirrors();
        if idle.len() < self.pool.0.keep {
            idle.push(mirror);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}
