//! Why requests, batches and connections are refused, in words for the peer.

use embar_memory::Memory;
use embar_wire::control::{Control, ErrorCode, ErrorReply};

use crate::log::AdmitError;
use crate::topics::TopicTable;

/// The answer to a request, or why there is none.
pub(super) type Reply = Result<Control, ErrorReply>;

/// What a stopping broker says.
pub(super) const STOPPING: &str = "this broker is stopping";
/// What a broker says to a publisher whose batch would be all that keeps it from leaving.
pub(super) const LEAVES: &str = "this broker leaves the cluster: publish to another";
/// Why a subscriber is cut whose batches were evicted while they were sent.
pub(super) const OVERTAKEN: &str = "it was evicted";
/// What a publisher is told that waited for room.
pub(super) const NO_ROOM_IN_TIME: &str = "the log had no room for this batch in time: publish more slowly, or give the cluster a larger region";

/// Why the connection of a publisher or subscriber cannot be opened as another one.
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

/// The topic of this name is not the one that the peer knows.
pub(super) fn topic_replaced(name: &str) -> ErrorReply {
    let mut error = ErrorReply::new(
        ErrorCode::TopicReplaced,
        format!("topic {name} was deleted and created again: open it anew to use the new one"),
    );
    error.topic = Some(name.into());
    error
}

/// Why a batch has no room in the log and never will, or had none for too long.
pub(super) fn never_stored(why: AdmitError) -> ErrorReply {
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
