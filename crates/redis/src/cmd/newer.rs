//! The commands that are newer than Redis 7.0: where their keys are, and which of them only read. From the descriptions of Redis up to
//! 8.4 and of Valkey up to 9.0. A server of the version that the tests use does not have them, so nothing compares these.

use super::keys::Keys;
use super::table::{Known, ONE, READ, WRITE, row};

/// The row of a command, by its name in upper or lower case.
pub(super) fn find(name: &[u8]) -> Option<&'static Known> {
    super::table::find_in(&NEWER, name)
}

/// Sorted by name.
static NEWER: [Known; 33] = [
    // Valkey 8.1
    row("COMMANDLOG", WRITE, Keys::None),
    // Redis 8.4, and for Valkey DELIFEQ
    row("DELEX", WRITE, ONE),
    row("DELIFEQ", WRITE, ONE),
    row("DIGEST", READ, ONE),
    // Redis 7.4 and 8.0, Valkey 9.0
    row("HEXPIRE", WRITE, ONE),
    row("HEXPIREAT", WRITE, ONE),
    row("HEXPIRETIME", READ, ONE),
    row("HGETDEL", WRITE, ONE),
    row("HGETEX", WRITE, ONE),
    row("HPERSIST", WRITE, ONE),
    row("HPEXPIRE", WRITE, ONE),
    row("HPEXPIREAT", WRITE, ONE),
    row("HPEXPIRETIME", READ, ONE),
    row("HPTTL", READ, ONE),
    row("HSETEX", WRITE, ONE),
    row("HTTL", READ, ONE),
    // Redis 8.4
    row("MSETEX", WRITE, Keys::CountedPairs(1)),
    // Redis 8.0
    row("VADD", WRITE, ONE),
    row("VCARD", READ, ONE),
    row("VDIM", READ, ONE),
    row("VEMB", READ, ONE),
    row("VGETATTR", READ, ONE),
    row("VINFO", READ, ONE),
    row("VISMEMBER", READ, ONE),
    row("VLINKS", READ, ONE),
    row("VRANDMEMBER", READ, ONE),
    row("VRANGE", READ, ONE),
    row("VREM", WRITE, ONE),
    row("VSETATTR", WRITE, ONE),
    row("VSIM", READ, ONE),
    // Redis 7.2
    row("WAITAOF", WRITE, Keys::None),
    // Redis 8.2
    row("XACKDEL", WRITE, ONE),
    row("XDELEX", WRITE, ONE),
];

#[cfg(test)]
mod tests {
    use crate::cmd::{cmd, table};
    use crate::command::{Class, Command, Route};

    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_are_not_in_the_other_table() {
        assert!(NEWER.is_sorted_by_key(Known::name));
        for known in &NEWER {
            let name = known.name().to_lowercase();
            assert_eq!(find(name.as_bytes()).map(Known::name), Some(known.name()));
            assert!(table::find(name.as_bytes()).is_none(), "{name}");
        }
    }

    #[test]
    fn newer_commands_go_where_their_keys_are_and_reads_may_go_to_replicas() {
        let of_k = Some(Route::of("k"));
        for (words, route, class) in [
            ("HEXPIRE k 10 FIELDS 1 f", of_k, Class::Write),
            ("httl k FIELDS 1 f", of_k, Class::Read),
            ("HGETEX k PERSIST FIELDS 1 f", of_k, Class::Write),
            ("VADD k VALUES 2 1 2 e", of_k, Class::Write),
            ("VSIM k ELE e COUNT 3", of_k, Class::Read),
            ("MSETEX 2 {k}a x {k}b y EX 1", of_k, Class::Write),
            ("MSETEX 2 k x other y", Some(Route::CrossSlot), Class::Write),
            ("COMMANDLOG LEN slow", None, Class::Write),
        ] {
            let mut words = words.split(' ');
            let name = words.next().expect("a name");
            let cmd = cmd(name).args(words);
            assert_eq!(cmd.route(), route.unwrap_or(Route::Any), "{name}");
            assert_eq!(cmd.class(), class, "{name}");
            assert!(!cmd.may_fail_midway(), "{name}");
        }
    }
}
