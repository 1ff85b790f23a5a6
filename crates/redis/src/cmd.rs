//! Builds a command at run time, word by word: any command, also one that has no method of its own.

use crate::command::{Class, Command, Key, Route};
use crate::error::Error;
use crate::merge::{FanOut, Merge, Part};
use crate::resp::{Arg, Out, bulk_len, header_len};
use crate::slot::slot;
use std::collections::HashMap;
use table::{Known, Reads};
use words::Words;

pub(crate) use encoded::{Change, each_change, first_argument, why_not_cacheable};

/// Bytes of memory that a command begins with: enough for most.
const INITIAL_BYTES: usize = 96;

/// The known commands that may change something and then fail. All others check everything before
/// they change anything. `EXEC` fails as a whole or gives each command a result.
const FAIL_MIDWAY: [&str; 5] = ["DEBUG", "EVAL", "EVALSHA", "FCALL", "MIGRATE"];

mod encoded;
mod keys;
mod newer;
mod table;
mod tips;
mod unshareable;
mod words;

/// Begins a command that has no method, or of which a part is known only when the program runs.
///
/// The crate knows the keys of all commands of Redis 7.0, and which of them only read, and of most that came later
/// (Redis 8, with vector sets, and Valkey 9). Of any other command it takes the first argument for the key, and does not send it again; [`Cmd::key`] and
/// [`Cmd::read_only`] say more.
///
/// ```no_run
/// # async fn example(client: embar_redis::Client) -> Result<(), embar_redis::Error> {
/// use embar_redis::cmd;
///
/// let length: usize = client.send(cmd("LCS").arg("{x}a").arg("{x}b").arg("LEN")).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a command does nothing until it is sent"]
pub fn cmd(name: &str) -> Cmd {
    let known = find(name.as_bytes());
    let cmd = Cmd::begin(name, Routing::ByName(known), Class::Write);
    Cmd {
        check_shareable: true,
        ..cmd
    }
}

/// What the crate knows of a command, by its name in upper or lower case.
fn find(name: &[u8]) -> Option<&'static Known> {
    table::find(name).or_else(|| newer::find(name))
}

/// A command that is built word by word, in its encoded form. See [`cmd`].
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until it is sent"]
pub struct Cmd {
    words: usize,
    /// The words as bulk strings, one after another.
    bulks: Vec<u8>,
    routing: Routing,
    class: Class,
    /// The user chose the name, so the command may be one that shared connections must not carry.
    check_shareable: bool,
}

/// What says where a command goes.
#[derive(Debug, Clone, Copy)]
enum Routing {
    /// The table's row for its name; `None` when the table has none.
    ByName(Option<&'static Known>),
    /// The keys that were named so far; without any, the name says whether it goes to one node or to several.
    ByKeys(Route),
    /// The caller.
    Explicit(Route),
}

impl Cmd {
    fn begin(name: &str, routing: Routing, class: Class) -> Self {
        let cmd = Self {
            words: 0,
            bulks: Vec::with_capacity(INITIAL_BYTES),
            routing,
            class,
            check_shareable: false,
        };
        cmd.arg(name)
    }

    /// Begins a command that has a method and only reads; the method names all keys.
    pub(crate) fn read(name: &str) -> Self {
        Self::begin(name, Routing::ByKeys(Route::Any), Class::Read)
    }

    /// Begins a command that has a method and may change data; the method names all keys.
    pub(crate) fn write(name: &str) -> Self {
        Self::begin(name, Routing::ByKeys(Route::Any), Class::Write)
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Arg) -> Self {
        let at = self.bulks.len();
        self.bulks.resize(at + bulk_len(arg.len()), 0);
        let mut out = Out::new(&mut self.bulks[at..]);
        out.bulk(&arg);
        out.finish();
        self.words += 1;
        self
    }

    /// Adds several arguments.
    pub fn args(self, args: impl IntoIterator<Item: Arg>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// Adds arguments that come in pairs: fields and values, say.
    pub fn pairs<A: Arg, B: Arg>(self, pairs: impl IntoIterator<Item = (A, B)>) -> Self {
        let add = |cmd: Self, (first, second)| cmd.arg(first).arg(second);
        pairs.into_iter().fold(self, add)
    }

    /// Adds an argument that is a key: the command goes to the node that serves it. Use it for all keys
    /// or for none. With a cluster all keys must have the same slot; the client refuses other commands
    /// with [`Error::CrossSlot`].
    pub fn key(mut self, key: impl Key) -> Self {
        let route = match self.routing {
            Routing::ByKeys(route) | Routing::Explicit(route) => route.and(key.as_ref()),
            Routing::ByName(_) => {
                self.class = self.class();
                Route::of(&key)
            }
        };
        self.routing = Routing::ByKeys(route);
        self.arg(key)
    }

    /// Adds several arguments that are keys.
    pub fn keys(self, keys: impl IntoIterator<Item: Key>) -> Self {
        keys.into_iter().fold(self, Self::key)
    }

    /// Says which node it goes to, whatever its keys are; to be called last. It sends a command without
    /// a key to the node that serves a certain slot.
    pub fn to(mut self, route: Route) -> Self {
        self.class = self.class();
        self.routing = Routing::Explicit(route);
        self
    }

    /// Says that it changes nothing, which the crate does not know of all commands newer than Redis 7.0: it
    /// may go to a replica, and the client sends it again when its connection breaks.
    pub fn read_only(mut self) -> Self {
        let route = self.route();
        self.routing = Routing::Explicit(route);
        self.class = Class::Read;
        self
    }

    /// Adds an option with its value, if there is one.
    pub(crate) fn option(self, name: &str, value: Option<impl Arg>) -> Self {
        match value {
            Some(value) => self.arg(name).arg(value),
            None => self,
        }
    }

    /// Adds a word if it is wanted.
    pub(crate) fn word_if(self, wanted: bool, word: &str) -> Self {
        if wanted { self.arg(word) } else { self }
    }

    /// Adds a list with its length before it.
    pub(crate) fn counted<T>(
        self,
        list: impl IntoIterator<Item = T>,
        add: fn(Self, T) -> Self,
    ) -> Self {
        let (words, at) = (self.words, self.bulks.len());
        let mut cmd = list.into_iter().fold(self, add);
        // The number is known only now.
        let count = cmd.words - words;
        let len = bulk_len(count.len());
        cmd.bulks.splice(at..at, std::iter::repeat_n(0, len));
        let mut out = Out::new(&mut cmd.bulks[at..at + len]);
        out.bulk(&count);
        out.finish();
        cmd.words += 1;
        cmd
    }

    /// How many arguments follow the name.
    pub(crate) fn arguments(&self) -> usize {
        self.words - 1
    }

    /// Adds the arguments of another command, its keys as keys.
    pub(crate) fn joined(mut self, other: &Self) -> Self {
        let name = other
            .words()
            .from(0)
            .next()
            .map_or(0, |name| bulk_len(name.len()));
        self.bulks.extend_from_slice(&other.bulks[name..]);
        self.words += other.arguments();
        if let (Routing::ByKeys(Route::Any), Routing::ByKeys(_)) = (self.routing, other.routing) {
            self.routing = other.routing;
        }
        self
    }

    fn words(&self) -> Words<'_> {
        Words::new(self.words, &self.bulks)
    }

    /// Where it goes by its name, as it has no key.
    fn route_of_name(&self) -> Route {
        self.fanned().map_or(Route::Any, |known| known.route)
    }

    fn fanned(&self) -> Option<&'static tips::Fanned> {
        let mut words = self.words().from(0);
        let name = words.next().unwrap_or_default();
        tips::find(name, words.next().unwrap_or_default())
    }

    /// A command for each slot of its keys; `None`: it cannot be split.
    fn split(&self) -> Option<FanOut> {
        let words = self.words();
        let name = words.from(0).next()?;
        let known = tips::find_split(name)?;
        let name = std::str::from_utf8(name).ok()?;
        if !self.arguments().is_multiple_of(known.step) {
            return None;
        }
        let keys: Vec<&[u8]> = words.from(1).collect();
        let mut by_slot: HashMap<u16, Vec<usize>> = HashMap::new();
        for (place, key) in keys.iter().step_by(known.step).enumerate() {
            by_slot.entry(slot(key)).or_default().push(place);
        }
        let part = |(slot, places): (u16, Vec<usize>)| {
            let its = |place: &usize| &keys[place * known.step..][..known.step];
            let cmd = Self::write(name).args(places.iter().flat_map(its).copied());
            let mut bytes = vec![0; cmd.encoded_len()];
            cmd.encode(&mut bytes);
            Part {
                bytes,
                slot,
                places,
            }
        };
        let parts = by_slot.into_iter().map(part).collect();
        Some(FanOut::slots(known.merge, parts))
    }
}

impl Command for Cmd {
    fn encoded_len(&self) -> usize {
        header_len(self.words) + self.bulks.len()
    }

    fn encode(&self, out: &mut [u8]) {
        let mut out = Out::new(out);
        out.header(self.words);
        out.raw(&self.bulks);
        out.finish();
    }

    fn route(&self) -> Route {
        let known = match self.routing {
            Routing::ByKeys(Route::Any) => return self.route_of_name(),
            Routing::ByKeys(route) | Routing::Explicit(route) => return route,
            Routing::ByName(known) => known,
        };
        let mut route = Route::Any;
        let words = self.words();
        match known {
            Some(known) => known.keys.each(&words, |key| route = route.and(key)),
            None => words.from(1).take(1).for_each(|key| route = Route::of(key)),
        }
        match route {
            Route::Any => self.route_of_name(),
            route => route,
        }
    }

    fn class(&self) -> Class {
        let reads = match self.routing {
            Routing::ByKeys(_) | Routing::Explicit(_) => return self.class,
            Routing::ByName(known) => known.map_or(Reads::Never, |known| known.reads),
        };
        let with = |subs: &[&str]| {
            let sub = self.words().from(1).next().unwrap_or_default();
            subs.iter().any(|known| words::is(sub, known))
        };
        match reads {
            Reads::Always => Class::Read,
            Reads::Some(subs) if with(subs) => Class::Read,
            Reads::Some(_) | Reads::Never => Class::Write,
        }
    }

    fn may_fail_midway(&self) -> bool {
        let words = self.words();
        let name = words.from(0).next().unwrap_or_default();
        let known = || !self.check_shareable || find(name).is_some();
        let in_parts = FAIL_MIDWAY.iter().any(|known| words::is(name, known));
        self.class() == Class::Write && (in_parts || !known())
    }

    fn refused(&self) -> Option<Error> {
        let words = self.check_shareable.then(|| self.words())?;
        unshareable::refused(&words)
    }

    fn route_with_others(&self) -> Route {
        match self.route() {
            Route::AllPrimaries if self.fanned().is_some_and(|known| known.any_will_do) => {
                Route::Any
            }
            route => route,
        }
    }

    fn fan_out(&self) -> Option<FanOut> {
        match self.route() {
            // Of a command that the crate does not know, the caller gets all replies.
            Route::AllPrimaries | Route::AllNodes => {
                let merge = self.fanned().map_or(Merge::Each, |known| known.merge);
                Some(FanOut::whole(merge))
            }
            Route::CrossSlot => self.split(),
            Route::Any | Route::Slot(_) | Route::Node(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(cmd: &Cmd) -> String {
        let mut out = vec![0; cmd.encoded_len()];
        cmd.encode(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn words_are_sent_in_their_order() {
        let cmd = cmd("FOO")
            .arg(12)
            .args(["a", ""])
            .pairs([("b", 1.5)])
            .key("k");
        let wanted = "*7\r\n$3\r\nFOO\r\n$2\r\n12\r\n$1\r\na\r\n$0\r\n\r\n$1\r\nb\r\n$3\r\n1.5\r\n$1\r\nk\r\n";
        assert_eq!(encoded(&cmd), wanted);
        let words: Vec<_> = cmd.words().from(2).collect();
        assert_eq!(words, [b"a".as_slice(), b"", b"b", b"1.5", b"k"]);
        let counted = Cmd::read("X").counted(["{k}a", "{k}b"], Cmd::key).arg(0);
        let wanted = "*5\r\n$1\r\nX\r\n$1\r\n2\r\n$4\r\n{k}a\r\n$4\r\n{k}b\r\n$1\r\n0\r\n";
        assert_eq!(encoded(&counted), wanted);
        assert_eq!(counted.route(), Route::of("k"));
    }

    #[test]
    fn arguments_may_be_any_bytes() {
        let nasty = [b"\r\n$3\r\n".as_slice(), b"", b"\0\xFF", &[b'$'; 1000]];
        let cmd = cmd("X").args(nasty).counted(["k"; 12], Cmd::key);
        let words: Vec<_> = cmd.words().from(1).collect();
        assert_eq!(words[..4], nasty);
        assert_eq!(words[4], b"12");
        assert_eq!(words[5..], [b"k"; 12]);
        assert_eq!((cmd.words().count(), cmd.arguments()), (18, 17));
    }

    #[test]
    fn scripts_moves_of_keys_and_unknown_commands_may_fail_midway() {
        for name in ["EVAL", "evalsha", "FCALL", "MIGRATE", "DEBUG", "JSON.MSET"] {
            assert!(cmd(name).arg("x").may_fail_midway(), "{name}");
            assert!(cmd(name).key("x").may_fail_midway(), "{name}");
            assert!(!cmd(name).key("x").read_only().may_fail_midway(), "{name}");
        }
        assert!(Cmd::write("EVAL").may_fail_midway());
        for name in [
            "SET", "get", "EXEC", "EVAL_RO", "FCALL_RO", "RESTORE", "COPY",
        ] {
            assert!(!cmd(name).arg("x").may_fail_midway(), "{name}");
        }
        // A method's command that is newer than the table.
        assert!(!Cmd::write("HEXPIRE").key("x").may_fail_midway());
    }

    #[test]
    fn keys_that_the_caller_names_count_more_than_the_table() {
        assert_eq!(cmd("GET").arg("a").route(), Route::of("a"));
        assert_eq!(cmd("GET").arg("a").key("b").route(), Route::of("b"));
        assert_eq!(cmd("get").arg("a").key("b").class(), Class::Read);
        assert_eq!(cmd("X").key("{a}1").key("{a}2").route(), Route::of("a"));
        assert_eq!(
            cmd("X").key("a").arg("q").key("b").route(),
            Route::CrossSlot
        );
        assert_eq!(cmd("X").key("a").to(Route::Slot(7)).route(), Route::Slot(7));
        assert_eq!(cmd("JSON.GET").arg("a").route(), Route::of("a"));
        assert_eq!(cmd("JSON.GET").arg("a").class(), Class::Write);
        let read = cmd("JSON.GET").arg("a").read_only();
        assert_eq!((read.route(), read.class()), (Route::of("a"), Class::Read));
    }
}
