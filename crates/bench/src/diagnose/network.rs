//! A network that is worse than loopback: a namespace of its own, whose loopback interface carries no more than it is told
//! (tc-tbf(8)), or leads through a `wire` that delays and loses. The program runs itself again in there.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, Result, bail, ensure};

use embar_console::size::{Size, show_duration};
use embar_diagnose::Cause;

use super::fault::{Given, Known, ParseFaultError, Share, exactly};

mod wire;

/// Set for the program that runs in the namespace, to the one that it comes from.
const FROM: &str = "EMBAR_NETWORK_FROM";
/// A bucket must hold the largest packet of loopback, and a few milliseconds of the rate.
const BURST_MIN: u64 = 256 << 10;
/// Says something of loopback if it is up; in a new namespace it is not.
const LOOPBACK_IF_UP: [&str; 6] = ["-o", "link", "show", "dev", "lo", "up"];
/// Where packets get lost they are of this size, as on Ethernet. On loopback they have 64 KiB, so few would matter.
const MTU_WITH_LOSS: &str = "1500";

/// One way in which a network is worse: a fault, with its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Worse {
    /// It carries these bytes a second.
    Rate(Size),
    /// Each packet is so long on its way.
    Delay(Duration),
    /// It loses this part of the packets.
    Loss(Share),
}

impl Worse {
    /// All of them.
    pub const KNOWN: [Known; 3] = [
        (
            "net-rate",
            "20MiB",
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
    ];

    /// Reads one; `None` if it is another fault.
    pub fn read(given: &Given<'_>) -> Result<Option<Self>, ParseFaultError> {
        Ok(Some(match given.name {
            "net-rate" => Self::Rate(given.size(1 << 20..=u64::MAX)?),
            // What threads can keep, and connections survive.
            "net-delay" => {
                Self::Delay(given.time(Duration::from_micros(100)..=Duration::from_secs(1))?)
            }
            "net-loss" => Self::Loss(given.share()?),
            _ => return Ok(None),
        }))
    }

    /// What a diagnosis should name.
    pub fn cause(self) -> Cause {
        match self {
            Self::Rate(_) => Cause::NetworkRateLimit,
            Self::Delay(_) => Cause::NetworkDelay,
            Self::Loss(_) => Cause::NetworkLoss,
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate(_) => "net-rate",
            Self::Delay(_) => "net-delay",
            Self::Loss(_) => "net-loss",
        }
    }

    /// Its value there.
    pub fn value(self) -> String {
        match self {
            Self::Rate(size) => exactly(size),
            Self::Delay(time) => show_duration(time),
            Self::Loss(share) => share.to_string(),
        }
    }
}

/// How a network is worse than loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Network {
    /// Bytes a second that it carries, if that is bounded.
    rate: Option<u64>,
    /// How long each packet is on its way.
    delay: Duration,
    /// Part of the packets that get lost.
    loss: Share,
}

impl Network {
    /// One that is worse in these ways; `None` if there are none.
    pub fn of(ways: impl Iterator<Item = Worse>) -> Option<Self> {
        let mut network = Self::default();
        for way in ways {
            match way {
                Worse::Rate(it) => network.rate = Some(it.0),
                Worse::Delay(it) => network.delay = it,
                Worse::Loss(it) => network.loss = it,
            }
        }
        (network != Self::default()).then_some(network)
    }

    /// Makes it, if this is the program that [`run_inside`] became, and says whether it is. The network lasts as long as the process.
    ///
    /// # Errors
    /// The namespace is not one that was made for this.
    pub fn make_if_inside(&self) -> Result<bool> {
        let Some(from) = env::var_os(FROM) else {
            return Ok(false);
        };
        // Nothing is changed in a network that somebody else uses.
        let is_new = from != namespace()? && run("ip", &LOOPBACK_IF_UP)?.is_empty();
        ensure!(
            is_new,
            "{FROM} is set, and this is no namespace that was made for it: unset it"
        );
        self.make()?;
        Ok(true)
    }

    fn make(&self) -> Result<()> {
        let limited = if self.has_wire() {
            if !self.loss.is_zero() {
                run("ip", &["link", "set", "lo", "mtu", MTU_WITH_LOSS])?;
            }
            wire::lay(self.delay, self.loss)?;
            wire::NAME
        } else {
            "lo"
        };
        if let Some(rate) = self.rate {
            let burst = BURST_MIN.max(rate / 200).to_string();
            let rate = format!("{}bit", rate.saturating_mul(8));
            // `latency` bounds the queue: what is longer is dropped, as by any link.
            let bucket = ["tbf", "rate", &rate, "burst", &burst, "latency", "50ms"];
            let add = ["qdisc", "replace", "dev", limited, "root"];
            run("tc", &[&add[..], &bucket].concat())?;
        }
        run("ip", &["link", "set", "lo", "up"])?;
        Ok(())
    }

    fn has_wire(&self) -> bool {
        !self.delay.is_zero() || !self.loss.is_zero()
    }
}

/// Becomes `program` with these arguments in a network namespace of its own, as the user that this process is of: so signals
/// reach it, it ends when somebody kills this process, and its regions are where those of this user are. Returns only if that
/// cannot be.
pub fn run_inside(program: &Path, arguments: impl Iterator<Item = OsString>) -> Result<Infallible> {
    // Of a program that was replaced meanwhile only this name is left, and by it `unshare` would find itself.
    ensure!(
        !program.starts_with("/proc/self"),
        "the program's file was replaced while it ran: run it again"
    );
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !rustix::process::geteuid().is_root() {
        // Who makes a user namespace may do all in it, and nothing out of it.
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    let error = command
        .arg("--")
        .arg(program)
        .args(arguments)
        .env(FROM, namespace()?)
        .exec();
    Err(error).context("cannot run `unshare` (of util-linux), which a worse network needs")
}

/// Which network namespace this is.
fn namespace() -> Result<OsString> {
    let link = fs::read_link("/proc/self/ns/net").context("cannot tell the network namespace")?;
    Ok(link.into_os_string())
}

/// Runs a program of iproute2, and says what it printed.
fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| {
        format!("cannot run `{program}` (of iproute2), which a worse network needs")
    })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("`{program} {}`: {}", arguments.join(" "), why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
