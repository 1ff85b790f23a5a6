//! Compiles `proto/bench.proto`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    embar_build::compile("proto", "bench")
}
