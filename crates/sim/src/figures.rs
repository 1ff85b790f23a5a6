//! What a run went through: a run in which nothing happened proves nothing.

use std::fmt;
use std::ops::AddAssign;

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one run, or the sums of several.
        #[derive(Clone, Copy, Default, PartialEq, Eq)]
        pub struct Figures { $($(#[$doc])* pub $name: u64,)* }

        impl AddAssign for Figures {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Debug for Figures {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let all = [$((stringify!($name), self.$name),)*];
                let text = all.map(|(name, count)| format!("{count} {}", name.replace('_', " ")));
                f.write_str(&text.join(", "))
            }
        }
    };
}

figures! {
    /// Steps taken.
    steps,
    /// Batches that were visible.
    batches,
    /// Batches that were evicted.
    evicted,
    /// Times the host died.
    host_crashes,
    /// Times only the process died.
    process_crashes,
    /// Of both, those in the middle of something.
    crashes_midway,
    /// Connections cut.
    cuts,
    /// Batches damaged by the network.
    damaged,
    /// Batches that a publisher sent again.
    resent,
    /// Batches that were reported as in doubt.
    in_doubt,
    /// Batches that failed otherwise.
    failed,
    /// Batches that were delivered to subscribers.
    delivered,
    /// Times a subscriber was told that it came too late.
    overtaken,
}
