//! Who is woken for what, and who is not.

use super::*;

/// Both ends in reactors of their own, of which the first hands over the memory of `buffers`, and the second waits for
/// bytes in its sleep.
fn asleep(buffers: &[Buffer]) -> (Epoll, Token, Epoll, Token) {
    let (mut ours, mut theirs) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let options = handing_over(&buffers[..1]);
    let (stream, peer) = Shm::pair(&options, &ShmOptions::default()).unwrap();
    let (from, to) = (ours.add(stream).unwrap(), theirs.add(peer).unwrap());
    theirs.recv(to, RecvBuf::heap(vec![0; 8 << 20], 0..8 << 20));
    // What registering raised, and the sleep.
    let mut out = Vec::new();
    for epoll in [&mut ours, &mut theirs] {
        for _ in 0..3 {
            epoll
                .poll(Some(Duration::from_millis(1)), &mut out)
                .unwrap();
        }
    }
    assert!(out.is_empty(), "{out:?}");
    (ours, from, theirs, to)
}

fn is_readable(reactor: &Epoll) -> bool {
    let mut edges = [PollFd::new(reactor, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut edges, Some(&now)).unwrap() > 0
}

#[test]
fn who_rings_is_not_woken_when_the_peer_hears_it() {
    let (mut ours, from, mut theirs, _to) = asleep(&buffers(1, 4096));
    send(&mut ours, from, SendBuf::heap(b"awake".to_vec())).unwrap();
    assert!(is_readable(&theirs), "it was rung for");
    wait(&mut theirs, |completion| match completion {
        Completion::Received { result, .. } => Some(result.unwrap()),
        _ => None,
    });
    assert!(!is_readable(&ours));
}

#[test]
fn who_sleeps_while_much_is_named_is_woken_when_it_is_not_needed_any_more() {
    let all = buffers(WINDOW_REFERENCES, 8192);
    let (mut ours, from, mut theirs, to) = asleep(&all[..1]);
    let all: Vec<Arc<Buffer>> = all.into_iter().map(Arc::new).collect();
    for buffer in &all {
        send(&mut ours, from, SendBuf::shared(Arc::clone(buffer))).unwrap();
    }
    ours.recv(from, RecvBuf::heap(vec![0; 8], 0..8));
    let mut out = Vec::new();
    ours.poll(Some(Duration::from_millis(1)), &mut out).unwrap();
    assert!(all.iter().all(|it| Arc::strong_count(it) == 2));
    let mut left = all.len() * 8192;
    while left > 0 {
        left -= wait(&mut theirs, |completion| match completion {
            Completion::Received { result, .. } => Some(result.unwrap()),
            _ => None,
        });
        theirs.recv(to, RecvBuf::heap(vec![0; 8 << 20], 0..8 << 20));
    }
    // Nothing came for it, and it has nothing to send.
    ours.poll(Some(PATIENCE), &mut out).unwrap();
    assert!(out.is_empty(), "{out:?}");
    let free = all.iter().filter(|it| Arc::strong_count(it) == 1).count();
    assert!(free >= WINDOW_REFERENCES / 2, "{free}");
}

/// The ring comes later, from a thread that is not held up.
#[test]
fn who_sleeps_is_woken_although_the_kernel_had_no_memory_for_the_ring() {
    for errno in [Errno::NOBUFS, Errno::NOMEM] {
        let (mut ours, from, theirs, _to) = asleep(&buffers(1, 4096));
        let without_memory = std::thread::spawn(move || {
            forbid(libc::SYS_sendto, Vec::new(), errno);
            send(&mut ours, from, SendBuf::heap(b"awake".to_vec())).unwrap();
            ours
        });
        let _ours = without_memory.join().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !is_readable(&theirs) {
            assert!(Instant::now() < deadline, "nobody rings");
            std::thread::yield_now();
        }
    }
}
