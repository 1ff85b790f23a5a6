//! Subscriptions: which there are, on which connection each is, and the messages that came.
//!
//! What is wanted is written down here, and the keeper makes it so: it connects, asks for what is
//! wanted and was not asked for, and does all of that again whenever a connection breaks, a slot
//! moves, or the topology changes. Servers answer each request in order, which tells what an error
//! is about.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use embar_mux::{Conn, Reason};

use super::Inner;
use super::keeper::Keeper;
use crate::config::Endpoint;
use crate::error::Error;
use crate::pubsub::{Event, Kind, Message};
use crate::resp::{ErrorKind, Items, Out, ServerError, View, bulk_len, header_len, parse};
use crate::slot::slot;

/// How long to wait before a subscription is looked at again that the wrong node was asked for.
const MOVED_PAUSE: Duration = Duration::from_millis(20);

/// See the module.
pub(crate) struct Feed {
    me: Weak<Feed>,
    keeper: Arc<Keeper>,
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    lost: u64,
    reader: Option<Waker>,
    wanted: Vec<Wanted>,
    lines: Vec<Line>,
    /// Numbers of connections, never used twice.
    next_number: u64,
    failures: u32,
    /// Something is to be asked for anew.
    unsettled: bool,
    ended: bool,
}

struct Wanted {
    kind: Kind,
    name: Vec<u8>,
    /// The node that was asked for it last.
    at: Option<Endpoint>,
    standing: Standing,
    waiting: Vec<Waker>,
}

enum Standing {
    /// To be asked for.
    New,
    Asked,
    Confirmed,
    Refused(ServerError),
}

/// A connection to a node.
struct Line {
    endpoint: Endpoint,
    number: u64,
    conn: Conn,
    /// What it was asked, in order: whether to begin, of what kind, by which name.
    asked: VecDeque<(bool, Kind, Vec<u8>)>,
}

impl Feed {
    pub fn new(keeper: Arc<Keeper>, capacity: usize) -> Arc<Self> {
        assert!(capacity > 0, "a subscriber holds at least one message");
        let feed = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            keeper,
            capacity,
            state: Mutex::default(),
        });
        feed.keeper.remember(Arc::downgrade(&feed));
        feed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tend_at(&self, at: Instant) {
        self.keeper.tend(Weak::clone(&self.me), at);
    }

    /// Writes down that something is wanted; until when to wait for it.
    pub fn want(&self, kind: Kind, name: &[u8]) -> Instant {
        let mut state = self.state();
        if state.find(kind, name).is_none() {
            state.wanted.push(Wanted {
                kind,
                name: name.to_vec(),
                at: None,
                standing: Standing::New,
                waiting: Vec::new(),
            });
            drop(state);
            self.tend_at(Instant::now());
        }
        Instant::now() + self.keeper.timeout()
    }

    pub fn poll_confirmed(
        &self,
        kind: Kind,
        name: &[u8],
        deadline: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let mut state = self.state();
        let Some(wanted) = state.find(kind, name) else {
            return Poll::Ready(Err(Error::Closed));
        };
        match &wanted.standing {
            Standing::Confirmed => return Poll::Ready(Ok(())),
            Standing::Refused(error) => return Poll::Ready(Err(error.clone().into())),
            Standing::New | Standing::Asked => {}
        }
        if Instant::now() >= deadline {
            let why = "no server has confirmed the subscription in time".to_owned();
            return Poll::Ready(Err(Error::Unavailable { why }));
        }
        wanted.waiting.push(cx.waker().clone());
        drop(state);
        self.keeper.wake_at(deadline, cx.waker().clone());
        Poll::Pending
    }

    /// It is wanted no more.
    pub fn forget(&self, kind: Kind, name: &[u8]) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(index) = state.position(kind, name) else {
            return;
        };
        let wanted = state.wanted.swap_remove(index);
        let asked = matches!(wanted.standing, Standing::Asked | Standing::Confirmed);
        let line = state
            .lines
            .iter_mut()
            .find(|line| Some(&line.endpoint) == wanted.at.as_ref());
        if let Some(line) = line.filter(|_| asked) {
            line.ask(false, kind, name);
        }
    }

    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        let mut state = self.state();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Ok(event));
        }
        if state.lost > 0 {
            let lost = std::mem::take(&mut state.lost);
            return Poll::Ready(Ok(Event::Lost(lost)));
        }
        if self.keeper.is_over() {
            return Poll::Ready(Err(Error::Closed));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        for line in std::mem::take(&mut state.lines) {
            line.conn.close();
        }
    }

    /// Makes what is wanted so. On the keeper's thread.
    pub fn tend(&self, client: &Inner) {
        let mut state = self.state();
        if state.ended {
            return;
        }
        let mut complete = state.place(client);
        let State { wanted, lines, .. } = &mut *state;
        let needed: Vec<Endpoint> = wanted
            .iter()
            .filter_map(|wanted| wanted.at.clone())
            .collect();
        lines.retain(|line| {
            let keep = needed.contains(&line.endpoint);
            if !keep {
                line.conn.close();
            }
            keep
        });
        for endpoint in needed {
            complete &= self.connect(&mut state, &endpoint);
        }
        let State { wanted, lines, .. } = &mut *state;
        for wanted in wanted {
            let line = lines
                .iter_mut()
                .find(|line| Some(&line.endpoint) == wanted.at.as_ref());
            if let (Standing::New, Some(line)) = (&wanted.standing, line) {
                if line.ask(true, wanted.kind, &wanted.name) {
                    wanted.standing = Standing::Asked;
                } else {
                    complete = false;
                }
            }
        }
        if !complete {
            state.failures += 1;
            let pause = self.keeper.backoff(state.failures);
            drop(state);
            self.tend_at(Instant::now() + pause);
        }
    }

    /// Sees to it that there is a connection.
    fn connect(&self, state: &mut State, endpoint: &Endpoint) -> bool {
        if state.lines.iter().any(|line| line.endpoint == *endpoint) {
            return true;
        }
        let number = state.next_number;
        state.next_number += 1;
        let (me, attempt) = (Weak::clone(&self.me), state.failures);
        let opened = self.keeper.open_feed(endpoint, me, number, attempt);
        let Ok(conn) = opened else {
            return false;
        };
        state.lines.push(Line {
            endpoint: endpoint.clone(),
            number,
            conn,
            asked: VecDeque::new(),
        });
        true
    }

    /// A connection is over.
    pub fn went_down(&self, number: u64, reason: &Reason) {
        let mut state = self.state();
        let Some(index) = state.lines.iter().position(|line| line.number == number) else {
            return;
        };
        let line = state.lines.swap_remove(index);
        tracing::debug!(node = %line.endpoint, "a subscriber's connection is over: {reason}");
        let mut interrupted = false;
        for wanted in &mut state.wanted {
            if wanted.at.as_ref() == Some(&line.endpoint) {
                interrupted |= matches!(wanted.standing, Standing::Confirmed);
                if !matches!(wanted.standing, Standing::Refused(_)) {
                    wanted.standing = Standing::New;
                }
            }
        }
        if interrupted {
            state.tell(Event::Interrupted, self.capacity);
        }
        state.failures += 1;
        let pause = self.keeper.backoff(state.failures);
        drop(state);
        self.tend_at(Instant::now() + pause);
    }

    /// A frame came.
    pub fn heard(&self, number: u64, frame: &[u8]) {
        let mut state = self.state();
        let Some(line) = state.lines.iter().position(|line| line.number == number) else {
            return;
        };
        match parse(frame) {
            Ok((View::Push(items) | View::Array(items), _))
                if state.heard(line, items, self.capacity).is_none() =>
            {
                tracing::debug!("a server pushed something that is no message");
            }
            Ok((View::Error(error), _)) => {
                let error = ServerError::from(error);
                state.refused(line, error);
            }
            _ => {}
        }
        if std::mem::take(&mut state.unsettled) {
            drop(state);
            self.keeper.refresh();
            self.tend_at(Instant::now() + MOVED_PAUSE);
        }
    }
}

impl State {
    fn position(&self, kind: Kind, name: &[u8]) -> Option<usize> {
        let is_it = |wanted: &Wanted| wanted.kind == kind && wanted.name == name;
        self.wanted.iter().position(is_it)
    }

    fn find(&mut self, kind: Kind, name: &[u8]) -> Option<&mut Wanted> {
        let index = self.position(kind, name)?;
        Some(&mut self.wanted[index])
    }

    /// Says for all that is wanted which node to ask. False: for some nobody knows.
    fn place(&mut self, client: &Inner) -> bool {
        let mut complete = true;
        let failures = self.failures as usize;
        for wanted in &mut self.wanted {
            let connected = self
                .lines
                .iter()
                .any(|line| Some(&line.endpoint) == wanted.at.as_ref());
            let target = match wanted.kind {
                Kind::Sharded => client.primary_of(slot(&wanted.name)),
                // Every node tells of all channels: another one is taken if this one is gone.
                _ if connected => wanted.at.clone(),
                _ => client.some_node(failures),
            };
            complete &= target.is_some();
            if target.is_some() && target != wanted.at {
                wanted.at = target;
                if !matches!(wanted.standing, Standing::Refused(_)) {
                    wanted.standing = Standing::New;
                }
            }
        }
        complete
    }

    /// A push: `message`, `subscribe` and the like. `None`: it is nothing that is known.
    fn heard(&mut self, line: usize, mut items: Items<'_>, capacity: usize) -> Option<()> {
        let what = text(items.next()?)?;
        let (kind, rest) = match what {
            [b'p', rest @ ..] if what != b"pong" => (Kind::Pattern, rest),
            [b's', rest @ ..] if matches!(rest, b"message" | b"subscribe" | b"unsubscribe") => {
                (Kind::Sharded, rest)
            }
            rest => (Kind::Channel, rest),
        };
        let name = text(items.next()?)?;
        match rest {
            b"message" => {
                let (channel, pattern) = match kind {
                    Kind::Pattern => (text(items.next()?)?, Some(name.to_vec())),
                    _ => (name, None),
                };
                let message = Message {
                    kind,
                    channel: channel.to_vec(),
                    pattern,
                    payload: text(items.next()?)?.to_vec(),
                };
                self.tell(Event::Message(message), capacity);
            }
            b"subscribe" => {
                self.answered(line, true, kind, name);
                self.failures = 0;
                if let Some(wanted) = self.find(kind, name) {
                    wanted.stand(Standing::Confirmed);
                }
            }
            b"unsubscribe" if self.answered(line, false, kind, name) => {}
            b"unsubscribe" => {
                // Nobody asked for that: its slot has moved.
                self.tell(Event::Interrupted, capacity);
                self.unsettled = true;
                if let Some(wanted) = self.find(kind, name) {
                    wanted.standing = Standing::New;
                    wanted.at = None;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Whether this answers the request that has waited longest.
    fn answered(&mut self, line: usize, begin: bool, kind: Kind, name: &[u8]) -> bool {
        let asked = &mut self.lines[line].asked;
        let is_it = asked
            .front()
            .is_some_and(|(asked_to_begin, asked_kind, asked_name)| {
                (*asked_to_begin, *asked_kind, asked_name.as_slice()) == (begin, kind, name)
            });
        if is_it {
            asked.pop_front();
        }
        is_it
    }

    /// The request that has waited longest was refused.
    fn refused(&mut self, line: usize, error: ServerError) {
        let Some((true, kind, name)) = self.lines[line].asked.pop_front() else {
            return;
        };
        let Some(wanted) = self.find(kind, &name) else {
            return;
        };
        match error.kind {
            ErrorKind::Moved { .. } | ErrorKind::ClusterDown | ErrorKind::Loading => {
                wanted.standing = Standing::New;
                wanted.at = None;
                self.unsettled = true;
            }
            _ => wanted.stand(Standing::Refused(error)),
        }
    }

    fn tell(&mut self, event: Event, capacity: usize) {
        if self.lost > 0 || self.events.len() >= capacity {
            self.lost += u64::from(matches!(event, Event::Message(_)));
            if self.lost == 0 {
                self.events.push_back(event);
            }
        } else {
            self.events.push_back(event);
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Wanted {
    fn stand(&mut self, standing: Standing) {
        self.standing = standing;
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }
}

impl Line {
    /// False: there is no room for the request at the moment, or the connection is over.
    fn ask(&mut self, begin: bool, kind: Kind, name: &[u8]) -> bool {
        let word: &[u8] = match (begin, kind) {
            (true, Kind::Channel) => b"SUBSCRIBE",
            (true, Kind::Pattern) => b"PSUBSCRIBE",
            (true, Kind::Sharded) => b"SSUBSCRIBE",
            (false, Kind::Channel) => b"UNSUBSCRIBE",
            (false, Kind::Pattern) => b"PUNSUBSCRIBE",
            (false, Kind::Sharded) => b"SUNSUBSCRIBE",
        };
        let len = header_len(2) + bulk_len(word.len()) + bulk_len(name.len());
        let posted = self.conn.post(len, |out| {
            let mut out = Out::new(out);
            out.header(2);
            out.bulk(word);
            out.bulk(name);
            out.finish();
        });
        if posted.is_ok() {
            self.asked.push_back((begin, kind, name.to_vec()));
        }
        posted.is_ok()
    }
}

fn text(view: View<'_>) -> Option<&[u8]> {
    match view {
        View::Bulk(text) | View::Simple(text) => Some(text),
        _ => None,
    }
}
