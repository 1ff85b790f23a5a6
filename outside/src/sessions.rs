//! Sessions: a server that sends back what it gets, and a client. One message is Protobuf, one is bytes.

use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::messages::{Line, LineView};
use embar_session::{
    Address, Client, CloseReason, Closed, Flow, Handler, Message, OnFull, Packet, Peer, Plain,
    SendError, Server, ServerBuilder, Session, SessionConfig, SessionId, SessionStats, Settings,
    Side, StartError, Totals,
};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Ids of packets.
const LINE: u16 = 1;
const BYTES: u16 = 2;

/// Sends back what it gets.
struct Echo;

impl Handler for Echo {
    fn greeted(&mut self, _: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
        match greeting {
            b"" => Ok(b"welcome".to_vec()),
            _ => Err("no greetings here".into()),
        }
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if echo(session, &message).is_err() {
            session.close();
        }
        Flow::Continue
    }
}

fn echo(session: &Session, message: &Message<'_>) -> Result<(), SendError> {
    let payload = message.payload();
    let mut packet: Packet<'_> = session.reserve(message.id(), payload.len())?;
    packet.copy_from_slice(payload);
    packet.commit();
    Ok(())
}

/// What a client's handler passes on.
enum Heard {
    Text(String),
    Unreadable(String),
    End(CloseReason, Side),
}

struct Answers(Sender<Heard>);

impl Handler for Answers {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let text = match message.id() {
            LINE => message
                .decode()
                .map(|line: LineView<'_>| format!("{} of {}", line.text, line.count)),
            _ => Ok(String::from_utf8_lossy(message.payload()).into_owned()),
        };
        // Whoever asked may be gone.
        let _ = self
            .0
            .send(text.map_or_else(|error| Heard::Unreadable(error.to_string()), Heard::Text));
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.0.send(Heard::End(why.reason, why.by));
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.on_full = OnFull::Fail;
    settings.session = SessionConfig::default();
    settings
}

fn start(builder: ServerBuilder<Plain>) -> Result<Server, StartError> {
    let address: Address = "127.0.0.1:0".parse().expect("an address");
    builder
        .settings(settings())
        .listen(address)
        .start(|_: &Peer| Echo)
}

pub fn run() -> Result<(), Box<dyn Error>> {
    let server = start(Server::builder())?;
    let client = Client::with(Plain, settings())?;
    let (heard, hears) = channel();
    let session: Session = client.connect(server.address(), Answers(heard))?;
    let line = Line {
        text: "hello".to_owned(),
        count: 2,
    };
    session.send(LINE, &line)?;
    session.send_with(BYTES, 5, |buf| buf.copy_from_slice(b"world"))?;
    for expected in ["hello of 2", "world"] {
        match hears.recv_timeout(TIMEOUT)? {
            Heard::Text(text) => assert_eq!(text, expected),
            Heard::Unreadable(error) => return Err(error.into()),
            Heard::End(reason, by) => return Err(format!("{reason}, by {by:?}").into()),
        }
    }
    let (id, stats): (SessionId, SessionStats) = (session.id(), session.stats());
    let totals: Totals = server.stats();
    println!("session {id:?}: {stats:?}; all: {totals:?}");
    session.close();
    while !matches!(hears.recv_timeout(TIMEOUT)?, Heard::End(..)) {}
    client.shutdown(TIMEOUT);
    server.shutdown(TIMEOUT);
    Ok(())
}
