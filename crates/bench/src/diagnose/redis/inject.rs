//! Faults that callers and servers of Redis are given on purpose.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use embar_console::size::{Size, show_duration};
use embar_diagnose::Cause;

use crate::diagnose::fault::{Given, Known, ParseFaultError, exactly, written};

/// A fault, with its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// One server stands still for so many percent of the time.
    SlowNode(u32),
    /// So many percent of the operations are about one key.
    HotKey(u32),
    /// So many percent of the operations are about keys of a third of the slots.
    HotSlots(u32),
    /// A value of this size is read again and again beside the callers.
    BigValue(Size),
    /// One server sleeps in a command for so long, and then as long again serves others.
    BlockedServer(Duration),
    /// A connection may have so many commands in flight.
    FullPipe(u32),
    /// Connections are encrypted.
    Tls,
    /// Callers compute for so long after each operation.
    BusyCallers(Duration),
    /// Callers sleep for so long after each operation.
    SlowCallers(Duration),
    /// Scripts of about so long are run beside the callers, on one server.
    HeavyCommands(Duration),
    /// There are so many callers.
    FewCallers(u32),
    /// This many threads of another process do nothing but compute.
    CpuHog(u32),
}

/// All of them.
const KNOWN: [Known; 12] = [
    (
        "slow-node",
        "60",
        "percent of the time in which one server stands still",
    ),
    ("hot-key", "90", "percent of the operations on one key"),
    (
        "hot-slots",
        "90",
        "percent of the operations on keys of a third of the slots",
    ),
    (
        "big-value",
        "1MiB",
        "a value that is read beside the callers, again and again",
    ),
    (
        "blocked-server",
        "100ms",
        "how long one server sleeps in a command, half of the time",
    ),
    (
        "full-pipe",
        "4",
        "commands that a connection may have in flight",
    ),
    ("tls", "", "connections are encrypted"),
    (
        "busy-callers",
        "50us",
        "how long callers compute after each operation",
    ),
    (
        "slow-callers",
        "5ms",
        "how long callers sleep after each operation",
    ),
    (
        "heavy-commands",
        "200us",
        "scripts of about this length beside the callers, on one server",
    ),
    ("few-callers", "1", "how many callers there are"),
    (
        "cpu-hog",
        "2",
        "threads of another process that only compute",
    ),
];

impl Fault {
    /// What a diagnosis should name.
    pub fn cause(self) -> Cause {
        match self {
            Self::SlowNode(_) => Cause::SlowNode,
            Self::HotKey(_) => Cause::HotKey,
            Self::HotSlots(_) => Cause::HotSlot,
            Self::BigValue(_) => Cause::BigValue,
            Self::BlockedServer(_) => Cause::BlockedServer,
            Self::FullPipe(_) => Cause::FullPipe,
            Self::Tls => Cause::TlsCost,
            Self::BusyCallers(_) => Cause::CallerRuntimeBusy,
            Self::SlowCallers(_) => Cause::ApplicationTooSlow,
            Self::HeavyCommands(_) => Cause::ServerCpuBound,
            Self::FewCallers(_) => Cause::TooFewCallers,
            Self::CpuHog(_) => Cause::ProcessorsTakenByOthers,
        }
    }

    /// Whether only servers of our own can have it.
    pub fn needs_own_servers(self) -> bool {
        matches!(
            self,
            Self::SlowNode(_) | Self::BlockedServer(_) | Self::Tls | Self::HeavyCommands(_)
        )
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::SlowNode(_) => "slow-node",
            Self::HotKey(_) => "hot-key",
            Self::HotSlots(_) => "hot-slots",
            Self::BigValue(_) => "big-value",
            Self::BlockedServer(_) => "blocked-server",
            Self::FullPipe(_) => "full-pipe",
            Self::Tls => "tls",
            Self::BusyCallers(_) => "busy-callers",
            Self::SlowCallers(_) => "slow-callers",
            Self::HeavyCommands(_) => "heavy-commands",
            Self::FewCallers(_) => "few-callers",
            Self::CpuHog(_) => "cpu-hog",
        }
    }
}

impl fmt::Display for Fault {
    /// As it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match self {
            Self::SlowNode(number)
            | Self::HotKey(number)
            | Self::HotSlots(number)
            | Self::FullPipe(number)
            | Self::FewCallers(number)
            | Self::CpuHog(number) => number.to_string(),
            Self::BigValue(size) => exactly(*size),
            Self::BlockedServer(time)
            | Self::BusyCallers(time)
            | Self::SlowCallers(time)
            | Self::HeavyCommands(time) => show_duration(*time),
            Self::Tls => String::new(),
        };
        f.write_str(&written(self.name(), &value))
    }
}

impl FromStr for Fault {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, ParseFaultError> {
        let given = Given::read(text, &KNOWN)?;
        let number = |range| given.number(range);
        let time = |most| given.time(Duration::from_nanos(1)..=most);
        Ok(match given.name {
            "slow-node" => Self::SlowNode(number(1..=95)?),
            "hot-key" => Self::HotKey(number(1..=100)?),
            "hot-slots" => Self::HotSlots(number(1..=100)?),
            "big-value" => Self::BigValue(given.size(1..=256 << 20)?),
            "blocked-server" => Self::BlockedServer(time(Duration::from_secs(1))?),
            "full-pipe" => Self::FullPipe(number(1..=65_536)?),
            "tls" => {
                given.nothing()?;
                Self::Tls
            }
            "busy-callers" => Self::BusyCallers(time(Duration::from_secs(1))?),
            "slow-callers" => Self::SlowCallers(time(Duration::from_secs(1))?),
            "heavy-commands" => Self::HeavyCommands(time(Duration::from_millis(2))?),
            "few-callers" => Self::FewCallers(number(1..=1024)?),
            "cpu-hog" => Self::CpuHog(number(1..=64)?),
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
        assert!(unknown.to_string().contains("slow-node=60"), "{unknown}");
        for text in [
            "cpu-hog",
            "hot-key=101",
            "tls=1.3",
            "big-value=0",
            "big-value=1TiB",
            "busy-callers=0s",
            "blocked-server=2s",
            "full-pipe=x",
        ] {
            let error = text.parse::<Fault>().expect_err(text).to_string();
            assert!(error.contains("for instance"), "{error}");
        }
    }
}
