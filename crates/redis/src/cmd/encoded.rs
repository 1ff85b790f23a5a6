//! What encoded commands say of their keys: which they change, and whether a reply may be kept for one.

use super::table::{Known, Reads};
use super::words::{Words, is};

/// These change all keys, or may.
const CHANGES_ALL: [&str; 3] = ["FLUSHALL", "FLUSHDB", "SWAPDB"];

/// Reads of one key whose replies depend on more than that: on time or chance, or on a cursor, or on other keys.
const NOT_OF_ONE_KEY: [&str; 13] = [
    "HPTTL",
    "HRANDFIELD",
    "HSCAN",
    "HTTL",
    "PTTL",
    "SORT_RO",
    "SRANDMEMBER",
    "SSCAN",
    "TTL",
    "VRANDMEMBER",
    "XPENDING",
    "ZRANDMEMBER",
    "ZSCAN",
];

/// What a command changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// This key.
    Key(&'a [u8]),
    Everything,
    /// What the crate does not know.
    Unknown,
}

/// Calls `see` with each change that encoded commands, one behind the other, may make. An `EXEC` that comes first ends
/// what others have begun, and so may change anything.
pub(crate) fn each_change<'a>(mut commands: &'a [u8], mut see: impl FnMut(Change<'a>)) {
    let mut is_first = true;
    while let Some((words, rest)) = first(commands) {
        commands = rest;
        let is_first = std::mem::take(&mut is_first);
        let name = words.from(0).next().unwrap_or_default();
        match super::find(name) {
            _ if CHANGES_ALL.iter().any(|known| is(name, known)) => see(Change::Everything),
            _ if is_first && is(name, "EXEC") => see(Change::Everything),
            Some(Known {
                reads: Reads::Always,
                ..
            }) => {}
            Some(known) => known.keys.each(&words, |key| see(Change::Key(key))),
            None => see(Change::Unknown),
        }
    }
}

/// Where the key of an encoded command is that has one, as its first argument. Of others it says anything.
#[inline]
pub(crate) fn first_argument(command: &[u8]) -> Option<(usize, usize)> {
    let (_, name) = number(command, 0, b'*')?;
    let (_, key) = bulk(command, name)?;
    let ((begin, end), _) = bulk(command, key)?;
    Some((begin, end))
}

/// Where the content of the bulk string is that begins at `at`, and where the next one begins. `None` if it is none:
/// commands may come from code that is not this crate's.
#[inline]
fn bulk(bytes: &[u8], at: usize) -> Option<((usize, usize), usize)> {
    let (len, begin) = number(bytes, at, b'$')?;
    let end = begin.checked_add(len)?;
    let next = end.checked_add(2)?;
    (bytes.get(end..next)? == b"\r\n").then_some(((begin, end), next))
}

/// The number behind this letter at `at`, and where the next line begins.
#[inline]
fn number(bytes: &[u8], at: usize, letter: u8) -> Option<(usize, usize)> {
    let (first, digits) = bytes.get(at..)?.split_first()?;
    let mut number = 0_usize;
    let mut count = 0;
    while let Some(digit @ b'0'..=b'9') = digits.get(count) {
        number = number
            .checked_mul(10)?
            .checked_add(usize::from(digit - b'0'))?;
        count += 1;
    }
    let is_line = *first == letter && count > 0 && digits[count..].starts_with(b"\r\n");
    is_line.then_some((number, at + 1 + count + 2))
}

/// Why the reply to an encoded command cannot be kept for a key that its first argument is; `None`: it can, if the
/// command only reads.
pub(crate) fn why_not_cacheable(command: &[u8]) -> Option<&'static str> {
    let Some((words, b"")) = first(command) else {
        return Some("several commands are no read of one key");
    };
    let name = words.from(0).next().unwrap_or_default();
    if NOT_OF_ONE_KEY.iter().any(|known| is(name, known)) {
        return Some("its reply depends on more than a key");
    }
    let known = super::find(name)?;
    let first = words.from(1).next();
    let (mut keys, mut is_first) = (0, true);
    known.keys.each(&words, |key| {
        keys += 1;
        is_first &= first.is_some_and(|first| std::ptr::eq(first, key));
    });
    (keys != 1 || !is_first).then_some("it is no read of one key that is its first argument")
}

/// The words of the first command, and what is behind it.
fn first(commands: &[u8]) -> Option<(Words<'_>, &[u8])> {
    let (count, begin) = number(commands, 0, b'*')?;
    let mut at = begin;
    for _ in 0..count {
        (_, at) = bulk(commands, at)?;
    }
    let (words, rest) = commands.split_at(at);
    Some((Words::new(count, &words[begin..]), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::{Cmd, cmd};
    use crate::command::Command;

    fn encoded(commands: &[Cmd]) -> Vec<u8> {
        let encode = |cmd: &Cmd| {
            let mut bytes = vec![0; cmd.encoded_len()];
            cmd.encode(&mut bytes);
            bytes
        };
        commands.iter().flat_map(encode).collect()
    }

    #[test]
    fn newer_commands_change_their_keys_alone() {
        let fields = cmd("HEXPIRE").args(["k", "9", "FIELDS", "1", "f"]);
        assert_eq!(changes(&[fields]), "k");
        assert_eq!(changes(&[cmd("JSON.SET").arg("k")]), "unknown");
    }

    fn changes(commands: &[Cmd]) -> String {
        let bytes = encoded(commands);
        let mut changes = Vec::new();
        each_change(&bytes, |change| {
            changes.push(match change {
                Change::Key(key) => String::from_utf8(key.to_vec()).expect("text"),
                Change::Everything => "everything".to_owned(),
                Change::Unknown => "unknown".to_owned(),
            });
        });
        changes.join(" ")
    }

    #[test]
    fn each_command_says_which_keys_it_changes() {
        assert_eq!(changes(&[cmd("set").arg("k").arg("v")]), "k");
        assert_eq!(changes(&[cmd("MSET").args(["a", "1", "b", "2"])]), "a b");
        assert_eq!(changes(&[cmd("GET").arg("k")]), "");
        assert_eq!(changes(&[cmd("PING")]), "");
        assert_eq!(
            changes(&[cmd("EVAL").args(["x", "2", "a", "b", "c"])]),
            "a b"
        );
        assert_eq!(changes(&[cmd("flushall")]), "everything");
        assert_eq!(changes(&[cmd("JSON.SET").args(["k", "$", "1"])]), "unknown");
        let transaction = [
            cmd("MULTI"),
            cmd("INCR").arg(""),
            cmd("GET").arg("a"),
            cmd("RENAME").args(["b", "c"]),
            cmd("EXEC"),
        ];
        assert_eq!(changes(&transaction), " b c");
        assert_eq!(changes(&[cmd("EXEC")]), "everything");
        assert_eq!(changes(&[]), "");
    }

    #[test]
    fn reads_of_one_key_may_be_kept_and_others_not() {
        let why_not = |cmd: Cmd| why_not_cacheable(&encoded(&[cmd]));
        for fine in [
            cmd("get").arg("k"),
            cmd("HGET").args(["k", "f"]),
            cmd("HGETALL").arg("k"),
            cmd("EXISTS").arg("k"),
            cmd("MGET").arg("k"),
            cmd("ZRANGE").args(["k", "0", "-1"]),
            cmd("JSON.GET").arg("k").read_only(),
        ] {
            assert_eq!(why_not(fine.clone()), None, "{fine:?}");
            let bytes = encoded(&[fine]);
            let key = first_argument(&bytes).map(|(start, end)| &bytes[start..end]);
            assert_eq!(key, Some(b"k".as_slice()));
        }
        for bad in [
            cmd("PING"),
            cmd("MGET").args(["a", "b"]),
            cmd("EXISTS").args(["a", "a"]),
            cmd("TTL").arg("k"),
            cmd("srandmember").arg("k"),
            cmd("ZSCAN").args(["k", "0"]),
            cmd("HTTL").args(["k", "FIELDS", "1", "f"]),
            cmd("OBJECT").args(["ENCODING", "k"]),
            cmd("LCS").args(["a", "b"]),
            cmd("EVAL_RO").args(["x", "1", "k"]),
            cmd("XREAD").args(["STREAMS", "k", "0"]),
            cmd("SORT_RO").arg("k"),
        ] {
            assert!(why_not(bad.clone()).is_some(), "{bad:?}");
        }
        let two = encoded(&[cmd("GET").arg("a"), cmd("GET").arg("b")]);
        assert!(why_not_cacheable(&two).is_some());
    }

    #[test]
    fn the_first_argument_is_found_whatever_it_is() {
        for key in [b"".as_slice(), b"\r\n$3\r\n", &[b'k'; 1000]] {
            let bytes = encoded(&[cmd("GET").arg(key)]);
            let (start, end) = first_argument(&bytes).expect("there is one");
            assert_eq!(&bytes[start..end], key);
        }
        let bytes = encoded(&[cmd("PING")]);
        assert_eq!(first_argument(&bytes), None);
        for len in 0..bytes.len() {
            assert_eq!(first_argument(&bytes[..len]), None);
        }
    }

    #[test]
    fn what_is_no_command_has_no_keys() {
        let good = encoded(&[cmd("SET").arg("key").arg("value")]);
        for place in 0..good.len() {
            for byte in [0, b'\r', b'$', b'9'] {
                let mut bytes = good.clone();
                bytes[place] = byte;
                each_change(&bytes, |_| {});
                let _in_range = first_argument(&bytes).map(|(begin, end)| &bytes[begin..end]);
                let _why = why_not_cacheable(&bytes);
            }
        }
        let huge = format!("*2\r\n${}\r\nGET\r\n$1\r\nk\r\n", usize::MAX);
        assert_eq!(first_argument(huge.as_bytes()), None);
        assert!(why_not_cacheable(huge.as_bytes()).is_some());
    }
}
