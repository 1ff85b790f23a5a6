//! What a subscription is to, its kind and its name, as the key of a map.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pubsub_event::Kind;

/// The name of a channel or a pattern. All that speak of a subscription share it.
pub(super) type Name = Arc<[u8]>;

/// Values by kind and name.
#[derive(Debug)]
pub(super) struct ByName<V>([HashMap<Name, V>; 3]);

impl<V> Default for ByName<V> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| HashMap::new()))
    }
}

impl<V> ByName<V> {
    fn of(&self, kind: Kind) -> &HashMap<Name, V> {
        &self.0[kind as usize]
    }

    fn of_mut(&mut self, kind: Kind) -> &mut HashMap<Name, V> {
        &mut self.0[kind as usize]
    }

    pub fn get(&self, kind: Kind, name: &[u8]) -> Option<&V> {
        self.of(kind).get(name)
    }

    pub fn get_mut(&mut self, kind: Kind, name: &[u8]) -> Option<&mut V> {
        self.of_mut(kind).get_mut(name)
    }

    pub fn insert(&mut self, kind: Kind, name: Name, value: V) {
        self.of_mut(kind).insert(name, value);
    }

    pub fn remove(&mut self, kind: Kind, name: &[u8]) -> Option<V> {
        self.of_mut(kind).remove(name)
    }

    /// Any one of them.
    pub fn any(&self) -> Option<(Kind, Name)> {
        let kinds = [Kind::Channel, Kind::Pattern, Kind::Sharded];
        let first = |kind: Kind| Some((kind, Arc::clone(self.of(kind).keys().next()?)));
        kinds.into_iter().find_map(first)
    }
}
