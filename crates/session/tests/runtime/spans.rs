//! What subscribers of traces see of sessions.

use std::sync::{Arc, Mutex};

use embar_session::{Client, Flow, Handler, Message, Server, Session};
use tracing_subscriber::EnvFilter;

use crate::support::{LONG, alone, closed, loopback, message, recorder, until};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Talkative;

impl Handler for Talkative {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        tracing::info!("a move");
        let payload = message.payload();
        session
            .send_with(1, payload.len(), |to| to.copy_from_slice(payload))
            .unwrap();
        Flow::Continue
    }
}

/// Subscribers are the process's, so this has one of its own.
#[test]
fn what_a_handler_says_is_in_the_span_of_its_session() {
    if !alone("spans::what_a_handler_says_is_in_the_span_of_its_session") {
        return;
    }
    let lines = Lines::default();
    let out = lines.clone();
    let filter = EnvFilter::new("info,embar_session::session=debug");
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(move || out.clone())
        .init();
    let server = Server::builder().listen(loopback()).start(|_| Talkative);
    let server = server.unwrap();
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    session.send_with(1, 1, |to| to.fill(1)).unwrap();
    message(&seen);
    let theirs = server.sessions()[0].clone();
    let span = format!("session{{id={} peer={}}}", theirs.id(), theirs.peer());
    session.close();
    closed(&seen);
    until("the end is told", || {
        lines.text().matches("a session ended").count() == 2
    });
    let text = lines.text();
    let line = |what: &str| {
        let mut found = text
            .lines()
            .filter(|line| line.contains(what) && line.contains(&span));
        found
            .next()
            .unwrap_or_else(|| panic!("no {what} in {span}: {text}"))
    };
    line("a move");
    line("a session opened");
    assert!(line("a session ended").contains("closed by the peer: finished"));
    server.shutdown(LONG);
}
