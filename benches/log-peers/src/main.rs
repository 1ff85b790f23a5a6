//! The log beside others: Kafka, NATS JetStream, Redis Streams and Aeron IPC, each measured by the programs that come with it.
//!
//! Read [`arguments`] (what can be asked for), `install` (where the others come from), [`logs`] (how each is started and
//! measured), `process` (servers that end with us), [`rounds`] (all of them in turn) and [`table`] (what that comes to).

mod arguments;
mod install;
mod logs;
mod process;
mod rounds;
mod table;

use crate::arguments::Arguments;
use crate::install::Installed;
use crate::table::Comparison;
use anyhow::ensure;
use clap::Parser;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    process::end_on_signals()?;
    let installed = Installed::of(&arguments.logs, arguments.embar.as_deref())?;
    if arguments.install {
        return Ok(());
    }
    let setups = logs::setups(&arguments, &installed);
    let measured = rounds::measure(&arguments, &setups)?;
    let comparison = Comparison::new(&arguments.workload(), &setups, measured);
    if arguments.json {
        println!("{}", serde_json::to_string(&comparison)?);
    } else {
        print!("{}", comparison.markdown());
    }
    let failed = comparison.problems.len();
    ensure!(failed == 0, "{failed} measurements failed, see above");
    Ok(())
}
