//! Faults that sessions are given on purpose, to see whether a diagnosis names them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use embar_console::setting::BadSetting;
use embar_console::size::{Size, show_duration};
use embar_diagnose::Cause;
use embar_diagnose::session::observed::Way;

use super::messages::LARGE;
use crate::diagnose::fault::{Given, Known, ParseFaultError, Rate, exactly, written};
use crate::diagnose::network::{Network, Worse};
use crate::session::plan::Transport;

/// A fault, with its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The application sends no more than these bytes a second.
    SlowSender(Rate),
    /// The server's handler computes for so long for each message.
    SlowHandler(Duration),
    /// Send rings of the client have this size.
    SmallRing(Size),
    /// The server asks for receive buffers of this size (`SO_RCVBUF`).
    SmallRcvbuf(Size),
    /// The client asks for send buffers of this size (`SO_SNDBUF`).
    SmallSndbuf(Size),
    /// So many messages of each session may be on their way.
    FewInFlight(u32),
    /// A thread that sends waits after so many messages until they have left.
    SmallWrites(u32),
    /// One message of 61 has a payload of this size.
    BigMessage(Size),
    /// Messages have so many small fields.
    ManyFields(u32),
    /// Sessions are encrypted.
    Tls,
    /// This many threads of another process do nothing but compute.
    CpuHog(u32),
    /// Both ends together may use so many percent of one processor.
    CpuQuota(u32),
    /// The network is worse than loopback.
    Network(Worse),
}

/// With less a big message would not be one.
const BIG_MIN: u64 = LARGE as u64 + 1;

/// It has at least so many times the payload of others.
const BIG_TIMES: u64 = 16;

/// All of them.
const KNOWN: [Known; 15] = [
    (
        "slow-sender",
        "20MiB",
        "send no more than this a second, or than 80% of what it would",
    ),
    (
        "slow-handler",
        "5us",
        "how long the server's handler computes for each message",
    ),
    ("small-ring", "4KiB", "bytes of the client's send rings"),
    ("small-rcvbuf", "4KiB", "SO_RCVBUF of the server"),
    ("small-sndbuf", "4KiB", "SO_SNDBUF of the client"),
    (
        "few-in-flight",
        "1",
        "messages of each session on their way: --flow echo",
    ),
    (
        "small-writes",
        "1",
        "messages after which a thread waits until they have left",
    ),
    ("big-message", "60KiB", "payload of one message of 61"),
    (
        "many-fields",
        "200",
        "small fields that each message has besides",
    ),
    ("tls", "", "sessions are encrypted"),
    (
        "cpu-hog",
        "2",
        "threads of another process that only compute",
    ),
    (
        "cpu-quota",
        "80",
        "percent of one processor for both ends together (root)",
    ),
    Worse::KNOWN[0],
    Worse::KNOWN[1],
    Worse::KNOWN[2],
];

impl Fault {
    /// What a diagnosis should name.
    pub fn cause(self) -> Cause {
        match self {
            Self::SlowSender(_) => Cause::ApplicationTooSlow,
            Self::SlowHandler(_) => Cause::SlowHandler,
            Self::SmallRing(_) => Cause::SendRingTooSmall,
            Self::SmallRcvbuf(_) => Cause::ReceiveWindowTooSmall,
            Self::SmallSndbuf(_) => Cause::SendBufferTooSmall,
            Self::FewInFlight(_) => Cause::TooFewInFlight,
            Self::SmallWrites(_) => Cause::SmallWrites,
            Self::BigMessage(_) => Cause::BigValue,
            Self::ManyFields(_) => Cause::DecodingBound,
            Self::Tls => Cause::TlsCost,
            Self::CpuHog(_) => Cause::ProcessorsTakenByOthers,
            Self::CpuQuota(_) => Cause::ProcessorQuota,
            Self::Network(way) => way.cause(),
        }
    }

    /// Refuses a fault that would change nothing with these sessions.
    pub fn must_act(self, way: Way, payload: u32, transport: Transport) -> Result<(), BadSetting> {
        let refused = |setting, why: &str| {
            let why = format!("{} would change nothing: {why}", self.name());
            Err(BadSetting::new(setting, why))
        };
        let one_way = matches!(
            self,
            Self::SlowSender(_) | Self::SmallRing(_) | Self::SmallWrites(_)
        );
        if one_way && way != Way::OneWay {
            return refused(
                &["flow"],
                "whoever waits for each answer waits; --flow one-way",
            );
        }
        if matches!(self, Self::FewInFlight(_)) && way != Way::Echo {
            return refused(&["flow"], "nothing is answered; --flow echo");
        }
        if let Self::BigMessage(size) = self
            && size.0 < u64::from(payload) * BIG_TIMES
        {
            let why = "others are nearly as large: a smaller --payload";
            return refused(&["payload"], why);
        }
        let by_tcp = matches!(self, Self::SmallRcvbuf(_) | Self::Network(_));
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
            Self::SlowHandler(_) => "slow-handler",
            Self::SmallRing(_) => "small-ring",
            Self::SmallRcvbuf(_) => "small-rcvbuf",
            Self::SmallSndbuf(_) => "small-sndbuf",
            Self::FewInFlight(_) => "few-in-flight",
            Self::SmallWrites(_) => "small-writes",
            Self::BigMessage(_) => "big-message",
            Self::ManyFields(_) => "many-fields",
            Self::Tls => "tls",
            Self::CpuHog(_) => "cpu-hog",
            Self::CpuQuota(_) => "cpu-quota",
            Self::Network(way) => way.name(),
        }
    }
}

impl fmt::Display for Fault {
    /// As it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match self {
            Self::SlowSender(rate) => rate.to_string(),
            Self::SmallRing(size)
            | Self::SmallRcvbuf(size)
            | Self::SmallSndbuf(size)
            | Self::BigMessage(size) => exactly(*size),
            Self::SlowHandler(time) => show_duration(*time),
            Self::FewInFlight(number)
            | Self::SmallWrites(number)
            | Self::ManyFields(number)
            | Self::CpuHog(number)
            | Self::CpuQuota(number) => number.to_string(),
            Self::Network(way) => way.value(),
            Self::Tls => String::new(),
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
            "slow-handler" => {
                let least = Duration::from_nanos(100);
                Self::SlowHandler(given.time(least..=Duration::from_secs(1))?)
            }
            "small-ring" => Self::SmallRing(size(4096)?),
            "small-rcvbuf" => Self::SmallRcvbuf(size(1)?),
            "small-sndbuf" => Self::SmallSndbuf(size(1)?),
            "few-in-flight" => Self::FewInFlight(number(1..=1024)?),
            "small-writes" => Self::SmallWrites(number(1..=65_536)?),
            "big-message" => Self::BigMessage(size(BIG_MIN)?),
            "many-fields" => Self::ManyFields(number(1..=1000)?),
            "tls" => {
                given.nothing()?;
                Self::Tls
            }
            "cpu-hog" => Self::CpuHog(number(1..=64)?),
            "cpu-quota" => Self::CpuQuota(number(5..=6400)?),
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
        let unknown = "slow-disk=1".parse::<Fault>().expect_err("unknown");
        assert!(unknown.to_string().contains("small-ring=4KiB"), "{unknown}");
        for text in [
            "cpu-hog",
            "tls=1.3",
            "small-ring=1",
            "slow-handler=2s",
            "few-in-flight=0",
            "net-loss=99",
        ] {
            let error = text.parse::<Fault>().expect_err(text).to_string();
            assert!(error.contains("for instance"), "{error}");
        }
    }
}
