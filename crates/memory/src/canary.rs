//! Canaries: rules broken on purpose, one at a time, to prove that the simulator's checkers notice, or those of the durable log.
//!
//! The code that keeps a rule asks [`injected`] whether to break it. Without the feature `canary` the answer is a
//! constant `false`, and the compiler removes the question. Canaries of all layers are in this list, because the lowest
//! of those that ask is this crate. One is injected for one thread.

macro_rules! canaries {
    ($( $(#[doc = $doc:literal])* $name:ident, )*) => {
        /// A rule that can be broken: a step is left out, or a check passes without having been made.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Canary { $( $(#[doc = $doc])* $name, )* }

        impl Canary {
            /// All of them.
            pub const ALL: &[Self] = &[$( Self::$name, )*];

            /// What it is called.
            pub fn name(self) -> &'static str {
                match self { $( Self::$name => stringify!($name), )* }
            }

            /// The step or check that it breaks.
            pub fn what(self) -> &'static str {
                match self { $( Self::$name => concat!($($doc),*), )* }
            }
        }
    };
}

canaries! {
    /// The write-back of a published record.
    SlotWriteBack,
    /// The fence behind a published record.
    SlotFence,
    /// The invalidation before a record is looked at.
    SlotInvalidate,
    /// The write-back of a batch's bytes.
    CommitWriteBack,
    /// The fence behind a batch's bytes.
    CommitFence,
    /// The invalidation before another broker's bytes are read.
    ForeignInvalidate,
    /// The invalidation before a broker reads what its predecessor stored.
    SpanInvalidate,
    /// The write-back of a topic's record.
    TopicRecordWriteBack,
    /// The invalidation before a topic's record is looked at.
    TopicRecordInvalidate,
    /// The window of orders 0 and 1, before memory below it is used again.
    WindowRaise,
    /// The window of orders 2 and 5, before memory below it is used again.
    OrderedWindowRaise,
    /// The fence between places in the order and what brokers learn of them.
    GoiFence,
    /// The news of chains that have grown.
    OrderNews,
    /// The session's row before the notice that speaks of it.
    SessionRowFirst,
    /// The higher epoch before the predecessor's memory is read.
    RaiseFirst,
    /// The look at the epoch after the order was followed.
    LastsAfterFollow,
    /// The look at the epoch after notices and grants were read.
    LastsAfterNotices,
    /// Following the order to a term's start before lanes are begun for it.
    FollowToStart,
    /// Submitting again, to a successor, what is not settled.
    Resubmission,
    /// The end of an older epoch where the successor cut it.
    CutAtStart,
    /// The cut at the end of what is dense.
    DenseCut,
    /// The look whether the bytes of what a dead broker left are whole.
    LeftIntact,
    /// The word that an incarnation was admitted.
    AdmittedFlag,
    /// Forgetting what is held of an older incarnation.
    DropIncarnation,
    /// The grant, before a lane's slots are used again.
    ConsumedGrant,
    /// The bound on the steps of the lease's clock.
    LeaseClamp,
    /// The share of held batches that one session leaves to others.
    HeldReserve,
    /// The next epoch of a session that another process of its publisher opens.
    NextInstance,
    /// The look whether a batch is placed already.
    Dedupe,
    /// Session rows before the release of the records that they cover.
    CoverBeforeRelease,
    /// The look at the secret of a publisher that opens a session again.
    SessionSecret,
    /// The look at the epoch that a new instance takes a session over from.
    TakeOverEpoch,
    /// Putting right the one bit that is wrong of a record.
    BitRepair,
    /// The second copy of a row.
    SecondCopy,
    /// The report to a broker of a record in its lane that cannot be read.
    UnreadableTold,
    /// Storing a record again that a lane lost whole.
    LostRestored,
    /// Storing the newest record of the order again, where nothing shows that it was lost.
    NewestRestored,
    /// The count of notices, by which a broker knows of one that was lost whole.
    NoticeCount,
    /// The end of a broker that cannot read its notices.
    DoubtEnds,
    /// The report to readers of messages that were lost with a record of the index.
    LossTold,
    /// The end of an order at what is damaged of it.
    DamageEnds,
    /// The age of an extent by the youngest batch in it.
    ExtentAge,
    /// The news of a window that was raised.
    WindowNews,
    /// The checksum of a frame that is no batch.
    FrameChecksum,
    /// The bound on what a watch counts as silence between two of its looks.
    WatchedSilence,
    /// The part of the connections that one host leaves to others.
    ConnectionShare,
    /// Taking the place of a session from the peer that has most.
    IdlePeer,
    /// Taking the holder of a lock that cannot be looked at for alive.
    UnlookedLives,
    /// Giving up a batch that hardly comes while others wait for what it holds.
    SlowGivenUp,
    /// The fence behind bytes in the ring of a stream by shared memory.
    StreamBytesFence,
    /// The check of what a peer by shared memory says that it consumed.
    StreamCounter,
    /// Keeping what was named to a peer until it consumed that.
    StreamKept,
    /// The look whether what was named is withdrawn, after it was copied.
    StreamWithdrawn,
    /// The ring of a doorbell.
    StreamRing,
    /// The invalidation before a look whether a peer sleeps.
    StreamSleepInvalidate,
    /// The sync of a commit, before a frontier counts it.
    CommitSync,
    /// The commits before it, before a frontier counts a commit.
    CommitsBefore,
    /// The row that says how much of a disk counts, before the frontiers that follow from it.
    DiskRowFirst,
    /// The sync of a segment's name, before its commits.
    SegmentName,
    /// The end of a disk for its term when a write failed.
    FailedWrite,
    /// The look whether a later commit counted one that is damaged.
    CountedCommit,
    /// The sync of what a successor has read.
    FoundSync,
    /// Epochs above those that disks have, in a region that is restored.
    RestoredEpoch,
    /// The copy of what a disk lacks, before its region is restored.
    LevelDisks,
    /// Sessions in the journal count what is there, and not what is ordered.
    SessionFacts,
}

impl Canary {
    /// Those that the model of the durable log notices, a test of the crate `broker`. The simulator has no disks.
    pub const OF_DISKS: &[Self] = &[
        Self::CommitSync,
        Self::CommitsBefore,
        Self::DiskRowFirst,
        Self::SegmentName,
        Self::FailedWrite,
        Self::CountedCommit,
        Self::FoundSync,
        Self::RestoredEpoch,
        Self::LevelDisks,
        Self::SessionFacts,
    ];
}

#[cfg(feature = "canary")]
mod injection {
    use std::cell::Cell;

    use super::Canary;

    thread_local! {
        static INJECTED: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Breaks the rule of `canary` in this thread, in place of the one broken before; `None` breaks none.
    pub fn inject(canary: Option<Canary>) {
        INJECTED.set(canary);
    }

    /// Runs what must see the truth, like a checker: no rule is broken meanwhile.
    pub fn without_canary<R>(f: impl FnOnce() -> R) -> R {
        let injected = INJECTED.take();
        let result = f();
        INJECTED.set(injected);
        result
    }

    /// Whether this thread breaks the rule of `canary`.
    #[inline]
    pub fn injected(canary: Canary) -> bool {
        INJECTED.get() == Some(canary)
    }
}

#[cfg(feature = "canary")]
pub use injection::{inject, injected, without_canary};

/// Whether this thread breaks the rule of `canary`: never, without the feature `canary`.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub const fn injected(_: Canary) -> bool {
    false
}
