//! Peers that are processes, and end.

use super::*;

/// What a process does that another test started.
#[test]
fn as_a_process_of_another_test() {
    let Ok(path) = std::env::var("EMBAR_TEST_SHM") else {
        return;
    };
    let mut all = buffers(4, 1 << 20);
    let options = SocketOptions {
        shm: handing_over(&all[..1]),
        ..SocketOptions::default()
    };
    let stream = socket::connect(Address::Shm(path.into()), PATIENCE, &options).unwrap();
    let mut epoll = Epoll::new().unwrap();
    let token = epoll.add(stream).unwrap();
    for buffer in all.drain(..) {
        send(&mut epoll, token, SendBuf::shared(Arc::new(buffer))).unwrap();
    }
    // Until it is killed, or its peer leaves.
    while let Ok(word) = receive(&mut epoll, token, 8)
        && !word.is_empty()
    {
        send(&mut epoll, token, SendBuf::heap(word)).unwrap();
    }
}

fn process(path: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "processes::as_a_process_of_another_test",
            "--nocapture",
        ])
        .env("EMBAR_TEST_SHM", path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    // The lines end when it ends.
    std::thread::spawn(move || for _ in BufReader::new(out).lines() {});
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Returns when it does nothing any more.
fn stop(child: &Child) {
    signal(child, Signal::STOP);
    let status = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(child)), status).unwrap();
}

#[test]
fn what_a_process_published_before_it_was_killed_arrives_and_then_the_end() {
    let expected = buffers(4, 1 << 20)
        .iter()
        .flat_map(|it| it.to_vec())
        .collect::<Vec<_>>();
    for unread in [false, true] {
        let mut server = Server::new();
        let mut child = process(&server.path());
        let token = server.accept();
        // It has published all, as it goes on only then.
        let first = receive_exactly(&mut server.epoll, token, expected.len() - 100);
        if unread {
            stop(&child);
            send(&mut server.epoll, token, SendBuf::heap(vec![7; 1000])).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let rest = receive_exactly(&mut server.epoll, token, 100);
        assert!([first, rest].concat() == expected, "bytes differ");
        let end = receive(&mut server.epoll, token, 8);
        if unread {
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        assert_eq!(receive(&mut server.epoll, token, 8).unwrap(), b"");
        let error = send(&mut server.epoll, token, SendBuf::heap(b"x".to_vec())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn a_process_that_is_stopped_stalls_only_its_own() {
    let mut server = Server::new();
    let mut stopped = process(&server.path());
    let first = server.accept();
    receive_exactly(&mut server.epoll, first, 4 << 20);
    stop(&stopped);
    server.epoll.recv(first, RecvBuf::heap(vec![0; 8], 0..8));
    // More than there is room for.
    server.epoll.send(first, SendBuf::heap(vec![7; 4 << 20]));

    let mut other = process(&server.path());
    let second = server.accept();
    receive_exactly(&mut server.epoll, second, 4 << 20);
    send(&mut server.epoll, second, SendBuf::heap(b"echo".to_vec())).unwrap();
    assert_eq!(receive_exactly(&mut server.epoll, second, 4), b"echo");
    assert_eq!(
        server.epoll.outstanding(),
        2,
        "those of the one that is stopped"
    );

    signal(&stopped, Signal::CONT);
    let got = wait(&mut server.epoll, |completion| match completion {
        Completion::Received { token, result, .. } if token == first => Some(result.unwrap()),
        _ => None,
    });
    assert!(got > 0, "it goes on where it was");
    for child in [&mut stopped, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
