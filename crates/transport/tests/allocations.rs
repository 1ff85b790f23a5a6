//! Once warm, receiving and sending allocate nothing.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_transport::alloc::{Counting, of_process, set_counting};
use embar_transport::{
    Body, Completion, Epoll, Mapped, Reactor, RecvBuf, SendBuf, Shm, ShmOptions, Store, Stream,
    Token, Uring,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends from `left` to `right` until `rounds` messages of 64 + 64 bytes arrived.
fn run<R: Reactor<Mapped>>(
    reactor: &mut R,
    out: &mut Vec<Completion>,
    buffers: &mut Option<(SendBuf, RecvBuf)>,
    (left, right): (Token, Token),
    rounds: usize,
) {
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..rounds {
        let (send, recv) = buffers.take().expect("the buffers of the round before");
        reactor.send(left, send);
        reactor.recv(right, recv);
        let (mut sent, mut received) = (None, None);
        while sent.is_none() || received.is_none() {
            assert!(Instant::now() < deadline, "nothing arrives");
            reactor.poll(Some(Duration::from_secs(1)), out).unwrap();
            for completion in out.drain(..) {
                match completion {
                    Completion::Sent { buf, .. } => {
                        let (head, body) = buf.into_parts();
                        sent = Some(SendBuf::new(head.into_heap(), body));
                    }
                    Completion::Received { token, buf, .. } if buf.remaining() > 0 => {
                        reactor.recv(token, buf);
                    }
                    Completion::Received { buf, .. } => match buf.into_store() {
                        Store::Heap(bytes) => received = Some(RecvBuf::heap(bytes, 0..128)),
                        _ => panic!("the store changed its kind"),
                    },
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
        *buffers = sent.zip(received);
    }
}

fn tcp() -> (Stream, Stream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (right, _) = listener.accept().unwrap();
    (left.into(), right.into())
}

fn shm() -> (Stream, Stream) {
    let options = ShmOptions::default();
    let (left, right) = Shm::pair(&options, &options).unwrap();
    (left.into(), right.into())
}

/// What a warm reactor allocates while messages pass.
fn check(mut reactor: impl Reactor<Mapped>, (left, right): (Stream, Stream)) {
    let tokens = (reactor.add(left).unwrap(), reactor.add(right).unwrap());
    let send = SendBuf::new(vec![1; 64], Body::Shared(Arc::new(vec![2; 64].into())));
    let mut buffers = Some((send, RecvBuf::heap(vec![0; 128], 0..128)));
    let mut out = Vec::new();

    run(&mut reactor, &mut out, &mut buffers, tokens, 100);
    let before = of_process().times;
    assert!(before > 0, "the first ones are counted");
    run(&mut reactor, &mut out, &mut buffers, tokens, 1000);
    let after = of_process().times;
    // The test harness waits in another thread and may allocate a little of its own.
    assert!(after - before < 10, "{} allocations", after - before);
    assert_eq!(reactor.counters().recv_bytes, 1100 * 128);
}

/// One after the other, because the count is the whole process's.
#[test]
fn warm_operations_allocate_nothing() {
    set_counting(true);
    check(Epoll::new().unwrap(), tcp());
    check(Epoll::new().unwrap(), shm());
    check(Uring::new().unwrap(), tcp());
}
