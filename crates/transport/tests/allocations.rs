//! Once warm, receiving and sending allocate nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use embar_transport::{Body, Completion, Epoll, Reactor, RecvBuf, SendBuf, Store, Token};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` by `alloc` above, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Sends from `left` to `right` until `rounds` messages of 64 + 64 bytes arrived.
fn run(
    epoll: &mut Epoll,
    out: &mut Vec<Completion>,
    buffers: &mut Option<(SendBuf, RecvBuf)>,
    (left, right): (Token, Token),
    rounds: usize,
) {
    let deadline = Instant::now() + Duration::from_secs(10);
    for _ in 0..rounds {
        let (send, recv) = buffers.take().expect("the buffers of the round before");
        epoll.send(left, send);
        epoll.recv(right, recv);
        let (mut sent, mut received) = (None, None);
        while sent.is_none() || received.is_none() {
            assert!(Instant::now() < deadline, "nothing arrives");
            epoll.poll(Some(Duration::from_secs(1)), out).unwrap();
            for completion in out.drain(..) {
                match completion {
                    Completion::Sent { buf, .. } => {
                        let (head, body) = buf.into_parts();
                        sent = Some(SendBuf::new(head.into_heap(), body));
                    }
                    Completion::Received { token, buf, .. } if buf.remaining() > 0 => {
                        epoll.recv(token, buf);
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

#[test]
fn warm_operations_allocate_nothing() {
    let mut epoll = Epoll::new().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (right, _) = listener.accept().unwrap();
    let tokens = (epoll.add(left).unwrap(), epoll.add(right).unwrap());
    let send = SendBuf::new(vec![1; 64], Body::Shared(Arc::new(vec![2; 64])));
    let mut buffers = Some((send, RecvBuf::heap(vec![0; 128], 0..128)));
    let mut out = Vec::new();

    run(&mut epoll, &mut out, &mut buffers, tokens, 100);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run(&mut epoll, &mut out, &mut buffers, tokens, 1000);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    // The test harness waits in another thread and may allocate a little of its own.
    assert!(after - before < 10, "{} allocations", after - before);
    assert_eq!(epoll.counters().recv_bytes, 1100 * 128);
}
