//! `embar consume`: prints the messages of a topic.

mod json;
mod template;
mod text;

use std::io::{self, BufWriter, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use embar_client::WaitReason;
use embar_client::{
    Isolation, Message, OnEvicted, Positions, ReadError, Start, Subscriber, Wait, WaitProbe,
};
use embar_console::size::parse_duration;
use embar_console::waiting::WaitRemarks;

use self::template::{Fields, Template};
use crate::connect::{ConnectArgs, tell_profiles};
use crate::context::Context;
use crate::exit;

/// How soon a signal is noticed while no message comes, and buffered output is written.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often the subscriber is asked why no message comes: each time wakes its thread.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Bytes written at once.
const OUTPUT_BYTES: usize = 256 << 10;

/// Print the messages of a topic
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar consume numbers --from start --count 10
  embar consume numbers --follow                         what comes from now on, until Ctrl-C
  embar consume users --from start --format '%k=%v\\n'
  embar consume numbers --from 1:4096,2:0,3:77           go on from these offsets, by broker
  embar consume payments --from 4096                     go on from there: topics of order 2 and 5
  embar consume payments --follow --isolation latest     before the disks have it, too

Without --follow it ends at the end of the topic as it was at the start. After a second without
a message standard error says whom it waits for.

Format: %v value, %k key, %o offset, %b broker, %t append time (ns since 1970), %h headers
(name=value,...), %%; \\n \\t \\r \\0 \\\\ \\xHH. Messages of topics of order 2 and 5 have one
order over all brokers: %o is the place in it, and %b is empty.

JSON, one object per message: broker (not at order 2 and 5), offset, time_ns, key (null if there is
none), value, headers (name: value). Bytes that are not UTF-8 are given in base64, under key_base64
and value_base64; header values as {\"base64\": ...}.")]
pub struct ConsumeArgs {
    /// Topic to read
    topic: String,
    /// start, end, offsets by broker as BROKER:OFFSET,..., or one OFFSET at order 2 and 5 [default: end with --follow,
    /// else start]
    #[arg(long, value_name = "WHERE")]
    from: Option<From>,
    /// End after so many messages
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Wait for new messages at the end
    #[arg(short, long)]
    follow: bool,
    /// Up to where a topic that is on disks is read. durable: what all of its disks have; latest: everything that is readable,
    /// of which a loss of power may take back the last
    #[arg(long, value_name = "WHICH", default_value_t)]
    isolation: Isolation,
    /// How each message is printed
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "%v\\n",
        conflicts_with = "json"
    )]
    format: String,
    /// Fail when no message comes for this long
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// How long a broker may be out of reach before that is an error
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    loss_timeout: Duration,
    /// How long finding the cluster and the topic may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    open_timeout: Duration,
    /// How long a thread looks for what comes before it sleeps, at the price of a busy core; 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    spin: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Where to start.
#[derive(Clone, Debug, PartialEq, Eq)]
enum From {
    Start,
    End,
    At(Positions),
}

impl std::str::FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            _ => match text.parse::<Positions>() {
                Ok(positions) if !positions.is_empty() => Ok(Self::At(positions)),
                Ok(_) => Err("write start, end, BROKER:OFFSET,... or OFFSET".into()),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

/// Prints until the end, the count, a signal, or the reader of the output is gone.
pub fn run(args: &ConsumeArgs, context: &Context) -> Result<()> {
    tell_profiles(context);
    let template = Template::parse(&args.format)?;
    let probe = WaitProbe::new();
    let mut subscriber = open(args, &probe, context)?;
    let stdout = io::stdout().lock();
    let eager = stdout.is_terminal();
    let mut printer = Printer {
        out: BufWriter::with_capacity(OUTPUT_BYTES, stdout),
        template,
        json: context.output.is_json(),
    };
    let mut waiting = Waiting {
        probe,
        limit: args.timeout,
        remarks: WaitRemarks::default(),
        last_message: Instant::now(),
        asked: None,
        said_end: false,
    };
    let printed = print_all(
        args,
        &mut subscriber,
        &mut printer,
        (eager, &mut waiting),
        context,
    );
    let flushed = printer.out.flush().map_err(exit::output);
    printed.and(flushed)
}

fn open(args: &ConsumeArgs, probe: &WaitProbe, context: &Context) -> Result<Subscriber> {
    let _reporter = args.connect.connector(context).report_waits(probe, None);
    let start = match &args.from {
        Some(From::Start) => Start::Earliest,
        Some(From::End) => Start::Latest,
        Some(From::At(positions)) => Start::Positions(positions.clone()),
        None if args.follow => Start::Latest,
        None => Start::Earliest,
    };
    let subscriber = Subscriber::builder(&args.connect.bootstrap)
        .transport(args.connect.transport)
        .spin(args.spin)
        .topic(&args.topic)
        .from(start)
        .isolation(args.isolation)
        .until_end(!args.follow)
        .on_evicted(OnEvicted::Fail)
        .loss_timeout(args.loss_timeout)
        .open_timeout(args.open_timeout)
        .wait_probe(probe)
        .open()?;
    Ok(subscriber)
}

fn print_all(
    args: &ConsumeArgs,
    subscriber: &mut Subscriber,
    printer: &mut Printer<impl Write>,
    (eager, waiting): (bool, &mut Waiting),
    context: &Context,
) -> Result<()> {
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        context.work.interrupt.check()?;
        match subscriber.next_timeout(LOOK_EVERY) {
            Ok(Some(message)) => {
                printer.print(&message).map_err(exit::output)?;
                waiting.last_message = Instant::now();
                left -= 1;
            }
            Ok(None) => return Ok(()),
            Err(ReadError::TimedOut { .. }) => {
                printer.out.flush().map_err(exit::output)?;
                waiting.go_on(context)?;
            }
            Err(error) => return Err(error.into()),
        }
        if eager {
            printer.out.flush().map_err(exit::output)?;
        }
    }
    Ok(())
}

/// No message comes.
struct Waiting {
    probe: WaitProbe,
    limit: Option<Duration>,
    remarks: WaitRemarks,
    last_message: Instant,
    asked: Option<Instant>,
    /// Messages may come one by one: that there are no more for now is said once.
    said_end: bool,
}

impl Waiting {
    /// Says why, once; an error when the time is up.
    fn go_on(&mut self, context: &Context) -> Result<()> {
        let waited = self.last_message.elapsed();
        if let Some(limit) = self.limit.filter(|limit| waited >= *limit) {
            bail!("no message for {limit:?}");
        }
        let now = Instant::now();
        if self
            .asked
            .is_some_and(|at| now.duration_since(at) < ASK_EVERY)
        {
            return Ok(());
        }
        self.asked = Some(now);
        // The consumer's own time may have gone into writing to a slow reader.
        let waits = self.probe.waiting_for().map(|it| Wait {
            elapsed: it.elapsed.min(waited),
            ..it
        });
        let is_end = |it: &Wait| {
            it.parties
                .iter()
                .all(|it| it.reason == WaitReason::Messages)
        };
        let is_end = waits.as_ref().is_some_and(is_end);
        if is_end && self.said_end {
            return Ok(());
        }
        if let Some(text) = self.remarks.next(waits.as_ref(), self.limit, now) {
            self.said_end |= is_end;
            context.note(text);
        }
        Ok(())
    }
}

struct Printer<W> {
    out: W,
    template: Template,
    json: bool,
}

impl<W: Write> Printer<W> {
    fn print(&mut self, message: &Message<'_>) -> io::Result<()> {
        let fields = Fields {
            key: message.key,
            value: message.value,
            broker: message.broker,
            offset: message.offset,
            time_ns: message.append_time.0,
            headers: message
                .headers
                .map(|header| (header.name.as_bytes(), header.value)),
        };
        if self.json {
            json::write(&mut self.out, &fields)
        } else {
            self.template.write(&mut self.out, &fields)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_start() {
        assert_eq!("start".parse(), Ok(From::Start));
        assert_eq!("end".parse(), Ok(From::End));
        let From::At(positions) = "1:4096,2:0".parse().expect("positions") else {
            panic!("not positions")
        };
        assert_eq!(positions.next(1), Some(4096));
        assert_eq!("77".parse(), Ok(From::At(Positions::at(77))));
        for text in ["", "beginning", "-1", "1:x"] {
            assert!(text.parse::<From>().is_err(), "{text}");
        }
    }
}
