//! What a user's program can say about the three libraries when it knows nothing else of this repository: it names
//! every type that appears in the signatures that it uses. Sessions run over loopback; there is no broker and no Redis
//! server here, so the others show what they report when nothing answers.

mod log;
mod redis;
mod sessions;

/// Compiled from `proto/echo.proto`.
#[allow(clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/echo.include.rs"));

    pub use outside::v1::*;
}

use std::error::Error;
use std::net::TcpListener;

fn main() -> Result<(), Box<dyn Error>> {
    sessions::run()?;
    let silent = silent_address()?;
    log::run(&silent)?;
    redis::run(&silent)?;
    println!("all three libraries can be used from outside");
    Ok(())
}

/// An address at which nothing listens any more.
fn silent_address() -> std::io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
