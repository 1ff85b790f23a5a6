//! Sends every message back: the smallest server, and a client to try it with.
//!
//! ```sh
//! cargo run -p embar-session --example echo -- server 127.0.0.1:7000
//! cargo run -p embar-session --example echo -- client 127.0.0.1:7000 hello
//! ```
//! An address may also be that of a Unix socket: `unix:/tmp/echo.sock`.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    reason = "this is what the user of a program sees"
)]

use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use embar_session::{Address, Client, Flow, Handler, Message, Server, Session};

/// The only kind of message.
const TEXT: u16 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(&arguments)
}

/// Does what the command line says.
pub fn run(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    match *arguments {
        ["server", address] => {
            let server = serve(address.parse()?)?;
            println!("listening on {}; Ctrl-C stops", server.address());
            loop {
                std::thread::park();
            }
        }
        ["client", address, text] => {
            println!("{}", ask(address.parse()?, text)?);
            Ok(())
        }
        _ => Err("usage: echo server ADDRESS | echo client ADDRESS TEXT".into()),
    }
}

/// One session of the server.
struct Echo;

impl Handler for Echo {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        // The payload lies in the receive ring. This is the only copy: into the send ring.
        let payload = message.payload();
        let sent = session.send_with(message.id(), payload.len(), |to| {
            to.copy_from_slice(payload);
        });
        if sent.is_err() {
            session.close();
        }
        Flow::Continue
    }
}

/// Starts the server. It ends when the caller drops it.
pub fn serve(address: Address) -> Result<Server, Box<dyn Error>> {
    Ok(Server::builder().listen(address).start(|_peer| Echo)?)
}

/// Passes what comes back on to a channel.
struct Replies(Sender<String>);

impl Handler for Replies {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let text = String::from_utf8_lossy(message.payload());
        // It fails only when nobody waits for a reply any more.
        let _ = self.0.send(text.into_owned());
        Flow::Continue
    }
}

/// Sends `text`, and waits for what comes back.
pub fn ask(address: Address, text: &str) -> Result<String, Box<dyn Error>> {
    let client = Client::new()?;
    let (replies, received) = channel();
    let session = client.connect(address, Replies(replies))?;
    session.send_with(TEXT, text.len(), |to| to.copy_from_slice(text.as_bytes()))?;
    // When the session ends, its handler goes, and the channel with it.
    let reply = received
        .recv()
        .map_err(|_| "the server closed the session")?;
    client.shutdown(Duration::from_secs(1));
    Ok(reply)
}
