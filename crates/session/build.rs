//! Compiles `proto/session.proto`, and the messages of the tests, without `protoc`: protox parses
//! them into descriptor sets, buffa turns those into Rust.

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::time::SystemTime;

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    compile("proto", "session")?;
    compile("tests/proto", "testing")
}

/// `folder/name.proto` to `OUT_DIR/name.include.rs`. Descriptor sets name files relative to the
/// include folder, never by path.
fn compile(folder: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let proto = format!("{name}.proto");
    println!("cargo::rerun-if-changed={folder}/{proto}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile([&proto], [folder])?;
    let set = out.join(format!("{name}.descriptors"));
    std::fs::write(&set, descriptors.encode_to_vec())?;
    // buffa has cargo watch this file, and it is newer than the start of this program: with its true
    // time, every later call of cargo would build this crate and all above it again.
    File::options()
        .write(true)
        .open(&set)?
        .set_modified(SystemTime::UNIX_EPOCH)?;
    buffa_build::Config::new()
        .descriptor_set(&set)
        .files(&[&proto])
        .include_file(format!("{name}.include.rs"))
        .preserve_unknown_fields(false)
        .compile()
}
