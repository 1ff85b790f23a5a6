//! The walls of reading: receiving processes send from their rings, threads of this process take what they send.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use embar_console::interrupt::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::drive::{BUFFERS_PER_CONNECTION, Job, Receivers, SILENCE_MAX, WallPlan};
use super::publishing::answer;
use super::stream::Stream;
use super::wire::{BATCH_HEAD_BYTES, Checker, Hello, Kind};
use crate::stamp::Verifier;

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
        let buffers = streams.len() * (BUFFERS_PER_CONNECTION + 1);
        let mut shares: Vec<Vec<Reading>> = Vec::new();
        shares.resize_with(
            usize::from(plan.read_threads).clamp(1, streams.len()),
            Vec::new,
        );
        let threads = shares.len();
        for (index, stream) in streams.into_iter().enumerate() {
            shares[index % threads].push(Reading::new(stream, plan, share));
        }
        let (full_in, full_out) = channel::<Vec<u8>>();
        let (free_in, free_out) = sync_channel::<Vec<u8>>(buffers);
        for _ in 0..buffers {
            free_in.send(vec![1; plan.batch() * plan.batches_at_once()])?;
        }
        let free_out = &Mutex::new(free_out);
        let rate = thread::scope(move |scope| {
            let consumer =
                verified.then(|| scope.spawn(move || verify(plan, messages, &full_out, &free_in)));
            let jobs = shares.into_iter().map(|readings| -> Job<'_> {
                let full_in = verified.then(|| full_in.clone());
                Box::new(move || {
                    receive(
                        readings,
                        hello,
                        &self.interrupt,
                        |buffer, len| match &full_in {
                            Some(full_in) => hand_over(buffer, len, full_in, free_out),
                            None => Ok(buffer),
                        },
                    )
                })
            });
            let jobs = jobs.collect();
            drop(full_in);
            let rate = self.timed(jobs);
            // Its error says more than that it takes no more buffers.
            consumer.map_or(Ok(()), |consumer| {
                consumer
                    .join()
                    .map_err(|_| anyhow!("the verifying thread panicked"))?
            })?;
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
struct Reading {
    stream: Stream,
    batch: usize,
    buffer: Vec<u8>,
    at: usize,
    checker: Checker,
    left: u64,
}

impl Reading {
    fn new(stream: Stream, plan: &WallPlan, bytes: u64) -> Self {
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
fn receive(
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

fn hand_over(
    mut buffer: Vec<u8>,
    len: usize,
    full: &Sender<Vec<u8>>,
    free: &Mutex<Receiver<Vec<u8>>>,
) -> Result<Vec<u8>> {
    let whole = buffer.len();
    buffer.truncate(len);
    let over = "the verifying thread ended early";
    full.send(buffer).ok().context(over)?;
    let free = free.lock().unwrap_or_else(PoisonError::into_inner);
    let mut buffer = free.recv().ok().context(over)?;
    buffer.resize(whole, 1);
    Ok(buffer)
}

/// The application thread: checks each message of each batch that it gets.
fn verify(
    plan: &WallPlan,
    messages: u64,
    full: &Receiver<Vec<u8>>,
    free: &SyncSender<Vec<u8>>,
) -> Result<()> {
    let message_bytes = plan.message_bytes as usize;
    let mut verifier = Verifier::new(message_bytes, messages);
    while let Ok(buffer) = full.recv() {
        for batch in buffer.chunks_exact(plan.batch()) {
            for message in batch[BATCH_HEAD_BYTES..].chunks_exact(message_bytes) {
                let is_sound = verifier.check(message).is_some();
                ensure!(is_sound, "a message of the wall is damaged");
            }
        }
        // The reading threads may be done already.
        let _wanted = free.send(buffer);
    }
    Ok(())
}
