//! Methods for the commands that wait until there is something: <https://redis.io/docs/latest/commands/blpop/> and its
//! like.

use std::time::Duration;

use super::options::{Extreme, Side, XReadGroupOptions, millis};
use crate::cmd::Cmd;
use crate::command::{Class, Command, Key, Route};
use crate::resp::{Arg, FromReply};

/// The shortest time that a server can wait: for it, 0 is for ever.
const SHORTEST: Duration = Duration::from_millis(1);

/// Longer than this is for ever: servers refuse times that they cannot express.
const LONGEST: Duration = Duration::from_secs(86_400 * 365 * 30);

/// A command that waits, as the methods of [`BlockingCommands`] make it.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until it is sent"]
pub struct BlockingCommand {
    /// What comes before the time.
    before: Cmd,
    unit: Unit,
    /// What comes behind it, behind a name that is not used.
    after: Cmd,
}

/// How a command takes its time.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Seconds,
    Milliseconds,
}

impl BlockingCommand {
    fn new(before: Cmd, unit: Unit, after: Cmd) -> Self {
        Self {
            before,
            unit,
            after,
        }
    }

    /// Nothing follows the time, in seconds.
    fn time_last(before: Cmd) -> Self {
        Self::new(before, Unit::Seconds, Cmd::write(""))
    }

    /// The command that lets the server wait so long.
    pub(crate) fn waiting(&self, wait: Duration) -> Cmd {
        let wait = milliseconds(wait);
        let cmd = self.before.clone();
        let cmd = match self.unit {
            Unit::Milliseconds => cmd.arg(wait),
            Unit::Seconds => cmd.arg(format!("{}.{:03}", wait / 1000, wait % 1000)),
        };
        cmd.joined(&self.after)
    }

    /// Where it goes.
    pub(crate) fn route(&self) -> Route {
        self.waiting(SHORTEST).route()
    }

    /// Whether it may be sent again when its outcome is unknown.
    pub(crate) fn class(&self) -> Class {
        self.before.class()
    }
}

/// A time to wait as servers take it: 0 is for ever.
pub(crate) fn milliseconds(wait: Duration) -> u64 {
    match is_for_ever(wait) {
        true => 0,
        false => millis(wait.max(SHORTEST)),
    }
}

/// Whether this wait has no end.
pub(crate) fn is_for_ever(wait: Duration) -> bool {
    wait > LONGEST
}

/// Takes commands that wait: the methods of [`BlockingCommands`] end here.
///
/// - A [`&Client`](crate::Client) takes a connection from its pool for each: see
///   [`BlockingRequest`](crate::blocking::BlockingRequest).
/// - A [`&Dedicated`](crate::dedicated::Dedicated) sends it there, behind the commands before it.
///
/// A pipeline or a transaction takes none: within it, nothing waits.
pub trait Blocks: Sized {
    /// What executing a command returns: a future.
    type Output<R: FromReply>;

    /// Executes a command for which the server waits at most so long.
    fn block<R: FromReply>(self, command: BlockingCommand, wait: Duration) -> Self::Output<R>;
}

/// Commands that wait until there is something, at most for the time `wait`: then the result is `None`.
///
/// `wait` has milliseconds. [`Duration::ZERO`] waits for one of them, and [`Duration::MAX`] for ever. All keys of a
/// command must have one slot.
///
/// ```no_run
/// # async fn example(client: &embar_redis::Client) -> Result<(), embar_redis::Error> {
/// use std::time::Duration;
///
/// use embar_redis::prelude::*;
///
/// while let Some((_key, job)) = client
///     .blpop::<(String, String)>(["jobs"], Duration::from_secs(10))
///     .await?
/// {
///     println!("{job}");
/// }
/// # Ok(())
/// # }
/// ```
pub trait BlockingCommands: Blocks {
    /// `BLPOP key ... timeout`: takes the element at the head of the first list that has any: `(String, String)`, its key
    /// and the element.
    fn blpop<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let cmd = Cmd::write("BLPOP").keys(keys);
        self.block(BlockingCommand::time_last(cmd), wait)
    }

    /// `BRPOP key ... timeout`: the same at the tail.
    fn brpop<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let cmd = Cmd::write("BRPOP").keys(keys);
        self.block(BlockingCommand::time_last(cmd), wait)
    }

    /// `BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout`: the element that was moved.
    fn blmove<R: FromReply>(
        self,
        source: impl Key,
        destination: impl Key,
        from: Side,
        to: Side,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let cmd = Cmd::write("BLMOVE").key(source).key(destination);
        let cmd = cmd.arg(from.word()).arg(to.word());
        self.block(BlockingCommand::time_last(cmd), wait)
    }

    /// `BLMPOP timeout numkeys key ... LEFT|RIGHT COUNT count`: takes up to so many from the first list that has any: its
    /// key and the elements, `(String, Vec<String>)`.
    fn blmpop<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        side: Side,
        count: u64,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let rest = Cmd::write("").counted(keys, Cmd::key).arg(side.word());
        let rest = rest.arg("COUNT").arg(count);
        let cmd = BlockingCommand::new(Cmd::write("BLMPOP"), Unit::Seconds, rest);
        self.block(cmd, wait)
    }

    /// `BZPOPMIN key ... timeout`: takes the member with the lowest score of the first sorted set that has any: `(String,
    /// String, f64)`, its key, the member, the score.
    fn bzpopmin<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let cmd = Cmd::write("BZPOPMIN").keys(keys);
        self.block(BlockingCommand::time_last(cmd), wait)
    }

    /// `BZPOPMAX key ... timeout`: the same with the highest score.
    fn bzpopmax<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let cmd = Cmd::write("BZPOPMAX").keys(keys);
        self.block(BlockingCommand::time_last(cmd), wait)
    }

    /// `BZMPOP timeout numkeys key ... MIN|MAX COUNT count`: takes up to so many from the first sorted set that has any: its
    /// key, the members and their scores, `(String, Vec<(String, f64)>)`.
    fn bzmpop<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        extreme: Extreme,
        count: u64,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let rest = Cmd::write("").counted(keys, Cmd::key).arg(extreme.word());
        let rest = rest.arg("COUNT").arg(count);
        let cmd = BlockingCommand::new(Cmd::write("BZMPOP"), Unit::Seconds, rest);
        self.block(cmd, wait)
    }

    /// `XREAD COUNT count BLOCK wait STREAMS key ... id ...`: what is after those ids, at most so many of each: `Vec<(String,
    /// Vec<entry>)>`, one for each stream that has any. Of the id `$`, for what comes from now on, the client cannot keep
    /// the place when the command goes to another server meanwhile: give ids to miss nothing.
    fn xread_blocking<R: FromReply>(
        self,
        streams: impl IntoIterator<Item = (impl Key, impl Arg), IntoIter: Clone>,
        count: Option<u64>,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let cmd = Cmd::read("XREAD").option("COUNT", count).arg("BLOCK");
        let cmd = BlockingCommand::new(cmd, Unit::Milliseconds, of_streams(streams));
        self.block(cmd, wait)
    }

    /// `XREADGROUP GROUP group consumer COUNT count BLOCK wait STREAMS key ... id ...`: entries that no consumer was given yet,
    /// for the id `>`; as [`BlockingCommands::xread_blocking`]. A [`Consumer`](crate::consumer::Consumer) does what a program
    /// needs around it.
    fn xreadgroup_blocking<R: FromReply>(
        self,
        group: impl Arg,
        consumer: impl Arg,
        streams: impl IntoIterator<Item = (impl Key, impl Arg), IntoIter: Clone>,
        options: XReadGroupOptions,
        wait: Duration,
    ) -> Self::Output<Option<R>> {
        let cmd = group_read(group, consumer, streams, options);
        self.block(cmd, wait)
    }
}

impl<T: Blocks> BlockingCommands for T {}

/// `XREADGROUP` that waits.
pub(crate) fn group_read(
    group: impl Arg,
    consumer: impl Arg,
    streams: impl IntoIterator<Item = (impl Key, impl Arg), IntoIter: Clone>,
    options: XReadGroupOptions,
) -> BlockingCommand {
    let cmd = Cmd::write("XREADGROUP").arg("GROUP").arg(group);
    let cmd = options.add(cmd.arg(consumer)).arg("BLOCK");
    BlockingCommand::new(cmd, Unit::Milliseconds, of_streams(streams))
}

fn of_streams(streams: impl IntoIterator<Item = (impl Key, impl Arg), IntoIter: Clone>) -> Cmd {
    let streams = streams.into_iter();
    let cmd = Cmd::write("").arg("STREAMS");
    let cmd = cmd.keys(streams.clone().map(|(key, _)| key));
    cmd.args(streams.map(|(_, id)| id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cmd: &Cmd) -> String {
        let mut out = vec![0; cmd.encoded_len()];
        cmd.encode(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_time_is_where_and_how_the_command_wants_it() {
        let last = BlockingCommand::time_last(Cmd::write("BLPOP").keys(["{k}a", "{k}b"]));
        for (wait, wanted) in [
            (Duration::from_millis(1250), "1.250"),
            (Duration::ZERO, "0.001"),
            (Duration::from_micros(10), "0.001"),
            (Duration::MAX, "0.000"),
        ] {
            assert!(text(&last.waiting(wait)).ends_with(&format!("{wanted}\r\n")));
        }
        assert_eq!((last.route(), last.class()), (Route::of("k"), Class::Write));
        let streams = of_streams([("{k}a", "1-0"), ("{k}b", "2")]);
        let read =
            BlockingCommand::new(Cmd::read("XREAD").arg("BLOCK"), Unit::Milliseconds, streams);
        assert_eq!((read.route(), read.class()), (Route::of("k"), Class::Read));
        let wanted = "*8\r\n$5\r\nXREAD\r\n$5\r\nBLOCK\r\n$4\r\n1250\r\n$7\r\nSTREAMS\r\n\
            $4\r\n{k}a\r\n$4\r\n{k}b\r\n$3\r\n1-0\r\n$1\r\n2\r\n";
        assert_eq!(text(&read.waiting(Duration::from_millis(1250))), wanted);
    }

    #[test]
    fn keys_of_several_slots_are_noticed_wherever_they_are() {
        let rest = Cmd::write("").counted(["a", "b"], Cmd::key);
        let cmd = BlockingCommand::new(Cmd::write("BLMPOP"), Unit::Seconds, rest);
        assert_eq!(cmd.route(), Route::CrossSlot);
    }
}
