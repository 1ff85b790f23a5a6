//! What is named instead of copied.

use super::*;

#[test]
fn a_body_in_memory_that_was_handed_over_is_kept_until_it_was_taken() {
    let mut epoll = Epoll::new().unwrap();
    // More than the ring holds, so that copying it would wait for the reader.
    let all = buffers(2, 1 << 20);
    let (from, to) = pair(&mut epoll, &all[..1]);
    for buffer in all {
        let bytes = Arc::new(buffer);
        let body = Body::Shared(Arc::clone(&bytes));
        send(&mut epoll, from, SendBuf::new(b"head".to_vec(), body)).unwrap();
        assert_eq!(Arc::strong_count(&bytes), 2, "the peer may read it");
        let got = receive_exactly(&mut epoll, to, 4 + bytes.len());
        assert_eq!(&got[..4], b"head");
        assert!(got[4..] == **bytes, "bytes differ");
        // Whoever is told of it finds that it is not kept any more.
        send(&mut epoll, to, SendBuf::heap(b"taken".to_vec())).unwrap();
        assert_eq!(receive_exactly(&mut epoll, from, 5), b"taken");
        assert_eq!(Arc::strong_count(&bytes), 1);
    }
}

#[test]
fn frames_among_pieces_are_named_too_and_small_ones_copied() {
    let mut epoll = Epoll::new().unwrap();
    let large = buffers(3, 400 << 10);
    let small = buffers(3, 4096);
    let options = handing_over([&large[0], &small[0]]);
    let (ours, theirs) = Shm::pair(&options, &ShmOptions::default()).unwrap();
    let (from, to) = (epoll.add(ours).unwrap(), epoll.add(theirs).unwrap());
    let frames: Vec<Arc<Buffer>> =
        large
            .into_iter()
            .zip(small)
            .fold(Vec::new(), |mut all, (large, small)| {
                all.extend([Arc::new(large), Arc::new(small)]);
                all
            });
    for cut in [0, 1, 63, 64, 65, 5000, 400 << 10] {
        let mut pieces = Pieces::new();
        for frame in &frames {
            pieces.push_frame(Arc::clone(frame));
        }
        let mut buf = SendBuf::new(Vec::new(), Body::Pieces(Box::new(pieces)));
        let expected: Vec<u8> = frames.iter().flat_map(|it| it.to_vec()).collect();
        buf.advance(cut);
        send(&mut epoll, from, buf).unwrap();
        let got = receive_exactly(&mut epoll, to, expected.len() - cut);
        assert!(got == expected[cut..], "cut at {cut}");
        send(&mut epoll, to, SendBuf::heap(b"!".to_vec())).unwrap();
        receive_exactly(&mut epoll, from, 1);
        let counts = frames.iter().map(Arc::strong_count);
        assert!(counts.max() == Some(1), "something is kept");
    }
}

#[test]
fn only_a_window_is_named_while_the_peer_takes_nothing() {
    for (count, bytes) in [(2 * WINDOW_REFERENCES, 8192), (40, 1 << 20)] {
        let mut epoll = Epoll::new().unwrap();
        let all = buffers(count, bytes);
        let (from, to) = pair(&mut epoll, &all[..1]);
        let all: Vec<Arc<Buffer>> = all.into_iter().map(Arc::new).collect();
        let direct = epoll.direct(from).unwrap();
        let mut sent = 0;
        for buffer in &all {
            let mut buf = SendBuf::shared(Arc::clone(buffer));
            match direct.try_send_buf(&mut buf) {
                Ok(_) if buf.remaining() == 0 => sent += 1,
                Ok(_) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        let most = WINDOW_REFERENCES.min(WINDOW_BYTES / (bytes - 64) + 1);
        assert_eq!(sent, most, "of {bytes} bytes each");
        let kept = all.iter().filter(|it| Arc::strong_count(it) > 1).count();
        assert_eq!(kept, most);
        // The reader makes room.
        let got = receive_exactly(&mut epoll, to, sent * bytes);
        assert!(got[..bytes] == **all[0] && got.ends_with(&all[sent - 1]));
    }
}

#[test]
fn what_a_closed_connection_had_named_is_not_taken() {
    let mut epoll = Epoll::new().unwrap();
    let mut all = buffers(1, 1 << 20);
    let (from, to) = pair(&mut epoll, &all);
    let bytes = Arc::new(all.remove(0));
    send(&mut epoll, from, SendBuf::shared(Arc::clone(&bytes))).unwrap();
    epoll.close(from);
    let mut bytes = Arc::into_inner(bytes).expect("nothing is kept any more");
    bytes.fill(0xEE);
    // The header was copied.
    let header = receive(&mut epoll, to, 64).unwrap();
    assert_ne!(header, [0xEE; 64]);
    let error = receive(&mut epoll, to, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
}

#[test]
fn what_was_taken_before_the_connection_was_closed_is_no_loss() {
    let mut epoll = Epoll::new().unwrap();
    let mut all = buffers(1, 1 << 20);
    let (from, to) = pair(&mut epoll, &all);
    let bytes = Arc::new(all.remove(0));
    send(&mut epoll, from, SendBuf::shared(Arc::clone(&bytes))).unwrap();
    assert!(receive_exactly(&mut epoll, to, 1 << 20) == **bytes);
    send(&mut epoll, from, SendBuf::heap(b"later".to_vec())).unwrap();
    epoll.close(from);
    assert_eq!(receive_exactly(&mut epoll, to, 5), b"later");
    assert_eq!(receive(&mut epoll, to, 5).unwrap(), b"");
}
