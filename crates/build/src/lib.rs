//! Compiles a crate's protobuf messages in its build script, without `protoc`.
//!
//! protox parses the files, buffa turns them into Rust. A crate that sends messages of its own over sessions depends on
//! `buffa`, has this crate among its `build-dependencies`, and this `build.rs`:
//!
//! ```no_run
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     embar_build::compile("proto", "chat") // proto/chat.proto
//! }
//! ```
//!
//! The messages are then in `include!(concat!(env!("OUT_DIR"), "/chat.include.rs"))`.
#![forbid(unsafe_code)]
#![allow(
    clippy::needless_doctest_main,
    reason = "the example is a whole build script"
)]

use std::error::Error;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;

use protox::prost::Message as _;

/// Compiles `folder/name.proto` to `OUT_DIR/name.include.rs`. Files that it imports lie in the same folder.
///
/// # Errors
/// The file cannot be read or is no proto file, or `OUT_DIR` is not set or cannot be written to.
#[expect(
    clippy::print_stdout,
    reason = "cargo reads the output of a build script"
)]
pub fn compile(folder: &str, name: &str) -> Result<(), Box<dyn Error>> {
    // Relative to the folder, so that nothing generated contains a path of this machine.
    let proto = format!("{name}.proto");
    println!("cargo::rerun-if-changed={folder}/{proto}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile([&proto], [folder])?;
    let set = out.join(format!("{name}.descriptors"));
    fs::write(&set, descriptors.encode_to_vec())?;
    // buffa makes cargo watch this file, and it is newer than the start of the build script. With its true time,
    // cargo would build the crate, and all that depend on it, again with every call.
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
