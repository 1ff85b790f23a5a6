//! Why a broker refuses requests, batches and connections, in words for the peer.

use embar_fabric::DiskState;
use embar_memory::Memory;
use embar_wire::control::{Control, ErrorCode, ErrorReply};

use crate::log::AdmitError;
use crate::topics::TopicTable;

/// The answer to a request, or why there is none.
pub(super) type Reply = Result<Control, ErrorReply>;

/// To the peers of a broker that stops.
pub(super) const STOPPING: &str = "this broker is stopping";
/// To a process that may not use the Unix socket.
pub(super) const WRONG_USER: &str = "this socket is for processes of the broker's user and of root: connect by TCP, or run as that user";
/// To a publisher whose batch would keep a broker from leaving.
pub(super) const LEAVES: &str = "this broker leaves the cluster: publish to another";
/// To a subscriber whose batches this broker evicted while it sent them.
pub(super) const OVERTAKEN: &str = "it was evicted";
/// To a publisher that waited for space.
pub(super) const NO_ROOM_IN_TIME: &str = "the log had no room for this batch in time: publish more slowly, or give the cluster a larger region";

/// To a peer that opens a stream on a connection that is one already.
pub(super) fn already_streaming() -> ErrorReply {
    let what = "this connection is a stream already: open another one";
    ErrorReply::new(ErrorCode::BadFrame, what.into())
}

/// No topic of this name can be found.
pub(super) fn unknown_topic<M: Memory>(topics: &TopicTable<M>, name: &str) -> ErrorReply {
    let why = topics.missing(name);
    let mut error = ErrorReply::new(why.code(), why.to_string());
    error.topic = Some(name.into());
    error
}

/// The topic with this name is not the one that the peer knows.
pub(super) fn topic_replaced(name: &str) -> ErrorReply {
    let mut error = ErrorReply::new(
        ErrorCode::TopicReplaced,
        format!("topic {name} was deleted and created again: open it anew to use the new one"),
    );
    error.topic = Some(name.into());
    error
}

/// Nothing of a topic gets onto one of its disks at the moment.
pub(super) fn disk_unavailable(trouble: DiskState) -> ErrorReply {
    let what = match trouble {
        DiskState::Full | DiskState::FullAtStart => {
            "a disk of the topic is full: remove other files there or delete topics, and it goes on by itself; `embar status` names the disk"
        }
        _ => {
            "a disk of the topic has failed: replace it, and start the cluster again; `embar status` names the disk, and acks 1 need none"
        }
    };
    ErrorReply::new(ErrorCode::DiskUnavailable, what.into())
}

/// Why a batch gets no space in the log: never, or not in time.
pub(super) fn batch_refused(why: AdmitError) -> ErrorReply {
    match why {
        AdmitError::Damaged => ErrorReply::new(
            ErrorCode::Damaged,
            "the topic's order is damaged, so nothing can be stored behind it: publish to another topic".into(),
        ),
        AdmitError::UnknownTopic => ErrorReply::new(
            ErrorCode::UnknownTopic,
            "the topic was deleted: create it again, or publish to another".into(),
        ),
        AdmitError::Congested | AdmitError::Full => ErrorReply::new(ErrorCode::Backpressure, NO_ROOM_IN_TIME.into()),
    }
}

/// What lies on a disk is read once, with all that is between. A helper would read it again, for a part of it.
pub(super) fn no_help_from_disks() -> ErrorReply {
    let what = "what comes next is not in memory any more: the broker that serves the order reads it from a disk alone";
    ErrorReply::new(ErrorCode::OutOfReach, what.into())
}
