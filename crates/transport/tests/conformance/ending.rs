use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use embar_memory::Buffer;
use embar_transport::{Reactor, RecvBuf, SendBuf, Stream};
use rustix::net::sockopt;

use crate::Kind;
use crate::driver::{driver, heap, room};
use crate::log::Log;

/// Closes so that the other end gets "reset" instead of "end".
fn reset(peer: Stream) {
    sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
}

/// More than the kernel takes from a sender whose peer does not read.
fn too_much() -> Arc<Buffer> {
    Arc::new(Buffer::from(vec![0; 48 << 20]))
}

pub fn a_peer_that_half_closes_still_receives<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(b"question").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(driver.receive_exactly(token, 8), b"question");
    driver.reactor.recv(token, room(8));
    assert_eq!(driver.received(token).1.unwrap(), 0);

    driver.send_all(token, SendBuf::heap(b"answer".to_vec()));
    driver.reactor.close(token);
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"answer");
}

pub fn our_half_close_still_receives<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    driver.send_all(token, SendBuf::heap(b"question".to_vec()));
    driver.reactor.shutdown_write(token).unwrap();
    let mut question = Vec::new();
    peer.read_to_end(&mut question).unwrap();
    assert_eq!(question, b"question");

    peer.write_all(b"answer").unwrap();
    assert_eq!(driver.receive_exactly(token, 6), b"answer");
    driver.reactor.close(token);
    let stale = driver.reactor.shutdown_write(token).unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::NotConnected);
}

pub fn a_reset_fails_the_receive_and_later_sends<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, peer) = driver.pair();
    driver.reactor.recv(token, room(8));
    driver.nothing_happens();
    reset(peer);
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(heap(buf).len(), 8, "the buffer comes back");

    driver.reactor.send(token, SendBuf::heap(b"lost".to_vec()));
    let (buf, result, _) = driver.sent(token);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(buf.sent(), 0);
}

pub fn a_reset_fails_a_send_that_waits_for_room<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, peer) = driver.pair();
    driver.reactor.send(token, SendBuf::shared(too_much()));
    driver.nothing_happens();
    reset(peer);
    let (buf, result, _) = driver.sent(token);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(buf.sent() > 0 && buf.remaining() > 0);
}

pub fn closing_gives_outstanding_buffers_back<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    driver.reactor.recv(token, room(8));
    driver.reactor.send(token, SendBuf::shared(too_much()));
    driver.nothing_happens();
    driver.reactor.close(token);
    assert_eq!(
        driver.reactor.outstanding(),
        2,
        "until the poll hands them out"
    );

    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    assert_eq!(heap(buf).len(), 8);
    let (buf, result, _) = driver.sent(token);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    assert_eq!(driver.reactor.outstanding(), 0);
    driver.nothing_happens();

    // The peer gets what the kernel had taken, then the end.
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), buf.sent());
}

pub fn a_stale_token_touches_nobody<K: Kind>() {
    let mut driver = driver::<K>();
    let (old, _old_peer) = driver.pair();
    driver.reactor.close(old);
    let (new, mut peer) = driver.pair();
    assert_eq!(new.index(), old.index(), "slots are reused");
    assert_ne!(new, old);
    peer.write_all(b"for the new one").unwrap();

    driver.reactor.recv(old, room(100));
    driver.reactor.send(old, SendBuf::heap(b"wrong".to_vec()));
    driver.reactor.close(old);
    assert_eq!(
        driver.received(old).1.unwrap_err().kind(),
        ErrorKind::NotConnected
    );
    assert_eq!(
        driver.sent(old).1.unwrap_err().kind(),
        ErrorKind::NotConnected
    );

    assert_eq!(driver.receive_exactly(new, 15), b"for the new one");
    driver.send_all(new, SendBuf::heap(b"right".to_vec()));
    let mut first = [0; 5];
    peer.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"right");
}

pub fn dropping_the_reactor_frees_what_is_outstanding<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let bytes = too_much();
    driver.reactor.recv(token, room(8));
    driver
        .reactor
        .send(token, SendBuf::shared(Arc::clone(&bytes)));
    driver.nothing_happens();
    assert_eq!(Arc::strong_count(&bytes), 2);
    drop(driver);
    assert_eq!(Arc::strong_count(&bytes), 1);
    std::io::copy(&mut peer, &mut std::io::sink()).unwrap();
}

pub fn dropping_it_with_hundreds_in_flight_frees_them_all<K: Kind>() {
    let log = Log::new();
    let mut driver = driver::<K>();
    let pairs: Vec<_> = (0..200).map(|_| driver.pair()).collect();
    for (token, _) in &pairs {
        driver
            .reactor
            .recv(*token, RecvBuf::reserved(log.reserve(64), 0..64));
    }
    driver.nothing_happens();
    assert_eq!(log.pins(), 200);
    // Some are closed, and some of these cancelled already.
    for (token, _) in &pairs[..100] {
        driver.reactor.close(*token);
    }
    drop(driver);
    assert_eq!(log.pins(), 0);
}

/// The kernel may have a buffer whose connection is closed while its peer sends. Once the buffer is back, it
/// is its owner's alone.
pub fn memory_that_came_back_is_not_written_again<K: Kind>() {
    const LEN: usize = 4 << 10;
    for round in 0..50_u64 {
        let mut driver = driver::<K>();
        let (token, mut peer) = driver.pair();
        let wanted = if round % 2 == 0 { LEN } else { 0 };
        driver.reactor.recv(token, room(LEN).wanting(wanted));
        driver.poll(Duration::ZERO);
        let (stop, stopped) = mpsc::channel::<()>();
        let writer = thread::spawn(move || {
            // A closed connection ends it, or the test.
            while peer.write_all(&[0xAA; 100]).is_ok() && stopped.try_recv().is_err() {}
        });
        for _ in 0..round * 20 {
            std::hint::spin_loop();
        }
        driver.reactor.close(token);
        let (buf, _, _) = driver.received(token);
        let mut bytes = heap(buf);
        bytes.fill(0x55);
        driver.nothing_happens();
        assert!(bytes.iter().all(|byte| *byte == 0x55), "round {round}");
        assert_eq!(driver.reactor.outstanding(), 0);
        let _ = stop.send(());
        writer.join().unwrap();
    }
}
