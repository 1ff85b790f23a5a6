//! Tokens, which name the connections and listeners of a reactor, and the table in which the
//! reactor finds them.
//!
//! A slot of the table is reused after its connection was closed, with the next generation. So a
//! token that outlived its connection finds nothing, instead of finding a stranger.

use std::fmt;

/// Names one listener or connection of one reactor.
///
/// The lower half is the slot's index (dense from 0, so users can keep tables of their own by it),
/// the upper half the slot's generation. A generation comes back only after 2³² connections used
/// the same slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// Puts a token together; only reactors need this.
    pub const fn new(index: u32, generation: u32) -> Self {
        Self(((generation as u64) << 32) | index as u64)
    }

    /// The token that [`Token::bits`] was taken from.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Both halves in one word, for a place that holds 64 bits of user data.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The slot. Slots are few (as many as were ever open at once) and are reused.
    pub const fn index(self) -> usize {
        (self.0 & 0xFFFF_FFFF) as usize
    }

    /// How often the slot was used before.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}#{})", self.index(), self.generation())
    }
}

struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

/// Entries by [`Token`]. Inserting allocates only when more entries are open than ever before.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The token that the next [`Slab::insert`] will return.
    pub(crate) fn next_token(&self) -> Token {
        match self.free.last() {
            Some(&index) => Token::new(index, self.slots[index as usize].generation),
            None => Token::new(self.slots.len() as u32, 0),
        }
    }

    pub(crate) fn insert(&mut self, entry: T) -> Token {
        let token = self.next_token();
        match self.free.pop() {
            Some(index) => self.slots[index as usize].entry = Some(entry),
            None => {
                // File descriptors run out long before 2³² slots do.
                assert!(self.slots.len() < u32::MAX as usize, "slab index overflow");
                self.slots.push(Slot {
                    generation: 0,
                    entry: Some(entry),
                });
            }
        }
        token
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let slot = self.slots.get_mut(token.index())?;
        if slot.generation != token.generation() {
            return None;
        }
        slot.entry.as_mut()
    }

    pub(crate) fn get(&self, token: Token) -> Option<&T> {
        let slot = self.slots.get(token.index())?;
        if slot.generation != token.generation() {
            return None;
        }
        slot.entry.as_ref()
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<T> {
        let slot = self.slots.get_mut(token.index())?;
        if slot.generation != token.generation() {
            return None;
        }
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(token.index() as u32);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_token() {
        let mut slab = Slab::new();
        let old = slab.insert("old");
        assert_eq!(slab.remove(old), Some("old"));
        assert_eq!(slab.remove(old), None);

        let expected = slab.next_token();
        let new = slab.insert("new");
        assert_eq!(new, expected);
        assert_eq!(new.index(), old.index());
        assert_ne!(new, old);
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.get_mut(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&"new"));
    }

    #[test]
    fn slots_are_dense_and_reused_before_new_ones_are_made() {
        let mut slab = Slab::new();
        let tokens: Vec<Token> = (0..8).map(|n| slab.insert(n)).collect();
        for (n, token) in tokens.iter().enumerate() {
            assert_eq!(token.index(), n);
        }
        slab.remove(tokens[3]);
        slab.remove(tokens[5]);
        assert!(slab.insert(100).index() < 8);
        assert!(slab.insert(101).index() < 8);
        assert_eq!(slab.insert(102).index(), 8);
    }

    #[test]
    fn a_token_survives_the_trip_through_64_bits() {
        let token = Token::new(7, u32::MAX);
        assert_eq!(Token::from_bits(token.bits()), token);
        assert_eq!((token.index(), token.generation()), (7, u32::MAX));
        assert_eq!(format!("{token:?}"), "Token(7#4294967295)");
    }
}
