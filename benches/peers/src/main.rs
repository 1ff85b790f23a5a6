//! The work of our own Redis bench over several clients, so that figures can be compared.
#![forbid(unsafe_code)]

mod arguments;
mod clients;
mod explicit;
mod machine;
mod measure;
mod single;
mod table;
mod work;

use crate::arguments::{Arguments, Command};
use clap::Parser;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Table(table)) => table::run(table),
        None => single::run(&arguments.single),
    }
}
