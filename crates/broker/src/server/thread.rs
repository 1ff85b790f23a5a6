//! One network thread: carries events from its reactor to its shard, and the
//! shard's actions back.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_fabric::memory::Mapped;
use embar_transport::socket::SocketOptions;
use embar_transport::{Completion, Epoll, IoCounters, Reactor, Stream, Token, Waker};
use embar_wire::time::Now;

use super::bells::{Bed, Order};
use super::{StopWord, stop};
use crate::clock::Clock;
use crate::node::Node;
use crate::profile::Counter;
use crate::shard::{Action, At, Shard, TICK};

/// What a network thread is made of.
pub(super) struct Plan {
    pub number: usize,
    pub shard: Shard<Mapped>,
    /// The first thread accepts for all.
    pub listener: Option<TcpListener>,
    pub options: SocketOptions,
    /// Of a broker that takes data.
    pub bed: Option<Bed>,
    pub node: Arc<Node<Mapped>>,
    pub stop: Arc<StopWord>,
    pub clock: Clock,
}

/// The threads of this broker, each with its inbox for accepted connections.
#[derive(Clone)]
struct Peers {
    inboxes: Vec<Sender<Stream>>,
    wakers: Vec<Waker>,
}

/// A thread that waits to be told of its peers.
pub(super) struct Started {
    inbox: Sender<Stream>,
    waker: Waker,
    peers: Sender<Peers>,
    thread: JoinHandle<()>,
}

/// Starts a thread up to the point where it has a reactor: those belong to
/// the thread that makes them.
pub(super) fn start(plan: Plan, name: String) -> io::Result<Started> {
    let (inbox, accepted) = mpsc::channel();
    let (peers, known) = mpsc::channel();
    let (ready, result) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let opened = Epoll::with_options(plan.options.clone()).and_then(|mut reactor| {
            let listen = |l| Reactor::<Mapped>::listen(&mut reactor, l);
            let listener = plan.listener.map(listen).transpose()?;
            let order = plan
                .bed
                .map(|bed| Order::attach(bed, plan.node, &mut reactor));
            Ok((reactor, listener, order.transpose()?))
        });
        let (reactor, listener, order) = match opened {
            Ok(opened) => opened,
            Err(error) => return drop(ready.send(Err(error))),
        };
        drop(ready.send(Ok(Reactor::<Mapped>::waker(&reactor))));
        let Ok(peers) = known.recv() else { return };
        let _watch = plan.stop.watch();
        let mut thread = NetworkThread {
            number: plan.number,
            reactor,
            shard: plan.shard,
            inbox: accepted,
            peers,
            order,
            stop: plan.stop,
            clock: plan.clock,
            next_peer: 0,
            next_tick: Now(0),
            listener,
            counted: IoCounters::default(),
            draining: false,
        };
        thread.run();
    })?;
    let waker = result
        .recv()
        .map_err(|_| io::Error::other("a network thread died at its start"))??;
    Ok(Started {
        inbox,
        waker,
        peers,
        thread,
    })
}

/// Lets the threads run, each knowing all others.
pub(super) fn introduce(started: Vec<Started>) -> (Vec<Waker>, Vec<JoinHandle<()>>) {
    let peers = Peers {
        inboxes: started.iter().map(|s| s.inbox.clone()).collect(),
        wakers: started.iter().map(|s| s.waker.clone()).collect(),
    };
    let threads = started.into_iter().map(|s| {
        // A thread that ended already is noticed when it is joined.
        drop(s.peers.send(peers.clone()));
        s.thread
    });
    let threads = threads.collect();
    (peers.wakers, threads)
}

/// See the module.
struct NetworkThread {
    number: usize,
    reactor: Epoll,
    shard: Shard<Mapped>,
    inbox: Receiver<Stream>,
    peers: Peers,
    order: Option<Order>,
    stop: Arc<StopWord>,
    clock: Clock,
    next_peer: usize,
    next_tick: Now,
    listener: Option<Token>,
    counted: IoCounters,
    draining: bool,
}

impl NetworkThread {
    /// Runs until told to stop.
    pub fn run(&mut self) {
        let (mut completions, mut actions) = (Vec::new(), Vec::new());
        loop {
            if let Err(error) = self.wait(&mut completions, &mut actions) {
                tracing::error!(thread = self.number, "the network thread stops: {error}");
                return;
            }
            let at = self.clock.at();
            for completion in completions.drain(..) {
                self.handle(completion, at, &mut actions);
            }
            while let Ok(stream) = self.inbox.try_recv() {
                self.admit(stream, at, &mut actions);
            }
            if at.now >= self.next_tick {
                self.next_tick = at.now.after(TICK);
                self.shard.tick(at);
            }
            self.shard.settle(at, &mut actions);
            self.carry_out(&mut actions);
            self.count();
            match self.stop.get() {
                stop::RUN => {}
                stop::DRAIN => {
                    self.drain(at, &mut actions);
                    if self.shard.is_empty() {
                        return;
                    }
                }
                _ => {
                    self.cut(at, &mut actions);
                    return;
                }
            }
        }
    }

    /// Waits for events, and, while anything waits for the sequencer, for its bell.
    fn wait(
        &mut self,
        completions: &mut Vec<Completion<Mapped>>,
        actions: &mut Vec<Action<Mapped>>,
    ) -> io::Result<()> {
        let order = self.order.as_ref().filter(|_| self.shard.waits_for_order());
        let Some(order) = order else {
            let timeout = (!self.shard.is_empty()).then_some(TICK);
            return self.reactor.poll(timeout, completions);
        };
        order.says_asleep(true);
        // The last look: whoever makes news after it sees that this thread sleeps.
        let news = self.shard.settle(self.clock.at(), actions);
        let timeout = if news { Duration::ZERO } else { TICK };
        self.carry_out(actions);
        let polled = self.reactor.poll(Some(timeout), completions);
        if let Some(order) = &self.order {
            order.says_asleep(false);
        }
        polled
    }

    fn handle(&mut self, completion: Completion, at: At, actions: &mut Vec<Action<Mapped>>) {
        match completion {
            Completion::Received {
                token,
                buf,
                result,
                ticks,
            } => {
                self.shard.received(token, buf, &result, ticks, at, actions);
            }
            Completion::Sent {
                token, buf, result, ..
            } => self.shard.sent(token, buf, &result, at),
            Completion::Accepted { stream, .. } => self.accepted(stream, at, actions),
            Completion::AcceptFailed { error, .. } => {
                tracing::warn!(
                    "cannot accept connections at the moment: {error}; raise the limit of open files (ulimit -n)"
                );
            }
            Completion::Connected { .. } | Completion::Woken => {}
        }
    }

    /// Connections are dealt out in turn.
    fn accepted(&mut self, stream: Stream, at: At, actions: &mut Vec<Action<Mapped>>) {
        let target = self.next_peer % self.peers.inboxes.len();
        self.next_peer += 1;
        if target == self.number {
            self.admit(stream, at, actions);
        } else if self.peers.inboxes[target].send(stream).is_ok() {
            self.peers.wakers[target].wake();
        }
    }

    fn admit(&mut self, stream: Stream, at: At, actions: &mut Vec<Action<Mapped>>) {
        let peer = stream.peer().ok().and_then(|peer| peer.tcp());
        match self.reactor.add(stream) {
            Ok(token) => self.shard.opened(token, peer, at, actions),
            Err(error) => tracing::warn!(?peer, "cannot take a connection: {error}"),
        }
    }

    fn carry_out(&mut self, actions: &mut Vec<Action<Mapped>>) {
        for action in actions.drain(..) {
            match action {
                Action::Recv(token, buf) => self.reactor.recv(token, buf),
                Action::Send(token, buf) => self.reactor.send(token, buf),
                Action::Recall(token) => Reactor::<Mapped>::recall(&mut self.reactor, token),
                // The peer may be gone already; then the receive outstanding says so.
                Action::ShutdownWrite(token) => drop(self.reactor.shutdown_write(token)),
                Action::Close(token) => self.reactor.close(token),
                Action::Submitted => {
                    if let Some(order) = &mut self.order {
                        order.submitted();
                    }
                }
                Action::WakeOthers => {
                    let others = self.peers.wakers.iter().enumerate();
                    others
                        .filter(|(n, _)| *n != self.number)
                        .for_each(|(_, w)| w.wake());
                }
            }
        }
    }

    fn count(&mut self) {
        let now = self.reactor_counters();
        let before = std::mem::replace(&mut self.counted, now);
        let meter = self.shard.meter();
        let count = |counter: Counter, n: u64| meter.count(counter as usize, n);
        count(Counter::RecvCalls, now.recv_calls - before.recv_calls);
        count(Counter::RecvBytes, now.recv_bytes - before.recv_bytes);
        count(Counter::RecvEagain, now.recv_eagain - before.recv_eagain);
        count(Counter::SendCalls, now.send_calls - before.send_calls);
        count(Counter::SendBytes, now.send_bytes - before.send_bytes);
        count(Counter::SendEagain, now.send_eagain - before.send_eagain);
    }

    fn reactor_counters(&self) -> IoCounters {
        Reactor::<Mapped>::counters(&self.reactor)
    }

    /// Takes no more connections and tells those there are to go elsewhere.
    fn drain(&mut self, at: At, actions: &mut Vec<Action<Mapped>>) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        if let Some(listener) = self.listener.take() {
            self.reactor.close(listener);
        }
        self.shard.drain(at, actions);
        self.carry_out(actions);
    }

    /// Closes everything and waits for the buffers that are outstanding.
    fn cut(&mut self, at: At, actions: &mut Vec<Action<Mapped>>) {
        self.shard.cut(at, actions);
        self.carry_out(actions);
        let mut completions = Vec::new();
        while Reactor::<Mapped>::outstanding(&self.reactor) > 0 {
            if self.reactor.poll(Some(TICK), &mut completions).is_err() {
                return;
            }
            for completion in completions.drain(..) {
                self.handle(completion, at, actions);
            }
            actions.clear();
        }
    }
}
