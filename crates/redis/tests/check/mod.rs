//! Checks that hold for any bytes.

use embar_mux::{BadReply, FrameKind, Framing};
use embar_redis::resp::{
    Framer, FromReply, MAX_DEPTH, ReplyLimits, ServerError, Value, View, parse,
};

/// The ends of the frames in `bytes` when they come in pieces, and whether the framer refused what
/// followed the last one. Checks every promise of [`Framing`].
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

/// Checks that the framer and the parser agree about these bytes.
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
        let frame = parse(&bytes[at..end]);
        if let Ok((view, len)) = frame {
            assert_eq!(len, end - at);
            assert_eq!(matches!(view, View::Push(_)), kind == FrameKind::Push);
            consume(view);
        }
        let part = parse(&bytes[at..end - 1]).expect_err("a part of a frame is no frame");
        let is_cut = part.what == "it ends too early";
        assert!(is_cut || frame.is_err_and(|error| error == part), "{part}");
        at = end;
    }
    if parse(&bytes[at..]).is_ok() {
        panic!("the parser finds a reply that the framer does not: {result:?}");
    }
}

/// Reads everything in a view, in several ways.
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
