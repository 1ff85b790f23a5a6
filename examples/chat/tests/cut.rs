//! A connection that is cut, over and over, when the answers to what was said are on their way.

mod program;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use program::{Program, client, server};

/// One connection through the proxy.
struct Wire {
    ends: [TcpStream; 2],
    is_deaf: Arc<AtomicBool>,
}

/// Stands between a member and the server.
struct Proxy {
    address: String,
    wire: Arc<Mutex<Option<Wire>>>,
}

/// Copies until the end; what comes while `is_deaf` is lost.
fn copy(mut from: TcpStream, mut to: TcpStream, is_deaf: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            if !is_deaf.load(Ordering::SeqCst) && to.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

impl Proxy {
    fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let wire: Arc<Mutex<Option<Wire>>> = Arc::default();
        let (current, server) = (Arc::clone(&wire), server.to_owned());
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&server) else {
                    return;
                };
                let is_deaf = Arc::<AtomicBool>::default();
                let mut current = current.lock().unwrap();
                let clone = |it: &TcpStream| it.try_clone().unwrap();
                copy(clone(&near), clone(&far), Arc::default());
                copy(clone(&far), clone(&near), Arc::clone(&is_deaf));
                let ends = [near, far];
                *current = Some(Wire { ends, is_deaf });
            }
        });
        Self { address, wire }
    }

    /// From here on the member hears nothing.
    fn deafen(&self) {
        let wire = self.wire.lock().unwrap();
        wire.as_ref().unwrap().is_deaf.store(true, Ordering::SeqCst);
    }

    fn cut(&self) {
        for end in self.wire.lock().unwrap().take().unwrap().ends {
            // One may be over already, because of the other.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// The next line that somebody said.
fn line(member: &Program) -> String {
    loop {
        let line = member.next();
        if !line.starts_with('*') {
            return line;
        }
    }
}

#[test]
fn lines_whose_answers_are_lost_are_said_once() {
    const LINES: usize = 20;
    let (_server, address) = server();
    let mut ben = client(&address, "ben");
    assert_eq!(ben.next(), "* nobody else is here yet");
    let proxy = Proxy::to(&address);
    let mut anna = client(&proxy.address, "anna");
    assert_eq!(anna.next(), "* here: ben");
    for round in 0..5 {
        proxy.deafen();
        for number in 0..LINES {
            anna.says(&format!("{round}.{number}"));
            ben.says(&format!("{round}.{number}"));
        }
        // The room has said them, and anna does not know.
        for number in 0..LINES {
            assert_eq!(line(&ben), format!("anna: {round}.{number}"));
        }
        proxy.cut();
        for number in 0..LINES {
            assert_eq!(line(&anna), format!("ben: {round}.{number}"));
        }
        // She is here again, and hears.
        ben.says("and");
        assert_eq!(line(&anna), "ben: and");
    }
    anna.input = None;
    assert!(anna.ended().success());
    // Nothing of hers came again.
    loop {
        match ben.next() {
            news if news == "* anna left" => break,
            news => assert!(news.starts_with('*'), "{news}"),
        }
    }
}
