//! Sessions beside other ways to send messages: gRPC (tonic), Cap'n Proto (capnp-rpc), ZeroMQ and ENet.
//!
//! Read [`arguments`] (what can be asked for), [`peers`] (what each of them does), [`single`] (one of them, once) and
//! [`table`] (all of them in turn).

mod arguments;
mod peers;
mod single;
mod table;

use crate::arguments::Arguments;
use clap::Parser;
use embar_transport::alloc::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match (arguments.peer, arguments.test) {
        (Some(peer), Some(test)) => single::run(&arguments, peer, test),
        _ => table::run(&arguments),
    }
}
