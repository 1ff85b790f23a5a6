//! The commands of Redis 7.0: where their keys are, and which of them only read. `newer` has later ones.
//!
//! The table repeats what `COMMAND` of such a server says; a test compares the two.

use super::keys::Keys;

/// Whether a command only reads: the flag `readonly`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reads {
    Always,
    Never,
    /// Only with these subcommands.
    Some(&'static [&'static str]),
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Known {
    name: &'static str,
    pub reads: Reads,
    pub keys: Keys,
}

#[cfg(test)]
impl Known {
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// The row of a command, by its name in upper or lower case. `None` when Redis 7.0 does not have it.
pub(super) fn find(name: &[u8]) -> Option<&'static Known> {
    find_in(&TABLE, name)
}

/// As [`find`], in a table that is sorted by name.
pub(super) fn find_in(table: &'static [Known], name: &[u8]) -> Option<&'static Known> {
    let upper = |byte: &u8| byte.to_ascii_uppercase();
    let compare = |known: &Known| known.name.bytes().cmp(name.iter().map(upper));
    let at = table.binary_search_by(compare).ok()?;
    Some(&table[at])
}

pub(super) const READ: Reads = Reads::Always;
pub(super) const WRITE: Reads = Reads::Never;
pub(super) const ONE: Keys = range(1, 1, 1);
const TWO: Keys = range(1, 2, 1);
const ALL: Keys = range(1, -1, 1);
/// The word behind the subcommand; subcommands without a key have no argument there.
const SUB: Keys = range(2, 2, 1);

const fn range(first: usize, last: isize, step: usize) -> Keys {
    Keys::Range { first, last, step }
}

pub(super) const fn row(name: &'static str, reads: Reads, keys: Keys) -> Known {
    Known { name, reads, keys }
}

/// Sorted by name.
static TABLE: [Known; 240] = [
    row("ACL", WRITE, Keys::None),
    row("APPEND", WRITE, ONE),
    row("ASKING", WRITE, Keys::None),
    row("AUTH", WRITE, Keys::None),
    row("BGREWRITEAOF", WRITE, Keys::None),
    row("BGSAVE", WRITE, Keys::None),
    row("BITCOUNT", READ, ONE),
    row("BITFIELD", WRITE, ONE),
    row("BITFIELD_RO", READ, ONE),
    row("BITOP", WRITE, range(2, -1, 1)),
    row("BITPOS", READ, ONE),
    row("BLMOVE", WRITE, TWO),
    row("BLMPOP", WRITE, Keys::Counted(2)),
    row("BLPOP", WRITE, range(1, -2, 1)),
    row("BRPOP", WRITE, range(1, -2, 1)),
    row("BRPOPLPUSH", WRITE, TWO),
    row("BZMPOP", WRITE, Keys::Counted(2)),
    row("BZPOPMAX", WRITE, range(1, -2, 1)),
    row("BZPOPMIN", WRITE, range(1, -2, 1)),
    row("CLIENT", WRITE, Keys::None),
    row("CLUSTER", WRITE, Keys::None),
    row("COMMAND", WRITE, Keys::None),
    row("CONFIG", WRITE, Keys::None),
    row("COPY", WRITE, TWO),
    row("DBSIZE", READ, Keys::None),
    row("DEBUG", WRITE, Keys::None),
    row("DECR", WRITE, ONE),
    row("DECRBY", WRITE, ONE),
    row("DEL", WRITE, ALL),
    row("DISCARD", WRITE, Keys::None),
    row("DUMP", READ, ONE),
    row("ECHO", WRITE, Keys::None),
    row("EVAL", WRITE, Keys::Counted(2)),
    row("EVALSHA", WRITE, Keys::Counted(2)),
    row("EVALSHA_RO", READ, Keys::Counted(2)),
    row("EVAL_RO", READ, Keys::Counted(2)),
    row("EXEC", WRITE, Keys::None),
    row("EXISTS", READ, ALL),
    row("EXPIRE", WRITE, ONE),
    row("EXPIREAT", WRITE, ONE),
    row("EXPIRETIME", READ, ONE),
    row("FAILOVER", WRITE, Keys::None),
    row("FCALL", WRITE, Keys::Counted(2)),
    row("FCALL_RO", READ, Keys::Counted(2)),
    row("FLUSHALL", WRITE, Keys::None),
    row("FLUSHDB", WRITE, Keys::None),
    row("FUNCTION", WRITE, Keys::None),
    row("GEOADD", WRITE, ONE),
    row("GEODIST", READ, ONE),
    row("GEOHASH", READ, ONE),
    row("GEOPOS", READ, ONE),
    row("GEORADIUS", WRITE, Keys::Radius(6)),
    row("GEORADIUSBYMEMBER", WRITE, Keys::Radius(5)),
    row("GEORADIUSBYMEMBER_RO", READ, ONE),
    row("GEORADIUS_RO", READ, ONE),
    row("GEOSEARCH", READ, ONE),
    row("GEOSEARCHSTORE", WRITE, TWO),
    row("GET", READ, ONE),
    row("GETBIT", READ, ONE),
    row("GETDEL", WRITE, ONE),
    row("GETEX", WRITE, ONE),
    row("GETRANGE", READ, ONE),
    row("GETSET", WRITE, ONE),
    row("HDEL", WRITE, ONE),
    row("HELLO", WRITE, Keys::None),
    row("HEXISTS", READ, ONE),
    row("HGET", READ, ONE),
    row("HGETALL", READ, ONE),
    row("HINCRBY", WRITE, ONE),
    row("HINCRBYFLOAT", WRITE, ONE),
    row("HKEYS", READ, ONE),
    row("HLEN", READ, ONE),
    row("HMGET", READ, ONE),
    row("HMSET", WRITE, ONE),
    row("HRANDFIELD", READ, ONE),
    row("HSCAN", READ, ONE),
    row("HSET", WRITE, ONE),
    row("HSETNX", WRITE, ONE),
    row("HSTRLEN", READ, ONE),
    row("HVALS", READ, ONE),
    row("INCR", WRITE, ONE),
    row("INCRBY", WRITE, ONE),
    row("INCRBYFLOAT", WRITE, ONE),
    row("INFO", WRITE, Keys::None),
    row("KEYS", READ, Keys::None),
    row("LASTSAVE", WRITE, Keys::None),
    row("LATENCY", WRITE, Keys::None),
    row("LCS", READ, TWO),
    row("LINDEX", READ, ONE),
    row("LINSERT", WRITE, ONE),
    row("LLEN", READ, ONE),
    row("LMOVE", WRITE, TWO),
    row("LMPOP", WRITE, Keys::Counted(1)),
    row("LOLWUT", READ, Keys::None),
    row("LPOP", WRITE, ONE),
    row("LPOS", READ, ONE),
    row("LPUSH", WRITE, ONE),
    row("LPUSHX", WRITE, ONE),
    row("LRANGE", READ, ONE),
    row("LREM", WRITE, ONE),
    row("LSET", WRITE, ONE),
    row("LTRIM", WRITE, ONE),
    row("MEMORY", Reads::Some(&["USAGE"]), SUB),
    row("MGET", READ, ALL),
    row("MIGRATE", WRITE, Keys::Migrate),
    row("MODULE", WRITE, Keys::None),
    row("MONITOR", WRITE, Keys::None),
    row("MOVE", WRITE, ONE),
    row("MSET", WRITE, range(1, -1, 2)),
    row("MSETNX", WRITE, range(1, -1, 2)),
    row("MULTI", WRITE, Keys::None),
    row(
        "OBJECT",
        Reads::Some(&["ENCODING", "FREQ", "IDLETIME", "REFCOUNT"]),
        SUB,
    ),
    row("PERSIST", WRITE, ONE),
    row("PEXPIRE", WRITE, ONE),
    row("PEXPIREAT", WRITE, ONE),
    row("PEXPIRETIME", READ, ONE),
    row("PFADD", WRITE, ONE),
    row("PFCOUNT", READ, ALL),
    row("PFDEBUG", WRITE, range(2, 2, 1)),
    row("PFMERGE", WRITE, ALL),
    row("PFSELFTEST", WRITE, Keys::None),
    row("PING", WRITE, Keys::None),
    row("PSETEX", WRITE, ONE),
    row("PSUBSCRIBE", WRITE, Keys::None),
    row("PSYNC", WRITE, Keys::None),
    row("PTTL", READ, ONE),
    row("PUBLISH", WRITE, Keys::None),
    row("PUBSUB", WRITE, Keys::None),
    row("PUNSUBSCRIBE", WRITE, Keys::None),
    row("QUIT", WRITE, Keys::None),
    row("RANDOMKEY", READ, Keys::None),
    row("READONLY", WRITE, Keys::None),
    row("READWRITE", WRITE, Keys::None),
    row("RENAME", WRITE, TWO),
    row("RENAMENX", WRITE, TWO),
    row("REPLCONF", WRITE, Keys::None),
    row("REPLICAOF", WRITE, Keys::None),
    row("RESET", WRITE, Keys::None),
    row("RESTORE", WRITE, ONE),
    row("RESTORE-ASKING", WRITE, ONE),
    row("ROLE", WRITE, Keys::None),
    row("RPOP", WRITE, ONE),
    row("RPOPLPUSH", WRITE, TWO),
    row("RPUSH", WRITE, ONE),
    row("RPUSHX", WRITE, ONE),
    row("SADD", WRITE, ONE),
    row("SAVE", WRITE, Keys::None),
    row("SCAN", READ, Keys::None),
    row("SCARD", READ, ONE),
    row("SCRIPT", WRITE, Keys::None),
    row("SDIFF", READ, ALL),
    row("SDIFFSTORE", WRITE, ALL),
    row("SELECT", WRITE, Keys::None),
    row("SET", WRITE, ONE),
    row("SETBIT", WRITE, ONE),
    row("SETEX", WRITE, ONE),
    row("SETNX", WRITE, ONE),
    row("SETRANGE", WRITE, ONE),
    row("SHUTDOWN", WRITE, Keys::None),
    row("SINTER", READ, ALL),
    row("SINTERCARD", READ, Keys::Counted(1)),
    row("SINTERSTORE", WRITE, ALL),
    row("SISMEMBER", READ, ONE),
    row("SLAVEOF", WRITE, Keys::None),
    row("SLOWLOG", WRITE, Keys::None),
    row("SMEMBERS", READ, ONE),
    row("SMISMEMBER", READ, ONE),
    row("SMOVE", WRITE, TWO),
    row("SORT", WRITE, Keys::Sort),
    row("SORT_RO", READ, ONE),
    row("SPOP", WRITE, ONE),
    row("SPUBLISH", WRITE, ONE),
    row("SRANDMEMBER", READ, ONE),
    row("SREM", WRITE, ONE),
    row("SSCAN", READ, ONE),
    row("SSUBSCRIBE", WRITE, ALL),
    row("STRLEN", READ, ONE),
    row("SUBSCRIBE", WRITE, Keys::None),
    row("SUBSTR", READ, ONE),
    row("SUNION", READ, ALL),
    row("SUNIONSTORE", WRITE, ALL),
    row("SUNSUBSCRIBE", WRITE, ALL),
    row("SWAPDB", WRITE, Keys::None),
    row("SYNC", WRITE, Keys::None),
    row("TIME", WRITE, Keys::None),
    row("TOUCH", READ, ALL),
    row("TTL", READ, ONE),
    row("TYPE", READ, ONE),
    row("UNLINK", WRITE, ALL),
    row("UNSUBSCRIBE", WRITE, Keys::None),
    row("UNWATCH", WRITE, Keys::None),
    row("WAIT", WRITE, Keys::None),
    row("WATCH", WRITE, ALL),
    row("XACK", WRITE, ONE),
    row("XADD", WRITE, ONE),
    row("XAUTOCLAIM", WRITE, ONE),
    row("XCLAIM", WRITE, ONE),
    row("XDEL", WRITE, ONE),
    row("XGROUP", WRITE, SUB),
    row(
        "XINFO",
        Reads::Some(&["CONSUMERS", "GROUPS", "STREAM"]),
        SUB,
    ),
    row("XLEN", READ, ONE),
    row("XPENDING", READ, ONE),
    row("XRANGE", READ, ONE),
    row("XREAD", READ, Keys::Streams(1)),
    row("XREADGROUP", WRITE, Keys::Streams(4)),
    row("XREVRANGE", READ, ONE),
    row("XSETID", WRITE, ONE),
    row("XTRIM", WRITE, ONE),
    row("ZADD", WRITE, ONE),
    row("ZCARD", READ, ONE),
    row("ZCOUNT", READ, ONE),
    row("ZDIFF", READ, Keys::Counted(1)),
    row("ZDIFFSTORE", WRITE, Keys::Stored),
    row("ZINCRBY", WRITE, ONE),
    row("ZINTER", READ, Keys::Counted(1)),
    row("ZINTERCARD", READ, Keys::Counted(1)),
    row("ZINTERSTORE", WRITE, Keys::Stored),
    row("ZLEXCOUNT", READ, ONE),
    row("ZMPOP", WRITE, Keys::Counted(1)),
    row("ZMSCORE", READ, ONE),
    row("ZPOPMAX", WRITE, ONE),
    row("ZPOPMIN", WRITE, ONE),
    row("ZRANDMEMBER", READ, ONE),
    row("ZRANGE", READ, ONE),
    row("ZRANGEBYLEX", READ, ONE),
    row("ZRANGEBYSCORE", READ, ONE),
    row("ZRANGESTORE", WRITE, TWO),
    row("ZRANK", READ, ONE),
    row("ZREM", WRITE, ONE),
    row("ZREMRANGEBYLEX", WRITE, ONE),
    row("ZREMRANGEBYRANK", WRITE, ONE),
    row("ZREMRANGEBYSCORE", WRITE, ONE),
    row("ZREVRANGE", READ, ONE),
    row("ZREVRANGEBYLEX", READ, ONE),
    row("ZREVRANGEBYSCORE", READ, ONE),
    row("ZREVRANK", READ, ONE),
    row("ZSCAN", READ, ONE),
    row("ZSCORE", READ, ONE),
    row("ZUNION", READ, Keys::Counted(1)),
    row("ZUNIONSTORE", WRITE, Keys::Stored),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert!(TABLE.is_sorted_by_key(|known| known.name));
        for known in &TABLE {
            let name = known.name.to_lowercase();
            assert_eq!(find(name.as_bytes()).map(|it| it.name), Some(known.name));
        }
        assert!(find(b"GETT").is_none());
        assert!(find(b"").is_none());
    }
}
