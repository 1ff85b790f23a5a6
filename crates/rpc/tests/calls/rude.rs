//! A client without manners, and the frames that it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use embar_rpc::session::{Client, Closed, Flow, Handler, Message, Session, Settings};
use embar_rpc::{Code, Role, Rpc, method_number};

use crate::support::{LONG, Pair};

/// A session that tells what comes, and sends whatever a test likes.
struct Raw {
    told: Sender<(u16, Vec<u8>)>,
    ended: Sender<Closed>,
    /// So many messages it takes before it leaves them where they are.
    takes: Arc<AtomicUsize>,
}

impl Handler for Raw {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        match self.takes.load(Ordering::Relaxed) {
            0 => return Flow::Pause,
            takes => self.takes.store(takes - 1, Ordering::Relaxed),
        }
        let _ = self.told.send((message.id(), message.payload().to_vec()));
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.ended.send(why.clone());
    }
}

/// A client without manners.
pub struct Rude {
    pub session: Session,
    pub seen: Receiver<(u16, Vec<u8>)>,
    pub closed: Receiver<Closed>,
    takes: Arc<AtomicUsize>,
    _client: Client,
}

impl Rude {
    pub fn connect(pair: &Pair) -> Self {
        Self::with(pair, usize::MAX)
    }

    /// One that leaves all that comes where it is.
    pub fn that_reads_nothing(pair: &Pair) -> Self {
        Self::with(pair, 0)
    }

    fn with(pair: &Pair, takes: usize) -> Self {
        let client = Client::with(Rpc::new(Role::Client), Settings::default()).unwrap();
        let (told, seen) = channel();
        let (ended, closed) = channel();
        let takes = Arc::new(AtomicUsize::new(takes));
        let raw = Raw {
            told,
            ended,
            takes: Arc::clone(&takes),
        };
        let session = client.connect(pair.server.address(), raw);
        Self {
            session: session.unwrap(),
            seen,
            closed,
            takes,
            _client: client,
        }
    }

    /// From now on it takes so many messages.
    pub fn takes(&self, messages: usize) {
        self.takes.store(messages, Ordering::Relaxed);
        self.session.resume();
    }

    pub fn send(&self, id: u16, content: &[u8]) {
        let sent = self
            .session
            .send_with(id, content.len(), |to| to.copy_from_slice(content));
        sent.unwrap();
    }

    /// The code of the next end that comes, and of which call it is.
    pub fn end(&self) -> (u16, u32, u32, Code) {
        let (id, content) = self.seen.recv_timeout(LONG).unwrap();
        let number = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().unwrap());
        let code = u16::from_le_bytes(content[8..10].try_into().unwrap());
        (id, number(0), number(4), Code::from_number(code))
    }
}

pub const ECHO: u32 = method_number("embar.rpc.testing.v1.Testing/Echo");
pub const OBEY: u32 = method_number("embar.rpc.testing.v1.Testing/Obey");
pub const COUNT: u32 = method_number("embar.rpc.testing.v1.Testing/Count");

/// A request, with `rest` behind its fixed part.
pub fn request(slot: u32, generation: u32, method: u32, metadata: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(slot.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.extend(method.to_le_bytes());
    bytes.extend(metadata.to_le_bytes());
    bytes.extend([0; 2 + 8]);
    bytes.extend(rest);
    bytes
}

/// Field 1, the text "hold".
pub const HOLD: &[u8] = b"\x0a\x04hold";
