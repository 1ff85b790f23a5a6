use super::*;

#[test]
fn a_receive_buffer_fills_its_range_and_nothing_else() {
    let mut buf = RecvBuf::<Mapped>::heap(vec![9; 8], 2..6);
    assert_eq!(buf.fill(b"ab"), 2);
    assert_eq!((buf.filled(), buf.remaining()), (2..4, 2));
    buf.spaces().0[0] = b'c';
    buf.advance(1);
    assert_eq!(buf.fill(b"de"), 1, "only one byte was left");
    assert_eq!(buf.remaining(), 0);
    buf.with_filled(3..6, |bytes| assert_eq!(bytes, b"bcd"));
    let Store::Heap(bytes) = buf.into_store() else {
        panic!("the store changed its kind");
    };
    assert_eq!(bytes, b"\x09\x09abcd\x09\x09");
}

#[test]
fn a_receive_adds_no_more_than_it_may() {
    let mut buf = RecvBuf::<Mapped>::heap(vec![0; 8], 0..8).at_most(3);
    assert_eq!(buf.spaces().0.len(), 3);
    buf.advance(2);
    assert_eq!(buf.spaces().0.len(), 1);
    buf.advance(1);
    assert_eq!(buf.spaces().0.len(), 0);
    let mut buf = buf.at_most(0);
    assert_eq!((buf.spaces().0.len(), buf.remaining()), (1, 5));
    let mut buf = buf.at_most(usize::MAX);
    assert_eq!(buf.spaces().0.len(), 5);
    assert_eq!(buf.wanting(4).at_most(3).wanted(), 3);
}

#[test]
#[should_panic(expected = "not within the filled")]
fn unfilled_bytes_are_not_shown() {
    let mut buf = RecvBuf::<Mapped>::heap(vec![0; 8], 0..8);
    buf.fill(b"abc");
    buf.with_filled(0..4, |_| ());
}

#[test]
#[should_panic(expected = "not within a store")]
fn a_range_beyond_the_store_is_a_bug() {
    let _ = RecvBuf::<Mapped>::heap(vec![0; 8], 4..9);
}

#[test]
fn unsent_bytes_come_in_order_across_both_parts() {
    let body = Body::<Mapped>::Shared(Arc::new(b"defgh".to_vec().into()));
    let mut buf = SendBuf::new(b"abc".to_vec(), body);
    let mut seen = Vec::new();
    while buf.remaining() > 0 {
        buf.with_unsent(|head, body| {
            seen.push([head, body].concat());
        });
        buf.advance(2);
    }
    assert_eq!(
        seen,
        [&b"abcdefgh"[..], b"cdefgh", b"efgh", b"gh"].map(<[u8]>::to_vec)
    );
    assert_eq!((buf.sent(), buf.total()), (8, 8));
    buf.with_unsent(|head, body| assert!(head.is_empty() && body.is_empty()));
}
