//! Our sessions, with the settings that a user gets.

use super::embar_calls::Calls;
use super::{Connected, Counter, PAYLOAD, RoundTrips, check, check_count};
use anyhow::{Context, bail};
use embar_session::{
    Client, Closed, Flow, Handler, Message, OnFull, Plain, Server, Session, Settings,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

mod messages {
    #![allow(missing_docs, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/peers.include.rs"));
    pub use self::peers::v1::*;
}
use messages::{Count, CountView, Ping, PingView};

/// A ping that comes back.
const ECHO: u16 = 1;
/// A ping that does not.
const ONE_WAY: u16 = 2;
/// Asks for a count, and brings it.
const COUNT: u16 = 3;

/// How long a single answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A session.
pub struct Embar {
    _server: Server,
    _client: Client,
    session: Session,
    asked: Sender<u64>,
    answers: Receiver<Answer>,
    /// From the first call on.
    calls: Option<Calls>,
}

enum Answer {
    RoundTrips(anyhow::Result<RoundTrips>),
    Count(u64),
    Closed(String),
}

impl Connected for Embar {
    fn start() -> anyhow::Result<Self> {
        let server = Server::builder();
        let server = server.listen("127.0.0.1:0".parse::<embar_session::Address>()?);
        let server = server.start(|_| Answering(Counter::default()))?;
        let on_full = OnFull::Wait { timeout: PATIENCE };
        let settings = Settings::default().with(|settings| settings.on_full = on_full);
        let client = Client::with(Plain, settings)?;
        let (asked, questions) = channel();
        let (answer, answers) = channel();
        let asking = Asking {
            questions,
            answer,
            under_way: None,
        };
        let session = client.connect(server.address(), asking)?;
        Ok(Self {
            _server: server,
            _client: client,
            session,
            asked,
            answers,
            calls: None,
        })
    }

    fn round_trips(&mut self, messages: u64) -> anyhow::Result<RoundTrips> {
        self.asked.send(messages)?;
        // The answer to this one begins: from then on the thread of the session sends.
        self.session.send(ECHO, &ping(0))?;
        match self.answer()? {
            Answer::RoundTrips(round_trips) => round_trips,
            _ => bail!("the server counted instead of answering"),
        }
    }

    fn calls(&mut self, calls: u64) -> anyhow::Result<RoundTrips> {
        if self.calls.is_none() {
            self.calls = Some(Calls::start()?);
        }
        self.calls.as_ref().context("it just started")?.make(calls)
    }

    fn one_way(&mut self, messages: u64) -> anyhow::Result<()> {
        let mut ping = ping(0);
        for sequence in 1..=messages {
            ping.sequence = sequence;
            self.session.send(ONE_WAY, &ping)?;
        }
        self.session.send(COUNT, &Count::default())?;
        match self.answer()? {
            Answer::Count(counted) => check_count(messages, counted),
            _ => bail!("the server answered instead of counting"),
        }
    }
}

impl Embar {
    fn answer(&self) -> anyhow::Result<Answer> {
        match self.answers.recv_timeout(PATIENCE).context("no answer")? {
            Answer::Closed(why) => bail!("the session ended: {why}"),
            answer => Ok(answer),
        }
    }
}

fn ping(sequence: u64) -> Ping {
    Ping {
        sequence,
        payload: PAYLOAD.to_vec(),
    }
}

/// The server's end.
struct Answering(Counter);

impl Handler for Answering {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let done = match message.id() {
            ECHO => message
                .decode::<PingView<'_>>()
                .is_ok_and(|ping| session.send_view(ECHO, &ping).is_ok()),
            ONE_WAY => message
                .decode::<PingView<'_>>()
                .map(|ping| self.0.see(ping.sequence, ping.payload))
                .is_ok(),
            _ => {
                let count = Count {
                    pings: self.0.take(),
                };
                session.send(COUNT, &count).is_ok()
            }
        };
        if !done {
            session.abort();
        }
        Flow::Continue
    }
}

/// The client's end: it sends the next message when the one before is back.
struct Asking {
    /// How many messages are to go there and back.
    questions: Receiver<u64>,
    answer: Sender<Answer>,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    ping: Ping,
    wanted: u64,
    begin: Instant,
    round_trips: RoundTrips,
}

impl Asking {
    /// The message that is back, and the next one. What it brings in the end, if this is it.
    fn back(
        &mut self,
        session: &Session,
        message: &Message<'_>,
    ) -> anyhow::Result<Option<RoundTrips>> {
        let back: PingView<'_> = message.decode()?;
        if back.sequence == 0 {
            let wanted = self.questions.recv_timeout(PATIENCE)?;
            self.under_way = Some(UnderWay {
                ping: ping(0),
                wanted,
                begin: Instant::now(),
                round_trips: RoundTrips::with_capacity(wanted),
            });
        }
        let under_way = self.under_way.as_mut().context("nobody asked")?;
        if back.sequence > 0 {
            check(under_way.ping.sequence, back.sequence, back.payload)?;
            under_way.round_trips.add(under_way.begin);
        }
        if under_way.ping.sequence == under_way.wanted {
            let done = self.under_way.take().map(|done| done.round_trips);
            return Ok(done);
        }
        under_way.ping.sequence += 1;
        under_way.begin = Instant::now();
        session.send(ECHO, &under_way.ping)?;
        Ok(None)
    }

    fn tell(&self, answer: Answer) {
        // Nobody waits any more when the run was given up.
        let _given_up = self.answer.send(answer);
    }
}

impl Handler for Asking {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if message.id() == COUNT {
            match message.decode::<CountView<'_>>() {
                Ok(count) => self.tell(Answer::Count(count.pings)),
                Err(_) => session.abort(),
            }
            return Flow::Continue;
        }
        match self.back(session, &message) {
            Ok(None) => {}
            Ok(Some(round_trips)) => self.tell(Answer::RoundTrips(Ok(round_trips))),
            Err(error) => self.tell(Answer::RoundTrips(Err(error))),
        }
        Flow::Continue
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        self.tell(Answer::Closed(why.to_string()));
    }
}
