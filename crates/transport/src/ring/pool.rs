//! Memory for rings, kept for reuse: mapping it and touching it for the first time is what a new
//! connection would otherwise pay for.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::raw::Mirror;
use crate::budget::{BudgetShare, Idle, MemoryBudget};

/// The largest ring, bytes: positions are 32 bits wide and must distinguish full from empty.
const CAPACITY_MAX: usize = 1 << 30;

struct Pool {
    capacity: usize,
    keep: usize,
    budget: Option<MemoryBudget>,
    idle: Mutex<Vec<Counted>>,
}

/// Memory of one ring, and its share of the budget for as long as there is that memory.
struct Counted {
    mirror: Mirror,
    _share: Option<BudgetShare>,
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
        Self::make(capacity, keep, None)
    }

    /// As [`RingPool::new`], whose rings count in `budget` with all of their bytes: those in use,
    /// whoever still holds a part of them, and idle ones. The memory of idle ones is given back when something else of
    /// the budget needs it.
    ///
    /// # Errors
    /// As [`RingPool::new`]. Where `budget` has no room for a ring, making one fails with
    /// `OutOfMemory`.
    pub fn within(budget: &MemoryBudget, capacity: usize, keep: usize) -> io::Result<Self> {
        let pool = Self::make(capacity, keep, Some(budget.clone()))?;
        // In two steps: only the first knows the type.
        let idle: Weak<Pool> = Arc::downgrade(&pool.0);
        budget.may_reclaim(idle);
        Ok(pool)
    }

    fn make(capacity: usize, keep: usize, budget: Option<MemoryBudget>) -> io::Result<Self> {
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
            budget,
            idle: Mutex::new(Vec::new()),
        })))
    }

    /// Bytes of each ring.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Rings' worth of memory kept at the moment.
    pub fn idle(&self) -> usize {
        self.0.idle_mirrors().len()
    }

    pub(super) fn lease(&self) -> io::Result<Lease> {
        let idle = self.0.idle_mirrors().pop();
        let memory = match idle {
            Some(memory) => memory,
            None => {
                let budget = self.0.budget.as_ref();
                let share = budget.map(|budget| budget.try_reserve(self.0.capacity));
                Counted {
                    _share: share.transpose()?,
                    mirror: Mirror::new(self.0.capacity)?,
                }
            }
        };
        Ok(Lease {
            memory: Some(memory),
            touched: AtomicUsize::new(0),
            pool: self.clone(),
        })
    }
}

impl Pool {
    fn idle_mirrors(&self) -> std::sync::MutexGuard<'_, Vec<Counted>> {
        // A push or a pop does not leave a vector half done.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle for Pool {
    fn idle_bytes(&self) -> usize {
        self.idle_mirrors().len() * self.capacity
    }

    fn forget_idle(&self, bytes: usize) {
        let mut idle = self.idle_mirrors();
        let kept = idle.len().saturating_sub(bytes.div_ceil(self.capacity));
        let forgotten = idle.split_off(kept);
        drop(idle);
        // Without the lock: to unmap takes a while.
        drop(forgotten);
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
    memory: Option<Counted>,
    /// Nothing was written at or behind it.
    touched: AtomicUsize,
    pool: RingPool,
}

impl Lease {
    #[inline]
    pub(super) fn mirror(&self) -> &Mirror {
        let memory = self.memory.as_ref().expect("the memory is still leased");
        &memory.mirror
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
        let Some(mut memory) = self.memory.take() else {
            return;
        };
        if self.pool.idle() >= self.pool.0.keep {
            return;
        }
        memory.mirror.clear(*self.touched.get_mut());
        let mut idle = self.pool.0.idle_mirrors();
        if idle.len() < self.pool.0.keep {
            idle.push(memory);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}
