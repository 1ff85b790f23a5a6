//! What a message costs: no allocation on either end, once the buffers are there.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use embar_resume::{
    Connector, ConnectorSettings, Handler, Keeper, KeeperSettings, Resumable, Target,
};
use embar_session::{Address, Client, Flow, Message, OnFull, Server};
use embar_transport::alloc::{Counting, of_thread, set_counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LONG: Duration = Duration::from_secs(60);
const WARM: u64 = 20_000;
const MEASURED: u64 = 20_000;

/// Counts what its thread allocates between two messages.
struct Counts {
    seen: u64,
    before: u64,
    echoes: bool,
    done: Sender<u64>,
}

impl Counts {
    fn new(echoes: bool, done: Sender<u64>) -> Self {
        Self {
            seen: 0,
            before: 0,
            echoes,
            done,
        }
    }
}

impl Handler for Counts {
    fn message(&mut self, session: &Resumable, message: Message<'_>) -> Flow {
        self.seen += 1;
        if self.echoes {
            let payload = message.payload();
            let len = payload.len();
            let sent = session.send_with(1, len, |to| to.copy_from_slice(payload));
            sent.expect("room for an answer");
        }
        if self.seen == WARM {
            self.before = of_thread().times;
        } else if self.seen == WARM + MEASURED {
            let _ = self.done.send(of_thread().times - self.before);
        }
        Flow::Continue
    }
}

fn counts(done: &Receiver<u64>) -> u64 {
    done.recv_timeout(LONG).expect("all messages")
}

#[test]
fn messages_cost_no_allocation_on_either_end() {
    set_counting(true);
    let keeper = Keeper::new(KeeperSettings::default()).unwrap();
    let (done, at_server) = channel();
    let done = Mutex::new(done);
    let make = keeper.handlers(move |_| Counts::new(true, done.lock().unwrap().clone()));
    let address: Address = "127.0.0.1:0".parse().unwrap();
    let server = Server::builder().listen(address).start(make).unwrap();
    let settings = ConnectorSettings::default().with(|it| {
        it.replay.on_full = OnFull::Wait { timeout: LONG };
        // Far less than the server keeps of its answers.
        it.replay.max_messages = 256;
    });
    let connector = Connector::new(Client::new().unwrap(), settings).unwrap();
    let (done, at_client) = channel();
    let session = connector.open(Target::new(server.address()), Counts::new(false, done));
    let send = |count| {
        for number in 0..count {
            let len = 16 + (number % 7) as usize * 8;
            session.send_with(1, len, |to| to.fill(3)).unwrap();
        }
    };
    send(WARM);
    let before = of_thread().times;
    send(MEASURED);
    let sender = of_thread().times - before;
    let found = [sender, counts(&at_server), counts(&at_client)];
    // A ring that was full is waited for, and that may cost one: of a thousand messages, not of one.
    for (who, count) in ["the sender", "the server", "the client"].iter().zip(found) {
        assert!(count <= MEASURED / 1000, "{who} allocated {count} times");
    }
}
