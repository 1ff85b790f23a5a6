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
//! The messages are then in `include!(concat!(env!("OUT_DIR"), "/chat.include.rs"))`. [`compile_services`] also makes
//! clients and servers of the file's services, for `embar-rpc`.
#![forbid(unsafe_code)]
#![allow(
    clippy::needless_doctest_main,
    reason = "the example is a whole build script"
)]

mod messages;
mod names;
mod services;

use std::error::Error;

/// Compiles `folder/name.proto` to `OUT_DIR/name.include.rs`. Files that it imports lie in the same folder. Services are
/// left out.
///
/// # Errors
/// The file cannot be read or is no proto file, or `OUT_DIR` is not set or cannot be written to.
pub fn compile(folder: &str, name: &str) -> Result<(), Box<dyn Error>> {
    messages::compile(folder, name).map(drop)
}

/// As [`compile`], and also makes of each service in the file, beside the messages of its package:
/// - `XClient`, with a function for each method of the service `X`;
/// - the trait `X`, whose functions get views of requests and answer when they like, and `XServer`, which serves it;
/// - the trait `XAsync`, whose functions are async, and `XAsyncServer`, which serves it on any executor.
///
/// The crate depends on `embar-rpc`. Methods take one message, and answer with one or with a stream; those messages
/// are at the top level of the same file.
///
/// # Errors
/// As [`compile`]. A service that does not fit: the error says which method, and what to do.
pub fn compile_services(folder: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let compiled = messages::compile(folder, name)?;
    services::write(&compiled, name)
}
