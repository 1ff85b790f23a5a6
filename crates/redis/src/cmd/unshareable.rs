//! Commands that a shared connection must not carry, as they would affect other callers.

use super::words::{Words, is};
use crate::error::Error;

const BLOCKING: &str = "its method (`BlockingCommands`) or a connection of its own (`Client::dedicated`), as it holds up all behind it";
const DEDICATED: &str = "a connection of its own (`Client::dedicated`)";
const PUBSUB: &str = "a subscriber (`Client::subscriber`)";
const TRANSACTION: &str = "a transaction (`Client::transaction`)";
const CONFIG: &str = "`Config`, for all connections, or one of its own (`Client::dedicated`)";
const ITSELF: &str = "no command for it: the client does it where it is needed";
const DROP: &str = "`drop`: connections end with the last clone of the client";
const READ_FROM: &str = "`read_from` of the configuration";
const REPLICATION: &str = "a program that speaks the protocol of replicas";

/// Each command, and what to use instead.
const UNSHAREABLE: &[(&str, &str)] = &[
    ("ASKING", ITSELF),
    ("AUTH", CONFIG),
    ("BLMOVE", BLOCKING),
    ("BLMPOP", BLOCKING),
    ("BLPOP", BLOCKING),
    ("BRPOP", BLOCKING),
    ("BRPOPLPUSH", BLOCKING),
    ("BZMPOP", BLOCKING),
    ("BZPOPMAX", BLOCKING),
    ("BZPOPMIN", BLOCKING),
    ("CLIENT CACHING", CONFIG),
    ("CLIENT NO-EVICT", CONFIG),
    ("CLIENT NO-TOUCH", CONFIG),
    ("CLIENT REPLY", DEDICATED),
    ("CLIENT SETINFO", CONFIG),
    ("CLIENT SETNAME", "`client_name` of the configuration"),
    ("CLIENT TRACKING", CONFIG),
    ("DISCARD", TRANSACTION),
    ("EXEC", TRANSACTION),
    ("HELLO", CONFIG),
    ("MONITOR", "`redis-cli monitor`"),
    ("MULTI", TRANSACTION),
    ("PSUBSCRIBE", PUBSUB),
    ("PSYNC", REPLICATION),
    ("PUNSUBSCRIBE", PUBSUB),
    ("QUIT", DROP),
    ("READONLY", READ_FROM),
    ("READWRITE", READ_FROM),
    ("REPLCONF", REPLICATION),
    ("RESET", DROP),
    ("SCRIPT DEBUG", "`redis-cli --ldb`"),
    ("SELECT", "a client for that database (redis://host/1)"),
    ("SSUBSCRIBE", PUBSUB),
    ("SUBSCRIBE", PUBSUB),
    ("SUNSUBSCRIBE", PUBSUB),
    ("SYNC", REPLICATION),
    ("UNSUBSCRIBE", PUBSUB),
    ("UNWATCH", DEDICATED),
    ("WAIT", DEDICATED),
    ("WAITAOF", DEDICATED),
    ("WATCH", DEDICATED),
    ("XREAD BLOCK", BLOCKING),
    ("XREADGROUP BLOCK", BLOCKING),
];

/// Why a command must not go over a shared connection; `None` when it may.
pub(super) fn refused(words: &Words<'_>) -> Option<Error> {
    let (command, instead) = *UNSHAREABLE
        .iter()
        .find(|(command, _)| matches(words, command))?;
    Some(Error::NotShared { command, instead })
}

/// Whether these words are that command: its name, and its subcommand or option.
fn matches(words: &Words<'_>, command: &str) -> bool {
    let (name, second) = command.split_once(' ').unwrap_or((command, ""));
    let mut given = words.from(0);
    if !given.next().is_some_and(|word| is(word, name)) {
        return false;
    }
    match second {
        "" => true,
        // Among the options, which are behind the group and before the keys: keys may have any name.
        "BLOCK" => given
            .skip(if name == "XREADGROUP" { 3 } else { 0 })
            .take_while(|word| !is(word, "STREAMS"))
            .any(|word| is(word, "BLOCK")),
        _ => given.next().is_some_and(|word| is(word, second)),
    }
}
