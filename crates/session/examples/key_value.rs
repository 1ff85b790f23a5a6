//! A key-value server with Protobuf messages, and a client that many threads share.
//!
//! ```sh
//! cargo run -p embar-session --example key_value -- server 127.0.0.1:7001
//! cargo run -p embar-session --example key_value -- set 127.0.0.1:7001 colour blue
//! cargo run -p embar-session --example key_value -- get 127.0.0.1:7001 colour
//! ```
//! A program of its own has `embar-build` among its `build-dependencies`, and compiles its messages
//! in `build.rs`: `embar_build::compile("proto", "key_value")`.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    reason = "this is what the user of a program sees"
)]

use std::collections::HashMap;
use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use embar_session::{
    Address, Client, CloseReason, Flow, Handler, Message, OnFull, SendError, Server, Session,
    Settings,
};

#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/key_value.include.rs"));
}
use generated::key_value::v1::{Done, Get, GetView, Set, SetView, ValueView};

/// Ids of the messages; every frame carries one.
mod id {
    pub const GET: u16 = 1;
    pub const SET: u16 = 2;
    pub const VALUE: u16 = 3;
    pub const DONE: u16 = 4;
}

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
        ["set", address, key, value] => {
            Store::connect(address.parse()?)?.set(key, value.as_bytes())
        }
        ["get", address, key] => {
            match Store::connect(address.parse()?)?.get(key)? {
                Some(value) => println!("{}", String::from_utf8_lossy(&value)),
                None => println!("there is no {key}"),
            }
            Ok(())
        }
        _ => {
            Err("usage: key_value server ADDRESS | get ADDRESS KEY | set ADDRESS KEY VALUE".into())
        }
    }
}

/// What the server keeps; all its sessions share it.
type Table = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// One session of the server.
struct Requests(Table);

impl Handler for Requests {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if let Err(error) = answer(&self.0, session, message) {
            // A peer that sends anything else is no client of ours. Only its session ends.
            println!("{}: {error}", session.peer());
            session.abort();
        }
        Flow::Continue
    }
}

fn answer(table: &Table, session: &Session, message: Message<'_>) -> Result<(), Box<dyn Error>> {
    // Nobody panics with the lock held, so the table is whole.
    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
    match message.id() {
        id::GET => {
            // Borrows the key from the receive ring.
            let get: GetView<'_> = message.decode()?;
            let value = table.get(get.key);
            let view = ValueView {
                found: value.is_some(),
                value: value.map_or(&[], Vec::as_slice),
            };
            session.send_view(id::VALUE, &view)?;
        }
        id::SET => {
            let set: SetView<'_> = message.decode()?;
            table.insert(set.key.to_owned(), set.value.to_vec());
            session.send(id::DONE, &Done::default())?;
        }
        other => return Err(format!("no request has the id {other}").into()),
    }
    Ok(())
}

/// Starts the server. It ends when the caller drops it.
pub fn serve(address: Address) -> Result<Server, Box<dyn Error>> {
    let settings = Settings::default().with(|settings| {
        settings.workers = 2;
        // A client that does not read its answers must not use our memory for ever.
        settings.on_full = OnFull::Close;
    });
    let table = Table::default();
    let server = Server::builder().settings(settings).listen(address);
    Ok(server.start(move |_peer| Requests(Arc::clone(&table)))?)
}

/// An answer, as the session's handler hands it to the thread that waits for it.
enum Reply {
    Value(Option<Vec<u8>>),
    Done,
}

/// The client's end of its session.
struct Replies(Sender<Reply>);

impl Handler for Replies {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let reply = match message.id() {
            id::VALUE => message
                .decode()
                .map(|view: ValueView<'_>| Reply::Value(view.found.then(|| view.value.to_vec()))),
            _ => Ok(Reply::Done),
        };
        match reply {
            // It fails only when nobody waits any more.
            Ok(reply) => drop(self.0.send(reply)),
            Err(_) => session.abort(),
        }
        Flow::Continue
    }
}

/// A connection to the server.
pub struct Store {
    session: Session,
    /// One request at a time: an answer belongs to the request before it.
    replies: Mutex<Receiver<Reply>>,
    /// Its threads serve the session.
    _client: Client,
}

impl Store {
    /// Waits until the session is open.
    pub fn connect(address: Address) -> Result<Self, Box<dyn Error>> {
        let client = Client::new()?;
        let (replies, received) = channel();
        let session = client.connect(address, Replies(replies))?;
        Ok(Self {
            session,
            replies: Mutex::new(received),
            _client: client,
        })
    }

    /// The value of `key`; `None` if it has none.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
        let get = Get {
            key: key.to_owned(),
        };
        match self.ask(|session| session.send(id::GET, &get))? {
            Reply::Value(value) => Ok(value),
            Reply::Done => Err("the server answered another request".into()),
        }
    }

    /// Gives `key` this value.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), Box<dyn Error>> {
        let set = Set {
            key: key.to_owned(),
            value: value.to_vec(),
        };
        match self.ask(|session| session.send(id::SET, &set))? {
            Reply::Done => Ok(()),
            Reply::Value(_) => Err("the server answered another request".into()),
        }
    }

    fn ask(
        &self,
        send: impl FnOnce(&Session) -> Result<(), SendError>,
    ) -> Result<Reply, Box<dyn Error>> {
        let replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        send(&self.session)?;
        // When the session ends, its handler goes, and the channel with it.
        replies.recv().map_err(|_| match self.session.closed() {
            Some(why) if why.reason != CloseReason::Finished => why.to_string().into(),
            _ => "the server closed the session".into(),
        })
    }
}
