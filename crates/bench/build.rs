//! Compiles `proto/bench.proto` without `protoc`: protox parses it into a descriptor set, buffa turns that into Rust.

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::time::SystemTime;

use protox::prost::Message as _;

/// Descriptor sets name files relative to the include folder, never by path.
const PROTO: &str = "bench.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/{PROTO}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile([PROTO], ["proto"])?;
    let set = out.join("bench.descriptors");
    std::fs::write(&set, descriptors.encode_to_vec())?;
    // buffa has cargo watch this file, and it is newer than the start of this program: with its true time, every later
    // call of cargo would build this crate again.
    File::options()
        .write(true)
        .open(&set)?
        .set_modified(SystemTime::UNIX_EPOCH)?;
    buffa_build::Config::new()
        .descriptor_set(&set)
        .files(&[PROTO])
        .include_file("bench.include.rs")
        .preserve_unknown_fields(false)
        .compile()
}
