//! What is wanted, what was asked for, and what came.

use std::sync::MutexGuard;
use std::task::Waker;

use super::Wish;
use super::events::Events;
use super::line::Line;
use crate::client::{Inner, is_elsewhere};
use crate::config::Endpoint;
use crate::pubsub::{Event, Kind, Message};
use crate::resp::{Items, ServerError, View};
use crate::slot::slot;

/// See the module.
pub(super) struct State {
    pub events: Events,
    pub reader: Option<Waker>,
    pub wanted: Vec<Wanted>,
    pub lines: Vec<Line>,
    /// Numbers of connections and of subscriptions, never used twice.
    next_number: u64,
    pub failures: u32,
    /// Something is to be asked for anew.
    pub unsettled: bool,
    pub ended: bool,
    due: Due,
}

/// Those to wake once the lock is released.
#[derive(Default)]
struct Due {
    reader: Option<Waker>,
    others: Vec<Waker>,
}

pub(super) struct Wanted {
    pub number: u64,
    pub kind: Kind,
    pub name: Vec<u8>,
    /// The node that was asked for it last.
    pub at: Option<Endpoint>,
    pub standing: Standing,
    /// It was confirmed once: whoever asked for it relies on it.
    made: bool,
    /// How many wait until it is confirmed.
    pub askers: usize,
    pub waiting: Vec<Waker>,
}

#[derive(PartialEq)]
pub(super) enum Standing {
    /// To be asked for.
    New,
    Asked,
    Confirmed,
    Refused(ServerError),
}

/// The state, locked. Whom to wake is woken after it is released.
pub(super) struct Held<'f>(Option<MutexGuard<'f, State>>);

impl<'f> Held<'f> {
    pub fn new(state: MutexGuard<'f, State>) -> Self {
        Self(Some(state))
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("it is held until it is dropped")
    }
}

impl std::ops::DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("it is held until it is dropped")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let due = std::mem::take(&mut self.due);
        self.0 = None;
        for waker in due.others.into_iter().chain(due.reader) {
            waker.wake();
        }
    }
}

impl State {
    pub fn new(capacity: usize) -> Self {
        Self {
            events: Events::new(capacity),
            reader: None,
            wanted: Vec::new(),
            lines: Vec::new(),
            next_number: 0,
            failures: 0,
            unsettled: false,
            ended: false,
            due: Due::default(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn position(&self, kind: Kind, name: &[u8]) -> Option<usize> {
        let is_it = |wanted: &Wanted| wanted.kind == kind && wanted.name == name;
        self.wanted.iter().position(is_it)
    }

    pub fn line(&mut self, number: u64) -> Option<usize> {
        self.lines.iter().position(|line| line.number == number)
    }

    /// Somebody asks for a subscription: its number, and whether there is anything to do.
    pub fn want(&mut self, kind: Kind, name: &[u8]) -> (u64, bool) {
        if let Some(index) = self.position(kind, name) {
            let wanted = &mut self.wanted[index];
            wanted.askers += 1;
            let refused = matches!(wanted.standing, Standing::Refused(_));
            if refused {
                wanted.standing = Standing::New;
            }
            return (wanted.number, refused);
        }
        let number = self.number();
        self.wanted.push(Wanted {
            number,
            kind,
            name: name.to_vec(),
            at: None,
            standing: Standing::New,
            made: false,
            askers: 1,
            waiting: Vec::new(),
        });
        (number, true)
    }

    /// Somebody who asked for it does not wait any more. False: it is to be ended, and that could
    /// not be said yet.
    pub fn stop_asking(&mut self, number: u64) -> bool {
        let is_it = |wanted: &Wanted| wanted.number == number;
        let Some(index) = self.wanted.iter().position(is_it) else {
            return true;
        };
        let wanted = &mut self.wanted[index];
        wanted.askers -= 1;
        if wanted.askers > 0 || wanted.made {
            return true;
        }
        self.remove(index)
    }

    /// It is wanted no more. False: that could not be said yet.
    pub fn forget(&mut self, kind: Kind, name: &[u8]) -> bool {
        let index = self.position(kind, name);
        index.is_none_or(|index| self.remove(index))
    }

    fn remove(&mut self, index: usize) -> bool {
        let wanted = self.wanted.swap_remove(index);
        self.due.others.extend(wanted.waiting);
        let asked = matches!(wanted.standing, Standing::Asked | Standing::Confirmed);
        let line = self.lines.iter_mut();
        let line = line.filter(|_| asked);
        let mut line = line.filter(|line| Some(&line.endpoint) == wanted.at.as_ref());
        line.next()
            .is_none_or(|line| line.unsubscribe(wanted.kind, &wanted.name))
    }

    /// Says for all that is wanted which node to ask. False: for some nobody knows.
    pub fn place(&mut self, client: &Inner) -> bool {
        let mut complete = true;
        let mut interrupted = false;
        let failures = self.failures as usize;
        let lines = &mut self.lines;
        for wanted in &mut self.wanted {
            let stays = wanted.at.as_ref().is_some_and(|at| {
                client.knows(at) && lines.iter().any(|line| line.endpoint == *at)
            });
            let target = match wanted.kind {
                Kind::Sharded => client.primary_of(slot(&wanted.name)),
                // Every node tells of all channels: another one is taken if this one is gone.
                _ if stays => continue,
                _ => client.some_node(failures),
            };
            complete &= target.is_some();
            if target.is_none() || target == wanted.at {
                continue;
            }
            let before = std::mem::replace(&mut wanted.at, target);
            let line = lines.iter_mut();
            let mut line = line.filter(|line| Some(&line.endpoint) == before.as_ref());
            let standing = std::mem::replace(&mut wanted.standing, Standing::New);
            interrupted |= standing == Standing::Confirmed;
            match standing {
                Standing::New => {}
                // Otherwise messages might come twice.
                Standing::Asked | Standing::Confirmed => {
                    if let Some(line) = line.next() {
                        complete &= line.unsubscribe(wanted.kind, &wanted.name);
                    }
                }
                Standing::Refused(_) => wanted.standing = standing,
            }
        }
        if interrupted {
            self.tell(Event::Interrupted);
        }
        complete
    }

    /// Closes connections that nothing needs; what connections there are to be beside the others.
    pub fn connections(&mut self) -> Vec<Wish> {
        let (wanted, mut wishes) = (&self.wanted, Vec::new());
        self.lines.retain(|line| {
            let needed = wanted
                .iter()
                .any(|wanted| wanted.at.as_ref() == Some(&line.endpoint));
            if !needed {
                line.close();
            }
            needed
        });
        for index in 0..self.wanted.len() {
            let Some(endpoint) = self.wanted[index].at.clone() else {
                continue;
            };
            if self.lines.iter().any(|line| line.endpoint == endpoint) {
                continue;
            }
            let number = self.number();
            self.lines.push(Line::new(endpoint.clone(), number));
            wishes.push(Wish {
                endpoint,
                number,
                attempt: self.failures,
            });
        }
        wishes
    }

    /// Asks for what was not asked for yet, where there is a connection. False: not all could be
    /// said.
    pub fn ask(&mut self) -> bool {
        let mut complete = true;
        for line in self.lines.iter_mut().filter(|line| line.is_open()) {
            complete &= line.tidy();
            for wanted in &mut self.wanted {
                if wanted.standing != Standing::New || wanted.at.as_ref() != Some(&line.endpoint) {
                    continue;
                }
                if line.subscribe(wanted.kind, &wanted.name) {
                    wanted.standing = Standing::Asked;
                } else {
                    complete = false;
                }
            }
        }
        complete
    }

    /// A connection is over.
    pub fn went_down(&mut self, line: usize) {
        let line = self.lines.swap_remove(line);
        let mut interrupted = false;
        for wanted in &mut self.wanted {
            if wanted.at.as_ref() == Some(&line.endpoint) {
                interrupted |= wanted.standing == Standing::Confirmed;
                if !matches!(wanted.standing, Standing::Refused(_)) {
                    wanted.standing = Standing::New;
                }
            }
        }
        if interrupted {
            self.tell(Event::Interrupted);
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// A push: `message`, `subscribe` and the like. `None`: it is nothing that is known.
    pub fn heard(&mut self, line: usize, mut items: Items<'_>) -> Option<()> {
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
                self.tell(Event::Message(message));
            }
            b"subscribe" => {
                self.lines[line].answered(true, kind, name);
                self.failures = 0;
                if let Some(index) = self.settled(line, kind, name) {
                    if std::mem::replace(&mut self.wanted[index].made, true) {
                        let (node, name) = (&self.lines[line].endpoint, name.escape_ascii());
                        tracing::info!(%node, ?kind, %name, "subscribed again");
                    }
                    self.stand(index, Standing::Confirmed);
                }
            }
            b"unsubscribe" if self.lines[line].answered(false, kind, name) => {}
            b"unsubscribe" => {
                // Nobody asked for that: its slot has moved.
                if let Some(index) = self.settled(line, kind, name) {
                    self.ask_elsewhere(index);
                    self.tell(Event::Interrupted);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// The subscription of which a connection has just heard the last word: it belongs there, and
    /// nothing else was asked about it since.
    fn settled(&self, line: usize, kind: Kind, name: &[u8]) -> Option<usize> {
        let line = &self.lines[line];
        let index = self.position(kind, name)?;
        let here = self.wanted[index].at.as_ref() == Some(&line.endpoint);
        (here && !line.is_asked(kind, name)).then_some(index)
    }

    /// The request that has waited longest was refused.
    pub fn refused(&mut self, line: usize, error: ServerError) {
        let Some(request) = self.lines[line].refused().filter(|request| request.begin) else {
            return;
        };
        let Some(index) = self.settled(line, request.kind, &request.name) else {
            return;
        };
        if is_elsewhere(&error.kind) {
            return self.ask_elsewhere(index);
        }
        let wanted = &mut self.wanted[index];
        let made = std::mem::take(&mut wanted.made);
        if wanted.askers > 0 {
            self.stand(index, Standing::Refused(error.clone()));
        } else {
            self.wanted.swap_remove(index);
        }
        if made {
            // Whoever relies on it asked for it long ago.
            self.tell(Event::Refused {
                kind: request.kind,
                name: request.name,
                error,
            });
        }
    }

    fn ask_elsewhere(&mut self, index: usize) {
        let wanted = &mut self.wanted[index];
        wanted.standing = Standing::New;
        wanted.at = None;
        self.unsettled = true;
    }

    fn stand(&mut self, index: usize, standing: Standing) {
        let wanted = &mut self.wanted[index];
        wanted.standing = standing;
        self.due.others.append(&mut wanted.waiting);
    }

    fn tell(&mut self, event: Event) {
        self.events.push(event);
        if self.reader.is_some() {
            self.due.reader = self.reader.take();
        }
    }
}

fn text(view: View<'_>) -> Option<&[u8]> {
    match view {
        View::Bulk(text) | View::Simple(text) => Some(text),
        _ => None,
    }
}
