//! A publishing process: publishes at its pace and reports the outcomes, until its parent stops or kills it.
//!
//! Standard input is its parent's hand: a byte stops it in good order, the end of input at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_client::{Delivery, PublishError, Publisher, Transport};
use serde::{Deserialize, Serialize};

use super::log_client_error::LogClientError;
use super::record::Record;
use super::stamp::{Origin, Writer};

/// Messages announced at once.
const ANNOUNCED: u64 = 256;
/// Wait before it tries again to open: brokers die here.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// How far a publisher that was held up may be behind its pace; what is beyond is left out.
const BEHIND_MAX: Duration = Duration::from_millis(200);
/// Longer than any outage that is no violation: no message may be given up.
const PATIENT: Duration = Duration::from_secs(600);
/// Shorter than most outages: what no broker takes meanwhile is reported as not stored.
const HASTY: Duration = Duration::from_millis(250);

/// The command of the program that runs a publisher; the specification is its argument.
pub const COMMAND: &str = "verify-publisher";

/// One publishing process, as its parent wants it.
#[derive(Debug, Serialize, Deserialize)]
pub struct PublisherSpec {
    /// Addresses of the brokers.
    pub bootstrap: String,
    /// The topic.
    pub topic: String,
    /// The run it belongs to.
    pub run: u32,
    /// Its number.
    pub publisher: u32,
    /// How many processes of this number there were before it.
    pub instance: u32,
    /// Its identity, which all processes of its number have.
    pub producer: u64,
    /// Level of the acknowledgements.
    pub acks: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Bytes of a batch.
    pub batch_bytes: u32,
    /// Messages per second.
    pub rate: f64,
    /// Whether it gives up soon what no broker takes.
    pub hasty: bool,
    /// How it connects, as text.
    pub transport: String,
}

/// Publishes until its parent stops it. `spec` is a [`PublisherSpec`] in JSON.
pub fn run(spec: &str) -> Result<()> {
    let spec: PublisherSpec = serde_json::from_str(spec).context("this is no publisher")?;
    let stop = end_with_parent()?;
    let records = RecordWriter::new()?;
    let Some(publisher) = open(&spec, &records, &stop)? else {
        return records.write(Record::Ended { published: 0 });
    };
    let origin = Origin {
        publisher: spec.publisher,
        instance: spec.instance,
    };
    let writer = Writer::new(spec.run, origin, spec.message_bytes as usize);
    let published = publish(&spec, &publisher, writer, &records, &stop)?;
    match publisher.close() {
        // Each batch that is missing has its record already.
        Err(PublishError::Lost { .. }) if spec.hasty => {}
        Ok(()) => {}
        Err(error) => return Err(error).context("cannot close"),
    }
    records.write(Record::Ended { published })
}

/// Ends this process when its parent closes standard input; says when the parent wrote a byte there.
pub(super) fn end_with_parent() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    thread::Builder::new()
        .name("parent".into())
        .spawn(move || watch_parent(&stopped))?;
    Ok(stop)
}

fn watch_parent(stop: &AtomicBool) {
    let mut input = io::stdin().lock();
    let mut byte = [0];
    while matches!(input.read(&mut byte), Ok(1)) {
        stop.store(true, Ordering::Relaxed);
    }
    std::process::exit(1);
}

/// Writes records to standard output, each by one call, from any thread.
#[derive(Clone)]
struct RecordWriter(Arc<File>);

impl RecordWriter {
    fn new() -> Result<Self> {
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self(Arc::new(output.into())))
    }

    fn write(&self, record: Record) -> Result<()> {
        (&*self.0)
            .write_all(&record.to_bytes())
            .context("the verifier does not read any more")
    }

    fn write_delivery(&self, delivery: &Delivery, acks: u32) {
        let (batch, messages) = (delivery.batch, delivery.messages);
        let record = match &delivery.result {
            Ok(_) if acks == 0 => Record::Sent { batch, messages },
            Ok(position) => Record::Acknowledged {
                batch,
                messages,
                position: *position,
            },
            Err(PublishError::Expired { .. }) => Record::NotStored { batch, messages },
            Err(_) => Record::GivenUp { batch, messages },
        };
        // A verifier that is gone closes standard input, too.
        let _written = self.write(record);
    }
}

/// Opens a publisher, for as long as it takes; `None` when its parent stops it before.
fn open(
    spec: &PublisherSpec,
    records: &RecordWriter,
    stop: &AtomicBool,
) -> Result<Option<Publisher>> {
    while !stop.load(Ordering::Relaxed) {
        let (records, acks) = (records.clone(), spec.acks);
        let opened = Publisher::builder(&spec.bootstrap)
            .topic(&spec.topic)
            .transport(spec.transport.parse::<Transport>()?)
            .producer_id(spec.producer)
            // Its successors use it, too.
            .producer_secret(
                (u128::from(spec.producer) << 64 | u128::from(spec.run) | 1).to_le_bytes(),
            )
            .acks(acks.try_into()?)
            .batch_bytes(spec.batch_bytes as usize)
            .delivery_timeout(if spec.hasty { HASTY } else { PATIENT })
            .auto_create(false)
            .metering(false)
            .on_ack(move |delivery| records.write_delivery(delivery, acks))
            .open();
        match opened {
            Ok(publisher) => return Ok(Some(publisher)),
            Err(error) if LogClientError::from(error.clone()).passes() => {
                thread::sleep(RETRY_AFTER)
            }
            Err(error) => return Err(error).context("cannot open"),
        }
    }
    Ok(None)
}

/// Whether a client may try again: brokers that are being killed do not answer, or cannot serve a request yet.
/// Publishes at the pace until its parent stops it; returns the number of messages.
fn publish(
    spec: &PublisherSpec,
    publisher: &Publisher,
    mut writer: Writer,
    records: &RecordWriter,
    stop: &AtomicBool,
) -> Result<u64> {
    let mut pace = Pace::new(spec.rate);
    let (mut number, mut announced) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        pace.wait();
        if number == announced {
            announced += ANNOUNCED;
            records.write(Record::Announced { below: announced })?;
        }
        match publisher.publish(writer.stamp(number)) {
            Ok(ticket) => {
                if ticket.index() == 0 {
                    let batch = ticket.batch();
                    records.write(Record::Began { batch, number })?;
                }
                number += 1;
            }
            Err(error) if LogClientError::from(error.clone()).passes() => {
                thread::sleep(RETRY_AFTER)
            }
            Err(error) => return Err(error).context("cannot publish"),
        }
    }
    Ok(number)
}

/// So many messages a second, evenly.
struct Pace {
    every: Duration,
    due: Instant,
}

impl Pace {
    /// Sleeps are not much shorter than this, so messages that are due meanwhile leave together.
    const NAP: Duration = Duration::from_millis(1);

    fn new(rate: f64) -> Self {
        Self {
            every: Duration::from_secs_f64(1.0 / rate),
            due: Instant::now(),
        }
    }

    fn wait(&mut self) {
        let now = Instant::now();
        let ahead = self.due.saturating_duration_since(now);
        if ahead >= Self::NAP {
            thread::sleep(ahead);
        }
        let behind = now.saturating_duration_since(self.due);
        if behind > BEHIND_MAX {
            self.due = now - BEHIND_MAX;
        }
        self.due += self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_kept_and_lost_time_is_not_caught_up() {
        let mut pace = Pace::new(2000.0);
        let started = Instant::now();
        (0..100).for_each(|_| pace.wait());
        assert!(started.elapsed() >= Duration::from_millis(40));
        pace.due -= Duration::from_secs(100);
        let before = Instant::now();
        pace.wait();
        assert!(pace.due + BEHIND_MAX >= before);
    }
}
