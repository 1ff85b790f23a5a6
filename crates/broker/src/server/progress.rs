//! How far the start of a broker has come.

/// What a start is busy with; it can take seconds for large regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Asking the kernel for memory.
    Reserving {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Touching every page, so that no batch has to wait for one.
    Prefault {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Checking what a dead owner of this row left, and waiting until the sequencer has taken it in. Reported
    /// every second.
    Recovering,
    /// Serving.
    Ready,
}
