//! Receives that want many bytes: the kernel waits for them, without a call for each that comes.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use embar_transport::{Completion, Reactor, RecvBuf, Uring};

#[test]
fn one_operation_waits_for_all_that_is_wanted() {
    const LEN: usize = 200;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    theirs.set_nodelay(true).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let mut reactor = Uring::new().unwrap();
    let token = reactor.add(ours).unwrap();
    reactor.recv(token, RecvBuf::heap(vec![0; LEN], 0..LEN).wanting(LEN));
    let mut out = Vec::new();
    for byte in 0..LEN {
        assert!(out.is_empty(), "after {byte} bytes: {out:?}");
        theirs.write_all(&[byte as u8]).unwrap();
        reactor.poll(Some(Duration::ZERO), &mut out).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while out.is_empty() && Instant::now() < deadline {
        reactor
            .poll(Some(Duration::from_secs(1)), &mut out)
            .unwrap();
    }
    let Some(Completion::Received { buf, result, .. }) = out.pop() else {
        panic!("no receive is over");
    };
    assert_eq!(result.unwrap(), LEN);
    let expected: Vec<u8> = (0..LEN).map(|byte| byte as u8).collect();
    buf.with_filled(0..LEN, |bytes| assert_eq!(bytes, expected));
    assert_eq!(reactor.counters().recv_calls, 1);
}
