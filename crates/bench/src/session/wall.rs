//! The *wall* of `bench session`, what the machine allows: the same bytes there and back over bare sockets, in threads
//! placed as those of the phases.
//!
//! One thread serves the sockets of the server and one those of the client (or as many as `--threads` says), each with
//! a kernel call for the bytes it takes and one for those it gives, and nothing else. A thread that has several sockets
//! visits them in a circle, on each visit waiting for at least one message. That cannot lock up, since both sides go
//! round in the same order and give something on every visit, and what is under way fits into a socket.
//!
//! The threads wait for bytes as those of the phases do: in the kernel, or for a given time by looking again and again.

mod paced;
mod socket;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use rustix::io::Errno;

pub use self::paced::paced;
use embar_console::interrupt::Interrupt;

use self::socket::{BareSocket, pair};
use super::placement::Side;
use super::plan::SessionPlan;
use super::record::{Clock, EchoLimits, Record};
use super::run::Counted;

/// Most bytes of one kernel call.
const CALL_BYTES: usize = 64 << 10;

/// What the last thread to start releases.
type Gate = Arc<std::sync::Barrier>;

/// Messages of `frame_bytes` bytes, echoed.
pub fn echoes(
    plan: &SessionPlan,
    frame_bytes: usize,
    interrupt: &Interrupt,
) -> Result<Vec<Record>> {
    let clock = Clock::calibrated();
    let threads = usize::from(plan.threads).min(plan.sessions as usize);
    let spin = Duration::from_micros(plan.spin_us);
    let (mut servers, mut clients) = (groups(threads), groups(threads));
    for session in 0..plan.sessions {
        let (near, far) = pair(plan.transport, spin).context("cannot connect bare sockets")?;
        let place = session as usize % threads;
        let bytes = plan.iterations * frame_bytes as u64;
        servers[place].push(ServerSocket::new(far, frame_bytes, bytes));
        let record = Record::new(
            session,
            plan.iterations,
            plan.in_flight,
            EchoLimits::of(plan),
        );
        clients[place].push(ClientSocket::new(near, frame_bytes, record, clock));
    }
    let gate: Gate = Arc::new(std::sync::Barrier::new(2 * threads));
    thread::scope(|scope| {
        let (mut serving, mut asking) = (Vec::new(), Vec::new());
        for group in servers {
            let gate = gate.clone();
            let serve = move || serve(group, &gate);
            serving.push(start(scope, plan, Side::Server, serve)?);
        }
        for group in clients {
            let (gate, in_flight) = (gate.clone(), u64::from(plan.in_flight));
            let ask = move || ask(group, in_flight, &gate, interrupt);
            asking.push(start(scope, plan, Side::Client, ask)?);
        }
        let mut records = Vec::new();
        for thread in asking {
            records.extend(joined(thread)?);
        }
        for thread in serving {
            joined(thread)?;
        }
        records.sort_by_key(Record::session);
        Ok(records)
    })
}

/// Messages of `frame_bytes` bytes, one way, and eight bytes back at the end.
pub fn one_way(plan: &SessionPlan, frame_bytes: usize, interrupt: &Interrupt) -> Result<Counted> {
    let clock = Clock::calibrated();
    let spin = Duration::from_micros(plan.spin_us);
    let (near, far) = pair(plan.transport, spin).context("cannot connect bare sockets")?;
    let total = plan.iterations * frame_bytes as u64;
    let gate: Gate = Arc::new(std::sync::Barrier::new(2));
    thread::scope(|scope| {
        let other = gate.clone();
        let take = move || -> Result<()> {
            let mut buffer = vec![1; 4 * CALL_BYTES];
            other.wait();
            let mut got = 0;
            while got < total {
                got += far.receive(&mut buffer)? as u64;
            }
            far.send_all(&got.to_le_bytes())?;
            Ok(())
        };
        let taking = start(scope, plan, Side::Server, take)?;
        let give = move || -> Result<Counted> {
            let frames = vec![7; (CALL_BYTES / frame_bytes).max(1) * frame_bytes];
            gate.wait();
            let started = clock.now();
            let mut left = total;
            while left > 0 {
                interrupt.check()?;
                let part = frames
                    .len()
                    .min(usize::try_from(left).unwrap_or(usize::MAX));
                near.send_all(&frames[..part])?;
                left -= part as u64;
            }
            let mut answer = [0; 8];
            near.receive_all(&mut answer)?;
            Ok(Counted {
                right: u64::from_le_bytes(answer) / frame_bytes as u64,
                wrong: 0,
                elapsed: Duration::from_nanos(clock.now() - started),
                stall: None,
            })
        };
        let giving = start(scope, plan, Side::Client, give)?;
        let counted = joined(giving)?;
        joined(taking)?;
        Ok(counted)
    })
}

fn groups<T>(count: usize) -> Vec<Vec<T>> {
    (0..count).map(|_| Vec::new()).collect()
}

fn start<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    plan: &SessionPlan,
    side: Side,
    work: impl FnOnce() -> Result<T> + Send + 'scope,
) -> Result<thread::ScopedJoinHandle<'scope, Result<T>>> {
    let name = match side {
        Side::Server => "wall-server",
        Side::Client => "wall-client",
    };
    plan.placement.on(side, || {
        thread::Builder::new()
            .name(name.into())
            .spawn_scoped(scope, work)
            .context("cannot start a thread")
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .map_err(|_| anyhow!("a thread of the wall panicked"))?
}

/// The server's end of one socket.
struct ServerSocket {
    socket: BareSocket,
    buffer: Vec<u8>,
    frame: usize,
    left: u64,
}

impl ServerSocket {
    fn new(socket: BareSocket, frame: usize, left: u64) -> Self {
        Self {
            socket,
            buffer: vec![1; CALL_BYTES],
            frame,
            left,
        }
    }

    /// Passes on at least one message, or all that is left.
    fn visit(&mut self) -> Result<()> {
        let mut passed = 0;
        while passed < self.frame && self.left > 0 {
            let n = self.socket.receive(&mut self.buffer)?;
            self.socket.send_all(&self.buffer[..n])?;
            passed += n;
            self.left -= n as u64;
        }
        Ok(())
    }
}

fn serve(mut group: Vec<ServerSocket>, gate: &Gate) -> Result<()> {
    gate.wait();
    while !group.is_empty() {
        let mut visited = Ok(());
        group.retain_mut(|server| {
            if visited.is_ok() {
                visited = server.visit();
            }
            server.left > 0
        });
        match visited {
            // The client gave up, and says why.
            Err(error) if is_end(&error) => return Ok(()),
            other => other?,
        }
    }
    Ok(())
}

fn is_end(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<Errno>(),
        Some(&Errno::PIPE | &Errno::CONNRESET)
    )
}

/// The client's end of one socket.
struct ClientSocket {
    socket: BareSocket,
    buffer: Vec<u8>,
    frames: Vec<u8>,
    frame: usize,
    /// Bytes of a message that is still incomplete.
    part: usize,
    /// Bytes to send.
    unsent: usize,
    record: Record,
    clock: Clock,
}

impl ClientSocket {
    fn new(socket: BareSocket, frame: usize, record: Record, clock: Clock) -> Self {
        Self {
            socket,
            buffer: vec![1; CALL_BYTES],
            frames: vec![7; CALL_BYTES.max(frame)],
            frame,
            part: 0,
            unsent: 0,
            record,
            clock,
        }
    }

    /// Sends `messages` more, or as many as there are left to send.
    fn send(&mut self, messages: u64) -> Result<()> {
        self.add(messages, self.clock.now());
        while self.unsent > 0 {
            let part = self.unsent.min(self.frames.len());
            match self.socket.try_send(&self.frames[..part]) {
                Ok(n) => self.unsent -= n,
                // The other side sends what it has before it takes more: it must be able to.
                Err(Errno::AGAIN) => self.absorb()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes at least one message and sends as many as it took.
    fn visit(&mut self) -> Result<()> {
        let before = self.record.next_to_arrive();
        while self.record.next_to_arrive() == before {
            self.absorb()?;
        }
        self.send(0)
    }

    /// Takes what is there, at least one byte; each whole message makes room for another one.
    fn absorb(&mut self) -> Result<()> {
        self.part += self.socket.receive(&mut self.buffer)?;
        let whole = self.part / self.frame;
        if whole > 0 {
            self.part %= self.frame;
            let now = self.clock.now();
            for _ in 0..whole {
                self.record.arrived(now, true);
            }
            self.add(whole as u64, now);
        }
        Ok(())
    }

    fn add(&mut self, messages: u64, now: u64) {
        for _ in 0..messages {
            if self.record.next_to_send().is_some() {
                self.record.sent(now);
                self.unsent += self.frame;
            }
        }
    }
}

fn ask(
    mut group: Vec<ClientSocket>,
    in_flight: u64,
    gate: &Gate,
    interrupt: &Interrupt,
) -> Result<Vec<Record>> {
    gate.wait();
    for client in &mut group {
        client.send(in_flight)?;
    }
    while group.iter().any(|client| !client.record.is_complete()) {
        interrupt.check()?;
        for client in &mut group {
            if !client.record.is_complete() {
                client.visit()?;
            }
        }
    }
    Ok(group.into_iter().map(|client| client.record).collect())
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::super::plan::{Test, Transport};
    use embar_console::interrupt::Interrupted;

    use super::*;

    fn all_echoed(plan: &SessionPlan, frame_bytes: usize) {
        let records = echoes(plan, frame_bytes, &Interrupt::default()).expect("sockets work");
        assert_eq!(records.len(), plan.sessions as usize);
        for (record, session) in records.iter().zip(0..) {
            assert_eq!((record.session(), record.lost()), (session, 0));
            assert_eq!(record.latencies().len() as u64, plan.iterations);
        }
    }

    #[test]
    fn every_message_comes_back_in_every_layout() {
        for transport in [Transport::Tcp, Transport::Unix] {
            for (sessions, threads, in_flight, spin_us) in
                [(1, 1, 1, 0), (1, 1, 1, 50), (3, 1, 1, 0), (5, 2, 7, 0)]
            {
                let plan = SessionPlan {
                    transport,
                    sessions,
                    threads,
                    in_flight,
                    spin_us,
                    ..plan()
                };
                all_echoed(&plan, 83);
            }
        }
    }

    #[test]
    fn more_under_way_than_sockets_hold_does_not_lock_up() {
        for transport in [Transport::Tcp, Transport::Unix] {
            let plan = SessionPlan {
                transport,
                iterations: 64,
                in_flight: 64,
                ..plan()
            };
            all_echoed(&plan, 512 << 10);
        }
    }

    #[test]
    fn one_way_counts_what_came() {
        let plan = SessionPlan {
            test: Test::OneWay,
            iterations: 10_000,
            ..plan()
        };
        let counted = one_way(&plan, 83, &Interrupt::default()).expect("sockets work");
        assert_eq!((counted.right, counted.wrong), (10_000, 0));
    }

    #[test]
    fn an_interrupt_ends_it() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        let error = echoes(&plan(), 83, &interrupt).expect_err("interrupted");
        assert!(error.is::<Interrupted>(), "{error:#}");
    }
}
