//! What is sent: messages and views, each encoded straight into the ring.

use std::marker::PhantomData;

use buffa::{Message, ViewEncode};
use embar_session::{SendError, Session};

/// Something that can be encoded behind the prefix of a frame.
pub trait Outgoing {
    /// Sends it, without waiting; gives the bytes of the frame's content.
    ///
    /// # Errors
    /// [`SendError`]; nothing is sent then.
    fn try_send(&self, session: &Session, id: u16, prefix: &[&[u8]]) -> Result<usize, SendError>;

    /// Appends it to `bytes`.
    fn append_to(&self, bytes: &mut Vec<u8>);

    /// Its length, encoded.
    fn encoded_bytes(&self) -> usize;
}

/// A Protobuf message.
#[derive(Debug, Clone, Copy)]
pub struct Owned<'a, M>(pub &'a M);

impl<M: Message> Outgoing for Owned<'_, M> {
    fn try_send(&self, session: &Session, id: u16, prefix: &[&[u8]]) -> Result<usize, SendError> {
        session.try_send_prefixed(id, prefix, self.0)
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        self.0.encode(bytes);
    }

    fn encoded_bytes(&self) -> usize {
        self.0.encoded_len() as usize
    }
}

/// A view, whose fields are borrowed.
#[derive(Debug)]
pub struct Viewed<'a, 'v, V> {
    view: &'a V,
    fields: PhantomData<&'v ()>,
}

impl<'a, 'v, V: ViewEncode<'v>> Viewed<'a, 'v, V> {
    /// This view.
    #[must_use]
    pub fn new(view: &'a V) -> Self {
        let fields = PhantomData;
        Self { view, fields }
    }
}

impl<'v, V: ViewEncode<'v>> Outgoing for Viewed<'_, 'v, V> {
    fn try_send(&self, session: &Session, id: u16, prefix: &[&[u8]]) -> Result<usize, SendError> {
        session.try_send_view_prefixed(id, prefix, self.view)
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        self.view.encode(bytes);
    }

    fn encoded_bytes(&self) -> usize {
        self.view.encoded_len() as usize
    }
}

/// No message: a frame that is its prefix alone.
pub(crate) struct Nothing;

impl Outgoing for Nothing {
    fn try_send(&self, session: &Session, id: u16, prefix: &[&[u8]]) -> Result<usize, SendError> {
        let bytes = prefix.iter().map(|part| part.len()).sum();
        let mut packet = session.try_reserve(id, bytes)?;
        let mut rest = &mut packet[..];
        for part in prefix {
            let (to, behind) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = behind;
        }
        packet.commit();
        Ok(bytes)
    }

    fn append_to(&self, _: &mut Vec<u8>) {}

    fn encoded_bytes(&self) -> usize {
        0
    }
}
