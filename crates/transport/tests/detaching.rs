//! Rings whose memory goes back to its pool although handles of them live.

use embar_transport::ring::{Commit, RingPool, SendRing};

fn ring() -> (RingPool, SendRing) {
    let pool = RingPool::new(rustix::param::page_size(), 1).unwrap();
    let ring = SendRing::new(&pool).unwrap();
    (pool, ring)
}

#[test]
fn the_memory_goes_back_at_once_and_the_figures_stay() {
    let (pool, ring) = ring();
    let handle = ring.clone();
    let _ = ring.reserve(10).unwrap().commit();
    let _ = ring.reserve(20).unwrap().commit();
    // Also when whoever had the right to send left a cork behind.
    assert!(ring.cork());
    ring.detach();
    assert_eq!(pool.idle(), 1);
    assert_eq!((handle.committed(), handle.queued()), (2, 30));
    assert!(handle.is_closed() && handle.reserve(0).is_err());
    assert!(handle.span().is_none() && handle.uncork().is_none());
    handle.detach();
    // Its next user finds nothing of this one.
    let next = SendRing::new(&pool).unwrap();
    assert!(next.reserve(30).unwrap().iter().all(|&byte| byte == 0));
    drop((ring, handle));
    assert_eq!(pool.idle(), 0, "it is the other one's now");
}

#[test]
fn a_reservation_keeps_its_memory_until_it_is_over() {
    for is_committed in [false, true] {
        let (pool, ring) = ring();
        let mut packet = ring.reserve(10).unwrap();
        ring.detach();
        assert_eq!(pool.idle(), 0);
        packet.fill(7);
        assert_eq!(*packet, [7; 10]);
        if is_committed {
            assert_eq!(packet.commit(), Commit::Left);
        } else {
            drop(packet);
        }
        assert_eq!(pool.idle(), 1);
    }
}

#[test]
fn a_span_keeps_its_memory_until_it_is_over() {
    let (pool, ring) = ring();
    let mut packet = ring.reserve(10).unwrap();
    packet.fill(7);
    let _ = packet.commit();
    let span = ring.span().unwrap();
    ring.detach();
    assert_eq!((pool.idle(), span.bytes()), (0, &[7; 10][..]));
    drop(span);
    assert_eq!(pool.idle(), 1);
}
