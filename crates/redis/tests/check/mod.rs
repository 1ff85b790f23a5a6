//! What holds for all bytes, whoever sent them.

use embar_mux::{BadReply, FrameKind, Framing};
use embar_redis::resp::{
    Framer, FromReply, MAX_DEPTH, ReplyLimits, ServerError, Value, View, parse,
};

/// The ends of the frames in `bytes` when they come in pieces, and whether what followed the last
/// one was refused. Every promise of [`Framing`] is checked.
pub fn ends(
    bytes: &[u8],
    piece: usize,
    limits: ReplyLimits,
) -> (Vec<(usize, FrameKind)>, Result<(), BadReply>) {
    let mut framer = Framer::new(limits);
    let mut ends = Vec::new();
    let mut at = 0;
    for chunk in bytes.chunks(piece) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let part = match framer.advance(rest) {
                Ok(part) => part,
                Err(error) => return (ends, Err(error)),
            };
            assert!(part.taken > 0, "it takes at least a byte");
            assert!(part.complete || part.taken == rest.len(), "it takes all");
            at += part.taken;
            rest = &rest[part.taken..];
            if part.complete {
                ends.push((at, part.kind));
            }
        }
    }
    (ends, Ok(()))
}

/// All that can be said about any bytes.
pub fn check(bytes: &[u8], piece: usize) {
    let limits = ReplyLimits {
        max_depth: MAX_DEPTH,
        max_line_bytes: usize::MAX,
        max_elements: u64::MAX,
        ..ReplyLimits::default()
    };
    let (whole, result) = ends(bytes, usize::MAX, limits);
    assert_eq!(ends(bytes, piece, limits), (whole.clone(), result));
    assert_eq!(ends(bytes, 1, limits), (whole.clone(), result));
    let mut at = 0;
    for (end, kind) in whole {
        // The framer does not look into numbers, so the parser may still refuse them.
        if let Ok((view, len)) = parse(&bytes[at..end]) {
            assert_eq!(len, end - at);
            assert_eq!(matches!(view, View::Push(_)), kind == FrameKind::Push);
            consume(view);
        }
        let _ = parse(&bytes[at..end - 1]).expect_err("a part of a frame is no frame");
        at = end;
    }
    if parse(&bytes[at..]).is_ok() {
        panic!("the parser found a reply that the framer did not: {result:?}");
    }
}

/// Reads all that there is to a view, in several ways.
fn consume(view: View<'_>) {
    let value = Value::from(view);
    assert_eq!(format!("{value:?}"), format!("{:?}", Value::from(view)));
    assert!(!format!("{view:?}").is_empty());
    match (view, &value) {
        (View::Array(items) | View::Set(items) | View::Push(items), _) => {
            assert_eq!(items.len(), items.count());
        }
        (View::Map(pairs), Value::Map(values)) => {
            assert_eq!(pairs.len(), values.len());
            assert_eq!(pairs.flat().count(), 2 * values.len());
        }
        (View::Chunks(chunks), Value::Bulk(bytes)) => {
            assert_eq!(chunks.total_bytes(), bytes.len());
        }
        _ => {}
    }
    let _ = Vec::<(String, i64)>::from_reply(view);
    let _ = std::collections::HashMap::<Vec<u8>, f64>::from_reply(view);
    let _ = Vec::<Result<Option<u8>, ServerError>>::from_reply(view);
    let _ = <[bool; 2]>::from_reply(view);
}
