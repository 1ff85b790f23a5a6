//! One trial of publishing to a topic of its own, alone or while a subscriber reads another topic from its start again and again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use embar_client::WaitProbe;
use embar_supervise::work::Abort;
use serde::Serialize;

use super::publish::{PublishJob, PublishTrial};
use super::read::ReadJob;

/// Messages between two looks at whether the publisher is through.
const LOOK_EVERY: u64 = 1024;
/// How often the publisher's side looks whether the reader has begun.
const WAIT: Duration = Duration::from_millis(1);

/// Publishing, perhaps beside a reader, on a cluster that runs already.
pub struct BesideReaderJob {
    /// What to publish; its topic is made, and deleted at the end.
    pub publish: PublishJob,
    /// What to read meanwhile.
    pub read: Option<ReadJob>,
}

/// What one trial gave.
#[derive(Clone, Debug, Serialize)]
pub struct BesideReaderTrial {
    /// What was published.
    pub publish: PublishTrial,
    /// What was read meanwhile; `None` without a reader.
    pub read_mib_per_s: Option<f64>,
}

impl BesideReaderJob {
    /// Publishes, once the reader has begun, and ends both.
    pub fn run(&self, abort: &Abort) -> Result<BesideReaderTrial> {
        let (publish, read_mib_per_s) = match &self.read {
            None => (self.publish.run(abort)?, None),
            Some(read) => {
                let (publish, rate) = self.run_beside(read, abort)?;
                (publish, Some(rate))
            }
        };
        let admin = self.publish.connector.admin()?;
        admin.delete_topic(&self.publish.plan.topic).wait()?;
        Ok(BesideReaderTrial {
            publish,
            read_mib_per_s,
        })
    }

    fn run_beside(&self, read: &ReadJob, abort: &Abort) -> Result<(PublishTrial, f64)> {
        let (messages, is_over) = (AtomicU64::new(0), Abort::default());
        thread::scope(|scope| {
            let reading = scope.spawn(|| read_again_and_again(read, &messages, &is_over));
            while messages.load(Ordering::Relaxed) == 0 && !reading.is_finished() {
                abort.check()?;
                thread::sleep(WAIT);
            }
            let (began, before) = (Instant::now(), messages.load(Ordering::Relaxed));
            let published = self.publish.run(abort);
            let read_messages = messages.load(Ordering::Relaxed) - before;
            let took = began.elapsed();
            is_over.set();
            // An error of the reader says more than a publisher that was held up by it.
            reading
                .join()
                .map_err(|_| anyhow!("the reader panicked"))??;
            let mib = (read_messages * u64::from(read.message_bytes)) as f64 / f64::from(1 << 20);
            Ok((published?, mib / took.as_secs_f64()))
        })
    }
}

/// Counts what it reads, until it is over.
fn read_again_and_again(read: &ReadJob, messages: &AtomicU64, is_over: &Abort) -> Result<()> {
    while !is_over.is_set() {
        let mut subscriber = read.open(&WaitProbe::new())?;
        let mut unseen = 0;
        while let Some(message) = read.next(&mut subscriber)? {
            read.reader.touch(message.value);
            unseen += 1;
            if unseen == LOOK_EVERY {
                messages.fetch_add(unseen, Ordering::Relaxed);
                unseen = 0;
                if is_over.is_set() {
                    return Ok(());
                }
            }
        }
        messages.fetch_add(unseen, Ordering::Relaxed);
    }
    Ok(())
}
