//! The walls of reading: receiving processes send from their rings, threads of this process take what they send.

use std::io::{self, Read, Write};
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use embar_console::interrupt::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::drive::{Job, Receivers, SILENCE_MAX, WallPlan};
use super::publishing::answer;
use super::stream::Stream;
use super::verifying::VerifyingThread;
use super::wire::{Checker, Hello, Kind};

impl Receivers {
    pub(super) fn read_bare(&self, plan: &WallPlan) -> Result<f64> {
        let streams = self.connect(plan, plan.read_connections_per_receiver)?;
        let share = plan.batches_for_each(streams.len()) * plan.batch() as u64;
        let hello = hello(plan, Kind::Give, share);
        let jobs = streams.into_iter().map(|mut stream| -> Job<'_> {
            Box::new(move || {
                stream.write_all(&hello.to_bytes())?;
                drain(&mut stream, plan.batch(), share, &self.interrupt)
            })
        });
        Ok(self.timed(jobs.collect())?.1)
    }

    /// Reads and checks each batch; `verified`: one thread also checks each message.
    pub(super) fn read_working(&self, plan: &WallPlan, verified: bool) -> Result<f64> {
        let messages = self.fill_rings(plan)?;
        let streams = self.connect(plan, plan.read_connections_per_receiver)?;
        let share = plan.batches_for_each(streams.len()) * plan.batch() as u64;
        let hello = hello(plan, Kind::Give, share);
        let connections = streams.len();
        let mut shares: Vec<Vec<Reading>> = Vec::new();
        shares.resize_with(
            usize::from(plan.read_threads).clamp(1, streams.len()),
            Vec::new,
        );
        let threads = shares.len();
        for (index, stream) in streams.into_iter().enumerate() {
            shares[index % threads].push(Reading::new(stream, plan, share));
        }
        let rate = thread::scope(|scope| {
            let start = || VerifyingThread::start(scope, plan, connections, messages);
            let verifying = verified.then(start);
            let jobs = shares.into_iter().map(|readings| -> Job<'_> {
                let exchange = verifying.as_ref().map(VerifyingThread::exchange);
                Box::new(move || {
                    receive(
                        readings,
                        hello,
                        &self.interrupt,
                        |buffer, len| match &exchange {
                            Some(exchange) => exchange.hand_over(buffer, len),
                            None => Ok(buffer),
                        },
                    )
                })
            });
            let rate = self.timed(jobs.collect());
            // Its error says more than that it takes no more buffers.
            verifying.map_or(Ok(()), VerifyingThread::join)?;
            rate
        })?;
        Ok(rate.1 * plan.message_share())
    }

    /// Has the rings hold sound batches. Returns how many messages a ring holds at most.
    fn fill_rings(&self, plan: &WallPlan) -> Result<u64> {
        let kind = Kind::Fill {
            message_bytes: plan.message_bytes,
        };
        let mut streams = self.connect(plan, 1)?;
        for stream in &mut streams {
            stream.write_all(&hello(plan, kind, 0).to_bytes())?;
        }
        let mut bytes = 0;
        for stream in &mut streams {
            bytes = answer(stream)?.max(bytes);
        }
        Ok(bytes / u64::from(plan.message_bytes))
    }
}

/// A hello about batches of the plan.
pub(super) fn hello(plan: &WallPlan, kind: Kind, bytes: u64) -> Hello {
    Hello {
        kind,
        batch_bytes: plan.batch() as u32,
        bytes,
    }
}

/// Reads `bytes` bytes and looks at none of them. Returns how many they were.
pub(super) fn drain(
    stream: &mut Stream,
    batch: usize,
    bytes: u64,
    interrupt: &Interrupt,
) -> Result<u64> {
    let mut buffer = vec![0; batch];
    let mut left = bytes;
    while left > 0 {
        interrupt.check()?;
        let n = stream.read(&mut buffer)?;
        ensure!(n > 0, "a receiver ended early");
        left = left.saturating_sub(n as u64);
    }
    Ok(bytes)
}

/// One connection from which batches come.
pub(super) struct Reading {
    stream: Stream,
    batch: usize,
    buffer: Vec<u8>,
    at: usize,
    checker: Checker,
    left: u64,
}

impl Reading {
    pub(super) fn new(stream: Stream, plan: &WallPlan, bytes: u64) -> Self {
        Self {
            stream,
            batch: plan.batch(),
            buffer: vec![1; plan.batch() * plan.batches_at_once()],
            at: 0,
            checker: Checker::default(),
            left: bytes,
        }
    }

    /// Reads once, up to the end of a batch; gives the buffer away when it is full or nothing more comes.
    fn step(&mut self, done: &mut impl FnMut(Vec<u8>, usize) -> Result<Vec<u8>>) -> Result<bool> {
        let begin = self.at / self.batch * self.batch;
        let part = &mut self.buffer[self.at..begin + self.batch];
        let n = match self.stream.read(part) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        ensure!(n > 0, "a receiver ended early");
        self.checker.arrived(&part[..n], self.at - begin);
        self.at += n;
        self.left = self.left.saturating_sub(n as u64);
        if self.at == begin + self.batch {
            let is_sound = self.checker.is_sound(&self.buffer[begin..self.at]);
            ensure!(is_sound, "a batch of the wall is damaged");
            if self.at == self.buffer.len() || self.left == 0 {
                self.buffer = done(std::mem::take(&mut self.buffer), self.at)?;
                self.at = 0;
            }
        }
        Ok(true)
    }
}

/// One receiving thread: reads until all of its connections have given everything. Returns the bytes.
pub(super) fn receive(
    mut readings: Vec<Reading>,
    hello: Hello,
    interrupt: &Interrupt,
    mut done: impl FnMut(Vec<u8>, usize) -> Result<Vec<u8>>,
) -> Result<u64> {
    let bytes = readings.iter().map(|reading| reading.left).sum();
    for reading in &mut readings {
        reading.stream.write_all(&hello.to_bytes())?;
    }
    if let [reading] = readings.as_mut_slice() {
        // Nobody else to look after: the call itself waits.
        while reading.left > 0 {
            interrupt.check()?;
            ensure!(reading.step(&mut done)?, "a receiver is silent");
        }
        return Ok(bytes);
    }
    for reading in &readings {
        reading.stream.set_nonblocking()?;
    }
    while !readings.is_empty() {
        interrupt.check()?;
        let mut moved = false;
        for reading in &mut readings {
            moved |= reading.left > 0 && reading.step(&mut done)?;
        }
        readings.retain(|reading| reading.left > 0);
        if !moved && !readings.is_empty() {
            wait(&readings)?;
        }
    }
    Ok(bytes)
}

/// Waits until one of them has bytes.
fn wait(readings: &[Reading]) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = readings
        .iter()
        .map(|reading| PollFd::new(&reading.stream, PollFlags::IN))
        .collect();
    let limit = Timespec {
        tv_sec: SILENCE_MAX.as_secs() as i64,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&limit)) {
        Ok(0) => Err(anyhow!("the receivers are silent")),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for sockets"),
    }
}
