//! What the cache of a client did so far.

/// What the cache of a client did so far. Each read through it is a hit or a miss, shares the request of another one,
/// or bypasses the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheMetrics {
    /// Reads that were answered from the cache.
    pub hits: u64,
    /// Reads that the client sent to a server, to keep the reply.
    pub misses: u64,
    /// Reads that waited for the reply to one that was already on its way.
    pub shared: u64,
    /// Reads that went to a server and left nothing in the cache: because that does not track what is read (it is too
    /// old, or the user may not `CLIENT TRACKING`), or because the key begins with none of the prefixes.
    pub bypassed: u64,
    /// Entries that were removed because their key has changed, or may have.
    pub invalidations: u64,
    /// Entries that were removed to make room.
    pub evictions: u64,
    /// Entries now, with those of replies that are to come.
    pub entries: u64,
    /// Bytes of these entries.
    pub bytes: u64,
}
