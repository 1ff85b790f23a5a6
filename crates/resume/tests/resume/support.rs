//! What the tests share.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use embar_resume::{
    Connector, ConnectorSettings, Ended, Handler, Keeper, KeeperSettings, Restart, Resumable,
    State, Target,
};
use embar_session::{Address, Client, Closed, Flow, Message, Plain, Server, Settings};

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Polls until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn loopback() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

pub fn tcp(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(address) => *address,
        other => panic!("{other} is not of TCP"),
    }
}

/// What happened to a session.
#[derive(Debug)]
pub enum Event {
    Opened(Resumable, Vec<u8>),
    Message(Vec<u8>),
    Suspended(Closed),
    Resumed,
    Restarted(Restart),
    Closed(Ended),
}

/// Tells all that happens, and sends each message back if asked to.
pub struct Recorder {
    pub events: Sender<Event>,
    pub echoes: bool,
}

impl Recorder {
    fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

impl Handler for Recorder {
    fn greeted(&mut self, _: &Resumable, greeting: &[u8]) -> Result<Vec<u8>, String> {
        if greeting == b"refuse me" {
            return Err("as you like".to_owned());
        }
        Ok([b"hello ", greeting].concat())
    }

    fn opened(&mut self, session: &Resumable, greeting: &[u8]) {
        self.tell(Event::Opened(session.clone(), greeting.to_vec()));
    }

    fn message(&mut self, session: &Resumable, message: Message<'_>) -> Flow {
        let payload = message.payload();
        if self.echoes {
            session
                .send_with(message.id(), payload.len(), |to| {
                    to.copy_from_slice(payload)
                })
                .expect("room for an answer");
        }
        self.tell(Event::Message(payload.to_vec()));
        Flow::Continue
    }

    fn suspended(&mut self, _: &Resumable, why: &Closed) {
        self.tell(Event::Suspended(why.clone()));
    }

    fn resumed(&mut self, _: &Resumable) {
        self.tell(Event::Resumed);
    }

    fn restarted(&mut self, _: &Resumable, restart: &Restart, _: &[u8]) {
        self.tell(Event::Restarted(*restart));
    }

    fn closed(&mut self, _: &Resumable, ended: &Ended) {
        self.tell(Event::Closed(ended.clone()));
    }
}

pub fn recorder(echoes: bool) -> (Recorder, Receiver<Event>) {
    let (events, seen) = channel();
    (Recorder { events, echoes }, seen)
}

/// The next event of which `pick` makes something.
pub fn next<T>(seen: &Receiver<Event>, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    let mut before = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match seen.recv_timeout(left) {
            Ok(event) => match pick(&event) {
                Some(picked) => return picked,
                None => before.push(format!("{event:?}")),
            },
            Err(error) => {
                let from = before.len().saturating_sub(20);
                panic!(
                    "{error} after {} events: {:#?}",
                    before.len(),
                    &before[from..]
                );
            }
        }
    }
}

pub fn ended(seen: &Receiver<Event>) -> Ended {
    next(seen, |event| match event {
        Event::Closed(ended) => Some(ended.clone()),
        _ => None,
    })
}

pub fn opened(seen: &Receiver<Event>) -> Resumable {
    next(seen, |event| match event {
        Event::Opened(session, _) => Some(session.clone()),
        _ => None,
    })
}

pub fn restarted(seen: &Receiver<Event>) -> Restart {
    next(seen, |event| match event {
        Event::Restarted(restart) => Some(*restart),
        _ => None,
    })
}

pub fn resumed(seen: &Receiver<Event>) {
    next(seen, |event| matches!(event, Event::Resumed).then_some(()));
}

pub fn suspended(seen: &Receiver<Event>) -> Closed {
    next(seen, |event| match event {
        Event::Suspended(why) => Some(why.clone()),
        _ => None,
    })
}

pub fn number_of(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().unwrap())
}

/// The next message, as a number.
pub fn number(seen: &Receiver<Event>) -> u64 {
    next(seen, |event| match event {
        Event::Message(payload) => Some(number_of(payload)),
        Event::Closed(why) => panic!("closed instead of a message: {why}"),
        _ => None,
    })
}

/// Expects these messages, in order and without others between.
pub fn expect(seen: &Receiver<Event>, numbers: std::ops::Range<u64>) {
    for expected in numbers {
        assert_eq!(number(seen), expected);
    }
}

pub fn send(session: &Resumable, number: u64) -> Result<(), embar_session::SendError> {
    session.send_with(1, 8, |to| to.copy_from_slice(&number.to_le_bytes()))
}

pub fn is_open(session: &Resumable) {
    let state = session.wait_until(LONG, State::is_open);
    assert!(state.is_open(), "{state:?}");
}

/// Short pauses and timeouts.
pub fn quick() -> ConnectorSettings {
    ConnectorSettings::default().with(|settings| {
        settings.first_pause = Duration::from_millis(2);
        settings.max_pause = Duration::from_millis(20);
    })
}

pub fn small_rings() -> Settings {
    Settings::default().with(|settings| {
        settings.send_ring_bytes = 16 << 10;
        settings.recv_ring_bytes = 16 << 10;
        settings.workers = 2;
        settings.session.max_frame_bytes = 4096;
    })
}

/// A server whose sessions all tell the same channel.
pub struct Site {
    pub keeper: Keeper,
    pub server: Option<Server>,
    pub seen: Receiver<Event>,
}

impl Site {
    pub fn start(settings: KeeperSettings, echoes: bool) -> Self {
        Self::start_with(settings, small_rings(), loopback(), echoes)
    }

    pub fn start_with(
        settings: KeeperSettings,
        of_sessions: Settings,
        address: Address,
        echoes: bool,
    ) -> Self {
        let (events, seen) = channel();
        let events = Mutex::new(events);
        let keeper = Keeper::new(settings).unwrap();
        let make = keeper.handlers(move |_| Recorder {
            events: events.lock().unwrap().clone(),
            echoes,
        });
        let server = Server::builder()
            .settings(of_sessions)
            .listen(address)
            .start(make)
            .unwrap();
        Self {
            keeper,
            server: Some(server),
            seen,
        }
    }

    pub fn address(&self) -> Address {
        self.server.as_ref().unwrap().address()
    }
}

pub fn connector(settings: ConnectorSettings) -> Connector {
    let client = Client::with(Plain, small_rings()).unwrap();
    Connector::new(client, settings).unwrap()
}

/// A session of a recorder.
pub fn connect(connector: &Connector, address: &Address) -> (Resumable, Receiver<Event>) {
    let (handler, seen) = recorder(false);
    (connector.open(Target::new(address), handler), seen)
}

/// Where a connection is cut: after so many bytes of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Up(usize),
    Down(usize),
    Never,
}

struct ProxyState {
    target: SocketAddr,
    cuts: VecDeque<Cut>,
    live: Vec<TcpStream>,
    came_down: Vec<u8>,
}

/// Forwards connections, and cuts each as planned.
pub struct Proxy {
    pub address: Address,
    state: Arc<Mutex<ProxyState>>,
}

impl Proxy {
    pub fn start(target: &Address, cuts: impl IntoIterator<Item = Cut>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(ProxyState {
            target: tcp(target),
            cuts: cuts.into_iter().collect(),
            live: Vec::new(),
            came_down: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let (target, cut) = {
                    let mut state = shared.lock().unwrap();
                    let cut = state.cuts.pop_front().unwrap_or(Cut::Never);
                    (state.target, cut)
                };
                let Ok(server) = TcpStream::connect(target) else {
                    continue;
                };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                    let kept = stream.try_clone().unwrap();
                    shared.lock().unwrap().live.push(kept);
                }
                let up = match cut {
                    Cut::Up(bytes) => bytes,
                    _ => usize::MAX,
                };
                let down = match cut {
                    Cut::Down(bytes) => bytes,
                    _ => usize::MAX,
                };
                let seen = Arc::clone(&shared);
                forward(&client, &server, up, |_| ());
                forward(&server, &client, down, move |bytes| {
                    seen.lock().unwrap().came_down.extend(bytes);
                });
            }
        });
        Self { address, state }
    }

    pub fn cut_all(&self) {
        for stream in self.state.lock().unwrap().live.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn lead_to(&self, target: &Address) {
        self.state.lock().unwrap().target = tcp(target);
    }

    /// All that servers have sent.
    pub fn came_down(&self) -> Vec<u8> {
        self.state.lock().unwrap().came_down.clone()
    }
}

fn forward(
    from: &TcpStream,
    to: &TcpStream,
    mut left: usize,
    mut see: impl FnMut(&[u8]) + Send + 'static,
) {
    let mut from = from.try_clone().unwrap();
    let mut to = to.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while left > 0 {
            let want = left.min(bytes.len());
            let Ok(count @ 1..) = from.read(&mut bytes[..want]) else {
                break;
            };
            see(&bytes[..count]);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
            left -= count;
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}
