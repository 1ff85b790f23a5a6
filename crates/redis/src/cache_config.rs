//! The settings of a client's cache.

/// How much a client keeps of what it reads, and of which keys servers report changes. See
/// [`caching`](crate::caching).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheConfig {
    /// Most bytes of entries: commands, replies, and what the cache needs besides. What was not used for long makes room
    /// for what is new. The cache has up to sixteen equal parts of 1 MiB or more, by keys: a reply that is larger than
    /// one is not kept.
    pub max_bytes: usize,
    /// Of which keys servers report changes. By default [`Tracking::OptIn`].
    pub tracking: Tracking,
}

impl CacheConfig {
    /// A cache of so many bytes.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            tracking: Tracking::default(),
        }
    }
}

/// Of which keys servers report changes to a client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Tracking {
    /// Of those that it read for its cache. The server remembers these for each connection, and the client sends
    /// `CLIENT CACHING YES` before each of these reads.
    #[default]
    OptIn,
    /// Of all that it read, for the cache or not: the server remembers more, and a read for the cache takes a
    /// command less.
    All,
    /// Of all keys that begin with one of these, whether the client has read them or not; none may begin with
    /// another one. The server remembers nothing for the client, and reports every change. Keys that do not begin so are
    /// not cached. Without any prefix, of all keys.
    Prefixes(Vec<Vec<u8>>),
}

impl Tracking {
    /// Whether servers report changes of this key.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        match self {
            Self::OptIn | Self::All => true,
            Self::Prefixes(prefixes) => {
                prefixes.is_empty() || prefixes.iter().any(|prefix| key.starts_with(prefix))
            }
        }
    }

    /// The words that have a server track.
    pub(crate) fn words(&self) -> Vec<Vec<u8>> {
        let mut words: Vec<&[u8]> = vec![b"CLIENT", b"TRACKING", b"ON"];
        match self {
            Self::OptIn => words.push(b"OPTIN"),
            Self::All => {}
            Self::Prefixes(prefixes) => {
                words.push(b"BCAST");
                for prefix in prefixes {
                    words.extend([b"PREFIX", &**prefix]);
                }
            }
        }
        words.into_iter().map(<[u8]>::to_vec).collect()
    }

    /// Whether servers would refuse it, because a key could begin with two of the prefixes.
    pub(crate) fn overlaps(&self) -> bool {
        let Self::Prefixes(prefixes) = self else {
            return false;
        };
        let overlaps = |one: usize, two: usize| {
            one != two && prefixes[one].starts_with(prefixes[two].as_slice())
        };
        (0..prefixes.len()).any(|one| (0..prefixes.len()).any(|two| overlaps(one, two)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(prefixes: &[&str]) -> Tracking {
        let bytes = prefixes.iter().map(|prefix| prefix.as_bytes().to_vec());
        Tracking::Prefixes(bytes.collect())
    }

    #[test]
    fn keys_are_covered_by_their_beginnings() {
        let some = prefixes(&["user:", "shop:"]);
        assert!(some.covers(b"user:1") && some.covers(b"shop:"));
        assert!(!some.covers(b"user") && !some.covers(b""));
        for all in [Tracking::OptIn, Tracking::All, prefixes(&[])] {
            assert!(all.covers(b"user") && all.covers(b""));
        }
    }

    #[test]
    fn prefixes_that_overlap_are_known() {
        for fine in [prefixes(&[]), prefixes(&[""]), prefixes(&["a", "b"])] {
            assert!(!fine.overlaps(), "{fine:?}");
        }
        for bad in [
            prefixes(&["a", "ab"]),
            prefixes(&["a", "a"]),
            prefixes(&["b", ""]),
        ] {
            assert!(bad.overlaps(), "{bad:?}");
        }
    }
}
