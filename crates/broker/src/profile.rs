//! The stages of receiving a batch that a broker times, and the events that it counts, with the names that its profile
//! prints.

pub mod disk;

use embar_meter::profile::Schema;

/// A metered step of receiving a batch. The discriminant indexes [`SCHEMA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// Receiving a 64-byte batch header that did not come with the payload before it.
    DrainHeader,
    /// Finding room in the log for the payload.
    ReserveBLogSpace,
    /// The kernel copying payload from the socket into the log, and the header of the batch that
    /// follows, if it is there. By shared memory this broker copies, and checks the payload in the same pass.
    DrainPayloadToBuffer,
    /// Checking the payload's CRC-32C and its messages' lengths, unless that was done as it was copied.
    VerifyPayload,
    /// Finding room in the log for a whole batch of staging memory.
    GetCxlBuffer,
    /// Copying it there, and writing its lines back while they are in the cache.
    CopyAndFlushPayload,
    /// Writing the batch's record into the lane.
    ReservePbrSlotAndWriteEntry,
    /// Writing payload lines back and making the batch readable.
    CompleteBatchInCxl,
}

/// A counted event. The discriminant indexes [`SCHEMA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Batches appended.
    Batches,
    /// Messages in them.
    Messages,
    /// Their bytes, headers included.
    Bytes,
    /// Batches refused: too large, damaged, unknown topic, no room in time.
    RefusedBatches,
    /// Times a publisher was paused for want of room.
    Pauses,
    /// `recv` system calls.
    RecvCalls,
    /// Bytes they returned.
    RecvBytes,
    /// Those that found nothing.
    RecvEagain,
    /// `send` system calls.
    SendCalls,
    /// Bytes they took.
    SendBytes,
    /// Those that found no room.
    SendEagain,
    /// Connections by the Unix socket that were refused, because another user's process made them.
    RefusedUsers,
    /// Batches looked at for subscribers in whose shares they are not.
    PassedOver,
}

/// `[PublishPipelineProfile]`: one recorder per network thread.
pub static SCHEMA: Schema = Schema {
    title: "PublishPipelineProfile",
    stages: &[
        "DrainHeader",
        "ReserveBLogSpace",
        "DrainPayloadToBuffer",
        "VerifyPayload",
        "GetCXLBuffer",
        "CopyAndFlushPayload",
        "ReservePBRSlotAndWriteEntry",
        "CompleteBatchInCXL",
    ],
    counters: &[
        "batches",
        "messages",
        "bytes",
        "refused_batches",
        "pauses",
        "recv_calls",
        "recv_bytes",
        "recv_eagain",
        "send_calls",
        "send_bytes",
        "send_eagain",
        "refused_users",
        "passed_over",
    ],
};
