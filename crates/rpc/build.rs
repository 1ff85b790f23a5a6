//! Compiles the services of the tests and of the example.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    embar_build::compile_services("tests/proto", "testing")?;
    embar_build::compile_services("examples/proto", "greeter")
}
