//! Compiles `proto/echo.proto`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    embar_build::compile("proto", "echo")
}
