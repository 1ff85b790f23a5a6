//! RESP, compared with another implementation.

mod check;

use check::{check, ends};
use embar_mux::FrameKind;
use embar_redis::resp::{ReplyLimits, Value, View, parse};
use proptest::{collection::vec, prelude::*};
use redis_protocol::{
    resp2::{self, types::Resp2Frame},
    resp3::{self, types::Resp3Frame},
};

fn line() -> impl Strategy<Value = String> {
    "[ -~äß]{0,20}"
}

/// Any value of RESP2, as a type of the other implementation.
fn frame2() -> impl Strategy<Value = resp2::types::OwnedFrame> {
    use resp2::types::OwnedFrame as F;
    let leaf = prop_oneof![
        line().prop_map(|text| F::SimpleString(text.into_bytes())),
        line().prop_map(F::Error),
        any::<i64>().prop_map(F::Integer),
        vec(any::<u8>(), 0..300).prop_map(F::BulkString),
        Just(F::Null),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| vec(inner, 0..8).prop_map(F::Array))
}

fn value2(frame: &resp2::types::OwnedFrame) -> Value {
    use resp2::types::OwnedFrame as F;
    match frame {
        F::SimpleString(text) => Value::Simple(String::from_utf8_lossy(text).into_owned()),
        F::Error(text) => error(text.as_bytes()),
        F::Integer(number) => Value::Integer(*number),
        F::BulkString(bytes) => Value::Bulk(bytes.clone()),
        F::Array(items) => Value::Array(items.iter().map(value2).collect()),
        F::Null => Value::Null,
    }
}

fn error(text: &[u8]) -> Value {
    let bytes = [b"-", text, b"\r\n"].concat();
    let (View::Error(error), _) = parse(&bytes).expect("an error") else {
        panic!("an error is one")
    };
    Value::Error(error.into())
}

/// Any value of RESP3 that can be within others, as a type of the other implementation. Sets and maps
/// have one element at most, as that implementation does not keep their order.
fn frame3() -> impl Strategy<Value = resp3::types::OwnedFrame> {
    use resp3::types::{OwnedFrame as F, VerbatimStringFormat as Format};
    let leaf = prop_oneof![
        line().prop_map(|text| F::SimpleString {
            data: text.into_bytes(),
            attributes: None
        }),
        line().prop_map(|data| F::SimpleError {
            data,
            attributes: None
        }),
        any::<i64>().prop_map(|data| F::Number {
            data,
            attributes: None
        }),
        any::<bool>().prop_map(|data| F::Boolean {
            data,
            attributes: None
        }),
        any::<f64>().prop_map(|data| F::Double {
            data,
            attributes: None
        }),
        "[+-]?[0-9]{1,40}".prop_map(|text| F::BigNumber {
            data: text.into_bytes(),
            attributes: None
        }),
        vec(any::<u8>(), 0..300).prop_map(|data| F::BlobString {
            data,
            attributes: None
        }),
        vec(any::<u8>(), 0..30).prop_map(|data| F::BlobError {
            data,
            attributes: None
        }),
        (any::<bool>(), vec(any::<u8>(), 0..30)).prop_map(|(text, data)| {
            let format = match text {
                true => Format::Text,
                false => Format::Markdown,
            };
            F::VerbatimString {
                data,
                format,
                attributes: None,
            }
        }),
        Just(F::Null),
    ];
    let key = any::<i64>().prop_map(|data| F::Number {
        data,
        attributes: None,
    });
    leaf.prop_recursive(5, 60, 8, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(|data| F::Array {
                data,
                attributes: None
            }),
            proptest::option::of(key.clone()).prop_map(|item| F::Set {
                data: item.into_iter().collect(),
                attributes: None
            }),
            proptest::option::of((key.clone(), inner)).prop_map(|pair| F::Map {
                data: pair.into_iter().collect(),
                attributes: None
            }),
        ]
    })
}

fn value3(frame: &resp3::types::OwnedFrame) -> Value {
    use resp3::types::{OwnedFrame as F, VerbatimStringFormat as Format};
    let all = |items: &[F]| items.iter().map(value3).collect();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match frame {
        F::SimpleString { data, .. } => Value::Simple(text(data)),
        F::SimpleError { data, .. } => error(data.as_bytes()),
        F::BlobError { data, .. } => {
            let bytes = [format!("!{}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
            Value::from(parse(&bytes).expect("an error").0)
        }
        F::Number { data, .. } => Value::Integer(*data),
        F::Boolean { data, .. } => Value::Boolean(*data),
        F::Double { data, .. } => Value::Double(*data),
        F::BigNumber { data, .. } => Value::BigNumber(text(data)),
        F::BlobString { data, .. } => Value::Bulk(data.clone()),
        F::VerbatimString { data, format, .. } => Value::Verbatim {
            format: match format {
                Format::Text => *b"txt",
                Format::Markdown => *b"mkd",
            },
            text: data.clone(),
        },
        F::Null => Value::Null,
        F::Array { data, .. } => Value::Array(all(data)),
        F::Push { data, .. } => Value::Push(all(data)),
        F::Set { data, .. } => Value::Set(data.iter().map(value3).collect()),
        F::Map { data, .. } => {
            let pairs = data.iter().map(|(key, value)| (value3(key), value3(value)));
            Value::Map(pairs.collect())
        }
        F::Hello { .. } | F::ChunkedString(_) => panic!("never generated"),
    }
}

fn encode3(frame: &resp3::types::OwnedFrame) -> Vec<u8> {
    let mut bytes = vec![0; frame.encode_len(false)];
    let len = resp3::encode::complete::encode(&mut bytes, frame, false).expect("it has room");
    bytes.truncate(len);
    bytes
}

/// The values of replies, one behind the other.
fn read_all(bytes: &[u8], kind: FrameKind) -> Vec<Value> {
    let (whole, result) = ends(bytes, usize::MAX, ReplyLimits::default());
    assert_eq!(result, Ok(()));
    assert_eq!(whole.last().map_or(0, |(end, _)| *end), bytes.len());
    let mut at = 0;
    let read = |(end, its)| {
        assert_eq!(its, kind);
        let (view, len) = parse(&bytes[at..]).expect("a reply");
        assert_eq!(at + len, end);
        at = end;
        Value::from(view)
    };
    whole.into_iter().map(read).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn resp2_is_read_as_others_write_it(frames in vec(frame2(), 1..4), piece in 1_usize..40) {
        let mut bytes = Vec::new();
        for frame in &frames {
            let mut encoded = vec![0; frame.encode_len(false)];
            resp2::encode::encode(&mut encoded, frame, false).expect("it has room");
            bytes.extend(encoded);
        }
        check(&bytes, piece);
        let wanted: Vec<_> = frames.iter().map(value2).collect();
        prop_assert_eq!(read_all(&bytes, FrameKind::Reply), wanted);
    }

    #[test]
    fn resp3_is_read_as_others_write_it(frames in vec(frame3(), 1..4), piece in 1_usize..40) {
        let bytes: Vec<u8> = frames.iter().flat_map(encode3).collect();
        check(&bytes, piece);
        let wanted: Vec<_> = frames.iter().map(value3).collect();
        prop_assert_eq!(read_all(&bytes, FrameKind::Reply), wanted);
    }

    #[test]
    fn pushes_are_read_as_others_write_them(items in vec(frame3(), 1..4), piece in 1_usize..40) {
        let frame = resp3::types::OwnedFrame::Push { data: items, attributes: None };
        let bytes = encode3(&frame);
        check(&bytes, piece);
        prop_assert_eq!(read_all(&bytes, FrameKind::Push), [value3(&frame)]);
    }

    #[test]
    fn both_read_the_same_of_changed_bytes(
        frame in frame3(), place in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = encode3(&frame);
        let place = place.index(bytes.len());
        bytes[place] = byte;
        check(&bytes, 7);
        let other = resp3::decode::complete::decode(&bytes);
        if let (Ok((view, len)), Ok(Some((other, other_len)))) = (parse(&bytes), other) {
            prop_assert_eq!(len, other_len);
            prop_assert_eq!(format!("{:?}", Value::from(view)), format!("{:?}", value3(&other)));
        }
    }
}
