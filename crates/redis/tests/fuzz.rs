//! Hostile bytes for the framer and the parsers: none makes them panic, and they agree.
//!
//! `cargo test` runs each target for a second or less; `cargo xtask fuzz` runs them for longer.

mod check;

use check::check;
use embar_redis::{
    config::{Config, Endpoint},
    resp::{Arg, FromReply, Out, View, bulk_len, header_len, parse},
    slot::SLOTS,
    topology::Topology,
};

#[test]
fn resp_as_it_comes() {
    bolero::check!()
        .with_type::<(u8, Vec<u8>)>()
        .for_each(|(piece, bytes)| check(bytes, 1 + usize::from(*piece)));
}

/// Lines of RESP, some of them cut or malformed, from a type and a length for each.
fn typed(lines: &[(u8, u8)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (what, much) in lines {
        let kind = b"$*%~>|=!;.+-:,(#_?"[usize::from(what % 18)];
        let much = usize::from(much % 8);
        bytes.push(kind);
        match kind {
            b'.' | b'_' => {}
            b'#' => bytes.push(b"tfx"[much % 3]),
            b'$' | b'=' | b'!' | b';' if much < 6 => {
                bytes.extend(much.to_string().as_bytes());
                if kind != b';' || much > 0 {
                    bytes.extend(b"\r\n");
                    bytes.extend(&b"txt:\r\n"[..much]);
                }
            }
            b'*' | b'%' | b'~' | b'>' | b'|' if much > 4 => bytes.push(b'?'),
            b'$' if much == 6 => bytes.push(b'?'),
            b'$' | b'*' if much == 7 => bytes.extend(b"-1"),
            _ => bytes.extend(much.to_string().as_bytes()),
        }
        bytes.extend(b"\r\n");
    }
    bytes
}

#[test]
fn resp_with_valid_types() {
    bolero::check!()
        .with_type::<(u8, Vec<(u8, u8)>)>()
        .for_each(|(piece, lines)| {
            let bytes = typed(lines);
            check(&bytes, 1 + usize::from(*piece % 16));
        });
}

/// Any text arrives as it was sent.
#[test]
fn resp_that_was_written_here() {
    bolero::check!()
        .with_type::<(Vec<Vec<u8>>, i64, f64)>()
        .for_each(|(texts, whole, float)| {
            let mut args: Vec<&dyn Arg> = texts.iter().map(|text| text as &dyn Arg).collect();
            args.extend([whole as &dyn Arg, float]);
            let bulks = args.iter().map(|arg| bulk_len(arg.len()));
            let mut bytes = vec![0; header_len(args.len()) + bulks.sum::<usize>()];
            let mut out = Out::new(&mut bytes);
            out.header(args.len());
            args.iter().for_each(|arg| out.bulk(arg));
            out.finish();
            check(&bytes, 3);
            let (view, _) = parse(&bytes).expect("a command is a reply, too");
            let read = Vec::<Vec<u8>>::from_reply(view).expect("all are strings");
            assert_eq!(read[..texts.len()], texts[..]);
            let View::Array(mut items) = view else {
                panic!("a command is an array")
            };
            let number = items.nth(texts.len()).map(i64::from_reply);
            assert_eq!(number, Some(Ok(*whole)));
            let number = items.next().map(f64::from_reply).expect("it is there");
            let number = number.expect("it is a number");
            assert!(number == *float || number.is_nan() && float.is_nan());
        });
}

#[test]
fn topologies() {
    let asked = Endpoint::tcp("h", 1);
    bolero::check!()
        .with_type::<Vec<(u8, u8, u16)>>()
        .for_each(|words| {
            let bytes = topology(words);
            let Ok((view, _)) = parse(&bytes) else {
                return;
            };
            for read in [
                Topology::from_slots(view, &asked),
                Topology::from_shards(view, &asked, false),
                Topology::from_shards(view, &asked, true),
            ] {
                let Ok(read) = read else { continue };
                let ranges = read.shards().iter().flat_map(|shard| &shard.ranges);
                let served: usize = ranges.map(ExactSizeIterator::len).sum();
                assert_eq!(served + read.uncovered(), usize::from(SLOTS));
                for (index, shard) in read.shards().iter().enumerate() {
                    for slot in shard.ranges.iter().flat_map(Clone::clone) {
                        assert_eq!(read.index_of(slot), Some(index));
                    }
                }
            }
        });
}

/// Replies of the form of topologies, and some that nearly have it.
fn topology(words: &[(u8, u8, u16)]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for (form, name, slot) in words {
        let name =
            ["$1\r\na", "$1\r\nb", "$1\r\n?", "$0\r\n", "$-1", "_", ":1"][usize::from(name % 7)];
        let last = slot.saturating_add(u16::from(*form));
        bytes += &match form % 4 {
            0 | 1 => format!("*3\r\n:{slot}\r\n:{last}\r\n*2\r\n{name}\r\n:{last}\r\n"),
            2 => format!(
                "%2\r\n+slots\r\n*2\r\n:{slot}\r\n:{last}\r\n+nodes\r\n*1\r\n%3\r\n\
                 +endpoint\r\n{name}\r\n+port\r\n:{last}\r\n+role\r\n$6\r\nmaster\r\n"
            ),
            _ => format!("*2\r\n:{slot}\r\n{name}\r\n"),
        };
    }
    bytes.into_bytes()
}

#[test]
fn urls() {
    bolero::check!()
        .with_type::<(u8, String, String)>()
        .for_each(|(scheme, start, end)| {
            let scheme = ["redis://", "redis-cluster://", "unix:", "redis+unix://", ""]
                [usize::from(scheme % 5)];
            for url in [
                format!("{scheme}{start}{end}"),
                format!("{scheme}{start}@{end}"),
                format!("{scheme}h/?{start}={end}"),
            ] {
                if let Ok(config) = Config::from_url(&url) {
                    assert_eq!(config.check(), Ok(()));
                }
            }
        });
}
