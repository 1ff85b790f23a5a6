//! Control messages: Protobuf bodies, one frame id each, answered in the order of the requests; and
//! the greetings that the session's handshake carries.
//!
//! The schema is `proto/embar.proto`. Its generated types stay inside: encoding borrows from the
//! types here and decoding copies into them, both through Protobuf views, so strings are copied
//! once. Where absence has no meaning a missing field is an error.

mod cluster;
mod error;
mod field;
mod handshake;
mod publishing;
mod topics;

use buffa::{DecodeOptions, MessageView, SizeCache, ViewEncode};
use embar_frame::{CHECKSUM_BYTES, FRAME_HEADER_BYTES, FrameHeader, write_checksum};

pub use self::cluster::{
    BrokerInfo, BrokerRole, BrokerState, BrokerStatus, ClusterMetadata, DISK_PROFILE, DiskState,
    DiskStatus, Join, Joined, Metadata, ProfileReply, RemoveBroker, SetMetering, StatusReply,
};
pub use self::error::{ControlError, EncodeError};
pub use self::handshake::{ErrorCode, ErrorReply, Hello, Role, Welcome};
pub use self::publishing::{
    OpenPublisher, OpenSession, PublisherOpened, Secret, SessionHeld, SessionOpened,
};
pub use self::topics::{
    CreateTopic, DeleteTopic, DescribeTopic, ListTopics, Partition, StartAt, Subscribe, Subscribed,
    Topic, TopicCreated, TopicDescription, Topics,
};

use self::field::Body;
use crate::frame::FrameId;
use crate::limits::MAX_CONTROL_BYTES;
use crate::proto;

/// Memory that the repeated fields of one message may take while it is decoded: an element of two
/// bytes on the wire can be a hundred times that in memory.
const MAX_ELEMENT_BYTES: usize = 256 << 10;

/// Unknown fields that are skipped before a message is refused.
const MAX_UNKNOWN_FIELDS: usize = 1024;

/// The deepest message has two levels.
const MAX_NESTING: u32 = 8;

macro_rules! control {
    (
        messages { $($(#[$doc:meta])* $message:ident($body:ty),)* }
        signals { $($(#[$signal_doc:meta])* $signal:ident($view:ident),)* }
    ) => {
        /// Any control message.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Control {
            $($(#[$doc])* $message($body),)*
            $($(#[$signal_doc])* $signal,)*
        }

        impl Control {
            /// The id of its frame.
            #[must_use]
            pub fn id(&self) -> FrameId {
                match self {
                    $(Self::$message(_) => FrameId::$message,)*
                    $(Self::$signal => FrameId::$signal,)*
                }
            }
        }

        /// Appends the frame of `message`, header and checksum included.
        ///
        /// # Errors
        /// [`EncodeError`] if the body exceeds [`MAX_CONTROL_BYTES`]; `out` is as before.
        pub fn encode(message: &Control, out: &mut Vec<u8>) -> Result<(), EncodeError> {
            match message {
                $(Control::$message(body) => frame(FrameId::$message, &body.to_view(), out),)*
                $(Control::$signal => frame(FrameId::$signal, &proto::$view::default(), out),)*
            }
        }

        /// Bytes of the body of `message`, without a frame header.
        ///
        /// # Errors
        /// [`EncodeError`] if it exceeds [`MAX_CONTROL_BYTES`].
        pub fn body_len(message: &Control) -> Result<usize, EncodeError> {
            match message {
                $(Control::$message(body) => view_len(FrameId::$message, &body.to_view()),)*
                $(Control::$signal => view_len(FrameId::$signal, &proto::$view::default()),)*
            }
        }

        /// Writes the body of `message`, without a frame header, into memory of exactly
        /// [`body_len`] bytes, for instance a reservation.
        ///
        /// # Errors
        /// [`EncodeError`] if it exceeds [`MAX_CONTROL_BYTES`].
        ///
        /// # Panics
        /// If `out` has another length.
        pub fn encode_body(message: &Control, out: &mut [u8]) -> Result<(), EncodeError> {
            match message {
                $(Control::$message(body) => {
                    view_into(FrameId::$message, &body.to_view(), out)
                })*
                $(Control::$signal => {
                    view_into(FrameId::$signal, &proto::$view::default(), out)
                })*
            }
        }

        /// Reads the body of a control frame.
        ///
        /// # Errors
        /// [`ControlError`] if the id is not that of a control message, the body is not
        /// valid Protobuf of that message, or a field is missing or unknown.
        pub fn decode(id: FrameId, body: &[u8]) -> Result<Control, ControlError> {
            match id {
                $(FrameId::$message => {
                    let view = view(FrameId::$message, body)?;
                    Ok(Control::$message(<$body>::from_view(view)?))
                })*
                $(FrameId::$signal => {
                    view::<proto::$view>(FrameId::$signal, body)?;
                    Ok(Control::$signal)
                })*
                FrameId::Batch | FrameId::Ack => Err(ControlError::NotControl { id }),
            }
        }
    };
}

control! {
    messages {
        /// A request was refused, or the connection is about to be closed.
        Error(ErrorReply),
        /// Announces batches for one topic.
        OpenPublisher(OpenPublisher),
        /// Answer to OpenPublisher.
        PublisherOpened(PublisherOpened),
        /// Instead of PublisherOpened: another instance has the producer.
        SessionHeld(SessionHeld),
        /// Asks for the next epoch of a publisher's session.
        OpenSession(OpenSession),
        /// Answer to OpenSession.
        SessionOpened(SessionOpened),
        /// Asks for a topic's batches.
        Subscribe(Subscribe),
        /// Answer to Subscribe; batches follow.
        Subscribed(Subscribed),
        /// Creates a topic.
        CreateTopic(CreateTopic),
        /// Answer to CreateTopic.
        TopicCreated(TopicCreated),
        /// Deletes a topic and what it retains.
        DeleteTopic(DeleteTopic),
        /// Asks for topics, so many at a time.
        ListTopics(ListTopics),
        /// Answer to ListTopics.
        Topics(Topics),
        /// Asks for one topic with its partitions.
        DescribeTopic(DescribeTopic),
        /// Answer to DescribeTopic.
        TopicDescription(TopicDescription),
        /// Asks who is in the cluster.
        Metadata(Metadata),
        /// Answer to Metadata.
        ClusterMetadata(ClusterMetadata),
        /// Answer to Status.
        StatusReply(StatusReply),
        /// Answer to Profile.
        ProfileReply(ProfileReply),
        /// Switches metering on or off; answered by Done.
        SetMetering(SetMetering),
        /// Asks a broker to leave the cluster for good; answered by Done.
        RemoveBroker(RemoveBroker),
        /// A broker asks the head for its row.
        Join(Join),
        /// Answer to Join.
        Joined(Joined),
    }
    signals {
        /// Answer to DeleteTopic.
        TopicDeleted(TopicDeletedView),
        /// Ends a publisher's session for good; answered by Done.
        CloseSession(CloseSessionView),
        /// Asks for counters.
        Status(StatusView),
        /// Asks for the broker's stage profile.
        Profile(ProfileView),
        /// Done, and nothing more to say.
        Done(DoneView),
    }
}

fn frame<'a>(
    id: FrameId,
    view: &impl ViewEncode<'a>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let at = out.len();
    let limit = MAX_CONTROL_BYTES;
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    match view.try_encode_bounded(limit, out) {
        Ok(bytes) => {
            let header = FrameHeader::new(id, bytes).with_checksum();
            out[at..at + FRAME_HEADER_BYTES].copy_from_slice(&header.to_bytes());
            out.extend_from_slice(&[0; CHECKSUM_BYTES]);
            write_checksum(&mut out[at..]);
            Ok(())
        }
        Err(_) => {
            out.truncate(at);
            let bytes = view
                .try_encoded_len()
                .map_or(usize::MAX, |len| len as usize);
            Err(EncodeError { id, bytes, limit })
        }
    }
}

fn view_len<'a>(id: FrameId, view: &impl ViewEncode<'a>) -> Result<usize, EncodeError> {
    let limit = MAX_CONTROL_BYTES;
    let bytes = view
        .try_encoded_len()
        .map_or(usize::MAX, |len| len as usize);
    if bytes > limit as usize {
        return Err(EncodeError { id, bytes, limit });
    }
    Ok(bytes)
}

fn view_into<'a>(
    id: FrameId,
    view: &impl ViewEncode<'a>,
    mut out: &mut [u8],
) -> Result<(), EncodeError> {
    let limit = MAX_CONTROL_BYTES;
    let mut sizes = SizeCache::new();
    let bytes = view.compute_size(&mut sizes);
    if bytes > limit {
        let bytes = bytes as usize;
        return Err(EncodeError { id, bytes, limit });
    }
    assert_eq!(
        out.len(),
        bytes as usize,
        "the memory must have the length of the body"
    );
    view.write_to(&mut sizes, &mut out);
    assert!(out.is_empty(), "a message wrote less than its size");
    Ok(())
}

fn view<'a, V: MessageView<'a>>(id: FrameId, body: &'a [u8]) -> Result<V, ControlError> {
    options()
        .decode_view(body)
        .map_err(|reason| ControlError::Malformed { id, reason })
}

/// Bounds of what a peer's message may cost.
fn options() -> DecodeOptions {
    DecodeOptions::new()
        .with_max_message_size(MAX_CONTROL_BYTES as usize)
        .with_element_memory_limit(MAX_ELEMENT_BYTES)
        .with_unknown_field_limit(MAX_UNKNOWN_FIELDS)
        .with_recursion_limit(MAX_NESTING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enums_are_those_of_the_schema() {
        Role::assert_like_the_schema();
        ErrorCode::assert_like_the_schema();
        BrokerState::assert_like_the_schema();
        BrokerRole::assert_like_the_schema();
        DiskState::assert_like_the_schema();
    }
}
