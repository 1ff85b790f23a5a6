//! What is read of each type, and what is refused.

use super::*;
use crate::resp::{ErrorKind, Value};

fn value(bytes: &str) -> Value {
    let (view, len) = parse(bytes.as_bytes()).unwrap_or_else(|error| panic!("{bytes}: {error}"));
    assert_eq!(len, bytes.len(), "{bytes}");
    view.into()
}

fn text(text: &str) -> Value {
    Value::Bulk(text.into())
}

#[test]
fn every_type_of_resp2_is_read() {
    assert_eq!(value("+OK\r\n"), Value::Simple("OK".to_owned()));
    assert_eq!(value(":-9223372036854775808\r\n"), Value::Integer(i64::MIN));
    assert_eq!(value(":+7\r\n"), Value::Integer(7));
    assert_eq!(value("$4\r\na\r\nb\r\n"), text("a\r\nb"));
    assert_eq!(value("$0\r\n\r\n"), text(""));
    assert_eq!(value("$-1\r\n"), Value::Null);
    assert_eq!(value("*-1\r\n"), Value::Null);
    assert_eq!(value("*0\r\n"), Value::Array(vec![]));
    let nested = Value::Array(vec![
        Value::Integer(1),
        Value::Array(vec![text("a")]),
        Value::Null,
    ]);
    assert_eq!(value("*3\r\n:1\r\n*1\r\n$1\r\na\r\n$-1\r\n"), nested);
    let Value::Error(error) = value("-WRONGTYPE no\r\n") else {
        panic!("an error")
    };
    assert_eq!(error.kind, ErrorKind::WrongType);
}

#[test]
fn every_type_of_resp3_is_read() {
    assert_eq!(value("_\r\n"), Value::Null);
    assert_eq!(value("#t\r\n"), Value::Boolean(true));
    assert_eq!(value("#f\r\n"), Value::Boolean(false));
    assert_eq!(value(",1.5e3\r\n"), Value::Double(1500.0));
    assert_eq!(value(",-inf\r\n"), Value::Double(f64::NEG_INFINITY));
    assert!(matches!(value(",nan\r\n"), Value::Double(nan) if nan.is_nan()));
    let big = "-3492890328409238509324850943850943825024385";
    assert_eq!(
        value(&format!("({big}\r\n")),
        Value::BigNumber(big.to_owned())
    );
    let verbatim = Value::Verbatim {
        format: *b"txt",
        text: b"Some".to_vec(),
    };
    assert_eq!(value("=8\r\ntxt:Some\r\n"), verbatim);
    assert!(matches!(value("!3\r\nE x\r\n"), Value::Error(error) if error.text == "E x"));
    let one = || Value::Integer(1);
    assert_eq!(value("~1\r\n:1\r\n"), Value::Set(vec![one()]));
    assert_eq!(
        value("%1\r\n:1\r\n_\r\n"),
        Value::Map(vec![(one(), Value::Null)])
    );
    assert_eq!(value(">1\r\n:1\r\n"), Value::Push(vec![one()]));
}

#[test]
fn streamed_types_are_read_as_the_others() {
    assert_eq!(value("$?\r\n;2\r\nab\r\n;1\r\nc\r\n;0\r\n"), text("abc"));
    assert_eq!(value("$?\r\n;0\r\n"), text(""));
    let one = || Value::Integer(1);
    assert_eq!(
        value("*?\r\n:1\r\n*?\r\n.\r\n.\r\n"),
        value("*2\r\n:1\r\n*0\r\n")
    );
    assert_eq!(value("~?\r\n:1\r\n.\r\n"), Value::Set(vec![one()]));
    assert_eq!(
        value("%?\r\n:1\r\n:1\r\n.\r\n"),
        Value::Map(vec![(one(), one())])
    );
    let (View::Chunks(mut chunks), _) =
        parse(b"$?\r\n;2\r\nab\r\n;1\r\nc\r\n;0\r\n").expect("chunks")
    else {
        panic!("a string in chunks")
    };
    assert_eq!(chunks.total_bytes(), 3);
    assert_eq!(chunks.next(), Some(&b"ab"[..]));
    assert_eq!(chunks.total_bytes(), 1);
    assert_eq!(chunks.collect::<Vec<_>>(), [b"c"]);
}

#[test]
fn attributes_are_skipped_and_can_be_asked_for() {
    let bytes = "|1\r\n+ttl\r\n:3600\r\n*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n";
    assert_eq!(value(bytes), value("*2\r\n:1\r\n:2\r\n"));
    let (attributes, view, len) = View::with_attributes(bytes.as_bytes()).expect("a reply");
    assert_eq!((Value::from(view), len), (value(bytes), bytes.len()));
    let mut attributes = attributes.expect("there are some");
    assert_eq!(attributes.len(), 1);
    let (name, ttl) = attributes.next().expect("a pair");
    assert!(matches!(
        (name, ttl),
        (View::Simple(b"ttl"), View::Integer(3600))
    ));
    let (none, ..) = View::with_attributes(b":1\r\n").expect("a reply");
    assert!(none.is_none());
}

#[test]
fn replies_stand_one_after_another() {
    let bytes = b"+OK\r\n:1\r\n$1\r\na\r\n";
    let (first, len) = parse(bytes).expect("a reply");
    assert!(matches!((first, len), (View::Simple(b"OK"), 5)));
    let (second, len) = parse(&bytes[5..]).expect("a reply");
    assert!(matches!((second, len), (View::Integer(1), 4)));
}

#[test]
fn elements_are_counted_and_shown() {
    let (view, _) = parse(b"*3\r\n:1\r\n*1\r\n+a\r\n#t\r\n").expect("a reply");
    let View::Array(mut items) = view else {
        panic!("an array")
    };
    assert_eq!((items.len(), items.is_empty()), (3, false));
    items.next();
    assert_eq!(items.len(), 2);
    let shown = format!("{items:?}");
    assert_eq!(shown, "[Array([Simple([97])]), Boolean(true)]");
    assert_eq!(items.by_ref().count(), 2);
    assert!(items.is_empty() && items.next().is_none());
}

#[test]
fn what_is_no_resp_is_refused() {
    for bytes in [
        "",
        "x",
        "+OK",
        "+OK\r",
        "+O\nK\r\n",
        ":\r\n",
        ":1a\r\n",
        ":--1\r\n",
        ":9223372036854775808\r\n",
        ",\r\n",
        ",1,5\r\n",
        "#x\r\n",
        "#\r\n",
        "_x\r\n",
        "(\r\n",
        "(1.5\r\n",
        "$5\r\nab\r\n",
        "$1\r\nabc",
        "$999999999999999999\r\n",
        "=5\r\ntxtab\r\n",
        "*1\r\n",
        "*999999999999999999\r\n:1\r\n",
        "*2\r\n:1\r\n:x\r\n",
        "*1\r\n>1\r\n:1\r\n",
        "|1\r\n:1\r\n:2\r\n",
        "|0\r\n>1\r\n:1\r\n",
        "*?\r\n|0\r\n.\r\n",
        "%?\r\n:1\r\n.\r\n",
        "$?\r\n:1\r\n;0\r\n",
        ";0\r\n",
        ".\r\n",
    ] {
        let error = parse(bytes.as_bytes()).expect_err(bytes);
        assert!(!error.what.is_empty());
    }
}

#[test]
fn depth_cannot_overflow_the_stack() {
    let nested = |depth| "*1\r\n".repeat(depth) + ":1\r\n";
    let mut inner = value(&nested(MAX_DEPTH));
    for _ in 0..MAX_DEPTH {
        let Value::Array(items) = inner else {
            panic!("an array")
        };
        inner = items.into_iter().next().expect("an element");
    }
    assert_eq!(inner, Value::Integer(1));
    for opener in ["*1\r\n", "%1\r\n", "*?\r\n", "|1\r\n"] {
        let bytes = opener.repeat(100_000);
        let error = parse(bytes.as_bytes()).expect_err("nobody nests so deep");
        assert!(error.what.contains("deep"), "{error}");
    }
}
