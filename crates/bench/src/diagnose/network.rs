//! A network that carries no more than it is told to: a namespace of its own, with the kernel's token bucket on its loopback
//! interface (tc-tbf(8)). The program runs itself again in there.

use std::env;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result};

use super::inject::Fault;

/// Set for the program that runs in the namespace.
const INSIDE: &str = "EMBAR_INSIDE_NETWORK";
/// Packets of loopback are this large; a bucket must hold one, and a few milliseconds of the rate.
const BURST_MIN: u64 = 256 << 10;

/// Bytes a second that these faults let through, if the program is to run itself in a namespace for them: nothing if there is
/// no such fault, or it does run there.
pub fn rate_to_set(faults: &[Fault]) -> Option<u64> {
    let rate = faults.iter().find_map(|fault| match fault {
        Fault::NetRate(rate) => Some(rate.0),
        _ => None,
    });
    rate.filter(|_| env::var_os(INSIDE).is_none())
}

/// Runs `program` with these arguments in a namespace whose loopback interface carries `rate` bytes a second.
pub fn run_inside(
    program: &Path,
    arguments: impl Iterator<Item = std::ffi::OsString>,
    rate: u64,
) -> Result<ExitStatus> {
    let burst = BURST_MIN.max(rate / 200);
    // `latency` bounds the queue: what is longer is dropped, as by any link.
    let script = format!(
        "ip link set lo up && tc qdisc add dev lo root tbf rate {}bit burst {burst} latency 50ms && exec \"$@\"",
        rate.saturating_mul(8)
    );
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .args(["--", "sh", "-c", &script, "sh"])
        .arg(program)
        .args(arguments)
        .env(INSIDE, "1")
        .status()
        .context("cannot run `unshare` (of util-linux; `ip` and `tc` are of iproute2), which a slow network needs")
}
