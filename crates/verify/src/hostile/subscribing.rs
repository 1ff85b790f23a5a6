//! What a hostile subscriber does once it is greeted.

use std::io::Read as _;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use embar_memory::Memory as _;
use embar_meter::random::SplitMix64;
use embar_session::RingPools;
use embar_wire::control::{Control, StartAt, Subscribe};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;

use super::greeting::write_where_only_reading_is_allowed;
use super::raw_stream::{ASLEEP_AT, CONSUMED_AT, RawStream};
use crate::bare_session;

/// How long it does what it does.
const HOLDS_FOR: Duration = Duration::from_millis(500);

/// A subscriber of the topic that honest clients use.
pub struct HostileSubscriber {
    stream: RawStream,
}

impl HostileSubscriber {
    /// Subscribes from anywhere.
    pub fn open(
        path: &Path,
        topic: &str,
        rings: &RingPools,
        random: &mut SplitMix64,
    ) -> Result<Self> {
        let mut stream = RawStream::connect(path, &[])?;
        let start = match random.below(3) {
            0 => StartAt::Earliest,
            1 => StartAt::Latest,
            _ => StartAt::Offset(random.next_u64() >> random.below(64)),
        };
        let request = Control::Subscribe(Subscribe {
            topic: topic.into(),
            start,
            topic_id: 0,
            share: Share::All,
            isolation: Isolation::Durable,
        });
        match bare_session::ask(&mut stream, rings, "hostile", &request)? {
            Control::Subscribed(_) => Ok(Self { stream }),
            other => bail!("{other:?} is no subscription"),
        }
    }

    /// Takes nothing, and holds all that it was given.
    pub fn hold(&mut self) -> Result<()> {
        self.stream.ends_within(4 * HOLDS_FOR);
        Ok(())
    }

    /// Takes for a while, and then counts more or less than there was.
    pub fn miscount(&mut self, random: &mut SplitMix64) -> Result<()> {
        let mut bytes = vec![0; 64 << 10];
        for _ in 0..random.below(50) {
            if self.stream.read(&mut bytes)? == 0 {
                bail!("the broker ended the connection");
            }
        }
        let until = Instant::now() + HOLDS_FOR;
        while Instant::now() < until && self.stream.is_alive() {
            let said = random.next_u64() >> random.below(64);
            self.stream.own.store(CONSUMED_AT, said);
        }
        Ok(())
    }

    /// Falls asleep and wakes as fast as it can, so that it is rung for without end.
    pub fn nap(&mut self, random: &mut SplitMix64) -> Result<()> {
        let until = Instant::now() + HOLDS_FOR;
        while Instant::now() < until {
            for _ in 0..1000 {
                self.stream.own.store(ASLEEP_AT, random.next_u64());
                self.stream.own.store(ASLEEP_AT + 8, random.below(1 << 20));
            }
        }
        Ok(())
    }

    /// Tries to write where it may only read.
    pub fn overwrite(&mut self) -> Result<()> {
        write_where_only_reading_is_allowed(self.stream.peer.as_fd())
    }

    /// Sends frames that are none.
    pub fn babble(&mut self, random: &mut SplitMix64) -> Result<()> {
        let bytes: Vec<u8> = (0..1 + random.below(5000))
            .map(|_| random.next_u64() as u8)
            .collect();
        self.stream.write_all(&bytes)?;
        self.stream.ends_within(HOLDS_FOR);
        Ok(())
    }
}
