//! Counts what happened in a run, such as crashes and evictions: a run in which nothing happened proves nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

/// Damaged lines of memory, by what lay there.
pub type Damaged = BTreeMap<&'static str, u64>;

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one run, or the sums of several.
        #[derive(Clone, Copy, Default, PartialEq, Eq)]
        pub struct Figures { $($(#[$doc])* pub $name: u64,)* }

        impl Figures {
            /// What is counted, and how often it was.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// What never happened.
            pub fn missing(&self) -> Vec<&'static str> {
                let all = self.all().into_iter();
                all.filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
            }
        }

        impl AddAssign for Figures {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Debug for Figures {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let all = self.all().into_iter();
                let text = all.map(|(name, count)| format!("{count} {}", name.replace('_', " ")));
                f.write_str(&text.collect::<Vec<_>>().join(", "))
            }
        }
    };
}

figures! {
    /// Steps taken.
    steps,
    /// Batches that were visible.
    batches,
    /// Of them, those in topics of orders 2 and 5.
    ordered_batches,
    /// Batches that were evicted.
    evicted,
    /// Times a data broker's host died.
    broker_host_crashes,
    /// Times only its process died.
    broker_process_crashes,
    /// Times a candidate's host died.
    candidate_host_crashes,
    /// Times only its process died.
    candidate_process_crashes,
    /// Of all of them, those in the middle of something.
    crashes_midway,
    /// Times a process started on the host of an earlier one, whose caches still held something.
    warm_starts,
    /// Data brokers that joined a cluster that ran.
    joined,
    /// Data brokers that left for good.
    left,
    /// Of these, those that left with what only they had.
    forced,
    /// Times a broker that was asked to leave was the last one, or had what only it had.
    stayed,
    /// Brokers that ended as they were overtaken.
    ended,
    /// Topics that were deleted.
    deleted,
    /// Clients that learned that their topic was deleted, or is another one now.
    bereaved,
    /// Times a host stood still.
    pauses,
    /// Times one stood still between what it decided and what it did.
    pauses_midway,
    /// Times others ran in the middle of a turn.
    interruptions,
    /// Sequencers that began.
    takeovers,
    /// Sequencers that were deposed while they lived.
    deposed,
    /// Takeovers in which the candidate died, or that failed.
    takeovers_failed,
    /// Connections cut.
    cuts,
    /// Connections of which one end never learned that they were cut.
    half_open,
    /// Connections that stood still.
    stalls,
    /// Times a sequencer was late.
    late_sequencers,
    /// Wake-ups that were lost.
    lost_wakeups,
    /// Publishers whose process died, and was followed by another with their identity.
    reborn,
    /// Clients that stood still.
    frozen,
    /// Times a host's clocks jumped.
    jumps,
    /// Bits of memory that were wrong.
    flipped,
    /// Lines of memory that were lost.
    lost,
    /// Lines of memory that were lost before any host read them.
    lost_unread,
    /// Topics, or what a broker had of one, of which records were lost.
    hurt,
    /// Clients that learned that memory is damaged.
    told_of_damage,
    /// Runs in which numbers of lanes reach beyond 32 bits.
    wrapped,
    /// Turns of brokers whose log is full.
    full,
    /// Batches whose room a slowloris client claimed.
    claimed,
    /// Connections of clients that make many.
    flooded,
    /// Sessions that clients asked for which ask for many.
    openings,
    /// Series of questions by clients that do not wait for answers.
    asked,
    /// Turns of brokers at which one host had all the connections that it may.
    crowded,
    /// Publishers that learned that another client has their identity.
    names_taken,
    /// Hosts, or clients, that had no descriptor for a while.
    shortages,
    /// Clients that were not accepted at once for want of a descriptor, or let go.
    unaccepted,
    /// Connections that could not be begun.
    unconnected,
    /// Looks at a lock that failed.
    unlooked,
    /// Brokers whose start failed.
    starts_failed,
    /// Batches that were acknowledged in time while slowloris clients claimed room.
    patient,
    /// Batches damaged by the network.
    damaged,
    /// Other frames damaged by the network.
    damaged_frames,
    /// Batches that a publisher sent again.
    resent,
    /// Batches that were reported as in doubt.
    in_doubt,
    /// Batches that failed otherwise.
    failed,
    /// Batches that were delivered to subscribers.
    delivered,
    /// Times several brokers began to send a subscriber one order together.
    shared,
    /// Times a subscriber learned that it came too late.
    overtaken,
    /// Sessions whose epoch ended for want of a batch.
    gaps,
    /// Batches that were refused because their epoch was over.
    fenced,
    /// Batches that were there already.
    duplicates,
    /// Sessions that were forgotten.
    forgotten,
    /// Publishers that lost their session.
    sessions_lost,
    /// GOI records at positions that were given up.
    given_up,
}
