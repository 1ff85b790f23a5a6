//! Compiles `proto/session.proto`, and the messages of the tests and examples.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    embar_build::compile("proto", "session")?;
    embar_build::compile("tests/proto", "testing")?;
    embar_build::compile("examples/proto", "key_value")
}
