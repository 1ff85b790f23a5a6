//! Where to connect to the nodes that a cluster names: for clients behind a NAT, a tunnel or a proxy, who do not reach nodes at the
//! addresses that these announce.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::endpoint::Endpoint;

/// Where to connect instead of to the address that a node announces, as a table or a function.
///
/// The client knows nodes by the addresses that they announce: its metrics, logs and errors, and
/// [`Client::nodes`](crate::Client::nodes), show these. It asks the map whenever it opens a
/// connection, also to the servers that the configuration names, and so a function may change its mind.
///
/// ```
/// use embar_redis::config::{AddressMap, Endpoint};
///
/// let inside = |port| Endpoint::tcp("10.0.0.1", port);
/// let outside = |port| Endpoint::tcp("redis.example.com", port);
/// let table = AddressMap::table([(inside(7000), outside(17000)), (inside(7001), outside(17001))]);
/// ```
#[derive(Clone)]
pub struct AddressMap(Map);

#[derive(Clone)]
enum Map {
    Table(Arc<BTreeMap<Endpoint, Destination>>),
    Function(Arc<dyn Fn(&Endpoint) -> Destination + Send + Sync>),
}

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Destination {
    /// The address.
    pub endpoint: Endpoint,
    /// The name that the client asks the server for with TLS, and that its certificate must have. `None`: that of
    /// [`Tls::server_name`](crate::tls::Tls::server_name), or else the host of `endpoint`.
    pub tls_name: Option<String>,
}

impl From<Endpoint> for Destination {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            tls_name: None,
        }
    }
}

impl Destination {
    /// The same with a name for TLS.
    #[must_use]
    pub fn tls_name(mut self, name: impl Into<String>) -> Self {
        self.tls_name = Some(name.into());
        self
    }
}

impl AddressMap {
    /// From announced addresses to those to connect to. Others stay as they are.
    pub fn table<D: Into<Destination>>(entries: impl IntoIterator<Item = (Endpoint, D)>) -> Self {
        let entries = entries.into_iter();
        let table = entries.map(|(announced, actual)| (announced, actual.into()));
        Self(Map::Table(Arc::new(table.collect())))
    }

    /// Calls this for each connection. It must not block; if it panics, the address stays as it is.
    pub fn function<D: Into<Destination>>(
        map: impl Fn(&Endpoint) -> D + Send + Sync + 'static,
    ) -> Self {
        let map = move |announced: &Endpoint| map(announced).into();
        Self(Map::Function(Arc::new(map)))
    }

    /// Where to connect to what a node announces.
    pub(crate) fn destination(&self, announced: &Endpoint) -> Destination {
        let mapped = match &self.0 {
            Map::Table(table) => table.get(announced).cloned(),
            Map::Function(map) => {
                let mapped = catch_unwind(AssertUnwindSafe(|| map(announced)));
                if mapped.is_err() {
                    tracing::error!(node = %announced, "the function of address_map panicked");
                }
                mapped.ok()
            }
        };
        mapped.unwrap_or_else(|| announced.clone().into())
    }
}

impl PartialEq for AddressMap {
    /// Tables are compared; functions are equal if they are clones of each other.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Map::Table(one), Map::Table(other)) => one == other,
            (Map::Function(one), Map::Function(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for AddressMap {}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Map::Table(table) => f.debug_map().entries(&**table).finish(),
            Map::Function(_) => f.write_str("AddressMap(..)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str) -> Endpoint {
        Endpoint::tcp(host, 7000)
    }

    #[test]
    fn a_table_leaves_others_as_they_are() {
        let map = AddressMap::table([(at("a"), Destination::from(at("b")).tls_name("c"))]);
        let to = map.destination(&at("a"));
        assert_eq!((to.endpoint, to.tls_name.as_deref()), (at("b"), Some("c")));
        assert_eq!(map.destination(&at("b")), at("b").into());
    }

    #[test]
    fn a_function_that_panics_changes_nothing() {
        let map = AddressMap::function(|announced| match announced {
            Endpoint::Tcp { host, .. } if host == "a" => at("b"),
            other => panic!("{other} is not known"),
        });
        assert_eq!(map.destination(&at("a")), at("b").into());
        assert_eq!(map.destination(&at("c")), at("c").into());
    }
}
