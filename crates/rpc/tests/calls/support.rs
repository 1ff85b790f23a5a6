//! What the tests share: a service in both styles, whose clients say what it is to do.

use std::future::Future;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use embar_rpc::session::{self, Address, Settings};
use embar_rpc::{Call, Channel, ChannelSettings, Reply, Router, Server, Sink, Status};

pub mod proto {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    mod generated {
        include!(concat!(env!("OUT_DIR"), "/testing.include.rs"));
    }
    pub use self::generated::embar::rpc::testing::v1::*;
}
use proto::{
    Number, NumberView, Testing, TestingAsync, TestingAsyncServer, TestingClient, TestingServer,
    Text, TextView,
};

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Any free port of the loopback interface.
pub fn loopback() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

/// Polls until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn text(text: &str) -> Text {
    Text {
        text: text.into(),
        ..Default::default()
    }
}

pub fn number(number: u64, bytes: usize) -> Number {
    Number {
        number,
        data: vec![7; bytes],
    }
}

/// What a service was asked for, as it tells a test.
pub enum Event {
    /// A reply that the test is to give.
    Held(Call, Reply<Text>),
    /// A stream that the test is to fill.
    Stream(Call, Sink<Number>),
    /// A future was dropped before its end.
    Dropped,
}

/// The service as handlers.
pub struct Obedient(pub Mutex<Sender<Event>>);

/// A service, and what it tells.
pub fn obedient() -> (Obedient, Receiver<Event>) {
    let (events, seen) = channel();
    (Obedient(Mutex::new(events)), seen)
}

impl Obedient {
    fn tell(&self, event: Event) {
        let _ = self.0.lock().unwrap().send(event);
    }
}

impl Testing for Obedient {
    fn echo(&self, _: &Call, request: TextView<'_>, reply: Reply<Text>) {
        reply.send_view(&request);
    }

    fn obey(&self, call: &Call, request: TextView<'_>, reply: Reply<Text>) {
        match request.text {
            "fail" => reply.fail(Status::not_found("no such thing").with_details([1, 2, 3])),
            "panic" => panic!("as the test wants it"),
            "drop" => drop(reply),
            "hold" => self.tell(Event::Held(call.clone(), reply)),
            "later" => {
                thread::spawn(move || reply.send(&text("later")));
            }
            "token" => {
                let token = call.metadata().get_text("token").unwrap_or("none");
                reply.send(&text(token));
            }
            "time" => {
                let left = call.time_left().map_or(0, |left| left.as_millis());
                reply.send(&text(&left.to_string()));
            }
            "big" => reply.send(&Text {
                data: vec![1; 1 << 20],
                ..Default::default()
            }),
            other => reply.fail(Status::invalid_argument(other)),
        }
    }

    fn count(&self, call: &Call, request: NumberView<'_>, mut items: Sink<Number>) {
        let (last, bytes) = (request.number, request.data.len());
        if last == 0 {
            return self.tell(Event::Stream(call.clone(), items));
        }
        thread::spawn(move || {
            let outcome = (1..=last).try_for_each(|index| items.wait_send(&number(index, bytes)));
            items.finish(outcome);
        });
    }
}

/// The service as async functions.
pub struct Awaiting(pub Mutex<Sender<Event>>);

/// Tells when it is dropped.
struct Guard(Sender<Event>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Dropped);
    }
}

impl TestingAsync for Awaiting {
    async fn echo(&self, _: Call, request: Text) -> Result<Text, Status> {
        tokio::task::yield_now().await;
        Ok(request)
    }

    async fn obey(&self, _: Call, request: Text) -> Result<Text, Status> {
        match request.text.as_str() {
            "fail" => Err(Status::not_found("no such thing")),
            "panic" => panic!("as the test wants it"),
            "sleep" => {
                let _guard = Guard(self.0.lock().unwrap().clone());
                std::future::pending().await
            }
            _ => Err(Status::invalid_argument("nobody knows this")),
        }
    }

    async fn count(
        &self,
        _: Call,
        request: Number,
        items: &mut Sink<Number>,
    ) -> Result<(), Status> {
        let _guard = Guard(self.0.lock().unwrap().clone());
        if request.number == 0 {
            panic!("as the test wants it");
        }
        for index in 1..=request.number {
            items.send(&number(index, request.data.len())).await?;
        }
        Ok(())
    }
}

/// A server of one service, and a client of it.
pub struct Pair {
    pub testing: TestingClient,
    pub channel: Channel,
    /// Serves the channel.
    _client: session::Client,
    pub server: Server,
    pub events: Mutex<Receiver<Event>>,
}

impl Pair {
    /// A server as `change` makes it of one with the service.
    pub fn with(change: impl FnOnce(Router) -> Router, settings: ChannelSettings) -> Self {
        let (service, events) = obedient();
        let router = change(Router::new().add_service(TestingServer::new(service)));
        Self::of(router, events, Settings::default(), settings)
    }

    pub fn new() -> Self {
        Self::with(|router| router, ChannelSettings::default())
    }

    /// One whose methods are futures.
    pub fn awaiting() -> Self {
        let (events, seen) = channel();
        let runtime = runtime();
        let spawn = move |future| drop(runtime.spawn(future));
        let service = TestingAsyncServer::new(Awaiting(Mutex::new(events)), spawn);
        let router = Router::new().add_service(service);
        Self::of(
            router,
            seen,
            Settings::default(),
            ChannelSettings::default(),
        )
    }

    pub fn of(
        router: Router,
        events: Receiver<Event>,
        sessions: Settings,
        settings: ChannelSettings,
    ) -> Self {
        let builder = session::Server::builder();
        let builder = builder.settings(sessions.clone()).listen(loopback());
        let server = router.start(builder).unwrap();
        let client = embar_rpc::client(sessions).unwrap();
        let channel = Channel::open(&client, server.address(), settings).wait();
        let channel = channel.unwrap();
        Self {
            testing: TestingClient::new(channel.clone()),
            channel,
            _client: client,
            server,
            events: Mutex::new(events),
        }
    }

    /// The next thing that the service tells.
    pub fn event(&self) -> Event {
        let events = self.events.lock().unwrap();
        events.recv_timeout(LONG).expect("an event in time")
    }

    /// The next reply that the service holds.
    pub fn held(&self) -> (Call, Reply<Text>) {
        match self.event() {
            Event::Held(call, reply) => (call, reply),
            _ => panic!("another event"),
        }
    }

    /// The next stream that the service holds.
    pub fn stream(&self) -> (Call, Sink<Number>) {
        match self.event() {
            Event::Stream(call, sink) => (call, sink),
            _ => panic!("another event"),
        }
    }

    /// All calls have ended, on both ends.
    pub fn until_quiet(&self) {
        until("calls end", || {
            let methods = self.server.stats().methods();
            self.channel.stats().in_flight == 0
                && methods.iter().all(|method| method.in_flight == 0)
        });
        assert_eq!(self.echo("again"), "again");
        assert_eq!(self.channel.stats().strays, 0);
    }

    /// What comes back.
    pub fn echo(&self, what: &str) -> String {
        let request = text(what);
        let response = self.testing.echo(&request).timeout(LONG).wait().unwrap();
        response.view().unwrap().text.to_owned()
    }

    /// The error that a command brings.
    pub fn error(&self, command: &str) -> Status {
        let request = text(command);
        let call = self.testing.obey(&request).timeout(LONG);
        call.wait().expect_err("it fails")
    }
}

/// A runtime on a thread of its own, which lives as long as its handle is there.
pub fn runtime() -> Arc<tokio::runtime::Handle> {
    let (handle, made) = channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        handle.send(runtime.handle().clone()).unwrap();
        runtime.block_on(std::future::pending::<()>());
    });
    Arc::new(made.recv().unwrap())
}

/// Runs a future to its end.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}
