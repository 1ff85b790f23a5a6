//! The bytes of delivered batches, in a buffer of this process or where a broker lends them.

use std::ops::Deref;

use embar_transport::{LentBytes, Store};

/// Bytes of batches that came.
#[derive(Debug)]
pub struct Payload {
    /// The bytes, unless they are lent.
    space: Vec<u8>,
    lent: Option<LentBytes>,
}

impl Payload {
    /// What a receive left; `None` of memory that no payload is received into.
    pub(super) fn of(store: Store) -> Option<Self> {
        match store {
            Store::Heap(space) => Some(space.into()),
            Store::Lent(bytes, space) => Some(Self {
                space,
                lent: Some(bytes),
            }),
            _ => None,
        }
    }

    /// The buffer that is not needed because the bytes are lent.
    pub(super) fn spare_space(&mut self) -> Option<Vec<u8>> {
        self.lent.is_some().then(|| std::mem::take(&mut self.space))
    }

    /// The buffer, for using it again; empty if the bytes were lent. Those go back to their broker.
    pub fn into_space(self) -> Vec<u8> {
        self.space
    }

    /// The bytes, if they are this process's own.
    pub(super) fn own(&mut self) -> Option<&mut [u8]> {
        match self.lent {
            None => Some(&mut self.space),
            Some(_) => None,
        }
    }

    /// Whether they lie where a broker lends them.
    pub(super) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }
}

impl From<Vec<u8>> for Payload {
    fn from(space: Vec<u8>) -> Self {
        Self { space, lent: None }
    }
}

impl Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.lent {
            None => &self.space,
            Some(bytes) => bytes,
        }
    }
}
