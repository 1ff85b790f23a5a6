//! What the framer takes, whole and in pieces, and what it refuses.

use super::*;

/// Small limits, so that tests can exceed them.
const SMALL: ReplyLimits = ReplyLimits {
    max_reply_bytes: 100,
    max_depth: 3,
    max_line_bytes: 20,
    max_elements: 10,
};

/// Where the first frame ends, fed in pieces of every size: the answer may not depend on them.
fn first(bytes: &str, limits: ReplyLimits) -> Result<Option<(usize, FrameKind)>, &'static str> {
    let bytes = bytes.as_bytes();
    let in_pieces = |size| {
        let mut framer = Framer::new(limits);
        let mut at = 0;
        for piece in bytes.chunks(size) {
            let part = framer.advance(piece).map_err(|error| error.what)?;
            at += part.taken;
            if part.complete {
                return Ok(Some((at, part.kind)));
            }
            assert_eq!(part.taken, piece.len());
        }
        Ok(None)
    };
    let whole = in_pieces(bytes.len());
    for size in 1..bytes.len() {
        assert_eq!(in_pieces(size), whole, "{bytes:?} in pieces of {size}");
    }
    whole
}

fn refused(bytes: &str) -> &'static str {
    first(bytes, SMALL).expect_err(bytes)
}

const EVERY_TYPE: [&str; 34] = [
    "+OK\r\n",
    "+\r\n",
    "+a\rb\r\n",
    "-ERR no\r\n",
    ":-12\r\n",
    "$3\r\na\r\n\r\n",
    "$0\r\n\r\n",
    "$-1\r\n",
    "*-1\r\n",
    "*0\r\n",
    "*2\r\n$1\r\na\r\n:1\r\n",
    "*2\r\n*1\r\n*0\r\n*0\r\n",
    "_\r\n",
    ",1.5\r\n",
    ",-inf\r\n",
    "#t\r\n",
    "!5\r\nERR a\r\n",
    "=6\r\ntxt:ab\r\n",
    "(123456789\r\n",
    "%0\r\n",
    "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n",
    "~2\r\n:1\r\n:2\r\n",
    "|1\r\n+a\r\n+b\r\n:1\r\n",
    "|0\r\n:1\r\n",
    "|0\r\n|1\r\n:1\r\n:2\r\n$1\r\na\r\n",
    "*1\r\n|1\r\n+a\r\n*0\r\n:1\r\n",
    "$?\r\n;1\r\na\r\n;2\r\n\r\n\r\n;0\r\n",
    "$?\r\n;0\r\n",
    "*?\r\n:1\r\n*?\r\n.\r\n.\r\n",
    "~?\r\n.\r\n",
    "%?\r\n+a\r\n:1\r\n.\r\n",
    "|?\r\n+a\r\n:1\r\n.\r\n:1\r\n",
    "*1\r\n$?\r\n;1\r\na\r\n;0\r\n",
    "*2\r\n:1\r\n*1\r\n:2\r\n",
];

#[test]
fn every_type_ends_where_it_ends() {
    for frame in EVERY_TYPE {
        let wanted = Ok(Some((frame.len(), FrameKind::Reply)));
        assert_eq!(first(frame, SMALL), wanted, "{frame}");
        // What follows is not looked at.
        assert_eq!(first(&format!("{frame}\0"), SMALL), wanted, "{frame}");
        for cut in 1..frame.len() {
            assert_eq!(
                first(&frame[..cut], SMALL),
                Ok(None),
                "{frame}, {cut} of it"
            );
        }
    }
}

#[test]
fn pushes_are_told_apart_from_their_first_byte() {
    let push = ">2\r\n+message\r\n*1\r\n:1\r\n";
    assert_eq!(first(push, SMALL), Ok(Some((push.len(), FrameKind::Push))));
    let mut framer = Framer::new(SMALL);
    let bytes = format!("{push}+OK\r\n{push}");
    let (mut at, mut kinds) = (0, Vec::new());
    while at < bytes.len() {
        let part = framer.advance(&bytes.as_bytes()[at..=at]).expect("RESP");
        at += part.taken;
        kinds.push(part.kind);
    }
    let mut wanted = vec![FrameKind::Push; push.len()];
    wanted.extend([FrameKind::Reply; 5]);
    wanted.extend(vec![FrameKind::Push; push.len()]);
    assert_eq!(kinds, wanted);
}

#[test]
fn one_call_goes_to_the_end_of_one_frame() {
    let bytes = EVERY_TYPE.concat();
    let mut framer = Framer::new(SMALL);
    let mut rest = bytes.as_bytes();
    for frame in EVERY_TYPE {
        let part = framer.advance(rest).expect("RESP");
        let wanted = Part {
            taken: frame.len(),
            kind: FrameKind::Reply,
            complete: true,
        };
        assert_eq!(part, wanted);
        rest = &rest[part.taken..];
    }
    assert!(rest.is_empty());
}

#[test]
fn what_is_no_resp_is_refused() {
    for bytes in [
        "HTTP/1.1 400 Bad Request\r\n",
        "\r\n",
        "$\r\n",
        "$x\r\n",
        "$-2\r\n",
        "$1x",
        "$+1\r\n",
        "$1\n",
        "$1\r\nabc",
        "$1\r\na\rb",
        "$1\r\nab\n",
        "$0\r\nb\n",
        "$1000000000000000000\r\n",
        "*99999999999999999999999999\r\n",
        "%-1\r\n",
        "=3\r\n",
        "!-1\r\n",
        "=?\r\n",
        "+a\nb\r\n",
        ".\r\n",
        "*1\r\n.\r\n",
        "*?\r\n.x",
        "%?\r\n:1\r\n.\r\n",
        ";1\r\na\r\n",
        "*1\r\n;1\r\n",
        "$?\r\n:1\r\n",
        "$?\r\n;-1\r\n",
        "*1\r\n>0\r\n",
        "|0\r\n>0\r\n",
        "*?\r\n|0\r\n.\r\n",
        "*?\r\n|1\r\n:1\r\n:1\r\n.\r\n",
        "*?\r\n|?\r\n.\r\n.\r\n",
    ] {
        refused(bytes);
    }
}

#[test]
fn hostile_lengths_are_refused_before_their_bytes() {
    assert_eq!(refused("$95\r\n"), TOO_LONG);
    assert_eq!(first("$93\r\n", SMALL), Ok(None));
    assert_eq!(refused("*2\r\n$3\r\nabc\r\n$81\r\n"), TOO_LONG);
    assert_eq!(refused("$999999999999999999\r\n"), TOO_LONG);
    assert!(refused("*11\r\n").contains("elements"));
    assert!(refused("%6\r\n").contains("elements"));
    assert!(refused("*999999999999999999\r\n").contains("elements"));
    assert_eq!(first("%5\r\n", SMALL), Ok(None));
    assert_eq!(
        refused(&("*9\r\n".to_owned() + &"+123456789\r\n".repeat(9))),
        TOO_LONG
    );
    assert!(refused(&("*?\r\n".to_owned() + &"_\r\n".repeat(11))).contains("elements"));
    let chunks = "$?\r\n".to_owned() + &";9\r\n123456789\r\n".repeat(7);
    assert_eq!(refused(&chunks), TOO_LONG);
    let fits = format!("$93\r\n{}\r\n", "x".repeat(93));
    assert_eq!(first(&fits, SMALL), Ok(Some((100, FrameKind::Reply))));
}

#[test]
fn lines_have_a_limit() {
    let fits = format!("+{}\r\n", "x".repeat(17));
    assert_eq!(first(&fits, SMALL), Ok(Some((20, FrameKind::Reply))));
    assert_eq!(refused(&format!("+{}\r\n", "x".repeat(18))), LONG_LINE);
    assert_eq!(refused(&format!("-{}", "x".repeat(20))), LONG_LINE);
}

#[test]
fn depth_has_a_limit() {
    let nested = |depth| "*1\r\n".repeat(depth) + ":1\r\n";
    assert_eq!(first(&nested(3), SMALL), Ok(Some((16, FrameKind::Reply))));
    assert!(refused(&nested(4)).contains("deeper"));
    assert!(refused("*1\r\n*1\r\n*1\r\n$?\r\n").contains("deeper"));
    assert!(refused("*?\r\n|1\r\n%?\r\n~?\r\n").contains("deeper"));
    let deep = ReplyLimits {
        max_depth: usize::MAX,
        ..ReplyLimits::default()
    };
    assert!(first(&nested(MAX_DEPTH), deep).is_ok());
    assert!(first(&nested(MAX_DEPTH + 1), deep).is_err());
}
