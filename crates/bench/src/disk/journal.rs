//! The log's journal of commits, with batches that are there already: what the format costs beside bare writes.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use embar_broker::journal::facts::ABOUT_TOPIC;
use embar_broker::topics::Topic;
use embar_console::interrupt::Interrupt;
use embar_disk::format::{ALIGN_BYTES, Run, segment_number};
use embar_disk::recover::{Sight, recover};
use embar_disk::{
    AlignedBuffer, Chain, Commit, CommitBuilder, Directory, Journal, Position, Progress, Refused,
    Storage, StoredFile, begin_segment, prepare_segment,
};
use embar_wire::batch::{BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;
use embar_wire::topic::Order;

use super::wall::{Measured, random_bytes};

/// The disk whose journals these are.
pub const DISK: [u8; 16] = *b"a disk in a test";
/// Bytes of a segment.
pub const SEGMENT_BYTES: u64 = 256 << 20;
/// Bytes that a commit gathers if its batches are smaller.
const COMMIT_BYTES: usize = 4 << 20;
/// Threads, each of which gathers a commit and writes it.
const DEPTH: usize = 3;
/// Bytes of a message.
const MESSAGE_BYTES: usize = 1 << 10;
/// What the journals hold.
pub const CHAIN: Chain = Chain {
    topic: 1,
    row: Run::ORDERED,
};

/// What the threads share.
struct Writer<'a> {
    directory: &'a Directory,
    journal: Journal,
    file: Option<std::sync::Arc<<Directory as Storage>::File>>,
    header: BatchHeader,
    left: u64,
    counts: Vec<Progress>,
    /// A thread ended with an error: what it had on its way never counts, and nobody waits for it.
    has_failed: bool,
    each_ns: Vec<u64>,
}

impl Writer<'_> {
    /// Begins the next segment, when nothing is on its way.
    fn begin_segment(&mut self) -> Result<()> {
        let (number, _) = self.journal.next_segment();
        let file = prepare_segment(self.directory, self.journal.next_segment())?;
        begin_segment(&mut self.journal, &file, number + 1, 0)?;
        self.file = Some(std::sync::Arc::new(file));
        Ok(())
    }

    /// As many of the batches that are left as one commit takes.
    fn gather(&mut self, buffer: AlignedBuffer, payload: &[u8]) -> Result<CommitBuilder> {
        let mut builder = CommitBuilder::new(buffer);
        let mut next = self.journal.next_of(CHAIN);
        if next == 0 {
            say_topic(&mut builder)?;
        }
        let batch_bytes = u64::from(self.header.frame_len());
        while self.left > 0 && (builder.is_empty() || builder.bytes() < COMMIT_BYTES) {
            self.header.stamp(next, WallNs(1));
            let copy = |into: &mut [u8]| into.copy_from_slice(payload);
            match builder.batch(CHAIN.row, &self.header, copy) {
                Ok(()) => {}
                Err(Refused::Full) if !builder.is_empty() => break,
                Err(refused) => return Err(refused.into()),
            }
            next += u64::from(self.header.message_count());
            self.left = self.left.saturating_sub(batch_bytes);
        }
        Ok(builder)
    }
}

/// Says what the topic is: who takes a disk over takes batches of topics that are known.
pub fn say_topic(builder: &mut CommitBuilder) -> Result<(), Refused> {
    let topic = Topic {
        id: CHAIN.topic,
        name: "bench".into(),
        order: Order::TotalPerPublisher,
        retention_bytes: 0,
        retention_ms: 0,
        max_message_bytes: MAX_BATCH_BYTES,
        created: WallNs(1),
        disks: 1,
        former_disks: 0,
        moves: 0,
    };
    builder.fact(ABOUT_TOPIC, topic.id.into(), &topic.encode())
}

/// A batch of about so many bytes.
fn batch(batch_bytes: u32) -> Result<Vec<u8>> {
    let mut builder = BatchBuilder::new(Vec::new(), batch_bytes as usize);
    let room = (batch_bytes as usize).saturating_sub(2 * BATCH_HEADER_BYTES);
    let mut value = vec![0; MESSAGE_BYTES.min(room.max(1))];
    random_bytes(&mut value);
    while builder.try_push(None, &[], &value).is_ok() {}
    ensure!(
        !builder.is_empty(),
        "a batch of {batch_bytes} bytes holds no message"
    );
    let fields = SealFields {
        topic: CHAIN.topic,
        ..SealFields::default()
    };
    Ok(builder.seal(fields).into())
}

/// Writes a journal into a directory that has none.
pub fn write(
    directory: &Directory,
    bytes: u64,
    batch_bytes: u32,
    interrupt: &Interrupt,
) -> Result<Measured> {
    remove(directory)?;
    let frame = batch(batch_bytes)?;
    let payload = &frame[BATCH_HEADER_BYTES..];
    let header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).context("a batch of our own")?;
    let mut writer = Writer {
        directory,
        journal: Journal::new(DISK, (1, 1), SEGMENT_BYTES, Position::default()),
        file: None,
        header,
        left: bytes,
        counts: Vec::new(),
        has_failed: false,
        each_ns: Vec::new(),
    };
    writer.begin_segment()?;
    let buffer_bytes = COMMIT_BYTES.max(CommitBuilder::bytes_for(header.frame_len())) + ALIGN_BYTES;
    let buffers: Vec<_> = (0..DEPTH)
        .map(|_| AlignedBuffer::new(buffer_bytes))
        .collect();
    let (writer, synced) = (Mutex::new(writer), Condvar::new());
    let began = Instant::now();
    thread::scope(|scope| {
        let threads = buffers.into_iter().map(|buffer| {
            let (writer, synced) = (&writer, &synced);
            scope.spawn(move || {
                let done = work(writer, synced, buffer, payload, interrupt);
                if done.is_err()
                    && let Ok(mut state) = writer.lock()
                {
                    state.has_failed = true;
                    synced.notify_all();
                }
                done
            })
        });
        let threads: Vec<_> = threads.collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        let ends = ends.map(|end| end.map_err(|_| anyhow!("a thread panicked"))?);
        ends.collect::<Result<Vec<()>>>()
    })?;
    let took = began.elapsed();
    let writer = writer
        .into_inner()
        .map_err(|_| anyhow!("a thread panicked"))?;
    let messages = writer.journal.next_of(CHAIN);
    let batches = messages / u64::from(header.message_count());
    Ok(Measured {
        bytes: batches * u64::from(header.frame_len()),
        took,
        each_ns: writer.each_ns,
    })
}

/// Gathers and writes until nothing is left. While others write, one gathers.
fn work(
    writer: &Mutex<Writer>,
    synced: &Condvar,
    mut buffer: AlignedBuffer,
    payload: &[u8],
    interrupt: &Interrupt,
) -> Result<()> {
    let lock = || writer.lock().map_err(|_| anyhow!("a thread panicked"));
    loop {
        interrupt.check()?;
        let mut state = lock()?;
        if state.left == 0 || state.has_failed {
            return Ok(());
        }
        if state.journal.room() < buffer.len() {
            while state.journal.in_flight() > 0 && !state.has_failed {
                state = synced
                    .wait(state)
                    .map_err(|_| anyhow!("a thread panicked"))?;
            }
            if state.has_failed {
                return Ok(());
            }
            if state.journal.room() < buffer.len() {
                state.begin_segment()?;
            }
        }
        let builder = state.gather(buffer, payload)?;
        buffer = write_one(state, builder, &lock)?;
        synced.notify_all();
    }
}

fn write_one<'a, 'b: 'a>(
    mut state: MutexGuard<'a, Writer<'b>>,
    builder: CommitBuilder,
    lock: &dyn Fn() -> Result<MutexGuard<'a, Writer<'b>>>,
) -> Result<AlignedBuffer> {
    let commit = state.journal.seal(builder, 1);
    let file = state.file.clone().context("a segment was begun")?;
    drop(state);
    let Commit {
        at,
        buffer,
        len,
        ticket,
        ..
    } = commit;
    let began = Instant::now();
    file.write_synced(at, &buffer, len)
        .context("cannot write")?;
    let took = began.elapsed().as_nanos() as u64;
    let mut state = lock()?;
    let state = &mut *state;
    state.counts.clear();
    state.journal.synced(ticket, &mut state.counts);
    state.each_ns.push(took);
    Ok(buffer)
}

/// Finds out what the journal in a directory has.
pub fn read_back(directory: &Directory, batch_bytes: u32) -> Result<Measured> {
    let header = batch(batch_bytes)?;
    let header = BatchHeader::parse(&header, MAX_BATCH_BYTES).context("a batch of our own")?;
    let mut batches = 0;
    let began = Instant::now();
    recover(directory, &DISK, &mut |sight| {
        batches += u64::from(matches!(sight, Sight::Batch(..)))
    })?;
    Ok(Measured {
        bytes: batches * u64::from(header.frame_len()),
        took: began.elapsed(),
        each_ns: Vec::new(),
    })
}

fn remove(directory: &Directory) -> Result<()> {
    for name in directory.names()? {
        if segment_number(&name).is_some() {
            directory.remove(&name)?;
        }
    }
    Ok(directory.sync_names()?)
}
