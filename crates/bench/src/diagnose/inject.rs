//! Faults that a run is given on purpose, to see whether a diagnosis names them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use embar_client::Transport;
use embar_console::setting::BadSetting;
use embar_console::size::{Size, parse_duration, show_duration};
use embar_diagnose::Cause;
use embar_diagnose::observed::Flow;
use embar_meter::random::SplitMix64;

/// A fault, with its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The application publishes no more than these bytes a second.
    SlowSender(Size),
    /// The application reads no more than these bytes a second.
    SlowReader(Size),
    /// Brokers ask for receive buffers of this size (`SO_RCVBUF`).
    SmallRcvbuf(Size),
    /// Brokers ask for send buffers of this size (`SO_SNDBUF`), to subscribers.
    SmallSndbuf(Size),
    /// This many threads of another process do nothing but compute.
    CpuHog(u32),
    /// Brokers and client together may use so many percent of one processor.
    CpuQuota(u32),
    /// One broker stands still for so many percent of the time.
    HotBroker(u32),
    /// Batches of this size.
    SmallBatches(Size),
    /// The application waits for each message, and batches wait so long to be filled.
    LongLinger(Duration),
    /// Connections may have so many batches on their way.
    FewInFlight(u32),
    /// So many threads publish, so many serve each broker's connections, and each broker has as many.
    ManyThreads(u32),
    /// The network carries these bytes a second.
    NetRate(Size),
    /// Each packet is so long on its way.
    NetDelay(Duration),
    /// The network loses this part of the packets.
    NetLoss(Share),
    /// Brokers have not touched their memory before, and neither has the load.
    ColdMemory,
}

/// A part of a whole, in hundred-thousandths: a percentage with three digits after the point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    const WHOLE: u32 = 100_000;

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether chance takes one that belongs to this part.
    pub fn takes(self, random: &mut SplitMix64) -> bool {
        random.below(Self::WHOLE.into()) < self.0.into()
    }
}

impl FromStr for Share {
    type Err = std::num::ParseFloatError;

    /// From a percentage; what is no part of a whole is all of it, or nothing.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent: f64 = text.parse()?;
        let parts = (percent / 100.0 * f64::from(Self::WHOLE)).round();
        // A cast takes what is out of range to its end, and what is no number to zero.
        Ok(Self((parts as u32).min(Self::WHOLE)))
    }
}

impl fmt::Display for Share {
    /// As a percentage.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) * 100.0 / f64::from(Self::WHOLE))
    }
}

/// Delays that threads can keep, and that connections survive.
pub const NET_DELAY: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_secs(1);
/// Where connections still live.
pub const NET_LOSS: std::ops::RangeInclusive<Share> = Share(1)..=Share(Share::WHOLE / 2);

/// The names, with a value as an example, and what they do.
const KNOWN: [(&str, &str, &str); 15] = [
    (
        "slow-sender",
        "200MiB",
        "publish no more than this a second",
    ),
    ("slow-reader", "200MiB", "read no more than this a second"),
    ("small-rcvbuf", "43690", "SO_RCVBUF of brokers"),
    (
        "small-sndbuf",
        "16KiB",
        "SO_SNDBUF of brokers, to subscribers",
    ),
    (
        "cpu-hog",
        "2",
        "threads of another process that only compute",
    ),
    (
        "cpu-quota",
        "80",
        "percent of one processor for brokers and client together (root)",
    ),
    (
        "hot-broker",
        "60",
        "percent of the time in which one broker stands still",
    ),
    ("small-batches", "4KiB", "bytes of a batch"),
    (
        "long-linger",
        "20ms",
        "linger, with an application that waits for each message",
    ),
    (
        "few-in-flight",
        "1",
        "batches that a connection may have on their way",
    ),
    ("many-threads", "4", "threads of each kind"),
    (
        "net-rate",
        "100MiB",
        "what the network carries in a second (root)",
    ),
    (
        "net-delay",
        "2ms",
        "how long each packet is on its way, in each direction (root)",
    ),
    (
        "net-loss",
        "1",
        "percent of the packets that the network loses (root)",
    ),
    (
        "cold-memory",
        "",
        "brokers that have not touched their memory, and no warm-up: --region-size 4GiB and more",
    ),
];

impl Fault {
    /// What a diagnosis should name.
    pub fn cause(self) -> Cause {
        match self {
            Self::SlowSender(_) => Cause::ApplicationTooSlow,
            Self::SlowReader(_) => Cause::SlowSubscriber,
            Self::SmallRcvbuf(_) => Cause::ReceiveWindowTooSmall,
            Self::SmallSndbuf(_) => Cause::SendBufferTooSmall,
            Self::CpuHog(_) => Cause::ProcessorsTakenByOthers,
            Self::CpuQuota(_) => Cause::ProcessorQuota,
            Self::HotBroker(_) => Cause::HotBroker,
            Self::SmallBatches(_) => Cause::BatchesTooSmall,
            Self::LongLinger(_) => Cause::LingerTooLong,
            Self::FewInFlight(_) => Cause::TooFewInFlight,
            Self::ManyThreads(_) => Cause::MoreThreadsThanCores,
            Self::NetRate(_) => Cause::NetworkRateLimit,
            Self::NetDelay(_) => Cause::NetworkDelay,
            Self::NetLoss(_) => Cause::NetworkLoss,
            Self::ColdMemory => Cause::ColdMemory,
        }
    }

    /// Refuses a fault that would change nothing, with this direction and by this transport.
    pub fn must_act(self, flow: Flow, transport: Transport) -> Result<(), BadSetting> {
        let refused = |setting, why: &str| {
            let why = format!("{} would change nothing: {why}", self.name());
            Err(BadSetting::new(setting, why))
        };
        let (publishes, reads, by_tcp) = match self {
            Self::SlowSender(_) | Self::LongLinger(_) | Self::FewInFlight(_) => {
                (true, false, false)
            }
            Self::SmallRcvbuf(_) => (true, false, true),
            // What is read was published before, so it was touched.
            Self::ColdMemory => (true, false, false),
            Self::SlowReader(_) => (false, true, false),
            Self::SmallSndbuf(_) => (false, true, true),
            Self::NetRate(_) | Self::NetDelay(_) | Self::NetLoss(_) => (false, false, true),
            _ => (false, false, false),
        };
        if publishes && !flow.publishes() {
            return refused(&["flow"], "nobody publishes; --flow publish or both");
        }
        if reads && !flow.reads() {
            return refused(&["flow"], "nobody reads; --flow read or both");
        }
        if by_tcp && transport != Transport::Tcp {
            return refused(&["transport"], "it is of TCP; --transport tcp");
        }
        Ok(())
    }

    /// The names that there are, for help and errors.
    pub fn help() -> String {
        let line = |(name, example, does): &(&str, &str, &str)| {
            format!("  {:<22} {does}", written(name, example))
        };
        KNOWN.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn name(self) -> &'static str {
        match self {
            Self::SlowSender(_) => "slow-sender",
            Self::SlowReader(_) => "slow-reader",
            Self::SmallRcvbuf(_) => "small-rcvbuf",
            Self::SmallSndbuf(_) => "small-sndbuf",
            Self::CpuHog(_) => "cpu-hog",
            Self::CpuQuota(_) => "cpu-quota",
            Self::HotBroker(_) => "hot-broker",
            Self::SmallBatches(_) => "small-batches",
            Self::LongLinger(_) => "long-linger",
            Self::FewInFlight(_) => "few-in-flight",
            Self::ManyThreads(_) => "many-threads",
            Self::NetRate(_) => "net-rate",
            Self::NetDelay(_) => "net-delay",
            Self::NetLoss(_) => "net-loss",
            Self::ColdMemory => "cold-memory",
        }
    }
}

impl fmt::Display for Fault {
    /// As it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::SlowSender(size)
            | Self::SlowReader(size)
            | Self::SmallRcvbuf(size)
            | Self::SmallSndbuf(size)
            | Self::SmallBatches(size)
            | Self::NetRate(size) => write!(f, "{name}={}", exactly(*size)),
            Self::CpuHog(number)
            | Self::CpuQuota(number)
            | Self::HotBroker(number)
            | Self::FewInFlight(number)
            | Self::ManyThreads(number) => write!(f, "{name}={number}"),
            Self::LongLinger(time) | Self::NetDelay(time) => {
                write!(f, "{name}={}", show_duration(*time))
            }
            Self::NetLoss(share) => write!(f, "{name}={share}"),
            Self::ColdMemory => f.write_str(name),
        }
    }
}

/// A fault as it is written on the command line; some have no value.
pub fn written(name: &str, value: &str) -> String {
    match value {
        "" => name.to_owned(),
        value => format!("{name}={value}"),
    }
}

/// A size that is read as the same number of bytes.
pub fn exactly(size: Size) -> String {
    let text = size.to_string();
    if text.parse() == Ok(size) {
        text
    } else {
        size.0.to_string()
    }
}

/// Why a text is no fault.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseFaultError {
    /// There is no such fault.
    #[error("{name:?} cannot be injected; what can be:\n{}", Fault::help())]
    Unknown {
        /// As given.
        name: String,
    },
    /// It has no value, or one that makes no sense.
    #[error("{name}: {why}; write for instance {example}")]
    Value {
        /// The fault.
        name: &'static str,
        /// What is wrong.
        why: String,
        /// One that works.
        example: String,
    },
}

impl FromStr for Fault {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, ParseFaultError> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let known = KNOWN.iter().find(|(known, ..)| *known == name);
        let Some(&(name, example, _)) = known else {
            return Err(ParseFaultError::Unknown { name: name.into() });
        };
        let wrong = |why: String| ParseFaultError::Value {
            name,
            why,
            example: written(name, example),
        };
        let size = |least: u64| {
            let size: Size = value.parse().map_err(|it| wrong(format!("{it}")))?;
            if size.0 < least {
                return Err(wrong(format!("{value:?} is less than {}", Size(least))));
            }
            Ok(size)
        };
        let number = |range: std::ops::RangeInclusive<u32>| {
            let number = value.parse().ok().filter(|it| range.contains(it));
            number.ok_or_else(|| {
                wrong(format!(
                    "{value:?} is no number from {} to {}",
                    range.start(),
                    range.end()
                ))
            })
        };
        Ok(match name {
            "slow-sender" => Self::SlowSender(size(1024)?),
            "slow-reader" => Self::SlowReader(size(1024)?),
            "small-rcvbuf" => Self::SmallRcvbuf(size(1)?),
            "small-sndbuf" => Self::SmallSndbuf(size(1)?),
            "cpu-hog" => Self::CpuHog(number(1..=64)?),
            "cpu-quota" => Self::CpuQuota(number(5..=6400)?),
            "hot-broker" => Self::HotBroker(number(1..=95)?),
            "small-batches" => Self::SmallBatches(size(1152)?),
            "long-linger" => {
                let time = parse_duration(value).map_err(|it| wrong(format!("{it}")))?;
                Self::LongLinger(time)
            }
            "few-in-flight" => Self::FewInFlight(number(1..=64)?),
            "many-threads" => Self::ManyThreads(number(2..=8)?),
            "net-rate" => Self::NetRate(size(1 << 20)?),
            "cold-memory" if value.is_empty() => Self::ColdMemory,
            "cold-memory" => return Err(wrong("it has no value".into())),
            "net-delay" => {
                let time = parse_duration(value).map_err(|it| wrong(format!("{it}")))?;
                if !NET_DELAY.contains(&time) {
                    return Err(wrong(format!("{value:?} is not from 100us to 1s")));
                }
                Self::NetDelay(time)
            }
            "net-loss" => {
                let share = value.parse().ok();
                let share = share.filter(|it: &Share| NET_LOSS.contains(it));
                let no_share = || wrong(format!("{value:?} is no percentage from 0.001 to 50"));
                Self::NetLoss(share.ok_or_else(no_share)?)
            }
            _ => return Err(ParseFaultError::Unknown { name: name.into() }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_example_is_a_fault_and_is_written_as_it_is_read() {
        for (name, example, _) in KNOWN {
            let text = written(name, example);
            let fault: Fault = text.parse().expect(&text);
            assert_eq!(fault.name(), name);
            let again: Fault = fault.to_string().parse().expect(&text);
            assert_eq!(again, fault);
            assert!(fault.cause().is_fault());
        }
    }

    #[test]
    fn what_is_no_fault_says_what_is_one() {
        let unknown = "slow-disk=1"
            .parse::<Fault>()
            .expect_err("unknown")
            .to_string();
        assert!(unknown.contains("small-rcvbuf=43690"), "{unknown}");
        for text in [
            "cpu-hog",
            "cpu-hog=",
            "cpu-hog=0",
            "cpu-hog=x",
            "small-batches=1",
            "cold-memory=1",
            "net-delay=1us",
            "net-loss=0",
            "net-loss=nan",
            "net-loss=51",
        ] {
            let error = text.parse::<Fault>().expect_err(text).to_string();
            assert!(error.contains("for instance"), "{error}");
        }
    }
}
