//! Which deliveries the program holds, and which acknowledgements are to go out: without I/O.
//!
//! One `XACK` is on its way at a time. What is acknowledged meanwhile gathers, and goes with the next: so an
//! acknowledgement waits for one round trip at most, and many cost few.

use std::collections::HashSet;
use std::mem;

use super::entry_id::EntryId;

/// Most acknowledgements of one command.
const MOST_AT_A_TIME: usize = 512;

/// The deliveries of a consumer that are not settled.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// Delivered, and not settled. A sweep leaves them alone.
    held: HashSet<EntryId>,
    /// Acknowledged, but not on their way.
    gathered: Vec<EntryId>,
    /// On their way.
    sent: Vec<EntryId>,
}

impl Acks {
    /// An entry is delivered. False: the program has it already.
    pub fn deliver(&mut self, id: EntryId) -> bool {
        self.held.insert(id)
    }

    /// How many are delivered and not settled.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    pub fn holds(&self, id: EntryId) -> bool {
        self.held.contains(&id)
    }

    /// The program gave a delivery back without an acknowledgement: it stays pending.
    pub fn release(&mut self, id: EntryId) {
        self.held.remove(&id);
    }

    /// The program acknowledged a delivery.
    pub fn acknowledge(&mut self, id: EntryId) {
        self.gathered.push(id);
    }

    /// What to send now.
    pub fn send(&mut self) -> Option<&[EntryId]> {
        if self.gathered.is_empty() || !self.sent.is_empty() {
            return None;
        }
        let rest = self
            .gathered
            .split_off(self.gathered.len().min(MOST_AT_A_TIME));
        self.sent = mem::replace(&mut self.gathered, rest);
        Some(&self.sent)
    }

    /// What was sent is acknowledged.
    pub fn arrived(&mut self) {
        for id in self.sent.drain(..) {
            self.held.remove(&id);
        }
    }

    /// What was sent has to be sent again.
    pub fn send_again(&mut self) {
        let later = mem::take(&mut self.gathered);
        self.gathered = mem::take(&mut self.sent);
        self.gathered.extend(later);
    }

    /// Whether all acknowledgements have arrived.
    pub fn is_settled(&self) -> bool {
        self.gathered.is_empty() && self.sent.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(millis: u64) -> EntryId {
        EntryId {
            millis,
            sequence: 0,
        }
    }

    #[test]
    fn acknowledgements_gather_while_one_command_is_on_its_way() {
        let mut acks = Acks::default();
        assert!((0..3).all(|it| acks.deliver(id(it))));
        assert!(!acks.deliver(id(1)));
        acks.acknowledge(id(0));
        assert_eq!(acks.send(), Some(&[id(0)][..]));
        acks.acknowledge(id(1));
        acks.acknowledge(id(2));
        assert_eq!(acks.send(), None);
        assert!(acks.holds(id(0)) && !acks.is_settled());
        acks.arrived();
        assert!(!acks.holds(id(0)));
        assert_eq!(acks.send(), Some(&[id(1), id(2)][..]));
        // The server did not get them.
        acks.send_again();
        assert_eq!(acks.send(), Some(&[id(1), id(2)][..]));
        acks.arrived();
        assert!(acks.is_settled());
        assert_eq!(acks.held(), 0);
    }

    #[test]
    fn many_go_in_several_commands_and_what_is_given_back_in_none() {
        let mut acks = Acks::default();
        for number in 0..1200 {
            acks.deliver(id(number));
            acks.acknowledge(id(number));
        }
        let mut sizes = Vec::new();
        while let Some(sent) = acks.send() {
            sizes.push(sent.len());
            acks.arrived();
        }
        assert_eq!(sizes, [512, 512, 176]);
        acks.deliver(id(7));
        acks.release(id(7));
        assert_eq!((acks.held(), acks.is_settled()), (0, true));
    }
}
