//! What may come in.

/// The most bytes of a file; no command prints a hundredth of this.
pub const BYTES_MAX: u64 = 64 << 20;

/// The most commas between the values of a file, and the most objects of one. Each entry of a list but the first follows a comma, and becomes some
/// hundred bytes of the page.
pub(crate) const ENTRIES_MAX: usize = 50_000;

/// The commands whose output is understood.
pub const UNDERSTOOD: [&str; 15] = [
    "embar diagnose --json",
    "embar diagnose --matrix N --json",
    "embar diagnose redis --json",
    "embar diagnose session --json",
    "embar diagnose [redis|session] --save FILE",
    "embar bench publish --json",
    "embar bench BENCH --compare WHAT --json",
    "embar bench read --json",
    "embar bench e2e --json",
    "embar bench latency --json",
    "embar bench walls --json",
    "embar bench metering --json",
    "embar bench scale --json",
    "embar bench session --json",
    "embar bench redis --json",
];
