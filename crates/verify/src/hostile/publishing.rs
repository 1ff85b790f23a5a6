//! What a hostile publisher does once it is greeted.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_memory::{Memory as _, Sealed};
use embar_meter::random::SplitMix64;
use embar_session::RingPools;
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, OpenPublisher, PublisherOpened, Secret};
use embar_wire::limits::BATCH_HEADER_BYTES;
use embar_wire::time::WallNs;

use super::HostileSpec;
use super::raw_stream::{CONSUMED_AT, END, REFERENCE, RawStream, WITHDRAWN_AT};
use crate::bare_session;

/// Bytes of the memory that it hands over.
const MEMORY_BYTES: u64 = 2 << 20;
/// Bytes of a batch.
const BATCH_BYTES: usize = 256 << 10;
/// How long it looks at what comes of an attack.
const LOOKS_FOR: Duration = Duration::from_millis(100);
/// How long it does nothing, or scribbles.
const HOLDS_FOR: Duration = Duration::from_millis(300);

/// A publisher that was opened, with memory that it handed over and goes on writing.
pub struct HostilePublisher {
    stream: RawStream,
    memory: Sealed,
    opened: PublisherOpened,
    producer: u64,
    sequence: u64,
}

impl HostilePublisher {
    /// Opens a publisher of a topic of its own.
    pub fn open(
        path: &Path,
        spec: &HostileSpec,
        rings: &RingPools,
        random: &mut SplitMix64,
    ) -> Result<Self> {
        let memory = Sealed::new(MEMORY_BYTES)?;
        let mut stream = RawStream::connect(path, &[memory.handle()])?;
        let producer = random.next_u64() | 1;
        let request = Control::OpenPublisher(OpenPublisher {
            topic: spec.topic.clone(),
            producer,
            acks: 1,
            instance: random.next_u64() | 1,
            secret: Secret([7; 16]),
            ..OpenPublisher::default()
        });
        let opened = match bare_session::ask(&mut stream, rings, "hostile", &request)? {
            Control::PublisherOpened(opened) => opened,
            other => bail!("{other:?} is no opened publisher"),
        };
        Ok(Self {
            stream,
            memory,
            opened,
            producer,
            sequence: 0,
        })
    }

    fn batch_of(&self, topic: u32, producer: u64, sequence: u64) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Vec::new(), BATCH_BYTES);
        let message = [0xE7; 1000];
        while builder.try_push(None, &[], &message).is_ok() {}
        let fields = SealFields {
            producer,
            sequence,
            topic,
            epoch: self.opened.session_epoch,
            append_time: WallNs(1),
            flags: BatchFlags::default(),
        };
        builder.seal(fields).into()
    }

    fn batch(&mut self) -> Vec<u8> {
        self.sequence += 1;
        self.batch_of(self.opened.topic_id, self.producer, self.sequence - 1)
    }

    /// Puts the frame into the memory, copies its header, and names so many bytes of the rest.
    fn hand_over(&mut self, frame: &[u8], named: usize) -> Result<()> {
        self.memory.write(0, frame);
        self.stream.write_all(&frame[..BATCH_HEADER_BYTES])?;
        let at = BATCH_HEADER_BYTES as u64;
        Ok(self.stream.publish(REFERENCE, 0, named as u32, at)?)
    }

    fn hand_over_all(&mut self, frame: &[u8]) -> Result<()> {
        self.hand_over(frame, frame.len() - BATCH_HEADER_BYTES)
    }

    /// Reads what comes for a while.
    fn look(&mut self) -> Result<()> {
        let deadline = Instant::now() + LOOKS_FOR;
        let mut bytes = [0; 4096];
        while Instant::now() < deadline {
            if self.stream.read(&mut bytes)? == 0 {
                bail!("the broker ended the connection");
            }
        }
        Ok(())
    }

    /// Writes into what it handed over, before, while and after it is copied.
    pub fn scribble(&mut self, random: &mut SplitMix64) -> Result<()> {
        let frame = self.batch();
        self.hand_over_all(&frame)?;
        let until = Instant::now() + HOLDS_FOR;
        while Instant::now() < until {
            for _ in 0..1000 {
                let at = random.below(MEMORY_BYTES / 8) * 8;
                self.memory.store(at, random.next_u64());
            }
        }
        self.look()
    }

    /// Says that a batch is longer than what it names, and goes on with another, or never.
    pub fn lengthen(&mut self, random: &mut SplitMix64) -> Result<()> {
        let frame = self.batch();
        let named = 1 + random.below(frame.len() as u64 / 2) as usize;
        self.hand_over(&frame, named)?;
        if random.below(2) == 0 {
            let next = self.batch();
            self.hand_over_all(&next)?;
            return self.look();
        }
        self.stream.ends_within(HOLDS_FOR);
        Ok(())
    }

    /// A batch whose bytes are not those of its checksum.
    pub fn damage(&mut self, random: &mut SplitMix64) -> Result<()> {
        let mut frame = self.batch();
        let at = random.below(frame.len() as u64) as usize;
        frame[at] ^= 1 << random.below(8);
        self.hand_over_all(&frame)?;
        self.look()
    }

    /// The same batch twice, then others in any order.
    pub fn disorder(&mut self, random: &mut SplitMix64) -> Result<()> {
        let frame = self.batch();
        self.hand_over_all(&frame)?;
        self.stream.publish(REFERENCE, 0, 64, 0)?;
        for _ in 0..8 {
            let (topic, producer) = (self.opened.topic_id, self.producer);
            let sequence = random.next_u64() >> random.below(64);
            let frame = self.batch_of(topic, producer, sequence);
            self.hand_over_all(&frame)?;
        }
        self.look()
    }

    /// Batches of other topics and of other publishers.
    pub fn forge(&mut self, spec: &HostileSpec, random: &mut SplitMix64) -> Result<()> {
        let producer = u64::from(spec.run) << 32 | random.below(spec.publishers.into());
        let (topic, producer) = match random.below(3) {
            0 => (random.below(8) as u32, producer),
            1 => (self.opened.topic_id, producer),
            _ => (random.below(8) as u32, self.producer),
        };
        if (topic, producer) == (self.opened.topic_id, self.producer) {
            return Ok(());
        }
        let frame = self.batch_of(topic, producer, random.below(1000));
        self.hand_over_all(&frame)?;
        self.look()
    }

    /// Records of any kind, place and length; commit words of any number.
    pub fn lie(&mut self, random: &mut SplitMix64) -> Result<()> {
        for _ in 0..4 {
            let place = random.next_u64() >> random.below(64);
            let len = (random.next_u64() >> random.below(64)) as u32;
            match random.below(4) {
                0 => self.stream.commit(random.next_u64() >> random.below(64))?,
                _ => {
                    let (kind, memory) = (random.below(6) as u8, random.below(4) as u8);
                    self.stream.publish(kind, memory, len, place)?;
                }
            }
        }
        self.stream.ends_within(HOLDS_FOR);
        Ok(())
    }

    /// Counts what it never read, or less than it had.
    pub fn miscount(&mut self, random: &mut SplitMix64) -> Result<()> {
        let frame = self.batch();
        self.hand_over_all(&frame)?;
        let said = random.next_u64() >> random.below(64);
        self.stream.own.store(CONSUMED_AT, said);
        self.look()
    }

    /// Takes back what it handed over, at once, and uses it again.
    pub fn withdraw(&mut self, random: &mut SplitMix64) -> Result<()> {
        let frame = self.batch();
        self.hand_over_all(&frame)?;
        self.stream.own.store(WITHDRAWN_AT, 1);
        self.memory
            .write(0, &vec![random.next_u64() as u8; frame.len()]);
        self.stream.ends_within(HOLDS_FOR);
        Ok(())
    }

    /// Ends the stream, and goes on.
    pub fn end_and_go_on(&mut self) -> Result<()> {
        self.stream.publish(END, 0, 0, 0)?;
        let frame = self.batch();
        self.hand_over_all(&frame)?;
        self.stream.ends_within(HOLDS_FOR);
        Ok(())
    }

    /// Publishes, and reads no answer.
    pub fn hear_nothing(&mut self) -> Result<()> {
        for _ in 0..200 {
            let frame = self.batch();
            self.hand_over_all(&frame)
                .context("the broker takes no more")?;
        }
        self.stream.ends_within(HOLDS_FOR);
        Ok(())
    }

    /// Begins a batch and sends no more of it, until it is killed or gives up.
    pub fn begin_only(&mut self) -> Result<()> {
        let frame = self.batch();
        self.memory.write(0, &frame);
        self.stream.write_all(&frame[..BATCH_HEADER_BYTES])?;
        self.stream.ends_within(2 * HOLDS_FOR);
        Ok(())
    }
}
