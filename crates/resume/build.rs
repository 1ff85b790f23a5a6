//! Compiles `proto/resume.proto`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    embar_build::compile("proto", "resume")
}
