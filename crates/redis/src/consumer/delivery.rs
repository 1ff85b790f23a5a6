//! An entry that a consumer was given.

use std::fmt;
use std::sync::Arc;

use super::acknowledger::Acknowledger;
use super::entry_id::EntryId;

/// The fields of an entry with their values, in their order.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// An entry that a consumer was given. [`Delivery::acknowledge`] says that it is done. Dropping it does not: the entry stays
/// pending, and comes again when a consumer claims it ([`claim_idle`](super::ConsumerOptions::claim_idle)), or one of this
/// name begins.
pub struct Delivery {
    id: EntryId,
    fields: Fields,
    deliveries: u64,
    acknowledger: Arc<Acknowledger>,
    acknowledged: bool,
}

impl Delivery {
    /// `None`: the program has it already.
    pub(super) fn new(
        (id, fields): (EntryId, Fields),
        deliveries: u64,
        acknowledger: &Arc<Acknowledger>,
    ) -> Option<Self> {
        acknowledger.deliver(id).then(|| Self {
            id,
            fields,
            deliveries,
            acknowledger: Arc::clone(acknowledger),
            acknowledged: false,
        })
    }

    /// The entry's id.
    #[must_use]
    pub fn id(&self) -> EntryId {
        self.id
    }

    /// Its fields with their values, in their order.
    #[must_use]
    pub fn fields(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.fields
    }

    /// The value of the first field of this name.
    #[must_use]
    pub fn get(&self, field: impl AsRef<[u8]>) -> Option<&[u8]> {
        let mut fields = self.fields.iter();
        let found = fields.find(|(name, _)| name == field.as_ref());
        found.map(|(_, value)| &**value)
    }

    /// How often a consumer of the group was given it, this time included: 1 is the first time.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.deliveries
    }

    /// The entry is done: it never comes again, unless the server loses that in a failover. Returns at once; the
    /// acknowledgement goes to the server now, or together with others as soon as the one before has arrived. While no server
    /// takes it the client sends it again. From any thread.
    pub fn acknowledge(mut self) {
        self.acknowledged = true;
        self.acknowledger.acknowledge(self.id);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.acknowledged {
            self.acknowledger.release(self.id);
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivery({}, {} fields)", self.id, self.fields.len())
    }
}
