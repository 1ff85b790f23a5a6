//! Which commands go to several nodes, and what becomes of the replies: the tips `request_policy` and `response_policy` that Redis 7.0 gives for them,
//! and later versions for `ACL` and `CONFIG`. A test compares the two.
//!
//! Left out are those with the response policy `special`, whose replies are about one node: they go to one; and `WAIT`, which no shared connection carries. `MSETNX` cannot be split, as it sets all
//! or none.

use super::words::is;
use crate::command::Route;
use crate::merge::Merge;

/// A command without a key for several nodes.
#[derive(Debug)]
pub(super) struct Fanned {
    name: &'static str,
    /// With this subcommand; empty: whatever follows.
    sub: &'static str,
    pub route: Route,
    pub merge: Merge,
    /// With others, in a pipeline or a transaction, it goes to any node: it only asks whether somebody answers.
    pub any_will_do: bool,
}

/// A command whose keys may have several slots.
#[derive(Debug)]
pub(super) struct Split {
    name: &'static str,
    /// How many words there are for each key, itself included.
    pub step: usize,
    pub merge: Merge,
}

const fn all(name: &'static str, sub: &'static str, merge: Merge) -> Fanned {
    let route = Route::AllNodes;
    Fanned {
        name,
        sub,
        route,
        merge,
        any_will_do: false,
    }
}

const fn primaries(name: &'static str, sub: &'static str, merge: Merge) -> Fanned {
    let route = Route::AllPrimaries;
    Fanned {
        name,
        sub,
        route,
        merge,
        any_will_do: false,
    }
}

const fn split(name: &'static str, step: usize, merge: Merge) -> Split {
    Split { name, step, merge }
}

static FANNED: [Fanned; 27] = [
    all("ACL", "DELUSER", Merge::Same),
    all("ACL", "LOAD", Merge::Same),
    all("ACL", "SAVE", Merge::Same),
    all("ACL", "SETUSER", Merge::Same),
    all("CONFIG", "RESETSTAT", Merge::Same),
    all("CONFIG", "REWRITE", Merge::Same),
    all("CONFIG", "SET", Merge::Same),
    primaries("DBSIZE", "", Merge::Sum),
    primaries("FLUSHALL", "", Merge::Same),
    primaries("FLUSHDB", "", Merge::Same),
    primaries("FUNCTION", "DELETE", Merge::Same),
    primaries("FUNCTION", "FLUSH", Merge::Same),
    primaries("FUNCTION", "KILL", Merge::One),
    primaries("FUNCTION", "LOAD", Merge::Same),
    primaries("FUNCTION", "RESTORE", Merge::Same),
    primaries("KEYS", "", Merge::Joined),
    all("LATENCY", "RESET", Merge::Same),
    primaries("MEMORY", "PURGE", Merge::Same),
    Fanned {
        any_will_do: true,
        ..primaries("PING", "", Merge::Same)
    },
    primaries("RANDOMKEY", "", Merge::NotNull),
    primaries("SCRIPT", "EXISTS", Merge::And),
    all("SCRIPT", "FLUSH", Merge::Same),
    primaries("SCRIPT", "KILL", Merge::One),
    all("SCRIPT", "LOAD", Merge::Same),
    all("SLOWLOG", "GET", Merge::Joined),
    all("SLOWLOG", "LEN", Merge::Sum),
    all("SLOWLOG", "RESET", Merge::Same),
];

static SPLIT: [Split; 6] = [
    split("DEL", 1, Merge::Sum),
    split("EXISTS", 1, Merge::Sum),
    split("MGET", 1, Merge::InOrder),
    split("MSET", 2, Merge::Same),
    split("TOUCH", 1, Merge::Sum),
    split("UNLINK", 1, Merge::Sum),
];

/// The row of a command by its name and the word behind that, in upper or lower case.
pub(super) fn find(name: &[u8], sub: &[u8]) -> Option<&'static Fanned> {
    FANNED
        .iter()
        .find(|row| is(name, row.name) && (row.sub.is_empty() || is(sub, row.sub)))
}

/// The row of a command by its name, in upper or lower case.
pub(super) fn find_split(name: &[u8]) -> Option<&'static Split> {
    let mut rows = SPLIT.iter();
    rows.find(|row| is(name, row.name))
}
