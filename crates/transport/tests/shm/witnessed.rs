//! What a receiver's witness sees.

use std::sync::Mutex;

use embar_memory::{Coherence, PayloadFile};
use embar_transport::Witness;

use super::*;

#[derive(Default)]
struct Seen(Mutex<Vec<u8>>);

impl Witness for Seen {
    fn see(&self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

#[test]
fn a_witness_sees_all_that_is_copied_whether_it_was_named_or_not() {
    let mut epoll = Epoll::new().unwrap();
    let all = buffers(1, 300 << 10);
    let (from, to) = pair(&mut epoll, &all);
    let named = Arc::new(all.into_iter().next().unwrap());
    let payload = PayloadFile::anonymous(1 << 20, Coherence::Coherent).unwrap();
    for head in [0, 1, 10, 48, 49, 5000] {
        let mut expected = vec![7; head];
        expected.extend_from_slice(&named);
        let buf = SendBuf::new(vec![7; head], Body::Shared(Arc::clone(&named)));
        epoll.send(from, buf);
        let reservation = payload
            .allocate(1 << 20)
            .unwrap()
            .reserve(expected.len() as u32)
            .unwrap();
        let witness = Arc::new(Seen::default());
        let mut buf = RecvBuf::reserved(reservation, 0..expected.len())
            .witnessed(Arc::<Seen>::clone(&witness));
        while buf.remaining() > 0 {
            epoll.recv(to, buf);
            buf = wait(&mut epoll, |completion| match completion {
                Completion::Received { buf, result, .. } => Some(result.map(|_| buf)),
                _ => None,
            })
            .unwrap();
            assert_eq!(buf.seen(), buf.filled().end);
        }
        buf.with_filled(0..expected.len(), |bytes| {
            assert!(bytes == expected, "head {head}");
        });
        assert!(*witness.0.lock().unwrap() == expected, "head {head}");
    }
}

#[test]
fn others_than_shared_memory_take_no_notice_of_a_witness() {
    let mut epoll = Epoll::new().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (from, to) = (epoll.add(ours).unwrap(), epoll.add(theirs).unwrap());
    epoll.send(from, SendBuf::heap(vec![7; 100]));
    let witness = Arc::new(Seen::default());
    let buf = RecvBuf::heap(vec![0; 200], 50..150).witnessed(Arc::<Seen>::clone(&witness));
    epoll.recv(to, buf);
    let buf = wait(&mut epoll, |completion| match completion {
        Completion::Received { buf, result, .. } => Some(result.map(|_| buf)),
        _ => None,
    })
    .unwrap();
    assert_eq!((buf.seen(), buf.filled()), (50, 50..150));
    assert!(witness.0.lock().unwrap().is_empty());
}
