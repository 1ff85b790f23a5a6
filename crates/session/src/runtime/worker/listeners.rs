//! The listeners of a worker: closed, copied for another process, and short of descriptors.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use embar_frame::{Now, Protocol};
use embar_transport::{Reactor, Token};

use super::Worker;
use crate::runtime::listening::Offered;
use crate::runtime::mailbox::Command;
use crate::runtime::proxies::Proxies;
use crate::runtime::refusal::Refusal;

/// A listener that a worker accepts from.
pub(in crate::runtime) struct Entrance {
    pub(in crate::runtime) token: Token,
    pub(in crate::runtime) proxies: Option<Proxies>,
    pub(in crate::runtime) stay: bool,
}

impl<P: Protocol + Clone> Worker<P> {
    /// Nothing more is accepted. What it accepted before in this round is still told.
    pub(super) fn close_listeners(&mut self) {
        for entrance in &self.entrances {
            if self.reactor.listener(entrance.token).is_some() {
                self.reactor.close(entrance.token);
                self.group.listening.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Tells `done` by dropping it, in the next round: by then each accepted connection is counted.
    pub(super) fn stop_accepting(&mut self, done: Sender<()>) {
        self.close_listeners();
        let _ = self.mailbox.send(Command::Acknowledge(done));
    }

    /// Copies of the listeners, for another process.
    pub(super) fn offer_listeners(&self, to: &Sender<io::Result<Offered>>) {
        for entrance in &self.entrances {
            let Some(listener) = self.reactor.listener(entrance.token) else {
                continue;
            };
            let copied = listener.as_fd().try_clone_to_owned();
            let offered = copied.and_then(|socket| {
                Ok(Offered {
                    socket,
                    address: listener.local_address()?,
                    file: listener.file().map(|file| file.ownership()),
                })
            });
            let _ = to.send(offered);
        }
    }

    /// A connection could not be accepted: one that has not greeted gives its descriptor up, of the address that has the most of them in one
    /// worker, and the reactor tries again.
    pub(super) fn make_room(&mut self, now: Now) {
        let crowds = self
            .group
            .crowds
            .iter()
            .map(|it| it.load(Ordering::Relaxed));
        let own = self.group.crowds[self.number].load(Ordering::Relaxed);
        match crowds.enumerate().max_by_key(|(_, most)| *most) {
            Some((number, most)) if most > own => {
                let command = Command::MakeRoom {
                    asking: self.number,
                };
                if self.mailboxes[number].send(command).is_err() {
                    self.give_room(now);
                }
            }
            _ => self.give_room(now),
        }
    }

    /// Another worker could not accept a connection.
    pub(super) fn make_room_for(&mut self, asking: usize, now: Now) {
        self.give_room(now);
        let _ = self.mailboxes[asking].send(Command::RoomMade);
    }

    fn give_room(&mut self, now: Now) {
        if let Some(token) = self.arrivals.first_to_go() {
            self.dismiss(token, Refusal::Crowded, now);
        }
        self.next_handshakes(now);
    }
}
