//! Compiles `proto/session.proto`, and the messages of the tests.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    embar_build::compile("proto", "session")?;
    embar_build::compile("tests/proto", "testing")
}
