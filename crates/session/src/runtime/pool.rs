//! The worker threads of one server or client: started, handed connections, and ended.

use std::cell::Cell;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_frame::Protocol;
use embar_transport::tls::Acceptor;
use embar_transport::{Epoll, Reactor};

use super::dealer::Dealer;
use super::group::Group;
use super::listening::{Listening, Offered};
use super::mailbox::{Command, Mailbox};
use super::mappings;
use super::priority::{Priorities, Reserve};
use super::registry::{AcceptFilter, MakeHandler, Registry};
use super::settings::Settings;
use super::stop::Stop;
use super::worker::{Entrance, Worker};
use super::worker_marks::{WorkerMarks, is_worker};
use crate::RingPools;

/// The workers of a server or client, running.
pub(super) struct WorkerPool {
    pub(super) registry: Arc<Registry>,
    pub(super) dealer: Arc<Dealer>,
    /// It is to accept nothing more, and does so as soon as no hand-over is under way.
    pub(super) has_stopped: Stop,
    /// Held while another process takes the listeners, which stay open so long.
    handing_over: Mutex<()>,
    threads: Vec<JoinHandle<()>>,
}

/// What to start a pool with.
pub(super) struct PoolConfig<P> {
    pub(super) protocol: P,
    pub(super) settings: Settings,
    pub(super) make_handler: Option<Box<MakeHandler>>,
    pub(super) accept_filter: Option<Box<AcceptFilter>>,
    pub(super) priorities: Option<Priorities>,
    pub(super) acceptor: Option<Acceptor>,
    /// Each with the number of its worker.
    pub(super) listeners: Vec<(usize, Listening)>,
    pub(super) name: &'static str,
}

impl WorkerPool {
    pub(super) fn start<P>(config: PoolConfig<P>) -> io::Result<Self>
    where
        P: Protocol + Clone + Send + Sync + 'static,
    {
        let mut settings = config.settings;
        settings.rates.check()?;
        let reserve = config
            .priorities
            .as_ref()
            .map_or(Reserve::NONE, |it| it.reserve);
        reserve.check()?;
        settings.max_sessions = mappings::carried(&settings, mappings::limit())?;
        let budget = settings.budget_in_use();
        let rings = RingPools::within(
            &budget,
            settings.send_ring_bytes,
            settings.recv_ring_bytes,
            settings.idle_rings,
        )?;
        let shape = {
            let protocol = config.protocol.clone();
            Box::new(move |header| protocol.shape(header))
        };
        let mut reactors = Vec::new();
        for _ in 0..settings.workers.max(1) {
            let mut reactor = Epoll::with_options(settings.sockets_in_use())?;
            reactor.set_spin(settings.spin);
            reactors.push(reactor);
        }
        let mailboxes: Vec<Arc<Mailbox>> = reactors
            .iter()
            .map(|reactor| Mailbox::new(WorkerMarks::new(reactor.waker())))
            .collect();
        let mut entrances: Vec<Vec<Entrance>> = reactors.iter().map(|_| Vec::new()).collect();
        let group = Arc::new(Group::new(
            settings,
            reserve,
            rings,
            budget,
            shape,
            config.acceptor,
        ));
        for (worker, listening) in config.listeners {
            entrances[worker].push(Entrance {
                token: reactors[worker].listen(listening.listener)?,
                proxies: listening.proxies,
                stay: listening.stay,
            });
            group.listening.fetch_add(1, Ordering::Relaxed);
        }
        let mut pool = Self {
            registry: Arc::new(Registry::new(
                group,
                config.make_handler,
                config.accept_filter,
                config.priorities,
            )),
            dealer: Dealer::new(mailboxes),
            has_stopped: Stop::new()?,
            handing_over: Mutex::default(),
            threads: Vec::new(),
        };
        for (number, reactor) in reactors.into_iter().enumerate() {
            let worker = Worker::new(
                config.protocol.clone(),
                reactor,
                Arc::clone(&pool.registry),
                pool.dealer.mailboxes.clone(),
                number,
                std::mem::take(&mut entrances[number]),
            );
            // The kernel keeps 15 bytes of it.
            let name = format!("{}-{number}", config.name.replacen("session", "sess", 1));
            let thread = std::thread::Builder::new().name(name);
            pool.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(pool)
    }

    /// Hands a connection to the worker whose turn it is, or to the next that runs. If none does,
    /// it is dropped, which answers and frees what it holds.
    pub(super) fn send(&self, command: Command) {
        drop(self.dealer.deal(command));
    }

    /// Accepts nothing more. Returns when that is so; in a handler, which holds up its worker, and where a hand-over calls it, at once. A
    /// hand-over that is under way comes to its end before: either both processes know that the new one has the listeners, or this one
    /// closes them.
    pub(super) fn stop_accepting(&self) {
        self.has_stopped.request();
        let held = match is_worker() || HOLDS_LISTENERS.get() {
            // The end of a hand-over that is under way looks for this.
            true => self.handing_over.try_lock().ok().map(Held::new),
            false => Some(self.hold_listeners()),
        };
        if held.is_some() {
            self.close_listeners();
        }
    }

    /// Keeps the listeners open as long as what it returns lives.
    pub(super) fn hold_listeners(&self) -> Held<'_> {
        let held = self.handing_over.lock();
        Held::new(held.unwrap_or_else(PoisonError::into_inner))
    }

    /// As [`WorkerPool::stop_accepting`], for who holds them.
    pub(super) fn close_listeners(&self) {
        self.dealer.adopt_no_more();
        let (done, all_done) = channel();
        for mailbox in &self.dealer.mailboxes {
            // A worker that has ended accepts nothing.
            let _ = mailbox.send(Command::StopAccepting(done.clone()));
        }
        drop(done);
        // Nobody says anything: the last worker that drops its end ends the wait.
        if !is_worker() {
            let _ = all_done.recv();
        }
    }

    /// Copies of all listeners that are accepted from.
    ///
    /// # Errors
    /// `TimedOut`: a worker has not answered in time; or what kept one from being copied.
    pub(super) fn offered_listeners(&self, deadline: Instant) -> io::Result<Vec<Offered>> {
        let (offered, all) = channel();
        for mailbox in &self.dealer.mailboxes {
            let _ = mailbox.send(Command::OfferListeners(offered.clone()));
        }
        drop(offered);
        let mut listeners = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match all.recv_timeout(left) {
                Ok(offered) => listeners.push(offered?),
                Err(RecvTimeoutError::Disconnected) => return Ok(listeners),
                Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    /// Ends every session politely within `timeout`, and the threads.
    pub(super) fn shutdown(&mut self, timeout: Duration) {
        self.dealer.adopt_no_more();
        for mailbox in &self.dealer.mailboxes {
            // A worker that has ended needs no command.
            let _ = mailbox.send(Command::Drain(timeout));
        }
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // A handler may own its server; its thread then ends after the handler returns.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

thread_local! {
    /// This thread has a [`Held`], so it must not wait for one.
    static HOLDS_LISTENERS: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the listeners of a pool open.
pub(super) struct Held<'p> {
    _guard: MutexGuard<'p, ()>,
}

impl<'p> Held<'p> {
    fn new(guard: MutexGuard<'p, ()>) -> Self {
        HOLDS_LISTENERS.set(true);
        Self { _guard: guard }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        HOLDS_LISTENERS.set(false);
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.shutdown(Duration::ZERO);
        }
    }
}
