//! What came back.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;

use buffa::{DecodeOptions, HasMessageView, Message};
use embar_session::{MAX_ELEMENT_BYTES, MAX_NESTING, MAX_UNKNOWN_FIELDS};

use super::slot::Bytes;
use super::table::Table;
use crate::Status;

/// A message from the server: a reply, or an item of a stream. Its bytes lie in the receive ring as
/// long as this lives, and hold up the room from there on, so that in the end all calls of the channel
/// wait: decode it and drop it, or take what it says with [`Response::to_message`].
pub struct Response<R> {
    bytes: Bytes,
    /// Where a copy's buffer goes back to.
    home: Option<(Arc<Table>, u32)>,
    message: PhantomData<fn() -> R>,
}

impl<R> Response<R> {
    pub(super) fn new(bytes: Bytes, table: &Arc<Table>, slot: u32) -> Self {
        let home = match &bytes {
            Bytes::Kept(..) => None,
            Bytes::Copied(_) => Some((Arc::clone(table), slot)),
        };
        Self {
            bytes,
            home,
            message: PhantomData,
        }
    }

    /// As it came, encoded.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<R: HasMessageView> Response<R> {
    /// A view of the message: strings and bytes are borrowed. With the bounds of
    /// [`Message::decode`](embar_session::Message::decode).
    ///
    /// # Errors
    /// [`Internal`](crate::Code::Internal): what the server sent is no such message.
    pub fn view(&self) -> Result<R::View<'_>, Status> {
        decode_options()
            .decode_view(&self.bytes)
            .map_err(|error| Status::internal(format!("the server's message is damaged: {error}")))
    }
}

impl<R: Message> Response<R> {
    /// The message, as one that owns its fields.
    ///
    /// # Errors
    /// [`Internal`](crate::Code::Internal): what the server sent is no such message.
    pub fn to_message(&self) -> Result<R, Status> {
        decode_options()
            .decode_from_slice(&self.bytes)
            .map_err(|error| Status::internal(format!("the server's message is damaged: {error}")))
    }
}

impl<R> Drop for Response<R> {
    fn drop(&mut self) {
        if let Some((table, slot)) = self.home.take()
            && let Bytes::Copied(bytes) = mem::replace(&mut self.bytes, Bytes::Copied(Vec::new()))
            && let Some(mut slot) = table.slot(slot)
        {
            slot.give_spare(bytes);
        }
    }
}

impl<R> fmt::Debug for Response<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({} bytes)", self.bytes.len())
    }
}

/// The bounds of what peers send.
pub(crate) fn decode_options() -> DecodeOptions {
    DecodeOptions::new()
        .with_recursion_limit(MAX_NESTING)
        .with_unknown_field_limit(MAX_UNKNOWN_FIELDS)
        .with_element_memory_limit(MAX_ELEMENT_BYTES)
}
