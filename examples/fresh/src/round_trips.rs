//! Messages there and back, one after the other, by TCP, TLS and QUIC; and as many as fit, one way.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use embar_session::{Flow, Handler, Message, OnFull, Session};
use hdrhistogram::Histogram;

use crate::ends::Ends;

/// Is to come back.
const ECHO: u16 = 1;
/// Is not.
const TAKE: u16 = 2;
/// Round trips that do not count.
const COLD: u32 = 500;
/// Bytes of a message that is sent one way.
const PART_BYTES: usize = 16 << 10;
/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    path: crate::Path,
    /// Round trips
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Bytes of a message
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    bytes: u32,
    /// MiB that go one way after that
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    mib: u32,
}

struct Echo;

impl Handler for Echo {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if message.id() == ECHO {
            let payload = message.payload();
            let _ = session.send_with(ECHO, payload.len(), |to| to.copy_from_slice(payload));
        }
        Flow::Continue
    }
}

struct Told(Sender<()>);

impl Handler for Told {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        let _ = self.0.send(());
        Flow::Continue
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    options.path.make()?;
    let ends = Ends::start(|_| Echo)?;
    println!(
        "{} round trips of {} bytes, {} MiB one way",
        options.count, options.bytes, options.mib
    );
    println!("{:<6} {:>8} {:>8} {:>8}", "", "P50 us", "P99 us", "MiB/s");
    for name in ["TCP", "TLS", "QUIC"] {
        let (told, came) = channel();
        let session = match name {
            "TCP" => ends.by_tcp(Told(told)),
            "TLS" => ends.by_tls(Told(told)),
            _ => ends.by_quic(Told(told)),
        }?;
        session.set_on_full(OnFull::Wait { timeout: PATIENCE });
        let ask = |len: usize| -> Result<()> {
            session.send_with(ECHO, len, |to| to.fill(1))?;
            came.recv_timeout(PATIENCE).context("no answer")
        };
        let mut times = Histogram::<u64>::new(3)?;
        for nth in 0..COLD + options.count {
            let began = Instant::now();
            ask(options.bytes as usize)?;
            if nth >= COLD {
                times.record(u64::try_from(began.elapsed().as_nanos())?)?;
            }
        }
        let began = Instant::now();
        let parts = (options.mib as usize) << 20 >> PART_BYTES.trailing_zeros();
        for _ in 0..parts {
            session.send_with(TAKE, PART_BYTES, |to| to.fill(1))?;
        }
        // All before it has been handled when this is back.
        ask(0)?;
        let rate = f64::from(options.mib) / began.elapsed().as_secs_f64();
        let [p50, p99] = [0.5, 0.99].map(|part| times.value_at_quantile(part) as f64 / 1000.0);
        println!("{name:<6} {p50:>8.1} {p99:>8.1} {rate:>8.0}");
    }
    Ok(())
}
