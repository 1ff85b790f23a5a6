//! Messages: protox parses the files, buffa turns them into Rust.

use std::error::Error;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;

use protox::prost::Message as _;
use protox::prost_reflect::prost_types::FileDescriptorSet;

/// What a file was compiled to.
pub(crate) struct Compiled {
    /// The folder of the generated files.
    pub(crate) out: PathBuf,
    pub(crate) descriptors: FileDescriptorSet,
}

/// Compiles the messages of `folder/name.proto`.
#[expect(
    clippy::print_stdout,
    reason = "cargo reads the output of a build script"
)]
pub(crate) fn compile(folder: &str, name: &str) -> Result<Compiled, Box<dyn Error>> {
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
        .compile()?;
    Ok(Compiled { out, descriptors })
}
