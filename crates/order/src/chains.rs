//! The table of chains that a core knows: each with its order level, its protocol, and its next position.

use std::collections::HashMap;

use crate::protocol::{self, Protocol};

/// A chain.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Its number.
    pub id: u32,
    /// Its order level.
    pub order: u8,
    /// How its batches come to their places.
    pub protocol: &'static dyn Protocol,
    /// The next position.
    pub next: u64,
}

impl Chain {
    /// The positions of `count` messages are taken: the first of them, or `None` when there are not
    /// so many.
    pub fn claim(&mut self, count: u32) -> Option<u64> {
        let base = self.next;
        self.next = base.checked_add(count.into())?;
        Some(base)
    }
}

/// All chains, by a place that sessions remember.
#[derive(Debug)]
pub(crate) struct Chains {
    places: Vec<Option<Chain>>,
    /// Places without a chain.
    free: Vec<u32>,
    ids: HashMap<u32, u32>,
    limit: u32,
}

/// Why there is no such chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoChain {
    /// No chain has that order level, or this one has another.
    Order,
    /// There are too many.
    Full,
}

impl Chains {
    /// None, and at most `limit`.
    pub fn new(limit: u32) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            ids: HashMap::new(),
            limit,
        }
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.ids.len() as u32
    }

    /// The chain at a place.
    pub fn at(&self, place: u32) -> Option<&Chain> {
        self.places.get(place as usize)?.as_ref()
    }

    /// The chain at a place, to change it.
    #[inline]
    pub fn at_mut(&mut self, place: u32) -> Option<&mut Chain> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    /// The place of a chain that is known.
    pub fn find(&self, id: u32) -> Option<u32> {
        self.ids.get(&id).copied()
    }

    /// The chain of a number.
    pub fn get(&self, id: u32) -> Option<&Chain> {
        self.at(self.find(id)?)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Chain> {
        self.places.iter().flatten()
    }

    /// Whether [`Chains::place`] would find or make room for the chain.
    pub fn check(&self, id: u32, order: u8) -> Result<(), NoChain> {
        match self.get(id) {
            Some(chain) if chain.order != order => Err(NoChain::Order),
            Some(_) => Ok(()),
            None if protocol::of_order(order).is_none() => Err(NoChain::Order),
            None if self.len() >= self.limit => Err(NoChain::Full),
            None => Ok(()),
        }
    }

    /// The place of a chain, which is made when it is not known yet.
    pub fn place(&mut self, id: u32, order: u8) -> Result<u32, NoChain> {
        self.check(id, order)?;
        if let Some(place) = self.find(id) {
            return Ok(place);
        }
        let chain = Chain {
            id,
            order,
            protocol: protocol::of_order(order).ok_or(NoChain::Order)?,
            next: 0,
        };
        let place = match self.free.pop() {
            Some(free) => {
                self.places[free as usize] = Some(chain);
                free
            }
            None => {
                self.places.push(Some(chain));
                self.places.len() as u32 - 1
            }
        };
        self.ids.insert(id, place);
        Ok(place)
    }

    /// The chain is gone. No session may belong to it any more.
    pub fn remove(&mut self, id: u32) {
        if let Some(place) = self.ids.remove(&id) {
            self.places[place as usize] = None;
            self.free.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_bounded_and_keep_their_order() {
        let mut chains = Chains::new(2);
        assert_eq!(chains.place(7, 1), Err(NoChain::Order));
        let seven = chains.place(7, 5).unwrap();
        assert_eq!(chains.place(7, 5), Ok(seven));
        assert_eq!(chains.place(7, 2), Err(NoChain::Order));
        chains.place(9, 2).unwrap();
        assert_eq!(chains.place(11, 5), Err(NoChain::Full));
        chains.remove(7);
        assert!(chains.get(7).is_none() && chains.at(seven).is_none());
        assert_eq!(chains.place(11, 5), Ok(seven));
        assert_eq!(chains.len(), 2);
    }

    #[test]
    fn positions_end() {
        let mut chains = Chains::new(1);
        let place = chains.place(1, 5).unwrap();
        let chain = chains.at_mut(place).unwrap();
        assert_eq!(chain.claim(3), Some(0));
        chain.next = u64::MAX - 10;
        assert_eq!(chain.claim(11), None);
        assert_eq!(chain.claim(10), Some(u64::MAX - 10));
        assert_eq!(chain.claim(1), None);
    }
}
