//! Calls on our sessions, with the settings that a user gets.

use super::{PAYLOAD, RoundTrips, check};
use anyhow::Context as _;
use embar_rpc::{Call, Channel, Reply, Router, Server};
use embar_session::{Client, Settings};
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

mod messages {
    #![allow(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/calls.include.rs"));
    pub use self::calls::v1::*;
}
use messages::{CallsClient, CallsServer, Ping, PingView};

/// How long all calls may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A service and its client.
pub struct Calls {
    _server: Server,
    _client: Client,
    client: CallsClient,
}

impl Calls {
    pub fn start() -> anyhow::Result<Self> {
        let sessions = embar_session::Server::builder();
        let sessions = sessions.listen("127.0.0.1:0".parse::<embar_session::Address>()?);
        let server = Router::new()
            .add_service(CallsServer::new(Echo))
            .start(sessions)?;
        let client = embar_rpc::client(Settings::default())?;
        let channel = Channel::connect(&client, server.address())?;
        Ok(Self {
            _server: server,
            _client: client,
            client: CallsClient::new(channel),
        })
    }

    /// A task makes them, on the thread of the session that wakes it.
    pub fn make(&self, calls: u64) -> anyhow::Result<RoundTrips> {
        let (done, outcome) = channel();
        let client = self.client.clone();
        let task = async move {
            // Nobody waits any more when the run was given up.
            let _given_up = done.send(make(&client, calls).await);
        };
        Arc::new(Task(Mutex::new(Box::pin(task)))).wake();
        outcome.recv_timeout(PATIENCE).context("no answer")?
    }
}

async fn make(client: &CallsClient, calls: u64) -> anyhow::Result<RoundTrips> {
    let mut round_trips = RoundTrips::with_capacity(calls);
    for sequence in 1..=calls {
        let begin = Instant::now();
        let ping = PingView {
            sequence,
            payload: &PAYLOAD,
            ..Default::default()
        };
        let reply = client.echo_view(&ping).await?;
        let ping = reply.view()?;
        round_trips.add(begin);
        check(sequence, ping.sequence, ping.payload)?;
    }
    Ok(round_trips)
}

struct Echo;

impl messages::Calls for Echo {
    fn echo(&self, _: &Call, request: PingView<'_>, reply: Reply<Ping>) {
        reply.send_view(&request);
    }
}

/// A future that is polled where it is woken.
struct Task(Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut future = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What it comes to is in its channel.
        let _: Poll<()> = future.as_mut().poll(&mut Context::from_waker(&waker));
    }
}
