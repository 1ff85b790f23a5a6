//! Methods for the commands on fields of hashes that expire: of Redis since 7.4, those that read or set them since 8.0; of Valkey since 9.0:
//! <https://redis.io/docs/latest/develop/data-types/hashes/#field-expiration>.

use super::options::{ExpireIf, Expiry, HSetExOptions};
use super::{Commands, Key};
use crate::cmd::Cmd;
use crate::resp::{Arg, FromReply};

/// Commands for fields of hashes that expire. Older servers answer that they do not know them.
///
/// A result of the kind `Vec<i64>` has a number for each field, in their order.
pub trait HashFieldCommands: Commands {
    /// `HEXPIRE`, `HPEXPIRE`, `HEXPIREAT`, `HPEXPIREAT key time FIELDS count field ...`: these fields expire then. For each 1,
    /// 2 if that time is over, so that it is gone, and -2 if there is none.
    fn hexpire(
        self,
        key: impl Key,
        expiry: Expiry,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<i64>> {
        let (name, time) = expire(expiry);
        self.execute(with_fields(Cmd::write(name).key(key).arg(time), fields))
    }

    /// `HEXPIRE ... key time NX|XX|GT|LT FIELDS count field ...`: the same under a condition; 0 where it was not met.
    fn hexpire_if(
        self,
        key: impl Key,
        expiry: Expiry,
        condition: ExpireIf,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<i64>> {
        let (name, time) = expire(expiry);
        let cmd = Cmd::write(name).key(key).arg(time);
        self.execute(with_fields(cmd.arg(condition.word()), fields))
    }

    /// `HPERSIST key FIELDS count field ...`: these fields expire no more. For each 1, -1 if it did not expire, and -2 if there
    /// is none.
    fn hpersist(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<i64>> {
        self.execute(with_fields(Cmd::write("HPERSIST").key(key), fields))
    }

    /// `HTTL key FIELDS count field ...`: in how many seconds they expire; -1 for never, -2 if there is none.
    fn httl(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<i64>> {
        self.execute(with_fields(Cmd::read("HTTL").key(key), fields))
    }

    /// `HPTTL key FIELDS count field ...`: the same in milliseconds.
    fn hpttl(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<i64>> {
        self.execute(with_fields(Cmd::read("HPTTL").key(key), fields))
    }

    /// `HEXPIRETIME key FIELDS count field ...`: when they expire, in seconds of Unix time; -1 for never, -2 if there is none.
    fn hexpiretime(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<i64>> {
        self.execute(with_fields(Cmd::read("HEXPIRETIME").key(key), fields))
    }

    /// `HPEXPIRETIME key FIELDS count field ...`: the same in milliseconds.
    fn hpexpiretime(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<i64>> {
        self.execute(with_fields(Cmd::read("HPEXPIRETIME").key(key), fields))
    }

    /// `HGETEX key EX|PX|EXAT|PXAT time FIELDS count field ...`: their values, null where there is none; they expire then.
    fn hgetex<R: FromReply>(
        self,
        key: impl Key,
        expiry: Expiry,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        self.execute(with_fields(
            expiry.add(Cmd::write("HGETEX").key(key)),
            fields,
        ))
    }

    /// `HGETEX key PERSIST FIELDS count field ...`: the same; they expire no more.
    fn hgetex_persist<R: FromReply>(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        self.execute(with_fields(
            Cmd::write("HGETEX").key(key).arg("PERSIST"),
            fields,
        ))
    }

    /// `HSETEX key options FIELDS count field value ...`: whether the condition was met, and they are set.
    fn hsetex(
        self,
        key: impl Key,
        options: HSetExOptions,
        pairs: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Output<Cmd, bool> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let cmd = options.add(Cmd::write("HSETEX").key(key)).arg("FIELDS");
        self.execute(cmd.arg(pairs.len()).pairs(pairs))
    }

    /// `HGETDEL key FIELDS count field ...`: their values, null where there was none; they are deleted.
    fn hgetdel<R: FromReply>(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        self.execute(with_fields(Cmd::write("HGETDEL").key(key), fields))
    }
}

impl<T: Commands> HashFieldCommands for T {}

/// The command that sets such a time.
fn expire(expiry: Expiry) -> (&'static str, u64) {
    match expiry {
        Expiry::Seconds(time) => ("HEXPIRE", time),
        Expiry::Millis(time) => ("HPEXPIRE", time),
        Expiry::AtSeconds(time) => ("HEXPIREAT", time),
        Expiry::AtMillis(time) => ("HPEXPIREAT", time),
    }
}

fn with_fields(cmd: Cmd, fields: impl IntoIterator<Item: Arg>) -> Cmd {
    cmd.arg("FIELDS").counted(fields, Cmd::arg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Class, Command, Route};

    /// Shows the words of a command, with its class.
    struct Shown;

    impl Commands for Shown {
        type Output<C: Command, R: FromReply> = (String, Class);

        fn execute<C: Command, R: FromReply>(self, command: C) -> (String, Class) {
            assert_eq!(command.route(), Route::of("k"));
            let mut bytes = vec![0; command.encoded_len()];
            command.encode(&mut bytes);
            let text = String::from_utf8(bytes).expect("text");
            let words: Vec<_> = text.split("\r\n").skip(2).step_by(2).collect();
            (words.join(" "), command.class())
        }
    }

    #[test]
    fn commands_are_sent_as_the_servers_describe_them() {
        let fields = ["a", "b"];
        let options = HSetExOptions::new().if_absent().expiry(Expiry::Seconds(5));
        for ((words, class), wanted) in [
            (
                Shown.hexpire("k", Expiry::Seconds(9), fields),
                "HEXPIRE k 9 FIELDS 2 a b",
            ),
            (
                Shown.hexpire_if("k", Expiry::AtMillis(9), ExpireIf::Later, fields),
                "HPEXPIREAT k 9 GT FIELDS 2 a b",
            ),
            (Shown.hpersist("k", fields), "HPERSIST k FIELDS 2 a b"),
            (
                Shown.hgetex::<Vec<String>>("k", Expiry::Millis(9), fields),
                "HGETEX k PX 9 FIELDS 2 a b",
            ),
            (
                Shown.hgetex_persist::<Vec<String>>("k", fields),
                "HGETEX k PERSIST FIELDS 2 a b",
            ),
            (
                Shown.hsetex("k", options, [("a", 1), ("b", 2)]),
                "HSETEX k FNX EX 5 FIELDS 2 a 1 b 2",
            ),
            (
                Shown.hsetex(
                    "k",
                    HSetExOptions::new().if_present().keep_ttl(),
                    [("a", 1)],
                ),
                "HSETEX k FXX KEEPTTL FIELDS 1 a 1",
            ),
            (
                Shown.hgetdel::<Vec<String>>("k", fields),
                "HGETDEL k FIELDS 2 a b",
            ),
        ] {
            assert_eq!((words.trim_end(), class), (wanted, Class::Write));
        }
        for ((words, class), name) in [
            (Shown.httl("k", fields), "HTTL"),
            (Shown.hpttl("k", fields), "HPTTL"),
            (Shown.hexpiretime("k", fields), "HEXPIRETIME"),
            (Shown.hpexpiretime("k", fields), "HPEXPIRETIME"),
        ] {
            let wanted = format!("{name} k FIELDS 2 a b");
            assert_eq!((words.trim_end(), class), (&*wanted, Class::Read));
        }
    }
}
