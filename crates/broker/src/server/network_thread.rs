//! One network thread: carries events from its reactor to its shard, and the shard's actions back.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_frame::Now;
use embar_memory::Mapped;
use embar_transport::socket::{self, SocketOptions};
use embar_transport::{
    Blocking, Completion, Epoll, IoCounters, Listener, Peer, Reactor, Stream, Token, Uring, Waker,
};

use super::history_thread::{Answer, Request, Requests};
use super::start_error::StartError;
use super::stop::{Stop, StopSignal};
use super::turns::Turns;
use super::wakeups::{Parker, SequencerWakeups};
use crate::clock::{Clock, Timestamp};
use crate::node::Node;
use crate::profile::Counter;
use crate::receive_path::ReceivePath;
use crate::shard::{Action, Shard, TICK};

/// What a network thread is made of.
pub(super) struct ThreadSpec {
    /// Its number among the threads of its broker, and its lane.
    pub number: u16,
    pub node: Arc<Node<Mapped>>,
    /// Of the candidate in this process, if it is one.
    pub turns: Option<Arc<Turns>>,
    /// Of a broker with disks.
    pub history: Option<Requests>,
    /// Of the thread that accepts.
    pub listeners: Vec<Listener>,
    pub options: SocketOptions,
    pub stop: Arc<StopSignal>,
    pub clock: Clock,
}

/// The threads of this broker, each with its inbox for accepted connections.
#[derive(Clone)]
struct Siblings {
    inboxes: Vec<Sender<Stream>>,
    wakers: Vec<Waker>,
}

/// A thread that has its reactor and waits for its siblings.
pub(super) struct Started {
    inbox: Sender<Stream>,
    waker: Waker,
    siblings: Sender<Siblings>,
    thread: JoinHandle<()>,
}

/// Starts a thread up to the point where it has a reactor, which belongs to the thread that makes it.
pub(super) fn start(spec: ThreadSpec) -> Result<Started, StartError> {
    let node = &spec.node;
    let parker = match node.takes_data() {
        true => Some(Parker::new(&node.region, node.id, spec.number)?),
        false => None,
    };
    let shard = Shard::new(Arc::clone(node), spec.number)?;
    let name = format!("embar-net-{}-{}", node.id, spec.number);
    let (inbox, accepted) = mpsc::channel();
    let (siblings, introduced) = mpsc::channel();
    let (ready, result) = mpsc::channel();
    let options = spec.options.clone();
    let newcomer = Newcomer {
        spec,
        parker,
        shard,
        inbox: accepted,
        introduced,
        ready,
    };
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        match newcomer.spec.node.config.receive {
            ReceivePath::Direct | ReceivePath::Staging => {
                let spin = newcomer.spec.node.config.spin;
                newcomer.run(Epoll::with_options(options).map(|mut reactor| {
                    reactor.set_spin(spin);
                    reactor
                }));
            }
            ReceivePath::Blocking => newcomer.run(Blocking::with_options(options)),
            ReceivePath::Uring => {
                newcomer.run(Uring::with_options(options).map_err(io::Error::other));
            }
        }
    })?;
    let waker = result
        .recv()
        .map_err(|_| io::Error::other("a network thread died at its start"))??;
    Ok(Started {
        inbox,
        waker,
        siblings,
        thread,
    })
}

/// A thread that is being started: what it needs beside a reactor.
struct Newcomer {
    spec: ThreadSpec,
    parker: Option<Parker>,
    shard: Shard<Mapped>,
    inbox: Receiver<Stream>,
    introduced: Receiver<Siblings>,
    ready: Sender<io::Result<Waker>>,
}

/// What the thread asks its reactor for: to listen, and to be woken by the sequencer.
type Opened<R> = (R, Vec<Token>, Option<SequencerWakeups>);

impl Newcomer {
    /// Serves with this reactor, once all siblings are there.
    fn run<R: Reactor<Mapped>>(mut self, reactor: io::Result<R>) {
        let (reactor, listeners, wakeups) = match reactor.and_then(|it| self.open(it)) {
            Ok(opened) => opened,
            Err(error) => return drop(self.ready.send(Err(error))),
        };
        drop(self.ready.send(Ok(reactor.waker())));
        let Ok(siblings) = self.introduced.recv() else {
            return;
        };
        let spec = self.spec;
        let _guard = spec.stop.guard();
        let mut thread = NetworkThread {
            number: spec.number.into(),
            options: spec.options,
            reactor,
            shard: self.shard,
            inbox: self.inbox,
            siblings,
            wakeups,
            turns: spec.turns,
            history: spec.history,
            answers: mpsc::channel(),
            submitted: false,
            stop: spec.stop,
            clock: spec.clock,
            next_sibling: 0,
            next_tick: Now(0),
            listeners,
            counted: IoCounters::default(),
            draining: false,
        };
        thread.run();
    }

    fn open<R: Reactor<Mapped>>(&mut self, mut reactor: R) -> io::Result<Opened<R>> {
        let listeners = std::mem::take(&mut self.spec.listeners);
        let listeners = listeners.into_iter().map(|it| reactor.listen(it));
        let listeners = listeners.collect::<io::Result<_>>()?;
        let node = &self.spec.node;
        let attach = |parker| SequencerWakeups::attach(parker, Arc::clone(node), &mut reactor);
        let wakeups = self.parker.take().map(attach).transpose()?;
        Ok((reactor, listeners, wakeups))
    }
}

/// Lets the threads run, each knowing all others.
pub(super) fn introduce(started: Vec<Started>) -> (Vec<Waker>, Vec<JoinHandle<()>>) {
    let siblings = Siblings {
        inboxes: started.iter().map(|s| s.inbox.clone()).collect(),
        wakers: started.iter().map(|s| s.waker.clone()).collect(),
    };
    let threads = started.into_iter().map(|s| {
        // A thread that ended already is noticed when it is joined.
        drop(s.siblings.send(siblings.clone()));
        s.thread
    });
    let threads = threads.collect();
    (siblings.wakers, threads)
}

/// A network thread while it runs.
struct NetworkThread<R> {
    number: usize,
    /// Of its sockets.
    options: SocketOptions,
    reactor: R,
    shard: Shard<Mapped>,
    inbox: Receiver<Stream>,
    siblings: Siblings,
    /// Of a broker that takes data.
    wakeups: Option<SequencerWakeups>,
    /// Of the candidate in this process, if it is one.
    turns: Option<Arc<Turns>>,
    /// Of a broker with disks.
    history: Option<Requests>,
    /// From the disks.
    answers: (Sender<Answer>, Receiver<Answer>),
    /// There is something that the sequencer has not been told of.
    submitted: bool,
    stop: Arc<StopSignal>,
    clock: Clock,
    /// Which thread gets the connection that is accepted next.
    next_sibling: usize,
    next_tick: Now,
    listeners: Vec<Token>,
    /// What the reactor had counted when the meter last took it over.
    counted: IoCounters,
    draining: bool,
}

impl<R: Reactor<Mapped>> NetworkThread<R> {
    /// Runs until the stop signal ends it.
    pub fn run(&mut self) {
        let (mut completions, mut actions) = (Vec::new(), Vec::new());
        loop {
            if let Err(error) = self.wait(&mut completions, &mut actions) {
                tracing::error!(thread = self.number, "the network thread stops: {error}");
                return;
            }
            let at = self.clock.read();
            for completion in completions.drain(..) {
                self.handle(completion, at, &mut actions);
            }
            while let Ok(stream) = self.inbox.try_recv() {
                self.admit(stream, at, &mut actions);
            }
            while let Ok(Answer { token, read, piece }) = self.answers.1.try_recv() {
                self.shard.disk_read(token, &read, piece, at);
            }
            if at.now >= self.next_tick {
                self.next_tick = at.now.after(TICK);
                self.shard.tick(at);
            }
            self.shard.settle(at, &mut actions);
            self.carry_out(&mut actions);
            self.count();
            match self.stop.get() {
                Stop::Run => {}
                Stop::Drain => {
                    self.drain(at, &mut actions);
                    if self.shard.is_empty() {
                        return;
                    }
                }
                Stop::Cut => {
                    self.cut(at, &mut actions);
                    return;
                }
            }
        }
    }

    /// Waits for events, and, while a connection waits for the sequencer, for its wake-up.
    fn wait(
        &mut self,
        completions: &mut Vec<Completion<Mapped>>,
        actions: &mut Vec<Action<Mapped>>,
    ) -> io::Result<()> {
        let wakeups = self
            .wakeups
            .as_ref()
            .filter(|_| self.shard.waits_for_order());
        let Some(wakeups) = wakeups else {
            let timeout = (!self.shard.is_empty()).then_some(TICK);
            return self.reactor.poll(timeout, completions);
        };
        wakeups.set_asleep(true);
        // The last look: a sequencer that stores something after it sees that this thread sleeps.
        let news = self.shard.settle(self.clock.read(), actions);
        let timeout = if news { Duration::ZERO } else { TICK };
        self.carry_out(actions);
        let polled = self.reactor.poll(Some(timeout), completions);
        if let Some(wakeups) = &self.wakeups {
            wakeups.set_asleep(false);
        }
        polled
    }

    fn handle(&mut self, completion: Completion, at: Timestamp, actions: &mut Vec<Action<Mapped>>) {
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
    fn accepted(&mut self, stream: Stream, at: Timestamp, actions: &mut Vec<Action<Mapped>>) {
        let target = self.next_sibling % self.siblings.inboxes.len();
        self.next_sibling += 1;
        if target == self.number {
            self.admit(stream, at, actions);
        } else if self.siblings.inboxes[target].send(stream).is_ok() {
            self.siblings.wakers[target].wake();
        }
    }

    fn admit(&mut self, stream: Stream, at: Timestamp, actions: &mut Vec<Action<Mapped>>) {
        // One that is gone already needs no service.
        let (Ok(peer), Ok(is_trusted)) = (stream.peer(), stream.is_trusted()) else {
            return;
        };
        if peer == Peer::Shm && !self.shard.may_share_memory() {
            // Its client comes by the Unix socket, at once.
            tracing::debug!("one more connection by shared memory would be too many");
            return;
        }
        if let Err(error) = socket::apply_accepted(&stream, &self.options) {
            tracing::debug!("a connection keeps the kernel's buffers: {error}");
        }
        match self.reactor.add(stream) {
            Ok(token) if is_trusted => self.shard.opened(token, peer, at, actions),
            Ok(token) => self.shard.opened_by_stranger(token, peer, at, actions),
            Err(error) => tracing::warn!(%peer, "cannot take a connection: {error}"),
        }
    }

    /// Carries the shard's actions out, and has the sequencer order what it submitted: by a turn on this thread where the candidate is
    /// in this process, so that the answers are there at once.
    fn carry_out(&mut self, actions: &mut Vec<Action<Mapped>>) {
        self.perform(actions);
        while std::mem::take(&mut self.submitted) {
            let epoch = self.turns.as_ref().and_then(|turns| turns.take_here());
            if epoch.is_some() {
                self.shard.settle(self.clock.read(), actions);
                self.perform(actions);
            }
            if let Some(wakeups) = &mut self.wakeups {
                wakeups.notify_sequencer_unless(epoch);
            }
        }
    }

    fn perform(&mut self, actions: &mut Vec<Action<Mapped>>) {
        for action in actions.drain(..) {
            match action {
                Action::Recv(token, buf) => self.reactor.recv(token, buf),
                Action::Send(token, buf) => self.reactor.send(token, buf),
                Action::Recall(token) => self.reactor.recall(token),
                // The peer may be gone already; then the receive outstanding says so.
                Action::ShutdownWrite(token) => drop(self.reactor.shutdown_write(token)),
                Action::Close(token) => self.reactor.close(token),
                Action::Submitted => self.submitted = true,
                Action::ReadDisk(token, read) => {
                    // Only topics on disks are read there, and only brokers with disks have those.
                    if let Some(history) = &self.history {
                        history.put(Request {
                            token,
                            read,
                            answers: self.answers.0.clone(),
                            waker: self.reactor.waker(),
                        });
                    }
                }
                Action::WakeOthers => {
                    let others = self.siblings.wakers.iter().enumerate();
                    others
                        .filter(|(n, _)| *n != self.number)
                        .for_each(|(_, w)| w.wake());
                }
            }
        }
    }

    fn count(&mut self) {
        let now = self.reactor.counters();
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

    /// Accepts no more connections and asks the peers of those that there are to go to other brokers.
    fn drain(&mut self, at: Timestamp, actions: &mut Vec<Action<Mapped>>) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        for listener in std::mem::take(&mut self.listeners) {
            self.reactor.close(listener);
        }
        self.shard.drain(at, actions);
        self.carry_out(actions);
    }

    /// Closes everything and waits for the buffers that are outstanding.
    fn cut(&mut self, at: Timestamp, actions: &mut Vec<Action<Mapped>>) {
        self.shard.close_all(at, actions);
        self.carry_out(actions);
        let mut completions = Vec::new();
        while self.reactor.outstanding() > 0 {
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
