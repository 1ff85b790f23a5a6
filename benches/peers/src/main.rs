//! The work of our own Redis bench over several clients, so that figures can be compared.
#![forbid(unsafe_code)]

mod arguments;
mod clients;
mod explicit;
mod hits;
mod machine;
mod measure;
mod single;
mod table;
mod work;

use crate::arguments::{Arguments, Command};
use clap::Parser;
use embar_transport::alloc::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Table(table)) => table::run(table),
        Some(Command::Hits(hits)) => hits::run(hits),
        None => single::run(&arguments.single),
    }
}
