//! The asymmetric fences, locks and atomics of a biased mutex, or what stands for them when loom checks its models.

#[cfg(loom)]
pub(super) use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{Thread, current, park},
};
#[cfg(not(loom))]
pub(super) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{Thread, current, park},
};

/// Keeps this thread's loads behind its stores, as far as the compiler goes. [`everywhere_fence`] does the rest.
#[cfg(not(loom))]
#[inline]
pub(super) fn local_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// All threads of this process pass a full fence between the beginning and the end of this call.
///
/// # Panics
/// If the kernel refuses it, although [`may_fence_everywhere`] said that it would not.
#[cfg(not(loom))]
pub(super) fn everywhere_fence() {
    use rustix::io::Errno;
    use rustix::thread::{MembarrierCommand, membarrier};

    std::sync::atomic::fence(Ordering::SeqCst);
    loop {
        match membarrier(MembarrierCommand::PrivateExpedited) {
            Ok(()) => return,
            // It needs some memory on kernels for very many processors.
            Err(Errno::NOMEM) => std::thread::yield_now(),
            Err(error) => panic!("the kernel allowed this call before, see biased.rs: {error}"),
        }
    }
}

/// Whether [`everywhere_fence`] works here.
#[cfg(not(loom))]
pub(super) fn may_fence_everywhere() -> bool {
    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

    static WORKS: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    });
    *WORKS
}

/// Loom knows no fence that one thread makes for others. Two whole ones are what the pair amounts to.
#[cfg(loom)]
pub(super) fn local_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(loom)]
pub(super) fn everywhere_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(loom)]
pub(super) fn may_fence_everywhere() -> bool {
    true
}
