//! Faults that a run is given on purpose, to see whether a diagnosis names them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use embar_client::Transport;
use embar_console::setting::BadSetting;
use embar_console::size::{Size, show_duration};
use embar_diagnose::Cause;
use embar_diagnose::observed::Flow;

use super::fault::{Given, Known, ParseFaultError, Rate, exactly, written};
use super::network::{Network, Worse};

/// A fault, with its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The application publishes no more than this.
    SlowSender(Rate),
    /// The application reads no more than this.
    SlowReader(Rate),
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
    /// The network is worse than loopback.
    Network(Worse),
    /// Brokers have not touched their memory before, and neither has the load.
    ColdMemory,
}

/// All of them.
const KNOWN: [Known; 15] = [
    (
        "slow-sender",
        "200MiB",
        "publish no more than this a second, or than 80% of what it would",
    ),
    (
        "slow-reader",
        "200MiB",
        "read no more than this a second, or than 80% of what it would",
    ),
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
    Worse::KNOWN[0],
    Worse::KNOWN[1],
    Worse::KNOWN[2],
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
            Self::Network(way) => way.cause(),
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
            Self::Network(_) => (false, false, true),
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

    /// The network that these faults ask for, if they ask for any.
    pub fn network(faults: &[Self]) -> Option<Network> {
        Network::of(faults.iter().filter_map(|fault| match *fault {
            Self::Network(way) => Some(way),
            _ => None,
        }))
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
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
            Self::Network(way) => way.name(),
            Self::ColdMemory => "cold-memory",
        }
    }
}

impl fmt::Display for Fault {
    /// As it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match self {
            Self::SlowSender(rate) | Self::SlowReader(rate) => rate.to_string(),
            Self::SmallRcvbuf(size) | Self::SmallSndbuf(size) | Self::SmallBatches(size) => {
                exactly(*size)
            }
            Self::CpuHog(number)
            | Self::CpuQuota(number)
            | Self::HotBroker(number)
            | Self::FewInFlight(number)
            | Self::ManyThreads(number) => number.to_string(),
            Self::LongLinger(time) => show_duration(*time),
            Self::Network(way) => way.value(),
            Self::ColdMemory => String::new(),
        };
        f.write_str(&written(self.name(), &value))
    }
}

impl FromStr for Fault {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, ParseFaultError> {
        let given = Given::read(text, &KNOWN)?;
        if let Some(way) = Worse::read(&given)? {
            return Ok(Self::Network(way));
        }
        let number = |range| given.number(range);
        let size = |least: u64| given.size(least..=u64::MAX);
        Ok(match given.name {
            "slow-sender" => Self::SlowSender(given.rate()?),
            "slow-reader" => Self::SlowReader(given.rate()?),
            "small-rcvbuf" => Self::SmallRcvbuf(size(1)?),
            "small-sndbuf" => Self::SmallSndbuf(size(1)?),
            "cpu-hog" => Self::CpuHog(number(1..=64)?),
            "cpu-quota" => Self::CpuQuota(number(5..=6400)?),
            "hot-broker" => Self::HotBroker(number(1..=95)?),
            "small-batches" => Self::SmallBatches(size(1152)?),
            "long-linger" => Self::LongLinger(given.time(Duration::ZERO..=Duration::MAX)?),
            "few-in-flight" => Self::FewInFlight(number(1..=64)?),
            "many-threads" => Self::ManyThreads(number(2..=8)?),
            "cold-memory" => {
                given.nothing()?;
                Self::ColdMemory
            }
            name => unreachable!("{name} is listed, and nobody reads it"),
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
            "slow-sender=100%",
            "slow-reader=x%",
        ] {
            let error = text.parse::<Fault>().expect_err(text).to_string();
            assert!(error.contains("for instance"), "{error}");
        }
    }
}
